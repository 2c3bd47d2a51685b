"""Three machines in a triangle, and the same with a cable in the wrong port."""

from __future__ import annotations

from pathlib import Path

import pytest
from rdma_lab.machines import Lab

P0, P1 = ("enp1s0f0np0", "rocep1s0f0"), ("enp1s0f1np1", "rocep1s0f1")
RIGHT = [(("a", *P0), ("b", *P1)), (("b", *P0), ("c", *P1)), (("c", *P0), ("a", *P1))]
MIRRORED = [(("a", *P0), ("b", *P0)), (("b", *P1), ("c", *P1)), (("c", *P0), ("a", *P1))]
OPTIONS = {"fabric_topology": "triangle", "fabric_bandwidth": False, "fabric_nccl_version": "2.30.7"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_triangle(folder: Path) -> None:
    lab = Lab(folder, RIGHT)
    try:
        lab.start()
        result = lab.ansible(fabric_configure=True, **OPTIONS)
        assert result.returncode == 0, result.stdout
        for name, nexts in (("a", "b"), ("b", "c"), ("c", "a")):
            fabric = lab.facts(name)
            assert fabric["env"]["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
            assert fabric["interface"] == "eth0"
            assert next(rail["peer"] for rail in fabric["rails"] if rail["netdev"] == P0[0]) == nexts
            assert len({rail["subnet"] for rail in fabric["rails"]}) == 2
    finally:
        lab.stop()


def test_mirrored_cable(folder: Path) -> None:
    lab = Lab(folder, MIRRORED)
    try:
        lab.start()
        result = lab.ansible(fabric_configure=True, **OPTIONS)
        assert result.returncode == 2
        assert "mirrored_cabling" in result.stdout
        assert "Wrong now: a port 0 - b port 0" in " ".join(result.stdout.split())
    finally:
        lab.stop()
