# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every cause code of the fabric: what it means, what it looks like, how to cure it.

The words in braces are filled in with the interface, cable, host or address that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils._causes import Cause
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, Verdict, check

FABRIC = {
    "no_rdma_device": Cause(
        "The host shows no RDMA device.",
        "/sys/class/infiniband is empty",
        "Load the driver (modprobe mlx5_ib), and look for the NIC with lspci; without RDMA set the recipe's transport to socket.",
    ),
    "fabric_interface_not_found": Cause(
        "No interface has an address in the fabric's subnet.",
        "ip addr shows none in it",
        "Give an interface of {host} an address in {subnets}, or set fabric_subnets to the subnets that the hosts share.",
    ),
    "loopback_alias": Cause(
        "The fabric's address is an alias on the loopback device.",
        "ip addr show lo lists it; SSH over it works, NCCL hangs in ncclCommInitRank",
        "Use the address of the NIC itself: take {address} off {netdev} and give the cable's interface an address of its own.",
    ),
    "management_carries_fabric": Cause(
        "The fabric's subnet is that of the management network.",
        "the interface with the SSH connection has an address in it",
        "Give the fabric's cable a subnet of its own: {netdev} carries the connection to {host}.",
    ),
    "duplicate_address": Cause(
        "Two hosts, or two interfaces, have the same address.",
        "the same address twice in ip addr",
        "Change {address} on one of {places}.",
    ),
}


def fault(
    name: str,
    cause: str,
    expected: Any,
    found: Any,
    *,
    verdict: Verdict = "fail",
    evidence: Iterable[str] = (),
    **words: Any,
) -> Check:
    """A check that did not pass, with the remedy of its cause."""
    remedy = FABRIC[cause].remedy.format(**words)
    return check(name, verdict, expected, found, cause=cause, evidence=evidence, remedy=remedy)
