"""Plans of every topology with their environment, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from unit.fabric import tree

from ansible_collections.tandem.serving.plugins.module_utils import _topology

Specs = dict[str, tree.Spec]
Cables = Sequence[tuple[str, int, str, int]]
PAIR: Cables = [("a", 1, "b", 0)]
PAIR2: Cables = [("a", 0, "b", 0), ("a", 1, "b", 1)]
TRIANGLE: Cables = [("a", 0, "b", 1), ("b", 0, "c", 1), ("c", 0, "a", 1)]
RING: Cables = [("a", 1, "b", 1), ("b", 0, "c", 0), ("c", 1, "d", 1), ("d", 0, "a", 0)]
SWITCH: Cables = [(one, 0, other, 0) for one, other in itertools.combinations("abc", 2)]
HALVES = ("enp1s0f{0}np{0}", "enP2p1s0f{0}np{0}")


class Lab:
    """Machines, how they are cabled, and what the user asks for. ``change`` functions in the tests bend it."""

    def __init__(self, topology: str, cables: Cables, fixture: str = "spark_bare", **options: Any) -> None:
        self.topology, self.cables = topology, list(cables)
        self.names = sorted({name for one, _one_port, other, _other_port in cables for name in (one, other)})
        self.specs = tree.machines(self.names, fixture)
        self.options: dict[str, Any] = {"platform": "gb10", **options}
        self.extra: dict[str, dict[str, Any]] = {}
        self.lossless: bool | None = True

    def netdev(self, host: str, name: str) -> dict[str, Any]:
        return self.specs[host]["netdevs"][name]

    def address(self) -> Lab:
        """Give each half of each cable its subnet, 192.168.200.0/24 on, and unplug what has no cable."""
        for number, (one, cage, other, other_cage) in enumerate(self.cables):
            for half, name in enumerate(HALVES):
                subnet = 200 + 2 * number + half
                self.netdev(one, name.format(cage))["addresses"] = [f"192.168.{subnet}.1/24"]
                self.netdev(other, name.format(other_cage))["addresses"] = [f"192.168.{subnet}.2/24"]
        return self.unplug()

    def unplug(self) -> Lab:
        used = {end for one, cage, other, other_cage in self.cables for end in ((one, cage), (other, other_cage))}
        for host, cage in itertools.product(self.names, (0, 1)):
            if (host, cage) not in used:
                for name in HALVES:
                    self.netdev(host, name.format(cage)).update(up=False, ethtool="no (No cable)")
        return self

    def plan(self, tmp_path: Path) -> dict[str, Any]:
        found = {name: tree.facts(tmp_path / name, spec) for name, spec in self.specs.items()}
        tree.cable(found, *self.cables)
        for name, more in self.extra.items():
            found[name].update(more)
        for facts in found.values():
            facts["lossless"] = dict.fromkeys((netdev["name"] for netdev in facts["netdevs"]), self.lossless)
        return _topology.plan(found, self.topology, "rdma", _topology.Options(**self.options))


def odd(plans: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for one in plans.values() for item in one["checks"] if item["verdict"] != "pass"]


GOLDEN: dict[str, tuple[Lab, dict[str, dict[str, str]]]] = {}

COMMON = {"NCCL_NET_PLUGIN": "none", "NCCL_NVLS_ENABLE": "0"}


def names(interface: str, address: str) -> dict[str, str]:
    return {
        "NCCL_SOCKET_IFNAME": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        "VLLM_HOST_IP": address,
    }


def devices(text: str) -> dict[str, str]:
    return {"NCCL_IB_HCA": f"={text}", "UCX_NET_DEVICES": ",".join(f"{hca}:1" for hca in text.split(","))}


PAIR_ENV = {**COMMON, "NCCL_CROSS_NIC": "0", "NCCL_IB_MERGE_NICS": "0", "NCCL_IB_GID_INDEX": "3"}
ALL_HCAS = "rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1"
SWITCHLESS_ENV = {
    **COMMON,
    "NCCL_CROSS_NIC": "1",
    "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
    "NCCL_IB_GID_INDEX": "3",
}
TRIANGLE_ENV = {**SWITCHLESS_ENV, "NCCL_IB_MERGE_NICS": "0", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
RING_ENV = {**SWITCHLESS_ENV, "NCCL_ALGO": "Ring", "NCCL_IB_MERGE_NICS": "1"}


def test_pair_with_one_cable(tmp_path: Path) -> None:
    plans = Lab("pair", PAIR).address().plan(tmp_path)
    assert odd(plans) == []
    assert plans["a"]["env"] == {
        **PAIR_ENV,
        **names("enp1s0f1np1", "192.168.200.1"),
        **devices("rocep1s0f1,roceP2p1s0f1"),
    }
    assert plans["b"]["env"] == {
        **PAIR_ENV,
        **names("enp1s0f0np0", "192.168.200.2"),
        **devices("rocep1s0f0,roceP2p1s0f0"),
    }
    assert [one["master_address"] for one in plans.values()] == ["192.168.200.1", "192.168.200.1"]
    assert plans["b"]["peers"] == [{"host": "a", "rank": 0, "address": "192.168.200.1"}]
    assert plans["a"]["rails"][1] == {
        "netdev": "enP2p1s0f1np1",
        "hca": "roceP2p1s0f1",
        "twin": "rocep1s0f1",
        "gid_index": 3,
        "cable": "a port 1 - b port 0",
        "address": "192.168.201.1",
        "prefixlen": 24,
        "subnet": "192.168.201.0/24",
        "peer": "b",
        "peer_netdev": "enP2p1s0f0np0",
        "peer_address": "192.168.201.2",
        "speed": 200000,
        "present": True,
    }


def test_pair_with_two_cables(tmp_path: Path) -> None:
    plans = Lab("pair", PAIR2).address().plan(tmp_path)
    assert odd(plans) == []
    for rank, (one, address) in enumerate(zip(plans.values(), ("192.168.200.1", "192.168.200.2"), strict=True)):
        assert one["rank"] == rank
        assert one["env"] == {**PAIR_ENV, **names("enp1s0f0np0", address), **devices(ALL_HCAS)}


def test_triangle(tmp_path: Path) -> None:
    plans = Lab("triangle", TRIANGLE, nccl="2.30.7").address().plan(tmp_path)
    assert odd(plans) == []
    # Cable by cable.
    hcas = {"a": ALL_HCAS, "b": "rocep1s0f1,roceP2p1s0f1,rocep1s0f0,roceP2p1s0f0", "c": ALL_HCAS}
    for number, (host, one) in enumerate(plans.items(), 1):
        found = one["env"]["NCCL_IB_HCA"][1:]
        assert sorted(found.split(",")) == sorted(hcas[host].split(","))
        assert one["env"] == {**TRIANGLE_ENV, **names("enP7s7", f"10.0.0.{number}"), **devices(found)}
        assert one["master_address"] == "10.0.0.1"
        assert len({rail["subnet"] for rail in one["rails"]}) == 4
    # The fabric's addresses of a peer are those on the cable to it.
    assert [peer["address"] for peer in plans["c"]["peers"]] == ["192.168.204.2", "192.168.202.1"]


def test_ring(tmp_path: Path) -> None:
    lab = Lab("ring", RING, nccl="2.30.7+cuda13.0").address()
    for number, host in enumerate(lab.names, 1):
        lab.netdev(host, "lo")["addresses"] = [f"192.168.99.{number}/32"]
    plans = lab.plan(tmp_path)
    assert odd(plans) == []
    for number, one in enumerate(plans.values(), 1):
        found = one["env"]["NCCL_IB_HCA"][1:]
        assert set(found.split(",")) == set(ALL_HCAS.split(","))
        assert one["env"] == {**RING_ENV, **names("enP7s7", f"10.0.0.{number}"), **devices(found)}
        assert one["loopback"] == f"192.168.99.{number}"
    assert plans["a"]["peers"] == [
        {"host": "b", "rank": 1, "address": "192.168.200.2"},
        {"host": "c", "rank": 2, "address": "192.168.99.3"},
        {"host": "d", "rank": 3, "address": "192.168.206.1"},
    ]
    ways = {
        (host, route["peer"]): (route["address"], route["peer_address"], route["via"], route["netdev"])
        for host, one in plans.items()
        for route in one["routes"]
    }
    assert ways["a", "b"] == ("192.168.99.1", "192.168.99.2", "192.168.200.2", "enp1s0f1np1")
    assert ways["a", "c"] == ("192.168.99.1", "192.168.99.3", "192.168.200.2", "enp1s0f1np1")
    assert ways["a", "d"] == ("192.168.99.1", "192.168.99.4", "192.168.206.1", "enp1s0f0np0")
    # From c back to a by b too, and between b and d by c.
    assert ways["c", "a"][2:] == ("192.168.202.1", "enp1s0f0np0")
    assert ways["b", "d"][2:] == ("192.168.202.2", "enp1s0f0np0")
    assert ways["d", "b"][2:] == ("192.168.204.1", "enp1s0f1np1")


def test_ring_of_tensorfold_pins_its_channels(tmp_path: Path) -> None:
    plans = Lab("ring", RING, nccl="2.30.7", engine="tensorfold").address().plan(tmp_path)
    env = plans["b"]["env"]
    assert env["NCCL_IB_MERGE_NICS"] == "0"
    assert env["NCCL_GRAPH_FILE"] == "/etc/tandem/files/nccl_graph.xml"
    assert env["NCCL_IB_SUBNET_PREFIX_LEN"] == "24"
    assert env["TF_NCCL_RING"] == "1"
    assert env["TF_ROCE_HCA"] == env["NCCL_IB_HCA"][1:]
    # b hears a on port 1 and c on port 0: in by the devices 1 and 3, out by 0 and 2.
    pins = [line.strip() for line in plans["b"]["graph"].splitlines() if "<net" in line]
    assert pins == ['<net dev="1"/>', '<net dev="0"/>', '<net dev="3"/>', '<net dev="2"/>']
    assert plans["a"]["graph"] != plans["b"]["graph"]


def test_switch(tmp_path: Path) -> None:
    lab = Lab("switch", SWITCH)
    for number, host in enumerate(lab.names, 1):
        lab.netdev(host, "enp1s0f0np0")["addresses"] = [f"192.168.210.{number}/24"]
        lab.netdev(host, "enP2p1s0f0np0")["addresses"] = [f"192.168.211.{number}/24"]
    plans = lab.unplug().plan(tmp_path)
    assert odd(plans) == []
    for number, one in enumerate(plans.values(), 1):
        assert one["env"] == {
            **PAIR_ENV,
            **names("enp1s0f0np0", f"192.168.210.{number}"),
            **devices("rocep1s0f0,roceP2p1s0f0"),
            "NCCL_IB_TC": "106",
        }
        assert one["master_address"] == "192.168.210.1"
        assert [rail["peer"] for rail in one["rails"]] == ["", ""]
    assert [peer["address"] for peer in plans["a"]["peers"]] == ["192.168.210.2", "192.168.210.3"]


def test_stations(tmp_path: Path) -> None:
    lab = Lab("pair", PAIR, "station", platform="gb300")
    lab.cables = []
    lab.netdev("b", "cx8r0")["addresses"] = ["192.168.100.2/24"]
    lab.netdev("b", "cx8r1")["addresses"] = ["192.168.101.2/24"]
    plans = lab.plan(tmp_path)
    assert [item["cause"] for item in odd(plans)] == ["wiring_unproven"]
    for number, one in enumerate(plans.values(), 1):
        assert one["env"] == {
            **names("cx8r0", f"192.168.100.{number}"),
            **devices("mlx5_0,mlx5_1"),
            "NCCL_IB_GID_INDEX": "3",
            "NCCL_CROSS_NIC": "0",
            "NCCL_IB_MERGE_NICS": "0",
            "NCCL_IB_TC": "106",
            "NCCL_IB_QPS_PER_CONNECTION": "4",
        }


def test_new_addresses_avoid_those_in_use(tmp_path: Path) -> None:
    lab = Lab("pair", PAIR, configure=True).unplug()
    lab.netdev("a", "enP7s7")["addresses"] = ["192.168.100.7/23"]
    plans = lab.plan(tmp_path)
    assert [rail["address"] for rail in plans["a"]["rails"]] == ["192.168.102.1", "192.168.103.1"]
    assert [rail["peer_address"] for rail in plans["a"]["rails"]] == ["192.168.102.2", "192.168.103.2"]
    assert {item["verdict"] for item in odd(plans)} == {"warn"}


def test_address_of_one_end_decides_the_subnet(tmp_path: Path) -> None:
    lab = Lab("pair", PAIR, configure=True).unplug()
    lab.netdev("a", "enp1s0f1np1")["addresses"] = ["172.20.0.2/24"]
    plans = lab.plan(tmp_path)
    assert plans["a"]["rails"][0]["present"]
    assert plans["b"]["rails"][0]["address"] == "172.20.0.102"
    assert plans["a"]["rails"][0]["peer_address"] == "172.20.0.102"


def test_index_is_unset_where_none_fits(tmp_path: Path) -> None:
    lab = Lab("pair", PAIR).address()
    moved = [["fe80::1", "RoCE v2"], ["fe80::2", "RoCE v2"], ["::ffff:192.168.201.1", "RoCE v2"]]
    lab.specs["a"]["devices"]["roceP2p1s0f1"]["gids"] = moved
    plans = lab.plan(tmp_path)
    assert "NCCL_IB_GID_INDEX" not in plans["a"]["env"]
    assert plans["b"]["env"]["NCCL_IB_GID_INDEX"] == "3"
    assert [rail["gid_index"] for rail in plans["a"]["rails"]] == [3, 2]
    assert {item["cause"] for item in odd(plans)} == {"gid_index_differs", "second_link_local"}


def test_index_follows_the_own_address(tmp_path: Path) -> None:
    lab = Lab("pair", PAIR).address()
    lab.netdev("a", "enp1s0f1np1")["addresses"].insert(0, "10.55.0.1/32")
    plans = lab.plan(tmp_path)
    assert plans["a"]["rails"][0]["gid_index"] == 5
    assert plans["a"]["rails"][0]["address"] == "192.168.200.1"


def test_no_hosts() -> None:
    with pytest.raises(ValueError, match="group of ranks is empty"):
        _topology.plan({}, "pair", "rdma", _topology.Options())


def mutate(host: str, **values: Any) -> Callable[[Lab], None]:
    """Change an interface (its name under ``netdev``) or a device (under ``device``) of a host."""

    def apply(lab: Lab) -> None:
        kind = "netdevs" if "netdev" in values else "devices"
        name = values.get("netdev") or values["device"]
        more = {key: value for key, value in values.items() if key not in ("netdev", "device")}
        lab.specs[host][kind][name].update(more)

    return apply


def both(*changes: Callable[[Lab], None]) -> Callable[[Lab], None]:
    def apply(lab: Lab) -> None:
        for change in changes:
            change(lab)

    return apply


def loopback(lab: Lab) -> None:
    for name in HALVES:
        lab.netdev("a", name.format(1))["addresses"] = []
    lab.netdev("a", "lo")["addresses"] = ["10.0.0.1/32"]


def without_devices(lab: Lab) -> None:
    lab.specs["b"]["devices"] = {}


def carries_the_connection(lab: Lab) -> None:
    lab.specs["b"]["protected"] = [netdev for netdev in lab.specs["b"]["netdevs"] if netdev != "lo"]


def cabled(*cables: tuple[str, int, str, int]) -> Callable[[Lab], None]:
    def apply(lab: Lab) -> None:
        lab.cables = list(cables)

    return apply


def one_subnet_for_two(lab: Lab) -> None:
    for host, name in (("b", HALVES[0].format(0)), ("c", HALVES[0].format(1))):
        lab.netdev(host, name)["addresses"] = [f"192.168.200.{7 if host == 'b' else 8}/24"]


def reorder(lab: Lab) -> None:
    lab.specs = {name: lab.specs[name] for name in ("a", "c", "b", "d")}


def forwarding(**values: Any) -> Callable[[Lab], None]:
    def apply(lab: Lab) -> None:
        lab.extra["b"] = {"forwarding": {"ip_forward": True, "policy": "ACCEPT", "docker_user": [], **values}}

    return apply


def option(**values: Any) -> Callable[[Lab], None]:
    return lambda lab: lab.options.update(values)


def topology(name: str) -> Callable[[Lab], None]:
    return lambda lab: setattr(lab, "topology", name)


# Name: topology, cables, what is wrong, on which host and by which cause it is found, words of the cure.
MUTATIONS: dict[str, tuple[str, Cables, Callable[[Lab], None], str, str, list[str]]] = {
    "1 GID empty on one node": (
        "pair", PAIR, mutate("b", device="rocep1s0f0", gids=[["fe80::1", "RoCE v2"]]),
        "b", "gid_index_empty", ["enp1s0f0np0", "rocep1s0f0", "GID table"],
    ),
    "2 indexes moved after a reboot": (
        "pair", PAIR,
        mutate("a", device="rocep1s0f1", gids=[["fe80::1", "RoCE v2"], ["fe80::2", "RoCE v2"], ["::ffff:192.168.200.1", "RoCE v2"]]),
        "a", "second_link_local", ["eui64", "enp1s0f1np1"],
    ),
    "3 no link in the port": (
        "pair", PAIR, mutate("b", netdev="enp1s0f0np0", up=False, ethtool="no (No cable)"),
        "b", "port_down", ["port 0 (next to the Ethernet jack)", "enp1s0f0np0", "cable"],
    ),
    "3 overheated": (
        "pair", PAIR, mutate("b", netdev="enP2p1s0f0np0", up=False, ethtool="no (Overheat)"),
        "b", "overheat", ["cool"],
    ),
    "4 loopback alias": ("pair", PAIR, loopback, "a", "loopback_alias", ["10.0.0.1", "cable's interface"]),
    "5 mirrored triangle": (
        "triangle", TRIANGLE, cabled(("a", 0, "b", 0), ("b", 1, "c", 1), ("c", 0, "a", 1)),
        "a", "mirrored_cabling", ["a port 0 - b port 1", "Wrong now: a port 0 - b port 0"],
    ),
    "5 two cables, one subnet": (
        "triangle", TRIANGLE, one_subnet_for_two,
        "b", "one_subnet_for_two_cables", ["192.168.200.0/24", "b port 0 - c port 1"],
    ),
    "6 rail without a working address": (
        "pair", PAIR, mutate("b", netdev="enP2p1s0f0np0", addresses=["192.168.77.2/24"]),
        "b", "rail_without_address", ["enP2p1s0f0np0 of b", "192.168.201.2/24", "a port 1 - b port 0"],
    ),
    "7 one half only": (
        "pair", PAIR, mutate("b", netdev="enP2p1s0f0np0", addresses=[]),
        "b", "one_of_two_port_halves", ["enP2p1s0f0np0", "other half"],
    ),
    "7 both halves in one subnet": (
        "pair", PAIR,
        both(mutate("a", netdev="enP2p1s0f1np1", addresses=["192.168.200.3/24"]),
             mutate("b", netdev="enP2p1s0f0np0", addresses=["192.168.200.4/24"])),
        "a", "halves_in_one_subnet", ["192.168.200.3", "enP2p1s0f1np1", "subnet of its own"],
    ),
    "8 no RDMA device": ("pair", PAIR, without_devices, "b", "no_rdma_device", ["mlx5_ib", "socket"]),
    "9 the ports carry the connection": (
        "pair", PAIR, carries_the_connection, "b", "management_carries_fabric", ["Reach b by another interface", "enp1s0f0np0"],
    ),
    "10 forwarding off": ("ring", RING, forwarding(ip_forward=False), "b", "ip_forward_off", ["net.ipv4.ip_forward=1 on b"]),
    "10 Docker drops transit": (
        "ring", RING, forwarding(policy="DROP"), "b", "docker_forward_drop", ["DOCKER-USER", "ACCEPT", "enp1s0f1np1"],
    ),
    "11 MTU 1500 on one side": (
        "pair", PAIR, mutate("b", netdev="enp1s0f0np0", mtu=1500), "b", "mtu_mismatch", ["enp1s0f0np0 of b", "9000"],
    ),
    "11 MTU 1500 on one half": (
        "pair", PAIR, mutate("b", netdev="enp1s0f0np0", mtu=1500), "b", "netdev_mtu_1500", ["enp1s0f0np0", "9000"],
    ),
    "link at half its rate": (
        "pair", PAIR, mutate("a", netdev="enp1s0f1np1", speed=100000),
        "a", "link_below_200g", ["200G-baseCR4", "enp1s0f1np1 of a"],
    ),
    "half at two lanes": ("pair", PAIR, mutate("a", device="roceP2p1s0f1", width=2), "a", "pcie_width", ["BIOS"]),
    "firmware differs": (
        "pair", PAIR, lambda lab: lab.specs["b"].update(firmware="28.43.1014"), "a", "firmware_mix", ["same firmware"],
    ),
    "duplicate address": (
        "triangle", TRIANGLE,
        both(mutate("a", netdev="enp1s0f0np0", addresses=["192.168.200.2/24"]),),
        "a", "duplicate_address", ["192.168.200.2", "enp1s0f0np0 of a", "enp1s0f1np1 of b"],
    ),
    "mesh of four": ("ring", RING, topology("triangle"), "a", "mesh_of_four", ["ring", "switch"]),
    "three hosts as a pair": ("triangle", TRIANGLE, topology("pair"), "a", "rank_count", ["fabric_topology to triangle"]),
    "no cable": (
        "pair", PAIR, both(cabled(), *[mutate(host, netdev=name.format(cage), addresses=[], up=False, ethtool="no (No cable)")
                                       for host in "ab" for name in HALVES for cage in (0, 1)]),
        "a", "no_cable", ["a port 0 no (No cable)", "QSFP"],
    ),
    "a cable of the triangle is missing": (
        "triangle", TRIANGLE, cabled(("a", 0, "b", 1), ("b", 0, "c", 1)), "a", "cable_missing", ["port of a", "port of c"],
    ),
    "two cables between the same two": (
        "triangle", TRIANGLE, cabled(("a", 0, "b", 1), ("a", 1, "b", 0)), "a", "doubled_cable", ["to c"],
    ),
    "a cable of the ring is missing": ("ring", RING, cabled(*RING[:3]), "a", "cable_missing", ["a", "d"]),
    "rank order is not cable order": ("ring", RING, reorder, "a", "rank_order", ["a, b, c, d"]),
    "a switch where a cable should be": (
        "triangle", TRIANGLE, cabled(*SWITCH), "a", "switch_found", ["fabric_topology to switch"],
    ),
    "flow control is off": ("switch", SWITCH, lambda lab: setattr(lab, "lossless", False), "b", "pfc_off", ["3:on", "on b"]),
    "not on the switch": ("switch", SWITCH, cabled(SWITCH[0]), "c", "not_on_switch", []),
    "NCCL does not know subnets": ("triangle", TRIANGLE, option(nccl="2.30.4"), "a", "nccl_without_subnets", ["2.30.7"]),
    "NCCL is not known": ("triangle", TRIANGLE, option(nccl=""), "a", "nccl_version_unknown", ["fabric_nccl_version"]),
    "no management address": (
        "triangle", TRIANGLE, lambda lab: lab.netdev("b", "enP7s7").update(addresses=[]), "b", "no_management_address", ["b"],
    ),
    "no way across the ring": ("ring", RING, lambda lab: None, "a", "transit_missing", ["fabric_configure"]),
}  # fmt: skip
NOT_FATAL = {
    "second_link_local", "one_of_two_port_halves", "netdev_mtu_1500", "firmware_mix", "nccl_version_unknown", "transit_missing",
    "pfc_off",
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation(tmp_path: Path, name: str) -> None:
    kind, cables, change, host, cause, words = MUTATIONS[name]
    lab = Lab(kind, cables, nccl="2.30.7").address()
    change(lab)
    plans = lab.plan(tmp_path)
    where = "a" if cause == "not_on_switch" else host
    found = [item for item in plans[where]["checks"] if item["cause"] == cause]
    assert found, [(item["cause"], item["found"]) for item in odd(plans)]
    text = " ".join(item["remedy"] + item["found"] for item in found)
    assert [word for word in words if word not in text] == []
    assert ("fail" in [item["verdict"] for item in found]) is (cause not in NOT_FATAL)
