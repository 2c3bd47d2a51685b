# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what all hosts have to what each rank gets: rails, HCAs, GID indexes, addresses, environment.

Pure: the hosts' facts go in as `rdma_info` returned them, in rank order; verdicts come out as checks, never as exceptions.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils import (
    _fabric_cables,
    _fabric_env,
    _fabric_rails,
    _fabric_socket,
    _fabric_wiring,
    _rdma_verdict,
)
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check
from ansible_collections.tandem.serving.plugins.module_utils._fabric_cables import Cage
from ansible_collections.tandem.serving.plugins.module_utils._fabric_causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Facts, Peer, Plan, Rail, Route, empty
from ansible_collections.tandem.serving.plugins.module_utils._fabric_rails import Addresses, Lane
from ansible_collections.tandem.serving.plugins.module_utils._rdma import ipv4

# The first NCCL that keeps the ranks of a fabric without a switch on the right NICs.
SUBNET_AWARE = (2, 30, 7)
_SPEED = {"gb10": 200000, "gb300": 400000}
# Without a switch no fabric address is reachable from all ranks.
_SWITCHLESS = ("triangle", "ring")
# What configuring cures: refused only when nobody is to configure.
_CURABLE = (
    "port_down",
    "rail_without_address",
    "halves_in_one_subnet",
    "one_subnet_for_two_cables",
    "mtu_mismatch",
    "gid_index_empty",
    "ip_forward_off",
    "docker_forward_drop",
)


class Options(NamedTuple):
    """What the user and the recipe say. ``nccl`` is the version in the image, empty when nobody knows."""

    subnets: Sequence[str] = ()
    platform: str = "generic"
    engine: str = "vllm"
    nccl: str = ""
    configure: bool = False
    loopbacks: str = "192.168.99.0/24"


def plan(hosts: Mapping[str, Facts], topology: str, transport: str, options: Options) -> dict[str, Plan]:
    """Plan the fabric of ``hosts``, a mapping of host to facts in rank order."""
    if not hosts:
        raise ValueError("no hosts to plan a fabric for: the group of ranks is empty")
    if transport == "socket":
        return _fabric_socket.plan(hosts, topology, options.subnets)
    plans = empty(hosts, topology, "rdma")
    _rdma(plans, hosts, topology, options)
    if options.configure:
        for item in (item for one in plans.values() for item in one["checks"]):
            if item["cause"] in _CURABLE and item["verdict"] == "fail":
                item["verdict"] = "warn"
    return plans


def _rdma(plans: dict[str, Plan], hosts: Mapping[str, Facts], topology: str, options: Options) -> None:
    cages = {host: _fabric_cables.cages(host, facts) for host, facts in hosts.items()}
    for host, found in cages.items():
        names = {half.port["hca"] for cage in found for half in cage.halves}
        devices = [device for device in hosts[host]["devices"] if device["name"] in names]
        protected = [name for name in hosts[host]["protected"] if name in _ports(hosts[host])]
        if devices:
            plans[host]["checks"] += _rdma_verdict.judge(devices, hosts[host]["netdevs"])
        elif protected:
            plans[host]["checks"].append(
                fault(
                    "rdma devices",
                    "management_carries_fabric",
                    "an RDMA port apart from the management network",
                    ", ".join(protected),
                    host=host,
                    netdev=protected[0],
                )
            )
        else:
            plans[host]["checks"].append(
                fault("rdma devices", "no_rdma_device", "an RDMA device for the fabric", "none")
            )
    if not all(cages.values()):
        return
    cables, proven = _fabric_cables.cables(hosts, [cage for found in cages.values() for cage in found])
    head = plans[next(iter(hosts))]
    wiring = _fabric_wiring.judge(topology, cages, cables, proven)
    head["checks"] += wiring
    if any(item["verdict"] == "fail" for item in wiring):
        return
    lanes = _fabric_wiring.lanes(topology, cages, cables)
    _give_rails(plans, hosts, lanes, options)
    if topology == "switch":
        for host, one in plans.items():
            one["checks"] += list(_lossless(host, one, hosts[host].get("lossless", {})))
    head["checks"] += list(_firmware(hosts, cages))
    head["checks"] += list(_nccl(topology, options))
    _give_addresses(plans, hosts, topology, options)
    common = {rail["gid_index"] for one in plans.values() for rail in one["rails"]}
    for one in plans.values():
        own = {rail["gid_index"] for rail in one["rails"]} if topology not in _SWITCHLESS else common
        index = next(iter(own)) if len(own) == 1 else None
        one["env"] = _fabric_env.environment(one, options.platform, options.engine, index)


def _ports(facts: Facts) -> set[str]:
    """Interfaces that have an RDMA device."""
    return {port["netdev"] for device in facts["devices"] for port in device["ports"]}


def _give_rails(plans: dict[str, Plan], hosts: Mapping[str, Facts], lanes: Sequence[Lane], options: Options) -> None:
    addresses = Addresses(hosts, options.subnets)
    # Those that have a subnet first, so that no new one takes it.
    chosen: dict[int, str] = {}
    for number, lane in enumerate(lanes):
        subnet = addresses.common(lane)
        if subnet in addresses.used:
            _one_subnet(plans, lane, subnet, addresses.used[subnet])
        elif subnet:
            chosen[number] = subnet
            addresses.used[subnet] = lane.cable
    for number, lane in enumerate(lanes):
        if number not in chosen:
            chosen[number] = addresses.begun(lane) or addresses.free()
            addresses.used[chosen[number]] = lane.cable
    for number, lane in enumerate(lanes):
        for host, rail in _fabric_rails.rails(lane, chosen[number], addresses).items():
            plans[host]["rails"].append(rail)
            plans[host]["checks"] += list(_rail(host, rail, hosts[host], options.platform))
        _mtu(plans, lane)
    _duplicates(plans)


def _one_subnet(plans: Mapping[str, Plan], lane: Lane, subnet: str, taken_by: str) -> None:
    # Two halves of one port in one subnet are found on each host by itself.
    if taken_by != lane.cable:
        host = lane.ends[0].host
        plans[host]["checks"].append(
            fault(
                f"subnet of {lane.cable}",
                "one_subnet_for_two_cables",
                "a subnet for each cable",
                f"{subnet} on {taken_by} and on {lane.cable}",
                cable=lane.cable,
                subnet=subnet,
            )
        )


def _rail(host: str, rail: Rail, facts: Facts, platform: str) -> Iterator[Check]:
    netdev = {item["name"]: item for item in facts["netdevs"]}[rail["netdev"]]
    have = [f"{item['address']}/{item['prefixlen']}" for item in ipv4(netdev)]
    name = f"address of {rail['netdev']}"
    expected = f"{rail['address']}/{rail['prefixlen']} for {rail['cable']}"
    if rail["present"]:
        yield check(name, "pass", expected, ", ".join(have))
    else:
        alias = next((item for item in ipv4(_loopback(facts)) if not item["address"].startswith("127.")), None)
        if alias is not None and not have:
            yield fault(
                name, "loopback_alias", expected, f"{alias['address']} on lo", address=alias["address"], netdev="lo"
            )
        yield fault(
            name,
            "rail_without_address",
            expected,
            ", ".join(have) or "none",
            netdev=rail["netdev"],
            host=host,
            address=f"{rail['address']}/{rail['prefixlen']}",
            cable=rail["cable"],
        )
    wanted = _SPEED.get(platform)
    if wanted and rail["speed"] and rail["speed"] < wanted:
        yield fault(
            f"speed of {rail['netdev']}",
            "link_below_200g",
            f"{wanted} Mb/s",
            f"{rail['speed']} Mb/s",
            where=f"{rail['cable']}, {rail['netdev']} of {host}",
        )


def _loopback(facts: Facts) -> Facts:
    return next((item for item in facts["netdevs"] if item["name"] == "lo"), {"addresses": []})


def _mtu(plans: Mapping[str, Plan], lane: Lane) -> None:
    low, high = (choose(lane.ends, key=lambda end: end.half.netdev["mtu"]) for choose in (min, max))
    if low.half.netdev["mtu"] != high.half.netdev["mtu"]:
        found = ", ".join(f"{end.host} {end.half.netdev['name']} {end.half.netdev['mtu']}" for end in lane.ends)
        plans[low.host]["checks"].append(
            fault(
                f"MTU of {lane.cable}",
                "mtu_mismatch",
                "the same MTU at all ends",
                found,
                netdev=f"{low.half.netdev['name']} of {low.host}",
                mtu=high.half.netdev["mtu"],
            )
        )


def _duplicates(plans: Mapping[str, Plan]) -> None:
    places: dict[str, list[str]] = {}
    for host, one in plans.items():
        for rail in one["rails"]:
            places.setdefault(rail["address"], []).append(f"{rail['netdev']} of {host}")
    for address, found in places.items():
        if len(found) > 1:
            next(iter(plans.values()))["checks"].append(
                fault(
                    "addresses",
                    "duplicate_address",
                    "an address only once",
                    f"{address} on {' and '.join(found)}",
                    address=address,
                    places=" or ".join(found),
                )
            )


def _lossless(host: str, one: Plan, lossless: Mapping[str, bool | None]) -> Iterator[Check]:
    for netdev in (rail["netdev"] for rail in one["rails"]):
        name, expected, found = (
            f"flow control of {netdev}",
            "PFC on priority 3, DSCP 26 mapped to it",
            lossless.get(netdev),
        )
        if found:
            yield check(name, "pass", expected, "both", evidence=[f"dcb pfc and dcb app of {netdev}"])
        else:
            yield fault(
                name,
                "pfc_off",
                expected,
                "not told by dcb" if found is None else "off",
                verdict="inconclusive" if found is None else "warn",
                host=host,
                netdev=netdev,
            )


def _firmware(hosts: Mapping[str, Facts], cages: Mapping[str, Sequence[Cage]]) -> Iterator[Check]:
    versions: dict[str, set[str]] = {}
    for host, found in cages.items():
        for half in (half for cage in found for half in cage.halves):
            if half.device["firmware"]:
                versions.setdefault(half.device["board"], set()).add(f"{host} {half.device['firmware']}")
    for board, seen in versions.items():
        if len({item.split()[-1] for item in seen}) > 1:
            yield fault(
                f"firmware of {board} on all hosts",
                "firmware_mix",
                "one version",
                ", ".join(sorted(seen)),
                verdict="warn",
            )


def _nccl(topology: str, options: Options) -> Iterator[Check]:
    if topology not in _SWITCHLESS:
        return
    expected = f"NCCL {'.'.join(map(str, SUBNET_AWARE))} or newer for a {topology}"
    if not options.nccl:
        yield fault("NCCL", "nccl_version_unknown", expected, "not known", verdict="inconclusive")
    elif tuple(int(part) for part in options.nccl.split("+")[0].split(".")[:3]) < SUBNET_AWARE:
        yield fault("NCCL", "nccl_without_subnets", expected, options.nccl)
    else:
        yield check("NCCL", "pass", expected, options.nccl)


def _give_addresses(plans: dict[str, Plan], hosts: Mapping[str, Facts], topology: str, options: Options) -> None:
    names = list(hosts)
    management = {
        host: next((place for place in _fabric_socket.places(facts) if place.protected), None)
        for host, facts in hosts.items()
    }
    for host, one in plans.items():
        if topology in _SWITCHLESS:
            place = management[host]
            if place is None:
                one["checks"].append(
                    fault(
                        "management address",
                        "no_management_address",
                        "an address on the management network",
                        "none",
                        host=host,
                    )
                )
                continue
            one["address"], one["interface"] = place.address, place.netdev
        else:
            one["address"], one["interface"] = one["rails"][0]["address"], one["rails"][0]["netdev"]
    for one in plans.values():
        one["master_address"] = plans[names[0]]["address"]
    if topology == "ring":
        _give_transit(plans, hosts, options)
    for host, one in plans.items():
        one["peers"] = [
            Peer(host=name, rank=rank, address=_reach(plans, host, name))
            for rank, name in enumerate(names)
            if name != host
        ]


def _reach(plans: Mapping[str, Plan], host: str, peer: str) -> str:
    """The address at which ``host`` reaches ``peer`` over the fabric: on their cable, on the switch, or across the ring."""
    one, other = plans[host], plans[peer]
    direct = next((rail["peer_address"] for rail in one["rails"] if rail["peer"] == peer), "")
    if direct or one["topology"] != "ring":
        return direct or other["address"]
    return other["loopback"] if one["routes"] and other["routes"] else other["address"]


def _give_transit(plans: dict[str, Plan], hosts: Mapping[str, Facts], options: Options) -> None:
    """Loopback addresses and the routes to them, so that the machine across is reachable over its neighbours."""
    names = list(plans)
    pool = ipaddress.IPv4Network(options.loopbacks)
    for rank, host in enumerate(names):
        one = plans[host]
        loopback = str(pool[rank + 1])
        before, after = names[rank - 1], names[(rank + 1) % len(names)]
        if options.engine == "tensorfold":
            one["graph"] = _fabric_env.graph(one["rails"], before, after)
        have = [item["address"] for item in ipv4(_loopback(hosts[host]))]
        if loopback in have or options.configure:
            one["loopback"] = loopback
            for other_rank, other in enumerate(names):
                if other != host:
                    # There and back by the same machine: a strict reverse path filter drops what comes another way.
                    via = other if other in (before, after) else names[min(rank, other_rank) + 1]
                    rail = next(rail for rail in one["rails"] if rail["peer"] == via)
                    one["routes"].append(
                        Route(
                            netdev=rail["netdev"],
                            cable=rail["cable"] if other == via else f"{rail['cable']}, then the next",
                            # Who is across knows no way back to the cable's subnet.
                            address=loopback,
                            via=rail["peer_address"],
                            peer=other,
                            peer_netdev="lo",
                            peer_address=str(pool[other_rank + 1]),
                        )
                    )
        else:
            one["checks"].append(
                fault(
                    "way across the ring",
                    "transit_missing",
                    f"{loopback} on lo, and routes to the others",
                    ", ".join(have) or "neither",
                    verdict="warn",
                )
            )
        one["checks"] += list(_forwarding(host, one, hosts[host].get("forwarding", {})))


def _forwarding(host: str, one: Plan, forwarding: Facts) -> Iterator[Check]:
    if not forwarding:
        return
    if not forwarding["ip_forward"]:
        yield fault("forwarding", "ip_forward_off", "net.ipv4.ip_forward = 1", 0, host=host)
    netdevs = sorted({rail["netdev"] for rail in one["rails"]})
    accepted = [
        rule for rule in forwarding["docker_user"] if "ACCEPT" in rule and any(name in rule for name in netdevs)
    ]
    if forwarding["policy"] == "DROP" and not accepted:
        yield fault(
            "transit through Docker's firewall",
            "docker_forward_drop",
            "rules in DOCKER-USER that accept transit",
            "FORWARD policy DROP",
            evidence=forwarding["docker_user"],
            host=host,
            into=one["rails"][0]["netdev"],
            out=one["rails"][-1]["netdev"],
        )
