# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shape of a fabric's plan: what one rank gets."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ansible_collections.tandem.serving.plugins.module_utils._check import Check

Facts = Mapping[str, Any]


class Rail(TypedDict):
    """One point-to-point subnet of a rank, or its port on a switch.

    ``peer`` is the host at the other end, empty on a switch; ``peer_address`` its address there, on a switch the next rank's.
    ``hca``, ``twin`` and ``gid_index`` are None without RDMA. ``address`` is what the interface shall have, ``present`` whether it has it.
    """

    netdev: str
    hca: str | None
    twin: str | None
    gid_index: int | None
    cable: str
    address: str
    prefixlen: int
    subnet: str
    peer: str
    peer_netdev: str
    peer_address: str
    speed: int | None
    present: bool


class Route(TypedDict):
    """The way to another rank's loopback address ``peer_address`` from the own one, ``address``: over ``via`` out of ``netdev``."""

    netdev: str
    cable: str
    address: str
    via: str
    peer: str
    peer_netdev: str
    peer_address: str


class Peer(TypedDict):
    """Another rank, and the address at which this rank reaches it over the fabric."""

    host: str
    rank: int
    address: str


class Plan(TypedDict):
    """What one rank gets. ``address`` is its VLLM_HOST_IP, on ``interface``."""

    rank: int
    nranks: int
    head: str
    topology: str
    transport: str
    address: str
    interface: str
    master_address: str
    peers: list[Peer]
    rails: list[Rail]
    routes: list[Route]
    loopback: str
    graph: str
    env: dict[str, str]
    gbps: dict[str, float | None]
    checks: list[Check]


def empty(hosts: Iterable[str], topology: str, transport: str) -> dict[str, Plan]:
    """A plan without anything planned, in rank order."""
    names = list(hosts)
    return {
        name: Plan(
            rank=rank,
            nranks=len(names),
            head=names[0],
            topology=topology,
            transport=transport,
            address="",
            interface="",
            master_address="",
            peers=[],
            rails=[],
            routes=[],
            loopback="",
            graph="",
            env={},
            gbps={},
            checks=[],
        )
        for rank, name in enumerate(names)
    }


def network(address: str, prefixlen: int) -> ipaddress.IPv4Network:
    """The subnet of an address."""
    return ipaddress.IPv4Network(f"{address}/{prefixlen}", strict=False)


def inside(address: str, subnets: Iterable[str]) -> bool:
    """Whether an address is in one of the subnets."""
    return any(ipaddress.IPv4Address(address) in ipaddress.IPv4Network(subnet) for subnet in subnets)
