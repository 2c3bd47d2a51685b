# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the fabric between the ranks."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_plan
short_description: Plan the fabric between the ranks
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - From what M(tandem.serving.rdma_info) found on all hosts to rails, devices, GID indexes, addresses and environment of each rank.
  - Never fails on what the hosts have; what is wrong is in C(checks).
positional: topology, transport
options:
  _input:
    description: Host to its facts, in rank order.
    type: dict
    required: true
  topology:
    description: How the hosts are cabled.
    type: str
    choices: [pair, triangle, ring, switch]
    required: true
  transport:
    description: What the ranks talk.
    type: str
    choices: [rdma, socket]
    required: true
  subnets:
    description: The fabric's subnets. Empty takes those that the hosts share.
    type: list
    elements: str
    default: []
  platform:
    description: What the hosts are.
    type: str
    choices: [gb10, gb300, generic]
    default: generic
  engine:
    description: The engine of the recipe.
    type: str
    default: vllm
  nccl:
    description: Version of NCCL in the image, empty when nobody knows it.
    type: str
    default: ""
  configure:
    description: Whether what is missing will be configured, so that it is no reason to refuse.
    type: bool
    default: false
  loopbacks:
    description: Subnet for the loopback addresses by which machines across a ring are reached.
    type: str
    default: 192.168.99.0/24
"""

EXAMPLES = r"""
- name: Plan the fabric
  ansible.builtin.set_fact:
    plans: "{{ facts | tandem.serving.fabric_plan('pair', 'rdma') }}"
"""

RETURN = r"""
_value:
  description: Host to its plan, the shape of the fact C(tandem_fabric).
  type: dict
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Facts, Plan


def fabric_plan(hosts: Mapping[str, Facts], topology: str, transport: str, **options: Any) -> dict[str, Plan]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _topology

    try:
        return _topology.plan(hosts, topology, transport, _topology.Options(**options))
    except ValueError as error:
        raise AnsibleFilterError(f"Cannot plan the fabric: {error}") from error


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"fabric_plan": fabric_plan}
