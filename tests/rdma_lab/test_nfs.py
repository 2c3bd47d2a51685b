"""The weights over NFS, with a real server and a real mount, which the containers of the rig cannot have."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from rdma_lab.machines import Lab

FABRIC, OTHER = ("enp1s0f0np0", "rocep1s0f0"), ("enP2p1s0f0np0", "roceP2p1s0f0")
HUB = "/var/lib/tandem/huggingface/hub"
SUBNETS = {"a": "192.0.2.0/24", "b": "192.0.2.0/24"}
ADDRESSES = {"a": "192.0.2.1", "b": "192.0.2.2"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two machines with two networks between them, of which only the first is the fabric."""
    made = Lab(tmp_path_factory.mktemp("nfs"), [(("a", *nic), ("b", *nic)) for nic in (FABRIC, OTHER)])
    try:
        made.start()
        for host, number in (("a", 1), ("b", 2)):
            made.ssh(host, f"ip address add 192.0.2.{number}/24 dev {FABRIC[0]}; ip link set {FABRIC[0]} up")
            made.ssh(host, f"ip address add 198.51.100.{number}/24 dev {OTHER[0]}; ip link set {OTHER[0]} up")
        yield made
    finally:
        made.stop()


def weights(lab: Lab, mode: str, **subnets: str) -> subprocess.CompletedProcess[str]:
    more: dict[str, Any] = {"lab_subnets": SUBNETS | subnets, "lab_addresses": ADDRESSES, "weights_mode": mode}
    return lab.ansible(playbook="weights.yml", **more)


def changed(text: str) -> dict[str, int]:
    return {host: int(count) for host, count in re.findall(r"^(\w+)\s+: ok=\d+\s+changed=(\d+)", text, re.MULTILINE)}


def contents(lab: Lab, host: str) -> str:
    return lab.ssh(host, f"cd {HUB} && sha256sum models--lab--model/snapshots/*/*")


def test_a_worker_without_a_rail_to_the_head_is_refused(lab: Lab) -> None:
    result = weights(lab, "nfs", b="203.0.113.0/24")
    assert result.returncode == 2
    assert "b shares no rail with the head a, expected one" in " ".join(result.stdout.split())
    assert lab.ssh("b", "findmnt --types nfs4", check=False) == ""


def test_the_worker_reads_the_cache_of_the_head(lab: Lab) -> None:
    result = weights(lab, "nfs")
    assert result.returncode == 0, result.stdout
    assert lab.ssh("b", "findmnt --types nfs4 --noheadings --output SOURCE").strip() == f"192.0.2.1:{HUB}"
    assert contents(lab, "b") == contents(lab, "a")
    assert "Read-only file system" in lab.ssh("b", f"touch {HUB}/new 2>&1", check=False)
    assert changed(weights(lab, "nfs").stdout) == {"a": 0, "b": 0}


def test_the_head_serves_no_other_network(lab: Lab) -> None:
    lab.ssh("b", "mkdir /mnt/other")
    said = lab.ssh("b", f"mount -t nfs4 198.51.100.1:{HUB} /mnt/other 2>&1", check=False)
    assert "access denied" in said or "Operation not permitted" in said or "No such file" in said, said
    assert lab.ssh("b", "mountpoint /mnt/other", check=False).strip() == "/mnt/other is not a mountpoint"


def test_back_to_copies(lab: Lab) -> None:
    result = weights(lab, "copy")
    assert result.returncode == 0, result.stdout
    assert lab.ssh("b", "findmnt --types nfs4", check=False) == ""
    assert "nfs" not in lab.ssh("b", "cat /etc/fstab")
    assert contents(lab, "b") == contents(lab, "a")
