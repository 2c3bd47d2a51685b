# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what all hosts have to what each rank gets: rails, HCAs, GID indexes, addresses, environment.

Pure: the hosts' facts go in as `rdma_info` returned them, in rank order; verdicts come out as checks, never as exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils import _fabric_socket
from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Facts, Plan


def plan(
    hosts: Mapping[str, Facts], topology: str, transport: str, *, subnets: Sequence[str] = (), **options: Any
) -> dict[str, Plan]:
    """Plan the fabric of ``hosts``, a mapping of host to facts in rank order."""
    if not hosts:
        raise ValueError("no hosts to plan a fabric for: the group of ranks is empty")
    return _fabric_socket.plan(hosts, topology, subnets)
