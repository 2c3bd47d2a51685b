# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the RDMA devices of one host: what is odd, by itself and between the two halves of a port."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check
from ansible_collections.tandem.serving.plugins.module_utils._fabric_causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import network
from ansible_collections.tandem.serving.plugins.module_utils._rdma import Device, Netdev, Port, ipv4, roce_v2

_FULL_MTU = 4096


class Half(NamedTuple):
    """A RoCE port with its device and interface."""

    device: Device
    port: Port
    netdev: Netdev

    @property
    def order(self) -> tuple[str, bool, str]:
        """Sorts as the kernel finds devices: by PCI domain, which the names carry too where it is not 0."""
        return self.device["pci"], "P" in self.port["hca"], self.port["hca"]

    @property
    def active(self) -> bool:
        return self.port["state"] == "ACTIVE"

    @property
    def gid_index(self) -> int | None:
        """Of the RoCE v2 GID with the interface's first IPv4 address that has one."""
        found = [roce_v2(self.port, item["address"]) for item in ipv4(self.netdev)]
        return next((index for index in found if index is not None), None)

    @property
    def subnets(self) -> set[str]:
        return {str(network(item["address"], item["prefixlen"])) for item in ipv4(self.netdev) if item["prefixlen"]}


def where(port: Port) -> str:
    """The port as a person at the machine finds it."""
    if port["cage"] is None:
        return port["netdev"] or port["hca"]
    side = " (next to the Ethernet jack)" if port["twin"] and port["cage"] == 0 else ""
    return f"port {port['cage']}{side}, {port['netdev']}"


def halves(devices: Sequence[Device], netdevs: Sequence[Netdev]) -> dict[str, Half]:
    """RoCE ports that have an interface, by device name; further ports of a device with their number behind it."""
    known = {netdev["name"]: netdev for netdev in netdevs}
    return {
        device["name"] if number == 0 else f"{device['name']}:{port['port']}": Half(device, port, known[port["netdev"]])
        for device in devices
        for number, port in enumerate(device["ports"])
        if port["link_layer"] == "Ethernet" and port["netdev"] in known
    }


def judge(devices: Sequence[Device], netdevs: Sequence[Netdev]) -> list[Check]:
    """The checks of one host. A port without link and without address is unused, which is right."""
    if not devices:
        return [fault("rdma devices", "no_rdma_device", "an RDMA device", "none", verdict="inconclusive")]
    found = halves(devices, netdevs)
    checks: list[Check] = list(_unseen(devices, found.values()))
    for half in found.values():
        twin = found.get(half.port["twin"])
        checks += _link(half, twin)
        if half.active:
            checks += _addressed(half, twin)
            checks += _mtu(half)
    for half in found.values():
        twin = found.get(half.port["twin"])
        if twin and half.order < twin.order:
            checks += _twins(half, twin)
    return checks + list(_firmware(devices))


def _unseen(devices: Sequence[Device], seen: Collection[Half]) -> Iterator[Check]:
    """Ports that are up and of which nothing else can be said."""
    ports = [half.port for half in seen]
    for device in devices:
        for port in device["ports"]:
            if port["link_layer"] == "Ethernet" and port["state"] == "ACTIVE" and port not in ports:
                yield fault(
                    f"interface of {port['hca']}",
                    "port_without_interface",
                    "an interface",
                    port["netdev"] or "none",
                    verdict="warn",
                    evidence=[f"ports/{port['port']}/state: {port['state']}, {len(port['gids'])} GIDs"],
                    hca=port["hca"],
                )


def _link(half: Half, twin: Half | None) -> Iterator[Check]:
    port, netdev = half.port, half.netdev
    name = f"link of {port['hca']}"
    words: dict[str, Any] = {"where": where(port), "netdev": netdev["name"]}
    evidence = [
        f"ports/{port['port']}/state: {port['state']}, {port['phys_state']}",
        f"{netdev['name']}: carrier {netdev['carrier']}, speed {netdev['speed']}, {netdev['link'] or netdev['operstate']}",
    ]
    if half.active and netdev["carrier"] is not False:
        yield check(name, "pass", "a link", f"{netdev['speed'] or 'unknown'} Mb/s", evidence=evidence)
        return
    text = netdev["link"] or port["phys_state"] or "no link"
    if "overheat" in text.lower():
        yield fault(name, "overheat", "a link", text, evidence=evidence, **words)
    elif ipv4(netdev) or (twin and twin.active):
        yield fault(name, "port_down", f"a link in {where(port)}", text, evidence=evidence, **words)
    else:
        yield check(name, "pass", "a link, or a port that nothing uses", f"unused: {text}", evidence=evidence)


def _addressed(half: Half, twin: Half | None) -> Iterator[Check]:
    port, netdev = half.port, half.netdev
    addresses = [item["address"] for item in ipv4(netdev)]
    rows = [f"gids/{gid['index']}: {gid['type']} {gid['address']} {gid['netdev']}" for gid in port["gids"]]
    name = f"GID of {port['hca']}"
    words: dict[str, Any] = {"hca": port["hca"], "netdev": netdev["name"]}
    if not addresses:
        yield fault(
            f"address of {netdev['name']}",
            "no_address",
            "an IPv4 address",
            "none",
            verdict="warn",
            evidence=rows,
            **words,
        )
        return
    wanted = f"a RoCE v2 GID with {' or '.join(addresses)}"
    if half.gid_index is None:
        yield fault(name, "gid_index_empty", wanted, f"{len(rows)} other GIDs", evidence=rows, **words)
    else:
        yield check(name, "pass", wanted, f"index {half.gid_index}", evidence=rows)
    link_local = {gid["address"] for gid in port["gids"] if gid["address"].startswith("fe80:")}
    if len(link_local) > 1:
        yield fault(
            f"link-local GIDs of {port['hca']}",
            "second_link_local",
            "one link-local address",
            ", ".join(sorted(link_local)),
            verdict="warn",
            evidence=rows,
            **words,
        )


def _mtu(half: Half) -> Iterator[Check]:
    port, netdev = half.port, half.netdev
    name = f"MTU of {netdev['name']}"
    evidence = [f"{netdev['name']}: mtu {netdev['mtu']}, active_mtu of {port['hca']} {port['active_mtu']}"]
    expected = f"9000, so that active_mtu is {_FULL_MTU}"
    found = f"{netdev['mtu']}, active_mtu {port['active_mtu']}"
    if port["active_mtu"] >= _FULL_MTU:
        yield check(name, "pass", expected, found, evidence=evidence)
    else:
        yield fault(name, "netdev_mtu_1500", expected, found, verdict="warn", evidence=evidence, netdev=netdev["name"])


def _twins(one: Half, other: Half) -> Iterator[Check]:
    pair = (one, other)
    name = f"halves {one.port['hca']} and {other.port['hca']}"
    devices = [f"{half.port['hca']}: {half.device['pci'] or 'no PCI address'}, {half.netdev['name']}" for half in pair]
    usable = [half for half in pair if half.active and ipv4(half.netdev)]
    if len(usable) == 1:
        idle = other if usable[0] is one else one
        yield fault(
            name,
            "one_of_two_port_halves",
            "an address on both halves",
            f"none on {idle.netdev['name']}",
            verdict="warn",
            evidence=devices,
            netdev=idle.netdev["name"],
        )
    if len(usable) == 2:
        yield from _both_in_use(one, other, name)
    lanes = [half.device["pcie_width"] for half in pair]
    if all(lanes) and lanes[0] != lanes[1]:
        yield fault(
            f"PCIe of {name}", "pcie_width", f"x{max(lanes)} on both", f"x{lanes[0]} and x{lanes[1]}", evidence=devices
        )


def _both_in_use(one: Half, other: Half, name: str) -> Iterator[Check]:
    addresses = [
        f"{half.netdev['name']}: {item['address']}/{item['prefixlen']}"
        for half in (one, other)
        for item in ipv4(half.netdev)
    ]
    common = one.subnets & other.subnets
    if common:
        moved = ipv4(other.netdev)[0]["address"]
        yield fault(
            f"subnets of {name}",
            "halves_in_one_subnet",
            "a subnet for each half",
            f"both in {', '.join(sorted(common))}",
            evidence=addresses,
            address=moved,
            netdev=other.netdev["name"],
        )
    else:
        yield check(f"subnets of {name}", "pass", "a subnet for each half", ", ".join(addresses), evidence=addresses)
    indexes = (one.gid_index, other.gid_index)
    if None not in indexes and indexes[0] != indexes[1]:
        yield fault(
            f"GID indexes of {name}",
            "gid_index_differs",
            "the same index on both halves",
            f"{indexes[0]} and {indexes[1]}",
            verdict="warn",
            evidence=[f"{half.port['hca']}: index {half.gid_index}" for half in (one, other)],
        )
    if one.netdev["mtu"] != other.netdev["mtu"]:
        low, high = sorted((one, other), key=lambda half: half.netdev["mtu"])
        yield fault(
            f"MTU of {name}",
            "mtu_mismatch",
            "the same MTU on both halves",
            f"{low.netdev['name']} {low.netdev['mtu']}, {high.netdev['name']} {high.netdev['mtu']}",
            verdict="warn",
            netdev=low.netdev["name"],
            mtu=high.netdev["mtu"],
        )


def _firmware(devices: Sequence[Device]) -> Iterator[Check]:
    by_board: dict[str, set[str]] = {}
    for device in devices:
        if device["board"]:
            by_board.setdefault(device["board"], set()).add(device["firmware"])
    for board, versions in by_board.items():
        evidence = [f"{item['name']}: fw_ver {item['firmware']}" for item in devices if item["board"] == board]
        found = ", ".join(sorted(versions))
        if len(versions) > 1:
            yield fault(f"firmware of {board}", "firmware_mix", "one version", found, verdict="warn", evidence=evidence)
        else:
            yield check(f"firmware of {board}", "pass", "one version", found, evidence=evidence)
