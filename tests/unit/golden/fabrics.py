"""Plans of fabrics for the golden files: what the planner makes of saved machines, cabled as the inventories say."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unit.fabric import tree

from ansible_collections.tandem.serving.plugins.module_utils import _topology

# Cables by rank: (one, its cage, the other, its cage).
CABLES: dict[str, list[tuple[int, int, int, int]]] = {
    "pair": [(0, 1, 1, 0)],
    "pair2": [(0, 0, 1, 0), (0, 1, 1, 1)],
    "triangle": [(0, 0, 1, 1), (1, 0, 2, 1), (2, 0, 0, 1)],
    "ring": [(0, 1, 1, 1), (1, 0, 2, 0), (2, 1, 3, 1), (3, 0, 0, 0)],
    "switch": [(one, 0, other, 0) for one, other in itertools.combinations(range(4), 2)],
}


def halves(spec: tree.Spec, cage: int) -> dict[str, dict[str, Any]]:
    """The interfaces of one cage: two on a Spark, one on a Station."""
    names = (f"enp1s0f{cage}np{cage}", f"enP2p1s0f{cage}np{cage}", f"cx8r{cage}")
    return {name: spec["netdevs"][name] for name in names if name in spec["netdevs"]}


def address(specs: list[tree.Spec], cables: Sequence[tuple[int, int, int, int]], switch: bool) -> None:
    """A subnet for each half of each cable, one for each half of a switch; what has no cable is unplugged."""
    used = {end for one, cage, other, other_cage in cables for end in ((one, cage), (other, other_cage))}
    for rank, cage in itertools.product(range(len(specs)), (0, 1)):
        for half in halves(specs[rank], cage).values():
            half["addresses"] = []
            if (rank, cage) not in used:
                half.update(up=False, ethtool="no (No cable)")
    for number, (one, cage, other, other_cage) in enumerate(cables):
        for rank, port in ((one, cage), (other, other_cage)):
            for half, netdev in enumerate(halves(specs[rank], port).values()):
                subnet = 100 + half if switch else 100 + len(halves(specs[rank], port)) * number + half
                netdev["addresses"] = [f"192.168.{subnet}.{rank + 1}/24"]


def rdma(folder: Path, hosts: list[str], topology: str, cables: str, fixture: str, **options: str) -> dict[str, Any]:
    """Plans of machines of one kind. Raises AssertionError where the planner finds something wrong."""
    joined = CABLES[cables]
    specs = tree.machines(hosts, fixture)
    address(list(specs.values()), joined, topology == "switch")
    found = {name: tree.facts(folder / name, spec) for name, spec in specs.items()}
    tree.cable(found, *((hosts[one], cage, hosts[other], end) for one, cage, other, end in joined))
    for facts in found.values():
        facts.update({"ip_forward": True, "docker_forward": True})
    plans = _topology.plan(found, topology, "rdma", _topology.Options(**options))
    wrong = [item for plan in plans.values() for item in plan["checks"] if item["verdict"] == "fail"]
    assert not wrong, wrong
    return {name: {**plan, "checks": []} for name, plan in plans.items()}


def socket(hosts: list[str]) -> dict[str, Any]:
    """Two hosts over one Ethernet."""
    names = {f"{name}_SOCKET_IFNAME": "eth1" for name in ("GLOO", "NCCL", "TP")}
    return {
        host: {
            "rank": rank,
            "nranks": len(hosts),
            "head": hosts[0],
            "topology": "pair",
            "transport": "socket",
            "master_address": "10.99.0.11",
            "graph": "",
            "env": {"VLLM_HOST_IP": f"10.99.0.{11 + rank}", **names},
        }
        for rank, host in enumerate(hosts)
    }
