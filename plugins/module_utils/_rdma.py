# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the RDMA devices and network interfaces of a host from sysfs.

``read`` does the reading, below any root, so that a saved tree works as well as ``/``. ``_rdma_verdict`` judges.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from ansible_collections.tandem.serving.plugins.module_utils._netlink import Address

_PCI = re.compile(r"^(?P<domain>[0-9a-f]{4,}):(?P<slot>[0-9a-f]{2}:[0-9a-f]{2}\.\d)$")
# One port of a ConnectX in a DGX Spark: rocep1s0f0 and roceP2p1s0f0, enp1s0f0np0 and enP2p1s0f0np0.
_NAME = re.compile(r"^(?P<kind>roce|en)(?:P(?P<domain>\d+))?(?P<slot>p\d+s\d+(?:f\d+)?(?:np\d+)?)$")
_PORT_IN_NAME = re.compile(r"np(\d+)$|f(\d+)$")
# GRH, UDP, BTH, the two extended headers and the checksum: what the kernel takes off an Ethernet MTU.
_ROCE_HEADERS = 120
_IB_MTUS = (4096, 2048, 1024, 512, 256)
# The NIC is asked for no others: each read of a counter file is a command to the firmware.
COUNTERS = (
    "port_rcv_errors",
    "port_xmit_discards",
    "port_xmit_data",
    "port_rcv_data",
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "rnr_nak_retry_err",
)


class Gid(TypedDict):
    """One used row of a GID table. ``type`` is RoCE v1 or RoCE v2, ``address`` the IP address in it."""

    index: int
    gid: str
    type: str
    netdev: str
    address: str


class Port(TypedDict):
    """One RDMA port. ``active_mtu`` in bytes of payload, 0 without netdev. ``speed`` in Mb/s, None when down."""

    hca: str
    port: int
    state: str
    phys_state: str
    link_layer: str
    rate: str
    netdev: str
    active_mtu: int
    speed: int | None
    gids: list[Gid]
    counters: dict[str, int]
    twin: str
    cage: int | None


class Device(TypedDict):
    """One RDMA device. ``pci`` is empty for software devices, ``pcie_width`` in lanes, 0 where unknown."""

    name: str
    driver: str
    firmware: str
    board: str
    guid: str
    system_guid: str
    pci: str
    pcie_width: int
    pcie_speed: str
    ports: list[Port]


class Netdev(TypedDict):
    """One network interface. ``speed`` in Mb/s and ``carrier`` are None where the kernel does not tell (it is down)."""

    name: str
    mac: str
    mtu: int
    speed: int | None
    carrier: bool | None
    operstate: str
    driver: str
    pci: str
    link: str
    addresses: list[Address]


def text(path: Path) -> str:
    """What a file of sysfs holds; nothing where it is absent or refuses (EINVAL of a link that is down)."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def number(path: Path) -> int | None:
    """The same as a number. The kernel writes -1 for a speed that it does not know."""
    value = text(path)
    return int(value) if value.isdecimal() else None


def _target(path: Path) -> str:
    """Name of what a link points to, whether or not that was saved too."""
    try:
        return path.readlink().name
    except OSError:
        return ""


def _uevent(device: Path, name: str) -> str:
    """What the kernel says of a device beside its links, which a copy may have lost."""
    said = re.search(rf"^{name}=(\S+)$", text(device / "uevent"), re.MULTILINE)
    return said[1] if said else ""


def _driver(device: Path) -> str:
    return _target(device / "driver") or _uevent(device, "DRIVER")


def _pci(device: Path) -> str:
    name = _target(device) or _uevent(device, "PCI_SLOT_NAME")
    return name if _PCI.match(name) else ""


def address_of(gid: str) -> str:
    """The IP address in a GID: IPv4 where it is mapped, else the IPv6 address. Empty for an empty slot."""
    try:
        address = ipaddress.IPv6Address(gid)
    except ValueError:
        return ""
    if int(address) == 0:
        return ""
    return str(address.ipv4_mapped or address)


def active_mtu(netdev_mtu: int) -> int:
    """The RDMA payload that fits an Ethernet MTU, as the kernel computes it: 9000 gives 4096, 1500 gives 1024."""
    return next((size for size in _IB_MTUS if size <= netdev_mtu - _ROCE_HEADERS), 0)


def _numbered(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*") if path.name.isdecimal()), key=lambda path: int(path.name))


def _gids(port: Path) -> list[Gid]:
    found = []
    for file in _numbered(port / "gids"):
        gid = text(file)
        address = address_of(gid)
        if not address:
            continue
        kind = text(port / "gid_attrs" / "types" / file.name)
        found.append(
            Gid(
                index=int(file.name),
                gid=gid,
                # The kernel says "IB/RoCE v1".
                type=kind.rsplit("/", 1)[-1],
                netdev=text(port / "gid_attrs" / "ndevs" / file.name),
                address=address,
            )
        )
    return found


def _counters(port: Path) -> dict[str, int]:
    files = [port / folder / name for folder in ("counters", "hw_counters") for name in COUNTERS]
    return {file.name: value for file in files if (value := number(file)) is not None}


def read_netdevs(root: Path, addresses: Mapping[str, list[Address]]) -> list[Netdev]:
    """Network interfaces below ``root``, with the addresses that netlink told."""
    found = []
    for folder in sorted(root.glob("sys/class/net/*")):
        if not (folder / "address").exists():
            continue
        carrier = text(folder / "carrier")
        found.append(
            Netdev(
                name=folder.name,
                mac=text(folder / "address").lower(),
                mtu=number(folder / "mtu") or 0,
                speed=number(folder / "speed") or None,
                carrier=None if not carrier else carrier == "1",
                operstate=text(folder / "operstate"),
                driver=_driver(folder / "device"),
                pci=_pci(folder / "device"),
                link="",
                addresses=list(addresses.get(folder.name, [])),
            )
        )
    return found


def _netdev_of(device: Path, port: Path, gids: Iterable[Gid]) -> str:
    """The interface of a port: by its GIDs, by the device they share, or, for a software device, by its parent."""
    by_gid = next((gid["netdev"] for gid in gids if gid["netdev"]), "")
    if by_gid:
        return by_gid
    number_of_port = int(port.name) - 1
    siblings = sorted(device.glob("device/net/*"))
    for folder in siblings:
        if number(folder / "dev_port") in (None, number_of_port):
            return folder.name
    return siblings[0].name if len(siblings) == 1 else text(device / "parent")


def read_devices(root: Path, netdevs: Iterable[Netdev]) -> list[Device]:
    """RDMA devices below ``root``, twins recognised."""
    known = {netdev["name"]: netdev for netdev in netdevs}
    devices = []
    for folder in sorted(root.glob("sys/class/infiniband/*")):
        ports = []
        for port in _numbered(folder / "ports"):
            gids = _gids(port)
            name = _netdev_of(folder, port, gids)
            netdev = known.get(name)
            ports.append(
                Port(
                    hca=folder.name,
                    port=int(port.name),
                    state=text(port / "state").rpartition(": ")[2],
                    phys_state=text(port / "phys_state").rpartition(": ")[2],
                    link_layer=text(port / "link_layer"),
                    rate=text(port / "rate"),
                    netdev=name,
                    active_mtu=active_mtu(netdev["mtu"]) if netdev else 0,
                    speed=netdev["speed"] if netdev else None,
                    gids=gids,
                    counters=_counters(port),
                    twin="",
                    cage=_cage(root, name),
                )
            )
        devices.append(
            Device(
                name=folder.name,
                driver=_driver(folder / "device"),
                firmware=text(folder / "fw_ver"),
                board=text(folder / "board_id"),
                guid=text(folder / "node_guid"),
                system_guid=text(folder / "sys_image_guid"),
                pci=_pci(folder / "device"),
                pcie_width=number(folder / "device" / "current_link_width") or 0,
                pcie_speed=text(folder / "device" / "current_link_speed"),
                ports=ports,
            )
        )
    _pair_twins(devices)
    return devices


def _cage(root: Path, netdev: str) -> int | None:
    """Number of the port's cage: what the driver says, else what udev put into the name."""
    said = re.fullmatch(r"p(\d+)", text(root / "sys/class/net" / netdev / "phys_port_name")) if netdev else None
    if said:
        return int(said[1])
    named = _PORT_IN_NAME.search(netdev)
    return int(named[1] or named[2]) if named else None


def _halves(one: Device, other: Device) -> bool:
    """Whether two devices are the two PCIe functions of one port.

    They sit at the same place of two PCI domains, on one board: two boards have different system GUIDs. Software devices
    have no PCI address, and are judged by their names.
    """
    if one["pci"] and other["pci"]:
        first, second = _PCI.match(one["pci"]), _PCI.match(other["pci"])
        same_place = bool(first and second and first["slot"] == second["slot"] and first["domain"] != second["domain"])
        return same_place and one["system_guid"] == other["system_guid"]
    first, second = _NAME.match(one["name"]), _NAME.match(other["name"])
    return bool(first and second and first["slot"] == second["slot"] and first["domain"] != second["domain"])


def _pair_twins(devices: list[Device]) -> None:
    for one in devices:
        twins = [other for other in devices if other is not one and _halves(one, other)]
        if len(twins) == 1:
            for port in one["ports"]:
                port["twin"] = twins[0]["name"]


def read(root: Path, addresses: Mapping[str, list[Address]]) -> dict[str, Any]:
    """``devices`` and ``netdevs`` of the tree below ``root``."""
    netdevs = read_netdevs(root, addresses)
    devices = read_devices(root, netdevs)
    if not addresses:
        _address_from_gids(devices, netdevs)
    return {"devices": devices, "netdevs": netdevs}


def _address_from_gids(devices: Iterable[Device], netdevs: Iterable[Netdev]) -> None:
    """Where nobody could ask netlink (a saved tree), the GID table still tells the addresses; not their prefix."""
    known = {netdev["name"]: netdev for netdev in netdevs}
    for device in devices:
        for port in device["ports"]:
            netdev = known.get(port["netdev"])
            seen = {gid["address"] for gid in port["gids"] if ":" not in gid["address"]}
            if netdev is not None:
                netdev["addresses"] += [
                    Address(address=address, prefixlen=0, family="inet", scope="global") for address in sorted(seen)
                ]


def roce_v2(port: Port, address: str) -> int | None:
    """Index of the GID that carries an address over RoCE v2."""
    return next((gid["index"] for gid in port["gids"] if gid["type"] == "RoCE v2" and gid["address"] == address), None)


def ipv4(netdev: Netdev | Mapping[str, Any]) -> list[Address]:
    """The IPv4 addresses of an interface that others can use."""
    return [item for item in netdev["addresses"] if item["family"] == "inet" and item["scope"] != "host"]


def parse_link(said: str) -> str:
    """What ethtool says of a link that is not there, such as ``no (No cable)``."""
    match = re.search(r"^\s*Link detected: (.+)$", said, re.MULTILINE)
    return match[1].strip() if match else ""
