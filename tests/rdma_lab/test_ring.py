"""The ways across a ring of four, in network namespaces: addresses, routes and firewall rules as they are planned.

Forwarding is dropped by policy as Docker does, and the reverse path filter is strict.
"""

from __future__ import annotations

import itertools
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from unit.fabric.test_topology import RING, Lab

from ansible_collections.tandem.serving.plugins.module_utils import _fabric_files

# Nobody listens: a machine that is reached refuses.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[2], 9), 1, (sys.argv[1], 0))
except ConnectionRefusedError:
    sys.exit(0)
"""
UNIT = Path(__file__).parents[2] / "roles/fabric/templates/tandem-fabric-transit.service.j2"


def run(*words: str, check: bool = True) -> bool:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if check and done.returncode:
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr}")
    return done.returncode == 0


def inside(host: str, *words: str, check: bool = True) -> bool:
    return run("ip", "netns", "exec", f"ring-{host}", *words, check=check)


def reach(plans: dict[str, Any], one: str, other: str) -> bool:
    return inside(one, sys.executable, "-c", CONNECT, plans[one]["loopback"], plans[other]["loopback"], check=False)


@pytest.fixture
def plans(tmp_path: Path) -> Iterator[dict[str, Any]]:
    made = Lab("ring", RING, nccl="2.30.7", configure=True).address().plan(tmp_path)
    try:
        for host in made:
            run("ip", "netns", "add", f"ring-{host}")
            inside(host, "iptables", "-N", "DOCKER-USER")
            inside(host, "iptables", "-A", "FORWARD", "-j", "DOCKER-USER")
            inside(host, "iptables", "-P", "FORWARD", "DROP")
            for key, value in (("ip_forward", 1), ("conf.all.rp_filter", 1), ("conf.default.rp_filter", 1)):
                inside(host, "sysctl", "-qw", f"net.ipv4.{key}={value}")
        for host, plan in made.items():
            for rail in plan["rails"]:
                if host < rail["peer"]:
                    near = ["ip", "link", "add", rail["netdev"], "netns", f"ring-{host}", "type", "veth"]
                    run(*near, "peer", "name", rail["peer_netdev"], "netns", f"ring-{rail['peer']}")
        for host, plan in made.items():
            # The loopback device last, as in the plan: routes want its address.
            for one in reversed(_fabric_files.interfaces(plan)):
                inside(host, "ip", "link", "set", one["name"], "up")
                for address in one["addresses"]:
                    inside(host, "ip", "addr", "add", address, "dev", one["name"])
                for route in one["routes"]:
                    way = ["ip", "route", "add", f"{route['peer_address']}/32", "via", route["via"]]
                    inside(host, *way, "src", route["address"])
        yield made
    finally:
        for host in made:
            run("ip", "netns", "del", f"ring-{host}", check=False)


def test_everybody_reaches_everybody(plans: dict[str, Any]) -> None:
    pairs = list(itertools.permutations(plans, 2))
    across = [pair for pair in pairs if {*pair} in ({"a", "c"}, {"b", "d"})]
    assert [pair for pair in pairs if reach(plans, *pair)] == [pair for pair in pairs if pair not in across]
    for host, plan in plans.items():
        netdevs = [rail["netdev"] for rail in plan["rails"]]
        unit = jinja2.Template(UNIT.read_text()).render(__fabric_rail_netdevs=netdevs)
        for line in unit.splitlines():
            if line.startswith("ExecStart="):
                inside(host, *shlex.split(line.removeprefix("ExecStart=")))
    assert [pair for pair in pairs if not reach(plans, *pair)] == []
