"""Saved sysfs trees: compact JSON in fixtures/sysfs, written out below a folder as the kernel lays them out."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils import _netlink, _rdma

FIXTURES = Path(__file__).parents[1] / "fixtures" / "sysfs"
Spec = dict[str, Any]


def load(name: str) -> Spec:
    """One fixture."""
    return json.loads((FIXTURES / f"{name}.json").read_text())


def _put(path: Path, text: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        # A folder in place of the file: reading it fails, as reading speed and carrier of a link that is down does.
        path.mkdir()
    else:
        path.write_text(f"{text}\n")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def gids(netdev: str, spec: Spec) -> list[list[str]]:
    """The usual table: link-local as v1 and v2, then each IPv4 address as v1 and v2."""
    host = spec["mac"].replace(":", "")
    link_local = f"fe80::{host[:4]}:{host[4:6]}ff:fe{host[6:8]}:{host[8:]}"
    mapped = [f"::ffff:{item.split('/')[0]}" for item in spec.get("addresses", [])]
    return [[gid, kind] for gid in [link_local, *mapped] for kind in ("IB/RoCE v1", "RoCE v2")]


def write(root: Path, spec: Spec) -> Path:
    """Write a tree below ``root``."""
    rows = []
    for name, netdev in spec["netdevs"].items():
        folder = root / "sys/class/net" / name
        up = netdev.get("up", True)
        _put(folder / "address", netdev["mac"])
        _put(folder / "mtu", netdev.get("mtu", 9000))
        _put(folder / "operstate", "up" if up else "down")
        _put(folder / "carrier", 1 if up else None)
        _put(folder / "speed", netdev.get("speed", 200000) if up else None)
        if "pci" in netdev:
            pci = root / "sys/devices" / netdev["pci"]
            _link(folder / "device", pci)
            (pci / "net").mkdir(exist_ok=True)
            (pci / "net" / name).symlink_to(folder)
        if "ethtool" in netdev:
            _put(root / "ethtool" / f"{name}.txt", f"\tLink detected: {netdev['ethtool']}")
        info = [
            {"family": "inet", "local": item.split("/")[0], "prefixlen": int(item.split("/")[1]), "scope": "global"}
            for item in netdev.get("addresses", [])
        ]
        rows.append({"ifname": name, "addr_info": info})
    for name, device in spec["devices"].items():
        folder = root / "sys/class/infiniband" / name
        netdev = spec["netdevs"][device["netdev"]]
        up = netdev.get("up", True)
        if "pci" in netdev:
            pci = root / "sys/devices" / netdev["pci"]
            _link(folder / "device", pci)
            _put(pci / "current_link_width", device.get("width", 4))
            _link(pci / "driver", root / "sys/bus/pci/drivers" / spec.get("driver", "mlx5_core"))
        else:
            _put(folder / "parent", device["netdev"])
        _put(folder / "fw_ver", device.get("firmware", spec.get("firmware", "")))
        _put(folder / "board_id", spec.get("board", ""))
        _put(folder / "sys_image_guid", device.get("guid", spec.get("guid", "")))
        port = folder / "ports/1"
        _put(port / "state", device.get("state", "4: ACTIVE" if up else "1: DOWN"))
        _put(port / "phys_state", "5: LinkUp" if up else "3: Disabled")
        _put(port / "link_layer", "Ethernet")
        _put(port / "rate", "200 Gb/sec (4X HDR)")
        for counter, value in device.get("counters", {"port_rcv_errors": 0, "port_xmit_data": 1000}).items():
            _put(port / "counters" / counter, value)
        table = device.get("gids", gids(device["netdev"], netdev) if up else [])
        for index in range(max(8, len(table))):
            gid, kind = table[index] if index < len(table) else [None, None]
            _put(port / "gids" / str(index), gid or "0000:0000:0000:0000:0000:0000:0000:0000")
            _put(port / "gid_attrs/types" / str(index), kind)
            _put(port / "gid_attrs/ndevs" / str(index), device["netdev"] if gid else None)
    _put(root / "ip_addr.json", json.dumps(rows))
    return root


def facts(root: Path, spec: Spec) -> dict[str, Any]:
    """What the module ``rdma_info`` returns for a tree, without judging."""
    write(root, spec)
    found = _rdma.read(root, _netlink.parse_addresses((root / "ip_addr.json").read_text()))
    for netdev in found["netdevs"]:
        netdev["link"] = _rdma.parse_link(_rdma.text(root / "ethtool" / f"{netdev['name']}.txt"))
    return {**found, "neighbours": [], "protected": spec.get("protected", [])}


def machines(names: list[str], fixture: str) -> dict[str, Spec]:
    """Machines of one kind, with MAC addresses of their own and a management address."""
    made = {}
    for number, name in enumerate(names, 1):
        spec = load(fixture)
        for position, netdev in enumerate(spec["netdevs"].values()):
            netdev["mac"] = f"02:00:00:00:{number:02x}:{position:02x}"
        management = spec["netdevs"][spec["protected"][0]]
        management["addresses"] = [f"10.0.0.{number}/24"]
        made[name] = spec
    return copy.deepcopy(made)


def cable(found: dict[str, dict[str, Any]], *pairs: tuple[str, int, str, int]) -> None:
    """Let ports hear each other: (host, cage, host, cage). Each half hears both halves at the other end."""
    for one, cage, other, other_cage in pairs:
        for here, number, there, other_number in ((one, cage, other, other_cage), (other, other_cage, one, cage)):
            macs = {item["name"]: item["mac"] for item in found[there]["netdevs"]}
            heard = [macs[port["netdev"]] for port in _ports(found[there], other_number)]
            found[here]["neighbours"] += [
                {"netdev": port["netdev"], "address": "fe80::1", "mac": mac, "state": "STALE"}
                for port in _ports(found[here], number)
                for mac in heard
            ]


def _ports(found: dict[str, Any], cage: int) -> list[dict[str, Any]]:
    return [
        port
        for device in found["devices"]
        for port in device["ports"]
        if port["cage"] == cage and port["netdev"] not in found["protected"]
    ]
