"""Reading and judging RDMA devices from saved trees."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from unit.fabric import tree

from ansible_collections.tandem.serving.plugins.module_utils import _netlink, _rdma, _rdma_verdict


def port(found: dict[str, Any], hca: str) -> dict[str, Any]:
    return next(device["ports"][0] for device in found["devices"] if device["name"] == hca)


def judged(tmp_path: Path, spec: tree.Spec) -> list[dict[str, Any]]:
    found = tree.facts(tmp_path, spec)
    return _rdma_verdict.judge(found["devices"], found["netdevs"])


def odd(checks: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    return {(item["cause"], item["verdict"]) for item in checks if item["verdict"] != "pass"}


def test_one_cable(tmp_path: Path) -> None:
    found = tree.facts(tmp_path, tree.load("spark_one_cable"))
    half = port(found, "rocep1s0f1")
    assert half["netdev"] == "enp1s0f1np1"
    assert half["twin"] == "roceP2p1s0f1"
    assert half["cage"] == 1
    assert (half["state"], half["phys_state"]) == ("ACTIVE", "LinkUp")
    assert (half["active_mtu"], half["speed"]) == (4096, 200000)
    assert half["counters"] == {"port_rcv_errors": 0, "port_xmit_data": 1000}
    assert half["gids"][3] == {
        "index": 3,
        "gid": "::ffff:192.168.100.10",
        "type": "RoCE v2",
        "netdev": "enp1s0f1np1",
        "address": "192.168.100.10",
    }
    assert len(half["gids"]) == 4
    down = port(found, "roceP2p1s0f0")
    assert (down["state"], down["speed"], down["gids"]) == ("DOWN", None, [])
    device = next(item for item in found["devices"] if item["name"] == "roceP2p1s0f1")
    assert (device["pci"], device["driver"], device["firmware"], device["pcie_width"]) == (
        "0002:01:00.1",
        "mlx5_core",
        "28.45.4028",
        4,
    )
    netdev = next(item for item in found["netdevs"] if item["name"] == "enp1s0f0np0")
    assert (netdev["speed"], netdev["carrier"], netdev["link"]) == (None, None, "no (No cable)")


@pytest.mark.parametrize("name", ["spark_one_cable", "spark_two_cables"])
def test_nothing_odd(tmp_path: Path, name: str) -> None:
    assert odd(judged(tmp_path, tree.load(name))) == set()


def test_two_boards_are_no_twins(tmp_path: Path) -> None:
    found = tree.facts(tmp_path, tree.load("station"))
    assert [port(found, name)["twin"] for name in ("mlx5_0", "mlx5_1", "mlx5_2")] == ["", "", ""]
    assert port(found, "mlx5_1")["netdev"] == "cx8r1"


def test_software_device_has_a_parent(tmp_path: Path) -> None:
    found = tree.facts(tmp_path, tree.load("generic"))
    assert port(found, "rxe0")["netdev"] == "eth1"
    assert [(gid["index"], gid["address"]) for gid in port(found, "rxe0")["gids"]] == [
        (0, "fe80::5054:ff:fe97:1"),
        (1, "10.97.0.1"),
    ]


def test_software_halves_are_twins_by_name(tmp_path: Path) -> None:
    spec = tree.load("spark_one_cable")
    for netdev in spec["netdevs"].values():
        netdev.pop("pci", None)
    for number, device in enumerate(spec["devices"].values()):
        device["guid"] = f"505{number}"
    found = tree.facts(tmp_path, spec)
    assert port(found, "rocep1s0f0")["twin"] == "roceP2p1s0f0"


def test_no_rdma(tmp_path: Path) -> None:
    assert odd(judged(tmp_path, {"netdevs": {}, "devices": {}})) == {("no_rdma_device", "inconclusive")}


def change(netdev: str = "", device: str = "", **values: Any) -> Any:
    def apply(spec: tree.Spec) -> None:
        (spec["netdevs"][netdev] if netdev else spec["devices"][device]).update(values)

    return apply


FAULTS = {
    "gid empty": (
        change(device="rocep1s0f1", gids=[["fe80::1", "RoCE v2"]]),
        {("gid_index_empty", "fail")},
    ),
    "gid of another address": (
        change(device="rocep1s0f1", gids=[["::ffff:10.9.9.9", "RoCE v2"]]),
        {("gid_index_empty", "fail")},
    ),
    "gid of version 1 only": (
        change(device="rocep1s0f1", gids=[["::ffff:192.168.100.10", "IB/RoCE v1"]]),
        {("gid_index_empty", "fail")},
    ),
    "second link-local moves one half": (
        change(
            device="roceP2p1s0f1",
            gids=[
                [gid, kind]
                for gid in ("fe80::1", "fe80::2", "::ffff:192.168.101.10")
                for kind in ("IB/RoCE v1", "RoCE v2")
            ],
        ),
        {("gid_index_differs", "warn"), ("second_link_local", "warn")},
    ),
    "one subnet": (
        change(netdev="enP2p1s0f1np1", addresses=["192.168.100.11/24"]),
        {("halves_in_one_subnet", "fail")},
    ),
    "one half": (
        change(netdev="enP2p1s0f1np1", addresses=[]),
        {("one_of_two_port_halves", "warn"), ("no_address", "warn")},
    ),
    "MTU of one half": (
        change(netdev="enP2p1s0f1np1", mtu=1500),
        {("netdev_mtu_1500", "warn"), ("mtu_mismatch", "warn")},
    ),
    "no cable in a port with an address": (
        change(netdev="enp1s0f0np0", addresses=["192.168.105.1/24"]),
        {("port_down", "fail")},
    ),
    "one half has no link": (
        change(netdev="enP2p1s0f1np1", up=False, ethtool="no"),
        {("port_down", "fail"), ("one_of_two_port_halves", "warn")},
    ),
    "overheat": (
        change(netdev="enP2p1s0f0np0", ethtool="no (Overheat)"),
        {("overheat", "fail")},
    ),
    "firmware": (change(device="rocep1s0f0", firmware="28.43.1014"), {("firmware_mix", "warn")}),
    "half at two lanes": (change(device="roceP2p1s0f1", width=2), {("pcie_width", "fail")}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(tmp_path: Path, name: str) -> None:
    apply, expected = FAULTS[name]
    spec = tree.load("spark_one_cable")
    apply(spec)
    checks = judged(tmp_path, spec)
    assert odd(checks) == expected
    assert all(item["remedy"] and "{" not in item["remedy"] for item in checks if item["verdict"] != "pass")


def test_a_container_with_a_network_of_its_own(tmp_path: Path) -> None:
    """It sees the devices, and neither interfaces nor GIDs."""
    spec = tree.load("spark_one_cable")
    for device in spec["devices"].values():
        device["gids"] = []
    root = tree.write(tmp_path, spec)
    shutil.rmtree(root / "sys/class/net")
    found = _rdma.read(root, {})
    assert odd(_rdma_verdict.judge(found["devices"], found["netdevs"])) == {("port_without_interface", "warn")}


def test_a_device_of_two_ports(tmp_path: Path) -> None:
    spec = tree.load("generic")
    root = tree.write(tmp_path, spec)
    shutil.copytree(root / "sys/class/infiniband/rxe0/ports/1", root / "sys/class/infiniband/rxe0/ports/2")
    found = _rdma.read(root, {})
    assert list(_rdma_verdict.halves(found["devices"], found["netdevs"])) == ["rxe0", "rxe0:2"]


def test_infiniband_and_odd_files(tmp_path: Path) -> None:
    root = tree.write(tmp_path, tree.load("spark_one_cable"))
    port_folder = root / "sys/class/infiniband/rocep1s0f0/ports/1"
    (port_folder / "link_layer").write_text("InfiniBand\n")
    (port_folder / "state").write_bytes(b"\xff\x00")
    (port_folder / "counters/symbol_error").write_text("none\n")
    (root / "sys/class/infiniband/rocep1s0f1/device").unlink()
    found = _rdma.read(root, {})
    json.dumps(_rdma_verdict.judge(found["devices"], found["netdevs"]))
    assert (port(found, "rocep1s0f0")["link_layer"], port(found, "rocep1s0f1")["netdev"]) == (
        "InfiniBand",
        "enp1s0f1np1",
    )


def test_link_text_is_in_the_check(tmp_path: Path) -> None:
    spec = tree.load("spark_one_cable")
    spec["netdevs"]["enp1s0f0np0"]["addresses"] = ["192.168.105.1/24"]
    down = next(item for item in judged(tmp_path, spec) if item["cause"] == "port_down")
    assert "No cable" in down["found"]
    assert "port 0 (next to the Ethernet jack)" in down["remedy"]


@pytest.mark.parametrize("followed", [True, False])
def test_a_copy_that_lost_its_links(tmp_path: Path, followed: bool) -> None:
    """What the links led to was not saved, or was copied in their place."""
    whole = tree.facts(tmp_path, tree.load("spark_one_cable"))
    for device in tmp_path.glob("sys/class/*/*/device"):
        place = device.readlink().name
        if followed:
            device.unlink()
            device.mkdir()
            (device / "driver").mkdir()
            (device / "uevent").write_text(f"DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_SLOT_NAME={place}\n")
    shutil.rmtree(tmp_path / "sys/devices")
    found = _rdma.read(tmp_path, {})
    for device, before in zip(found["devices"], whole["devices"], strict=True):
        assert (device["pci"], device["ports"][0]["twin"]) == (before["pci"], before["ports"][0]["twin"])
        assert device["driver"] == ("mlx5_core" if followed else "")


def test_addresses_without_netlink(tmp_path: Path) -> None:
    tree.write(tmp_path, tree.load("spark_one_cable"))
    found = _rdma.read(tmp_path, {})
    netdev = next(item for item in found["netdevs"] if item["name"] == "enp1s0f1np1")
    assert [item["address"] for item in netdev["addresses"]] == ["192.168.100.10"]
    assert odd(_rdma_verdict.judge(found["devices"], found["netdevs"])) == set()


@pytest.mark.parametrize(("mtu", "payload"), [(9000, 4096), (4216, 4096), (4215, 2048), (1500, 1024), (0, 0)])
def test_active_mtu(mtu: int, payload: int) -> None:
    assert _rdma.active_mtu(mtu) == payload


@pytest.mark.parametrize(
    ("gid", "address"),
    [
        ("0000:0000:0000:0000:0000:ffff:c0a8:640a", "192.168.100.10"),
        ("fe80:0000:0000:0000:4ebb:47ff:fe80:0055", "fe80::4ebb:47ff:fe80:55"),
        ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
        ("", ""),
    ],
)
def test_gid_address(gid: str, address: str) -> None:
    assert _rdma.address_of(gid) == address


def test_netlink() -> None:
    addresses = [
        {"ifname": "a", "addr_info": [{"family": "inet", "local": "10.0.0.1", "prefixlen": 24, "scope": "global"}]},
        {},
        {"ifname": "b", "addr_info": [{}]},
    ]
    assert _netlink.parse_addresses(json.dumps(addresses)) == {
        "a": [{"address": "10.0.0.1", "prefixlen": 24, "family": "inet", "scope": "global"}],
        "b": [],
    }
    rows = [
        {"dst": "fe80::1", "dev": "a", "lladdr": "02:00:00:00:00:0A", "state": ["STALE"]},
        {"dst": "10.0.0.9", "dev": "a", "state": ["FAILED"]},
    ]
    assert [item["mac"] for item in _netlink.parse_neighbours(json.dumps(rows))] == ["02:00:00:00:00:0a"]
    assert _netlink.parse_addresses("[{cut") == {}
