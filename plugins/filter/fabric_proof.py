# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what was measured on the rails."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_proof
short_description: Judge what was measured on the rails
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Holds bandwidth against what the topology should give, and error counters against what they were before.
positional: before, after, half_gbps, port_gbps
options:
  _input:
    description:
      - Measurements, each with C(sender), C(receiver), C(cable) and what M(tandem.serving.fabric_bandwidth_info) returned.
    type: list
    elements: dict
    required: true
  before:
    description: The C(devices) of M(tandem.serving.rdma_info) before the rails were used.
    type: list
    elements: dict
    required: true
  after:
    description: The same afterwards.
    type: list
    elements: dict
    required: true
  half_gbps:
    description: Gb/s that one rail alone must reach.
    type: float
    required: true
  port_gbps:
    description: Gb/s that all rails of a cable must reach together.
    type: float
    required: true
"""

EXAMPLES = r"""
- name: Judge
  ansible.builtin.set_fact:
    checks: "{{ measured | tandem.serving.fabric_proof(before.devices, after.devices, 92, 185) }}"
"""

RETURN = r"""
_value:
  description: List of checks.
  type: list
  elements: dict
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils import _fabric_proof
    from ansible_collections.tandem.serving.plugins.module_utils._check import Check


def fabric_proof(
    measured: Sequence[_fabric_proof.Measurement],
    before: Sequence[dict[str, Any]],
    after: Sequence[dict[str, Any]],
    half_gbps: float,
    port_gbps: float,
) -> list[Check]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _fabric_proof

    counters = _fabric_proof.judge_counters(_fabric_proof.counters_of(before), _fabric_proof.counters_of(after))
    rates = [
        item for one in measured for item in _fabric_proof.judge_bandwidth(one, float(half_gbps), float(port_gbps))
    ]
    return [*rates, *counters]


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"fabric_proof": fabric_proof}
