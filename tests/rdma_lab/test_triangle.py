"""Three machines in a triangle, configured by NetworkManager, and the same with two cables in the wrong ports.

The tests run in their order: each begins where the one before it ended.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rdma_lab.machines import Lab

P0, P1 = ("enp1s0f0np0", "rocep1s0f0"), ("enp1s0f1np1", "rocep1s0f1")
CABLES = [(("a", *P0), ("b", *P1)), (("b", *P0), ("c", *P1)), (("c", *P0), ("a", *P1))]
OPTIONS = {
    "fabric_topology": "triangle",
    "fabric_backend": "networkmanager",
    "fabric_configure": True,
    "fabric_bandwidth": False,
}
# The interfaces change their names: what was cabled to port 0 is cabled to port 1.
SWAP = f"""
rdma link delete {P0[1]}; rdma link delete {P1[1]}
for name in {P0[0]} {P1[0]}; do ip link set $name down; done
ip link set {P0[0]} name old; ip link set {P1[0]} name {P0[0]}; ip link set old name {P1[0]}
for name in {P0[0]} {P1[0]}; do ip link set $name up; done
rdma link add {P0[1]} type rxe netdev {P0[0]}; rdma link add {P1[1]} type rxe netdev {P1[0]}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("triangle"), CABLES)
    try:
        made.start()
        for host in made.names:
            made.ssh(host, "systemctl start NetworkManager")
        yield made
    finally:
        made.stop()


def test_nccl_that_does_not_know_subnets_is_refused(lab: Lab) -> None:
    result = lab.ansible(fabric_nccl_version="2.30.4", **OPTIONS)
    assert result.returncode == 2
    assert "nccl_without_subnets" in result.stdout
    assert lab.ssh("a", "ls /etc/NetworkManager/system-connections").split() == ["bare.nmconnection"]


def test_triangle(lab: Lab) -> None:
    result = lab.ansible(fabric_nccl_version="2.30.7", **OPTIONS)
    assert result.returncode == 0, result.stdout
    for name, nexts in (("a", "b"), ("b", "c"), ("c", "a")):
        fabric = lab.facts(name)
        assert fabric["env"]["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
        assert fabric["interface"] == "eth0"
        assert next(rail["peer"] for rail in fabric["rails"] if rail["netdev"] == P0[0]) == nexts
        assert len({rail["subnet"] for rail in fabric["rails"]}) == 2
        assert all(item["verdict"] == "pass" for item in fabric["checks"] if item["name"].startswith("ping of"))
        shown = lab.ssh(name, f"nmcli -g GENERAL.CONNECTION,GENERAL.MTU device show {P1[0]}")
        assert shown.split() == [f"tandem-{P1[0]}", "9000"]


def test_roll_back_when_ansible_does_not_come_back(lab: Lab) -> None:
    before = lab.addresses("a")
    assert before.startswith(f"{P0[0]} 192.168.")
    result = lab.ansible(playbook="abandon.yml")
    assert result.returncode == 0, result.stdout
    assert f"{P0[0]} 10.45.0.1/24" in lab.addresses("a")
    lab.ssh("a", "for n in $(seq 55); do ip -4 -o addr | grep -q 10.45 || break; sleep 1; done; sleep 2")
    assert lab.addresses("a") == before
    assert "10.45" not in lab.ssh("a", f"cat /etc/NetworkManager/system-connections/tandem-{P0[0]}.nmconnection")


def test_mirrored_cable(lab: Lab) -> None:
    lab.ssh("b", SWAP)
    result = lab.ansible(fabric_nccl_version="2.30.7", **OPTIONS)
    assert result.returncode == 2
    assert "mirrored_cabling" in result.stdout
    assert "Wrong now: a port 0 - b port 0" in " ".join(result.stdout.split())
    assert "WRONG" in (lab.folder / "fabric.html").read_text()
