# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give each pair of halves that a cable joins its subnet: the one they have, or the next free one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Facts, Rail, inside, network
from ansible_collections.tandem.serving.plugins.module_utils._netlink import Address
from ansible_collections.tandem.serving.plugins.module_utils._rdma import ipv4, roce_v2
from ansible_collections.tandem.serving.plugins.module_utils._rdma_verdict import Half

# Free in most networks, and far from the subnets that routers give to homes.
POOL = tuple(f"192.168.{number}.0/24" for number in range(100, 132))


class End(NamedTuple):
    """One half of a cage at one end of a cable."""

    host: str
    half: Half


class Lane(NamedTuple):
    """The halves that share one subnet: two on a cable, all hosts' on a switch."""

    cable: str
    ends: tuple[End, ...]


class Addresses:
    """Subnets that are taken, and the next one that is not."""

    def __init__(self, hosts: Mapping[str, Facts], subnets: Sequence[str]) -> None:
        self.wanted = list(subnets)
        self._pool = [ipaddress.IPv4Network(subnet) for subnet in subnets or POOL]
        self._rank = {host: rank for rank, host in enumerate(hosts)}
        self._foreign = [
            network(item["address"], item["prefixlen"])
            for facts in hosts.values()
            for netdev in facts["netdevs"]
            for item in ipv4(netdev)
        ]
        self.used: dict[str, str] = {}

    def common(self, lane: Lane) -> str:
        """The subnet that all ends of a lane have an address in, empty where there is none."""
        found = [[self._subnet(item) for item in self._candidates(end)] for end in lane.ends]
        shared = [subnet for subnet in found[0] if all(subnet in other for other in found[1:])]
        return next((subnet for subnet in shared if subnet not in self.used), shared[0] if shared else "")

    def begun(self, lane: Lane) -> str:
        """The subnet of which at least one end has an address, and nobody else, empty where there is none."""
        found = [self._subnet(item) for end in lane.ends for item in self._candidates(end) if item["prefixlen"] < 32]
        return next((subnet for subnet in found if subnet not in self.used), "")

    def free(self) -> str:
        """The next subnet that nobody uses. Raises ValueError when none is left."""
        for subnet in self._pool:
            if str(subnet) not in self.used and (self.wanted or not any(subnet.overlaps(one) for one in self._foreign)):
                return str(subnet)
        raise ValueError(
            f"no free subnet for a rail: {len(self.used)} of {len(self._pool)} are in use, name more in fabric_subnets"
        )

    def own(self, end: End, subnet: str) -> str:
        """The address that an end has in a subnet, empty where it has none."""
        return next((item["address"] for item in self._candidates(end) if self._subnet(item) == subnet), "")

    def given(self, end: End, lane: Lane, subnet: str) -> str:
        """The address for an end that has none: its rank plus one, or plus 101 where another end has that."""
        taken = {self.own(other, subnet) for other in lane.ends}
        net = ipaddress.IPv4Network(subnet)
        number = self._rank[end.host] + 1
        return str(net[number + 100] if str(net[number]) in taken else net[number])

    def _candidates(self, end: End) -> Iterator[Address]:
        for item in ipv4(end.half.netdev):
            if item["prefixlen"] and (not self.wanted or inside(item["address"], self.wanted)):
                yield item

    @staticmethod
    def _subnet(item: Address) -> str:
        return str(network(item["address"], item["prefixlen"]))


def rails(lane: Lane, subnet: str, addresses: Addresses) -> dict[str, Rail]:
    """The rail of each host on a lane, in ``subnet``."""
    made = {}
    for position, end in enumerate(lane.ends):
        # On a switch the next one, so that every port is probed.
        near = lane.ends[(position + 1) % len(lane.ends)]
        peer = near if len(lane.ends) == 2 else None
        present = addresses.own(end, subnet)
        address = present or addresses.given(end, lane, subnet)
        port = end.half.port
        made[end.host] = Rail(
            netdev=end.half.netdev["name"],
            hca=port["hca"],
            twin=port["twin"] or None,
            gid_index=roce_v2(port, present) if present else None,
            cable=lane.cable,
            address=address,
            prefixlen=ipaddress.IPv4Network(subnet).prefixlen,
            subnet=subnet,
            peer=peer.host if peer else "",
            peer_netdev=peer.half.netdev["name"] if peer else "",
            peer_address=addresses.own(near, subnet) or addresses.given(near, lane, subnet),
            speed=end.half.netdev["speed"],
            present=bool(present),
        )
    return made
