# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which port is cabled to which, from what each port has heard on its cable.

A cage is a socket of a NIC: one half, or two halves on a DGX Spark. Both halves hear both halves at the other end, so that
the cable is known, and which halves belong together is our choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Facts, network
from ansible_collections.tandem.serving.plugins.module_utils._rdma import ipv4
from ansible_collections.tandem.serving.plugins.module_utils._rdma_verdict import Half, halves


class Cage(NamedTuple):
    """A socket of a host's NIC, with its one or two halves. ``number`` is None where the machine does not tell."""

    host: str
    number: int | None
    halves: tuple[Half, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Host and first device."""
        return self.host, self.halves[0].port["hca"]

    @property
    def label(self) -> str:
        name = f"port {self.number}" if self.number is not None else self.halves[0].netdev["name"]
        return f"{self.host} {name}"

    @property
    def up(self) -> bool:
        return any(half.active for half in self.halves)


class Cable(NamedTuple):
    """Two cages that hear each other; ``one`` belongs to the lower rank."""

    one: Cage
    other: Cage

    @property
    def label(self) -> str:
        return f"{self.one.label} - {self.other.label}"


def cages(host: str, facts: Facts) -> list[Cage]:
    """The cages of a host, without those that carry Ansible's connection."""
    found = {
        name: half
        for name, half in halves(facts["devices"], facts["netdevs"]).items()
        if half.netdev["name"] not in facts["protected"]
    }
    groups: dict[str, list[Half]] = {}
    for name, half in found.items():
        twin = half.port["twin"] if half.port["twin"] in found else name
        groups.setdefault(min(name, twin), []).append(half)
    made = [
        Cage(host, group[0].port["cage"], tuple(sorted(group, key=lambda half: half.order)))
        for group in groups.values()
    ]
    return sorted(made, key=lambda cage: (cage.number is None, cage.number or 0, cage.halves[0].port["hca"]))


def _heard(facts: Facts, cage: Cage) -> set[str]:
    names = {half.netdev["name"] for half in cage.halves}
    return {item["mac"] for item in facts.get("neighbours", []) if item["netdev"] in names}


def _subnets(cage: Cage) -> set[str]:
    return {
        str(network(item["address"], item["prefixlen"]))
        for half in cage.halves
        for item in ipv4(half.netdev)
        if item["prefixlen"]
    }


def cables(hosts: Mapping[str, Facts], all_cages: Iterable[Cage]) -> tuple[list[Cable], bool]:
    """Cables between the hosts, in the order of ``all_cages`` (by rank), and whether they were heard.

    Where no port has heard any other (nobody has sent anything yet), shared subnets have to do.
    """
    known = {cage.key: cage for cage in all_cages}
    order = {key: position for position, key in enumerate(known)}
    macs = {half.netdev["mac"]: key for key, cage in known.items() for half in cage.halves}
    heard = {(key, macs[mac]) for key, cage in known.items() for mac in _heard(hosts[cage.host], cage) if mac in macs}
    pairs = {tuple(sorted(pair, key=order.__getitem__)) for pair in heard if pair[0][0] != pair[1][0]}
    proven = bool(pairs)
    if not proven:
        pairs = {
            (one, other)
            for one in known
            for other in known
            if order[one] < order[other] and one[0] != other[0] and _subnets(known[one]) & _subnets(known[other])
        }
    ordered = sorted(pairs, key=lambda pair: (order[pair[0]], order[pair[1]]))
    return [Cable(known[one], known[other]) for one, other in ordered], proven
