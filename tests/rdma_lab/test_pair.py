"""Two machines, one cable of two halves: from bare interfaces to a proven fabric, and the faults that people meet.

The tests run in their order: each begins where the one before it ended.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rdma_lab.machines import Lab
from unit.fabric.test_topology import RING
from unit.fabric.test_topology import Lab as Ring

from ansible_collections.tandem.serving.plugins.module_utils import _fabric_files

HALVES = [("enp1s0f0np0", "rocep1s0f0"), ("enP2p1s0f0np0", "roceP2p1s0f0")]
QUICK = {"fabric_bandwidth": False, "fabric_configure": False}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("pair"), [(("a", *half), ("b", *half)) for half in HALVES])
    try:
        made.start()
        yield made
    finally:
        made.stop()


def changed(text: str) -> dict[str, int]:
    return {host: int(count) for host, count in re.findall(r"^(\w+)\s+: ok=\d+\s+changed=(\d+)", text, re.MULTILINE)}


def said(result: subprocess.CompletedProcess[str]) -> str:
    """What Ansible printed, without its line breaks."""
    return " ".join(result.stdout.split())


def causes(lab: Lab, host: str) -> set[str]:
    return {item["cause"] for item in lab.facts(host)["checks"]} - {"ok", "clock_not_synchronised"}


def added(text: str) -> list[str]:
    """The lines that a diff adds, path by path."""
    return [line for line in text.splitlines() if line.startswith("+")]


def test_configure(lab: Lab) -> None:
    """What check mode shows is what the real run makes; the second run changes nothing."""
    planned = lab.ansible("--check", "--diff", fabric_configure=True)
    assert planned.returncode == 0, planned.stdout
    assert changed(planned.stdout) == {"a": 1, "b": 1}
    assert '+          "192.168.100.1/24"' in planned.stdout
    assert lab.addresses("a") == ""

    management = {host: lab.ssh(host, "ip -br addr show eth0") for host in lab.names}

    done = lab.ansible("--diff", fabric_configure=True, fabric_bandwidth_seconds=1)
    assert done.returncode == 0, done.stdout
    assert changed(done.stdout) == {"a": 1, "b": 1}
    # Whichever host answers first is printed first.
    assert sorted(added(done.stdout)) == sorted(added(planned.stdout))
    assert {host: lab.ssh(host, "ip -br addr show eth0") for host in lab.names} == management
    assert lab.ssh("a", "cat /sys/class/net/enP2p1s0f0np0/mtu").strip() == "9000"
    assert re.findall(r"inet6 (\S+)", lab.ssh("a", "ip -6 addr show dev enp1s0f0np0")) == ["fe80::5054:ff:fe97:100/64"]
    assert lab.addresses("b").splitlines() == ["enp1s0f0np0 192.168.100.2/24", "enP2p1s0f0np0 192.168.101.2/24"]

    (lab.folder / "fabric.html").rename(lab.folder / "measured.html")
    (lab.folder / "a.json").rename(lab.folder / "measured.json")
    again = lab.ansible(fabric_configure=True, fabric_bandwidth=False)
    assert again.returncode == 0, again.stdout
    assert changed(again.stdout) == {"a": 0, "b": 0}


def test_plan_is_proven(lab: Lab) -> None:
    """The planned index is that of the kernel's table, a connection at it works, and one at an empty index does not."""
    fabric = lab.facts("measured")
    assert causes(lab, "a") == set()
    # Drawn in the same run, with what was measured.
    rate = f"sends {fabric['gbps']['roceP2p1s0f0']:.1f} Gb/s"
    assert rate in (lab.folder / "measured.html").read_text()
    for rail in fabric["rails"]:
        index = rail["gid_index"]
        folder = f"/sys/class/infiniband/{rail['hca']}/ports/1"
        found = lab.ssh(
            "a", f"cat {folder}/gids/{index} {folder}/gid_attrs/types/{index} {folder}/gid_attrs/ndevs/{index}"
        )
        mapped = "".join(f"{int(part):02x}" for part in rail["address"].split("."))
        assert found.splitlines()[0].replace(":", "").endswith(mapped)
        assert found.splitlines()[1:] == ["RoCE v2", rail["netdev"]]
    assert fabric["env"]["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"
    assert fabric["env"]["NCCL_IB_GID_INDEX"] == str(fabric["rails"][0]["gid_index"])

    rail = fabric["rails"][0]
    rates: dict[int, Any] = {}
    for index in (rail["gid_index"], 9):
        result = lab.ansible(
            playbook="connect.yml", lab_hca=rail["hca"], lab_index=index, lab_server=rail["peer_address"]
        )
        assert result.returncode == 0, result.stdout
        rates[index] = lab.facts("connect")["runs"][0]["gbps"][rail["hca"]]
    assert rates[rail["gid_index"]] > 0.001
    assert rates[9] is None


def test_small_mtu_and_lost_link(lab: Lab) -> None:
    lab.ssh("b", "ip link set enp1s0f0np0 mtu 1500; ip link set enP2p1s0f0np0 down")
    result = lab.ansible(**QUICK)
    assert result.returncode == 2
    found = {item["cause"]: item for item in lab.facts("b")["checks"]}
    assert "MTU of enp1s0f0np0 of b to 9000" in found["mtu_mismatch"]["remedy"]
    assert "port 0 (next to the Ethernet jack), enP2p1s0f0np0" in found["port_down"]["remedy"]
    assert found["port_down"]["remedy"] in said(result)
    lab.ssh("b", "ip link set enp1s0f0np0 mtu 9000; ip link set enP2p1s0f0np0 up; networkctl reconfigure enP2p1s0f0np0")


def test_second_link_local_address_moves_the_index(lab: Lab) -> None:
    lab.ssh(
        "a",
        "ip addr del 192.168.101.1/24 dev enP2p1s0f0np0; ip addr add fe80::dead/64 dev enP2p1s0f0np0 nodad; sleep 1;"
        "ip addr add 192.168.101.1/24 dev enP2p1s0f0np0; sleep 1",
    )
    result = lab.ansible(**QUICK)
    assert result.returncode == 0, result.stdout
    assert causes(lab, "a") == {"second_link_local", "gid_index_differs"}
    fabric = lab.facts("a")
    assert len({rail["gid_index"] for rail in fabric["rails"]}) == 2
    assert "NCCL_IB_GID_INDEX" not in fabric["env"]
    assert lab.facts("b")["env"]["NCCL_IB_GID_INDEX"] == "1"
    lab.ssh("a", "ip addr del fe80::dead/64 dev enP2p1s0f0np0; networkctl reconfigure enP2p1s0f0np0")


def test_roll_back_when_the_peer_does_not_answer(lab: Lab) -> None:
    """Files of systemd-networkd, which come before those of netplan and go again."""
    before = {host: lab.addresses(host) for host in lab.names}
    lab.ssh("b", "iptables -I INPUT -p icmp -d 10.44.0.0/16 -j DROP")
    subnets = ["10.44.0.0/24", "10.44.1.0/24"]
    result = lab.ansible(fabric_configure=True, fabric_backend="networkd", fabric_subnets=subnets)
    assert result.returncode == 2
    assert "The old configuration is back" in said(result), result.stdout
    for host in lab.names:
        limit = 'for n in $(seq 20); do [ -z "$(ip -4 -o addr | grep 10.44)" ] && break; sleep 1; done'
        lab.ssh(host, limit)
        assert lab.addresses(host) == before[host]
        assert lab.ssh(host, "ls /etc/systemd/network").split() == ["00-management.network"]
        assert lab.ssh(host, "cat /sys/class/net/enp1s0f0np0/mtu").strip() == "9000"


def test_management_interface_is_refused(lab: Lab) -> None:
    result = lab.ansible(playbook="management.yml")
    assert result.returncode == 2
    assert "found eth0" in said(result), result.stdout


def test_netplan_takes_the_file_of_a_ring(lab: Lab, tmp_path: Path) -> None:
    """Loopback address and routes too, beside a NetworkManager that has the rest."""
    plan = Ring("ring", RING, nccl="2.30.7", configure=True).address().plan(tmp_path)["a"]
    (file,) = _fabric_files.files(plan, "netplan", 9000)
    kept = base64.b64encode(file["content"].encode()).decode()
    made = lab.ssh(
        "a",
        f"rm -rf /tmp/root; mkdir -p /tmp/root/etc/netplan; cd /tmp/root/etc/netplan; echo {kept} | base64 -d >60.yaml;"
        "echo 'network: {renderer: NetworkManager}' >01.yaml; chmod 600 *; netplan generate --root-dir /tmp/root;"
        "cat /tmp/root/run/systemd/network/*lo.network /tmp/root/run/systemd/network/*enp1s0f1np1.network",
    )
    wanted = {
        "Name=lo",
        "Address=192.168.99.1/32",
        "MTUBytes=9000",
        "Destination=192.168.99.3/32",
        "PreferredSource=192.168.99.1",
    }
    assert wanted - set(made.splitlines()) == set()
