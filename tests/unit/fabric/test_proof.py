"""Pings, counters, bandwidth, configuration files and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from unit.fabric.test_topology import PAIR, RING, SWITCH, Lab

from ansible_collections.tandem.serving.plugins.module_utils import (
    _fabric_files,
    _fabric_picture,
    _fabric_proof,
    _netlink,
    _rdma,
)
from ansible_collections.tandem.serving.plugins.module_utils._fabric_causes import FABRIC

FULL = """PING 192.168.101.2 (192.168.101.2) from 192.168.101.1 cx8r1: 8972(9000) bytes of data.
8980 bytes from 192.168.101.2: icmp_seq=1 ttl=64 time=0.105 ms

--- 192.168.101.2 ping statistics ---
3 packets transmitted, 3 received, 0% packet loss, time 2031ms
"""
LOCAL = """PING 192.168.101.2 (192.168.101.2) from 192.168.101.1 cx8r1: 8972(9000) bytes of data.
ping: local error: message too long, mtu=1500

--- 192.168.101.2 ping statistics ---
3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 2049ms
"""
LOST = "3 packets transmitted, 0 received, 100% packet loss, time 2049ms"
SOME = "3 packets transmitted, 2 received, 33% packet loss, time 2049ms"


def rail(**more: Any) -> dict[str, Any]:
    names = {
        "netdev": "cx8r1",
        "address": "192.168.101.1",
        "peer_address": "192.168.101.2",
        "cable": "a - b",
        "peer": "b",
    }
    return {**names, "peer_netdev": "cx8r0", **more}


@pytest.mark.parametrize(
    ("small", "full", "device", "causes"),
    [
        (FULL, FULL, "cx8r1", ["ok"]),
        (FULL, LOCAL, "cx8r1", ["local_mtu"]),
        (FULL, LOST, "cx8r1", ["path_mtu"]),
        (FULL, SOME, "cx8r1", ["packets_lost"]),
        (LOST, LOST, "cx8r1", ["peer_unreachable"]),
        (FULL, FULL, "eno1", ["route_not_on_rail", "ok"]),
        ("", "ping is not installed", "", ["peer_unreachable"]),
    ],
)
def test_ping(small: str, full: str, device: str, causes: list[str]) -> None:
    probe = {
        "rail": rail(),
        "mtu": 9000,
        "small": _fabric_proof.parse_ping(small),
        "full": _fabric_proof.parse_ping(full),
        "route": {"netdev": device, "source": ""},
    }
    checks = list(_fabric_proof.judge_probe("a", probe))
    assert [item["cause"] for item in checks] == causes
    assert all("8972 bytes" in item["expected"] for item in checks if item["name"].startswith("ping"))
    if causes == ["path_mtu"]:
        assert "MTU of cx8r0 on b" in checks[0]["remedy"]
    if causes == ["local_mtu"]:
        assert checks[0]["found"] == "own MTU is 1500"
        assert "MTU of cx8r1 on a" in checks[0]["remedy"]


def test_counters_are_held_against_a_baseline() -> None:
    before = {"rocep1s0f0": {"link_downed": 1, "port_rcv_errors": 0, "port_xmit_data": 5}, "mlx5_9": {}}
    after = {"rocep1s0f0": {"link_downed": 1, "port_rcv_errors": 7, "port_xmit_data": 99}, "mlx5_9": {}}
    (found,) = _fabric_proof.judge_counters(before, after)
    assert (found["verdict"], found["found"]) == ("fail", "port_rcv_errors +7")
    (quiet,) = _fabric_proof.judge_counters(after, after)
    assert quiet["verdict"] == "pass"


@pytest.mark.parametrize(
    ("gbps", "sent", "causes"),
    [
        ({"h1": 97.3}, {"h1": 10}, ["ok"]),
        ({"h1": 40.0}, {"h1": 10}, ["bandwidth_low"]),
        ({"h1": 13.1}, {"h1": 10}, ["nic_power_stuck"]),
        ({"h1": None}, {"h1": None}, ["rdma_failed"]),
        ({"h1": 95.0, "h2": 96.0}, {"h1": 10**9, "h2": 10**9}, ["ok"]),
        ({"h1": 13.0, "h2": 12.9}, {"h1": 10**9, "h2": 10**9}, ["nic_power_stuck"]),
        ({"h1": 54.0, "h2": 54.0}, {"h1": 10**9, "h2": 1000}, ["bandwidth_low", "twin_flat"]),
        ({"h1": 95.0, "h2": None}, {"h1": 10**9, "h2": 0}, ["rdma_failed"]),
    ],
)
def test_bandwidth(gbps: dict[str, Any], sent: dict[str, Any], causes: list[str]) -> None:
    found = {"sender": "a", "receiver": "b", "cable": "a port 0 - b port 1", "gbps": gbps, "sent": sent, "output": ""}
    checks = list(_fabric_proof.judge_bandwidth(found, 92, 185))
    assert [item["cause"] for item in checks] == causes
    if "twin_flat" in causes:
        assert "Give h2" in checks[1]["remedy"]


@pytest.mark.parametrize(
    ("output", "cause", "verdict"),
    [
        (_fabric_proof.MISSING, "perftest_missing", "inconclusive"),
        ("Couldn't connect to 192.168.100.2:18515", "perftest_missing", "inconclusive"),
        ("Failed to modify QP 281 to RTR", "rdma_failed", "fail"),
        ("", "rdma_failed", "fail"),
    ],
)
def test_why_nothing_was_measured(output: str, cause: str, verdict: str) -> None:
    found = {"sender": "a", "receiver": "b", "cable": "a port 0 - b port 1", "gbps": {"h1": None}, "sent": {}}
    (item,) = _fabric_proof.judge_bandwidth({**found, "output": output}, 92, 185)
    assert (item["cause"], item["verdict"]) == (cause, verdict)


def test_runs_go_both_ways_and_over_both_halves(tmp_path: Path) -> None:
    plans = Lab("pair", PAIR).address().plan(tmp_path)
    one, other = _fabric_proof.runs(plans, 18515)
    assert [(run["sender"], run["receiver"], run["cable"]) for run in (one, other)] == [
        ("a", "b", "a port 1 - b port 0"),
        ("b", "a", "a port 1 - b port 0"),
    ]
    assert [(stream["group"], stream["hca"], stream["server"]) for stream in one["send"]] == [
        (0, "rocep1s0f1", "192.168.200.2"),
        (1, "roceP2p1s0f1", "192.168.201.2"),
        (2, "rocep1s0f1", "192.168.200.2"),
        (2, "roceP2p1s0f1", "192.168.201.2"),
    ]
    assert one["receive"][3] == {"hca": "roceP2p1s0f0", "gid_index": 3, "tcp_port": 18518}
    assert [stream["tcp_port"] for stream in one["send"]] == [stream["tcp_port"] for stream in one["receive"]]


def test_netplan(tmp_path: Path) -> None:
    plans = Lab("ring", RING, nccl="2.30.7", configure=True).address().plan(tmp_path)
    (file,) = _fabric_files.files(plans["a"], "netplan", 9000)
    assert file["path"] == "/etc/netplan/60-tandem-fabric.yaml"
    ethernets = json.loads(file["content"].split("\n", 1)[1])["network"]["ethernets"]
    assert ethernets["lo"] == {"renderer": "networkd", "addresses": ["192.168.99.1/32"]}
    assert ethernets["enp1s0f1np1"] == {
        "renderer": "networkd",
        "addresses": ["192.168.200.1/24"],
        "dhcp4": False,
        "dhcp6": False,
        "accept-ra": False,
        "link-local": ["ipv6"],
        "mtu": 9000,
        "optional": True,
        "routes": [
            {"to": "192.168.99.2/32", "via": "192.168.200.2", "from": "192.168.99.1"},
            {"to": "192.168.99.3/32", "via": "192.168.200.2", "from": "192.168.99.1"},
        ],
    }
    assert "enP7s7" not in ethernets


def test_routes_of_keyfiles_and_units(tmp_path: Path) -> None:
    plan = Lab("ring", RING, nccl="2.30.7", configure=True).address().plan(tmp_path)["c"]
    keyfiles = {
        file["path"]: file["content"].splitlines() for file in _fabric_files.files(plan, "networkmanager", 9000)
    }
    to_b = next(lines for path, lines in keyfiles.items() if "enp1s0f0np0" in path)
    assert [line for line in to_b if line.startswith("route")] == [
        "route1=192.168.99.1/32,192.168.202.1",
        "route1_options=src=192.168.99.3",
        "route2=192.168.99.2/32,192.168.202.1",
        "route2_options=src=192.168.99.3",
    ]
    assert any("type=loopback" in lines and "address2=192.168.99.3/32" in lines for lines in keyfiles.values())
    units = "".join(file["content"] for file in _fabric_files.files(plan, "networkd", 9000))
    assert units.count("PreferredSource=192.168.99.3") == 3
    commands = _fabric_files.apply_commands("networkmanager", ["enp1s0f0np0", "lo"])
    assert [words[-1] for words in commands] == ["reload", "tandem-lo", "tandem-enp1s0f0np0"]


def test_keyfiles_and_units(tmp_path: Path) -> None:
    plans = Lab("pair", PAIR).address().plan(tmp_path)
    keyfile = _fabric_files.files(plans["b"], "networkmanager", 9000)[0]
    assert keyfile["path"] == "/etc/NetworkManager/system-connections/tandem-enp1s0f0np0.nmconnection"
    for line in ("address1=192.168.200.2/24", "mtu=9000", "addr-gen-mode=eui64", "never-default=true"):
        assert line in keyfile["content"].splitlines()
    unit = _fabric_files.files(plans["b"], "networkd", 9000)[1]
    assert unit["path"] == "/etc/systemd/network/05-tandem-enP2p1s0f0np0.network"
    for line in (
        "Name=enP2p1s0f0np0",
        "MTUBytes=9000",
        "Address=192.168.201.2/24",
        "IPv6LinkLocalAddressGenerationMode=eui64",
    ):
        assert line in unit["content"].splitlines()


def test_picture_is_red_where_it_is_wrong(tmp_path: Path) -> None:
    lab = Lab("pair", PAIR).address()
    right = _fabric_picture.svg(lab.plan(tmp_path / "right"))
    assert "#cf222e" not in right
    lab.netdev("b", "enP2p1s0f0np0")["addresses"] = []
    plans = lab.plan(tmp_path / "wrong")
    drawn = _fabric_picture.svg(plans)
    ElementTree.fromstring(drawn)
    assert "address is missing" in drawn
    red = [line for line in drawn.splitlines() if line.startswith("<path") and "#cf222e" in line]
    assert len(red) == 1
    assert [_fabric_picture.verdict_of(one, plans["a"]["checks"]) for one in plans["a"]["rails"]] == ["pass", "pass"]


def test_picture_and_table_tell_what_was_measured(tmp_path: Path) -> None:
    plans = Lab("pair", PAIR).address().plan(tmp_path)
    plans["a"]["gbps"] = {"rocep1s0f1": 97.34, "roceP2p1s0f1": 96.0}
    plans["b"]["gbps"] = {"rocep1s0f0": 12.91}
    drawn = _fabric_picture.svg(plans)
    for words in ("sends 97.3 Gb/s", "97.3 / 12.9 Gb/s", "96.0 / - Gb/s"):
        assert words in drawn
    head, *lines = _fabric_picture.table(plans).splitlines()
    assert head.split() == ["host", "rail", "device", "GID", "address", "to", "Gb/s", "cable"]
    assert lines[0].split()[:7] == ["a", "enp1s0f1np1", "rocep1s0f1", "3", "192.168.200.1/24", "192.168.200.2", "97.3"]
    assert lines[0].endswith("a port 1 - b port 0")


def test_table_says_what_is_wrong(tmp_path: Path) -> None:
    lab = Lab("pair", PAIR).address()
    lab.netdev("b", "enP2p1s0f0np0")["addresses"] = []
    lines = _fabric_picture.table(lab.plan(tmp_path)).splitlines()
    assert [line.split()[1] for line in lines if line.endswith("fail")] == ["enP2p1s0f0np0"]
    assert "192.168.201.2/24 (missing)" in lines[-1]


def test_picture_of_a_switch_without_a_rail(tmp_path: Path) -> None:
    drawn = _fabric_picture.svg(Lab("switch", SWITCH[:1]).plan(tmp_path))
    ElementTree.fromstring(drawn)


@pytest.mark.parametrize(
    ("text", "words"),
    [("\tLink detected: no (No cable)\n", "no (No cable)"), ("\tLink detected: yes", "yes"), ("netlink error", "")],
)
def test_ethtool(text: str, words: str) -> None:
    assert _rdma.parse_link(text) == words


def test_flow_control() -> None:
    pfc, app = "prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off", "dscp-prio 26:3 48:6"
    assert _netlink.parse_lossless(pfc, app) is True
    assert _netlink.parse_lossless(pfc, "dscp-prio 48:6") is False
    assert _netlink.parse_lossless(pfc.replace("3:on", "3:off"), app) is False
    assert _netlink.parse_lossless("", "") is None


def test_lldp_and_routes() -> None:
    said = {"lldp": [{"interface": [{"name": "a", "port": [{"id": [{"type": "mac", "value": "02:AA:00:00:00:01"}]}]}]}]}
    assert [item["mac"] for item in _netlink.parse_lldp(json.dumps(said))] == ["02:aa:00:00:00:01"]
    assert _netlink.parse_lldp("{}") == _netlink.parse_lldp("not json") == []
    assert _netlink.parse_route('[{"dst":"10.0.0.2","dev":"eno1","prefsrc":"10.0.0.1"}]')["netdev"] == "eno1"
    assert _netlink.parse_route("") == {"netdev": "", "source": ""}


def test_every_cause_is_said_in_full() -> None:
    for code, cause in FABRIC.items():
        assert cause.meaning.endswith("."), code
        assert cause.remedy.endswith("."), code
