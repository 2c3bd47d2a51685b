# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a rank's rails as network configuration: for netplan, NetworkManager or systemd-networkd."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Plan, Route

Backend = Literal["netplan", "networkmanager", "networkd"]
_MARK = "# Managed by Ansible: role tandem.serving.fabric"


class File(TypedDict):
    """A file of the network configuration; all are readable by root only."""

    path: str
    content: str


class Interface(TypedDict):
    """One interface: addresses with prefix, and the routes that leave by it."""

    name: str
    addresses: list[str]
    routes: list[Route]


def interfaces(plan: Plan) -> list[Interface]:
    """The interfaces of a rank's rails, and the loopback device where the rank has an address there."""
    made = [
        Interface(
            name=rail["netdev"],
            addresses=[f"{rail['address']}/{rail['prefixlen']}"],
            routes=[route for route in plan["routes"] if route["netdev"] == rail["netdev"]],
        )
        for rail in plan["rails"]
    ]
    if plan["loopback"]:
        made.append(Interface(name="lo", addresses=[f"{plan['loopback']}/32"], routes=[]))
    return made


def _netplan(found: Sequence[Interface], mtu: int) -> list[File]:
    ethernets: dict[str, Any] = {}
    for one in found:
        # Also where NetworkManager has the rest: for it netplan writes IPv6 without an address, and the loopback device as a cable,
        # both of which it refuses. systemd-networkd makes one link-local address, by EUI-64, so that GIDs stay.
        entry: dict[str, Any] = {"renderer": "networkd", "addresses": one["addresses"]}
        if one["name"] != "lo":
            entry |= {
                "dhcp4": False,
                "dhcp6": False,
                "accept-ra": False,
                "link-local": ["ipv6"],
                "mtu": mtu,
                "optional": True,
            }
        if one["routes"]:
            entry["routes"] = [
                {"to": f"{route['peer_address']}/32", "via": route["via"], "from": route["address"]}
                for route in one["routes"]
            ]
        ethernets[one["name"]] = entry
    # YAML, of which JSON is a part.
    content = json.dumps({"network": {"version": 2, "ethernets": ethernets}}, indent=2)
    return [File(path="/etc/netplan/60-tandem-fabric.yaml", content=f"{_MARK}\n{content}\n")]


def _keyfile(one: Interface, mtu: int) -> File:
    lines = [_MARK, "[connection]", f"id=tandem-{one['name']}", "type=ethernet", f"interface-name={one['name']}"]
    lines += [
        "autoconnect=true",
        "autoconnect-priority=10",
        "",
        "[ethernet]",
        f"mtu={mtu}",
        "",
        "[ipv4]",
        "method=manual",
    ]
    lines += [f"address{number}={address}" for number, address in enumerate(one["addresses"], 1)]
    for number, route in enumerate(one["routes"], 1):
        lines += [
            f"route{number}={route['peer_address']}/32,{route['via']}",
            f"route{number}_options=src={route['address']}",
        ]
    lines += ["never-default=true", "", "[ipv6]", "method=link-local", "addr-gen-mode=eui64", ""]
    return File(
        path=f"/etc/NetworkManager/system-connections/tandem-{one['name']}.nmconnection", content="\n".join(lines)
    )


def _loopback_keyfile(one: Interface) -> File:
    lines = [_MARK, "[connection]", "id=tandem-lo", "type=loopback", "interface-name=lo", "", "[ipv4]", "method=manual"]
    lines += [f"address{number}={address}" for number, address in enumerate(["127.0.0.1/8", *one["addresses"]], 1)]
    path = "/etc/NetworkManager/system-connections/tandem-lo.nmconnection"
    return File(path=path, content="\n".join([*lines, ""]))


def _unit(one: Interface, mtu: int) -> File:
    lines = [_MARK, "[Match]", f"Name={one['name']}", ""]
    if one["name"] == "lo":
        lines += ["[Network]", "KeepConfiguration=yes"]
    else:
        lines += ["[Link]", f"MTUBytes={mtu}", "RequiredForOnline=no", "", "[Network]", "LinkLocalAddressing=ipv6"]
        lines += ["IPv6LinkLocalAddressGenerationMode=eui64", "IPv6AcceptRA=no"]
    lines += [f"Address={address}" for address in one["addresses"]]
    for route in one["routes"]:
        lines += ["", "[Route]", f"Destination={route['peer_address']}/32", f"Gateway={route['via']}"]
        lines += [f"PreferredSource={route['address']}"]
    return File(path=f"/etc/systemd/network/05-tandem-{one['name']}.network", content="\n".join([*lines, ""]))


def files(plan: Plan, backend: Backend, mtu: int) -> list[File]:
    """The files that make ``backend`` configure the rails of a plan."""
    found = interfaces(plan)
    if backend == "netplan":
        return _netplan(found, mtu)
    if backend == "networkmanager":
        return [_loopback_keyfile(one) if one["name"] == "lo" else _keyfile(one, mtu) for one in found]
    return [_unit(one, mtu) for one in found]


def apply_commands(backend: Backend, netdevs: Sequence[str]) -> list[list[str]]:
    """What makes the running system follow the files. The loopback device comes first: routes want its address."""
    if backend == "netplan":
        return [["netplan", "apply"]]
    ordered = sorted(netdevs, key=lambda name: name != "lo")
    if backend == "networkmanager":
        return [
            ["nmcli", "connection", "reload"],
            *[["nmcli", "connection", "up", f"tandem-{name}"] for name in ordered],
        ]
    return [["networkctl", "reload"], *[["networkctl", "reconfigure", name] for name in ordered]]
