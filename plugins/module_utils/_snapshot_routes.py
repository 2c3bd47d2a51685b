# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which host copies a snapshot from which, so that no link carries the same bytes twice. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class Route(TypedDict):
    """How a host gets the files. ``turn`` counts from 1, in the order in which the copies have to be made; 0 for the head.

    ``rails`` pairs the address of the source with the host's own, one for each subnet that the two share.
    """

    source: str
    turn: int
    rails: list[dict[str, str]]


def routes(fabrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Route]:
    """Routes from the first host to all others. ``fabrics`` maps the hosts, in rank order, to their C(tandem_fabric).

    A host sends over each of its subnets once: to the host at the other end of a cable, and on a switch to one other, which
    hands on. Raises ValueError for a host that shares no subnet with any other.
    """
    addresses = {host: {rail["subnet"]: rail["address"] for rail in one["rails"]} for host, one in fabrics.items()}
    found = {host: Route(source="", turn=0, rails=[]) for host in list(fabrics)[:1]}
    used: set[tuple[str, str]] = set()
    while left := [host for host in fabrics if host not in found]:
        turn = max(route["turn"] for route in found.values()) + 1
        for host in left:
            for source in [one for one in found if found[one]["turn"] < turn]:
                shared = [subnet for subnet in addresses[source] if subnet in addresses[host]]
                if shared and not used & {(source, subnet) for subnet in shared}:
                    used |= {(source, subnet) for subnet in shared}
                    rails = [{"source": addresses[source][subnet], "own": addresses[host][subnet]} for subnet in shared]
                    found[host] = Route(source=source, turn=turn, rails=rails)
                    break
        if not any(route["turn"] == turn for route in found.values()):
            raise ValueError(
                f"no rail leads to {', '.join(left)}: expected a subnet that each shares with another host, "
                f"found {[sorted(addresses[host]) for host in left]}"
            )
    return found
