# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what the kernel tells over netlink, as ``ip -j`` prints it."""

from __future__ import annotations

import json
import re
from typing import Any, TypedDict


class Address(TypedDict):
    """One address of a network interface. ``scope`` is global, link or host."""

    address: str
    prefixlen: int
    family: str
    scope: str


class Neighbour(TypedDict):
    """One machine that an interface has heard of. ``state`` is the kernel's word, such as REACHABLE or STALE."""

    netdev: str
    address: str
    mac: str
    state: str


def _rows(text: str) -> list[dict[str, Any]]:
    """Rows of JSON output; nothing where a tool printed nothing or was cut off."""
    try:
        rows = json.loads(text or "[]")
    except ValueError:
        return []
    return [row for row in rows if isinstance(row, dict) and row] if isinstance(rows, list) else []


def parse_addresses(text: str) -> dict[str, list[Address]]:
    """The output of ``ip -j addr``: interface to its addresses."""
    return {
        row["ifname"]: [
            Address(
                address=item["local"],
                prefixlen=int(item.get("prefixlen", 0)),
                family=item.get("family", ""),
                scope=item.get("scope", "global"),
            )
            for item in row.get("addr_info", [])
            if "local" in item
        ]
        for row in _rows(text)
        if "ifname" in row
    }


def parse_neighbours(text: str) -> list[Neighbour]:
    """The output of ``ip -j neigh``. Entries without a MAC address were never answered, and are left out."""
    return [
        Neighbour(
            netdev=row["dev"],
            address=row.get("dst", ""),
            mac=row["lladdr"].lower(),
            state=" ".join(row.get("state", [])),
        )
        for row in _rows(text)
        if "dev" in row and "lladdr" in row and "FAILED" not in row.get("state", [])
    ]


def parse_route(text: str) -> dict[str, str]:
    """The output of ``ip -j route get``: ``netdev`` and ``source``, empty where there is no route."""
    row = next(iter(_rows(text)), {})
    return {"netdev": str(row.get("dev", "")), "source": str(row.get("prefsrc", ""))}


def parse_default_routes(text: str) -> list[str]:
    """The output of ``ip -j route show default``: the interfaces in it."""
    return [row["dev"] for row in _rows(text) if "dev" in row]


def parse_lossless(pfc: str, app: str) -> bool | None:
    """Whether DSCP 26 has priority 3, and that one flow control, by ``dcb pfc show`` and ``dcb -N app show``. None: not told."""
    if not re.search(r"\b3:o(n|ff)\b", pfc):
        return None
    return bool(re.search(r"\b3:on\b", pfc) and re.search(r"\b26:3\b", app))


def parse_lldp(text: str) -> list[Neighbour]:
    """The output of ``lldpcli -f json0 show neighbors``: ports that name themselves by their MAC address."""
    try:
        interfaces = [item for block in json.loads(text or "{}")["lldp"] for item in block["interface"]]
    except (ValueError, KeyError, TypeError):
        return []
    found = []
    for interface in interfaces:
        for port in interface.get("port", []):
            found += [
                Neighbour(netdev=interface["name"], address="", mac=str(name["value"]).lower(), state="LLDP")
                for name in port.get("id", [])
                if name.get("type") == "mac"
            ]
    return found
