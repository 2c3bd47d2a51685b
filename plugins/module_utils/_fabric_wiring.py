# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold the cables that were found against the topology that was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check
from ansible_collections.tandem.serving.plugins.module_utils._fabric_cables import Cable, Cage
from ansible_collections.tandem.serving.plugins.module_utils._fabric_causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._fabric_rails import End, Lane

_RANKS = {"pair": 2, "triangle": 3, "ring": 4}
_NAME = "cabling"


def _ports(cages: Sequence[Cage]) -> str:
    """What each port of a host says of its link."""
    return ", ".join(
        f"{cage.label} {'has a link' if cage.up else cage.halves[0].netdev['link'] or 'has no link'}" for cage in cages
    )


def _joined(cable: Cable) -> frozenset[str]:
    return frozenset((cable.one.host, cable.other.host))


def judge(topology: str, cages: Mapping[str, Sequence[Cage]], cables: Sequence[Cable], proven: bool) -> list[Check]:
    """What is wrong with the cabling, or that it is right."""
    hosts = list(cages)
    evidence = [cable.label for cable in cables] + [_ports(found) for found in cages.values()]
    wrong = list(_count(topology, hosts)) or list(_wrong(topology, cages, cables))
    if not wrong:
        found = "; ".join(cable.label for cable in cables)
        if proven:
            return [check(_NAME, "pass", f"a {topology} of {len(hosts)}", found, evidence=evidence)]
        return [
            fault(
                _NAME,
                "wiring_unproven",
                f"a {topology} of {len(hosts)}",
                found,
                verdict="inconclusive",
                evidence=evidence,
            )
        ]
    for item in wrong:
        item["evidence"] = evidence
    return wrong


def _count(topology: str, hosts: Sequence[str]) -> Iterator[Check]:
    wanted = _RANKS.get(topology)
    if wanted in (None, len(hosts)) and len(hosts) > 1:
        return
    if topology == "triangle" and len(hosts) == 4:
        yield fault(_NAME, "mesh_of_four", "three machines", "four machines, each cabled to all others")
        return
    fitting = next((name for name, count in _RANKS.items() if count == len(hosts)), "switch")
    yield fault(
        _NAME,
        "rank_count",
        f"{wanted or 'two or more'} hosts for {topology}",
        f"{len(hosts)}: {', '.join(hosts)}",
        fitting=fitting,
    )


def _wrong(topology: str, cages: Mapping[str, Sequence[Cage]], cables: Sequence[Cable]) -> Iterator[Check]:
    if topology == "switch":
        yield from _switch(cages, cables)
        return
    for cage in (cage for found in cages.values() for cage in found):
        ends = [cable for cable in cables if cage.key in (cable.one.key, cable.other.key)]
        if len(ends) > 1:
            found = "; ".join(cable.label for cable in ends)
            yield fault(_NAME, "switch_found", f"one cable in {cage.label}", found)
            return
    if topology == "pair":
        yield from _pair(cages, cables)
    elif topology == "triangle":
        yield from _triangle(cages, cables)
    else:
        yield from _ring(cages, cables)


def _pair(cages: Mapping[str, Sequence[Cage]], cables: Sequence[Cable]) -> Iterator[Check]:
    if not cables:
        one, other = cages
        ports = "; ".join(_ports(found) for found in cages.values())
        yield fault(_NAME, "no_cable", f"a cable between {one} and {other}", "none", one=one, other=other, ports=ports)


def _missing(one: str, other: str, cages: Mapping[str, Sequence[Cage]]) -> Check:
    ports = "; ".join(_ports(cages[host]) for host in (one, other))
    return fault(
        _NAME, "cable_missing", f"a cable between {one} and {other}", "none", one=one, other=other, ports=ports
    )


def _triangle(cages: Mapping[str, Sequence[Cage]], cables: Sequence[Cable]) -> Iterator[Check]:
    hosts = list(cages)
    missing = []
    for one, other in combinations(hosts, 2):
        between = [cable for cable in cables if _joined(cable) == {one, other}]
        if not between:
            missing.append(_missing(one, other, cages))
        elif len(between) > 1:
            third = (set(hosts) - {one, other}).pop()
            found = "; ".join(cable.label for cable in between)
            yield fault(
                _NAME,
                "doubled_cable",
                f"one cable between {one} and {other}",
                found,
                cable=between[1].label,
                other=third,
            )
    yield from missing
    if missing:
        return
    mirrored = [cable.label for cable in cables if {cable.one.number, cable.other.number} != {0, 1}]
    if mirrored:
        wanted = ", ".join(f"{host} port 0 - {hosts[(rank + 1) % 3]} port 1" for rank, host in enumerate(hosts))
        yield fault(
            _NAME,
            "mirrored_cabling",
            f"port 0 to port 1: {wanted}",
            "; ".join(mirrored),
            wanted=wanted,
            cable="; ".join(mirrored),
        )


def _ring(cages: Mapping[str, Sequence[Cage]], cables: Sequence[Cable]) -> Iterator[Check]:
    hosts = list(cages)
    near = {
        host: sorted({name for cable in cables for name in _joined(cable) if host in _joined(cable)} - {host})
        for host in hosts
    }
    found = "; ".join(cable.label for cable in cables) or "no cable"
    order = [hosts[0]]
    while len(order) < len(hosts):
        step = next((name for name in sorted(near[order[-1]], key=hosts.index) if name not in order), "")
        if not step:
            break
        order.append(step)
    if len(order) < len(hosts) or order[0] not in near[order[-1]] or any(len(names) != 2 for names in near.values()):
        alone = [host for host in hosts if len(near[host]) < 2]
        if len(alone) == 2:
            yield _missing(alone[0], alone[1], cages)
        else:
            yield fault(_NAME, "not_a_ring", f"a ring of {', '.join(hosts)}", found, cables=found)
        return
    backwards = [order[0], *reversed(order[1:])]
    if hosts not in (order, backwards):
        yield fault(_NAME, "rank_order", "ranks in the order of the cables", ", ".join(hosts), order=", ".join(order))


def _switch(cages: Mapping[str, Sequence[Cage]], cables: Sequence[Cable]) -> Iterator[Check]:
    for host, found in cages.items():
        near = {name for cable in cables for name in _joined(cable) if host in _joined(cable)} - {host}
        if not near:
            others = ", ".join(name for name in cages if name != host)
            yield fault(_NAME, "not_on_switch", f"{host} hears {others}", "nobody", host=host, ports=_ports(found))


def lanes(topology: str, cages: Mapping[str, Sequence[Cage]], cables: Sequence[Cable]) -> list[Lane]:
    """What shares a subnet: the first halves at both ends of a cable, then the second ones; on a switch all hosts' n-th halves."""
    if topology != "switch":
        return [
            Lane(cable.label, (End(cable.one.host, one), End(cable.other.host, other)))
            for cable in cables
            for one, other in zip(cable.one.halves, cable.other.halves, strict=False)
        ]
    on_switch = {cage.key for cable in cables for cage in cable}
    ports = {
        host: [half for cage in found if cage.key in on_switch for half in cage.halves] for host, found in cages.items()
    }
    shortest = min(len(found) for found in ports.values())
    return [
        Lane("switch", tuple(End(host, found[number]) for host, found in ports.items())) for number in range(shortest)
    ]
