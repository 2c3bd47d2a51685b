# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a fabric of sockets: one interface of each rank, no RDMA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._check import check
from ansible_collections.tandem.serving.plugins.module_utils._fabric_causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import (
    Facts,
    Peer,
    Plan,
    Rail,
    empty,
    inside,
    network,
)
from ansible_collections.tandem.serving.plugins.module_utils._rdma import ipv4


class Place(NamedTuple):
    """An IPv4 address of a host. ``protected`` where the interface carries the connection of Ansible."""

    netdev: str
    address: str
    prefixlen: int
    protected: bool
    speed: int | None

    @property
    def subnet(self) -> str:
        return str(network(self.address, self.prefixlen))


def places(facts: Facts) -> list[Place]:
    """Where a host has IPv4 addresses; interfaces without the connection first."""
    found = [
        Place(netdev["name"], item["address"], item["prefixlen"], netdev["name"] in facts["protected"], netdev["speed"])
        for netdev in facts["netdevs"]
        for item in ipv4(netdev)
    ]
    return sorted(found, key=lambda place: place.protected)


def _shared(hosts: Mapping[str, list[Place]]) -> list[str]:
    """Subnets in which every host has an address of its own: docker0 has the same one everywhere."""
    found = []
    for subnet in dict.fromkeys(place.subnet for places_ in hosts.values() for place in places_):
        addresses = [place.address for places_ in hosts.values() for place in places_ if place.subnet == subnet]
        holders = [host for host, places_ in hosts.items() if subnet in [place.subnet for place in places_]]
        if len(holders) == len(hosts) and len(set(addresses)) == len(addresses):
            found.append(subnet)
    return found


def _choose(found: Sequence[Place], subnets: Iterable[str]) -> Place | None:
    wanted = list(subnets)
    return next((place for place in found if place.netdev != "lo" and inside(place.address, wanted)), None)


def plan(hosts: Mapping[str, Facts], topology: str, subnets: Sequence[str]) -> dict[str, Plan]:
    """Give each rank the interface with an address in ``subnets``; without any, in the subnet that all hosts share."""
    plans = empty(hosts, topology, "socket")
    known = {host: places(facts) for host, facts in hosts.items()}
    shared = _shared(known)
    wanted = list(subnets) or shared[:1]
    chosen: dict[str, Place] = {}
    for host, found in known.items():
        place = _choose(found, wanted)
        expected = f"an interface with an address in {', '.join(wanted) or 'a subnet that all hosts share'}"
        listed = [f"{item.netdev}: {item.address}/{item.prefixlen}" for item in found]
        alias = next((item for item in found if item.netdev == "lo" and inside(item.address, wanted)), None)
        checks = plans[host]["checks"]
        if place is not None and place.protected:
            checks.append(
                fault(
                    "fabric interface",
                    "management_carries_fabric",
                    f"{expected}, apart from the management network",
                    f"{place.netdev} {place.address}",
                    verdict="warn",
                    evidence=listed,
                    host=host,
                    netdev=place.netdev,
                )
            )
        elif place is not None:
            checks.append(
                check("fabric interface", "pass", expected, f"{place.netdev} {place.address}", evidence=listed)
            )
        elif alias is not None:
            checks.append(
                fault(
                    "fabric interface",
                    "loopback_alias",
                    expected,
                    f"{alias.address} on lo",
                    evidence=listed,
                    address=alias.address,
                    netdev="lo",
                )
            )
        else:
            checks.append(
                fault(
                    "fabric interface",
                    "fabric_interface_not_found",
                    expected,
                    ", ".join(listed) or "no address",
                    evidence=listed,
                    host=host,
                    subnets=", ".join(wanted) or "one subnet",
                )
            )
        if place is not None:
            chosen[host] = place
    _duplicates(plans, chosen)
    if len(chosen) == len(hosts):
        for host, place in chosen.items():
            _fill(plans[host], host, place, chosen)
    return plans


def _duplicates(plans: Mapping[str, Plan], chosen: Mapping[str, Place]) -> None:
    for host, place in chosen.items():
        others = [name for name, other in chosen.items() if other.address == place.address and name != host]
        if others:
            plans[host]["checks"].append(
                fault(
                    "addresses",
                    "duplicate_address",
                    "one address for each host",
                    f"{place.address} on {host} and {', '.join(others)}",
                    address=place.address,
                    places=" or ".join([host, *others]),
                )
            )


def _fill(plan_: Plan, host: str, place: Place, chosen: Mapping[str, Place]) -> None:
    plan_["address"] = place.address
    plan_["interface"] = place.netdev
    plan_["master_address"] = chosen[plan_["head"]].address
    plan_["peers"] = [
        Peer(host=name, rank=rank, address=other.address)
        for rank, (name, other) in enumerate(chosen.items())
        if name != host
    ]
    pair = next((peer for peer in plan_["peers"]), None) if len(chosen) == 2 else None
    plan_["rails"] = [
        Rail(
            netdev=place.netdev,
            hca=None,
            twin=None,
            gid_index=None,
            cable="",
            address=place.address,
            prefixlen=place.prefixlen,
            subnet=place.subnet,
            peer=pair["host"] if pair else "",
            peer_netdev=chosen[pair["host"]].netdev if pair else "",
            peer_address=pair["address"] if pair else "",
            speed=place.speed,
            present=True,
        )
    ]
    plan_["env"] = {
        "GLOO_SOCKET_IFNAME": place.netdev,
        "TP_SOCKET_IFNAME": place.netdev,
        "NCCL_SOCKET_IFNAME": place.netdev,
        "VLLM_HOST_IP": place.address,
    }
