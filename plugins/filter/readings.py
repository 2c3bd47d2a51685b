# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the checks of several results."""

from __future__ import annotations

DOCUMENTATION = r"""
name: readings
short_description: Collect the checks of several results
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - A broken host is what is diagnosed, so that what could not be read there is a finding like others.
options:
  _input:
    description:
      - What was read to the registered result of reading it. Its C(checks) count, a skipped one does not.
      - A failed or unreachable one becomes a check that says so.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Read the RDMA devices
  tandem.serving.rdma_info:
  register: rdma
  failed_when: false  # the next task makes a failure a finding

- name: Collect the checks
  ansible.builtin.set_fact:
    checks: "{{ {'RDMA devices': rdma} | tandem.serving.readings }}"
"""

RETURN = r"""
_value:
  description: List of checks, each once.
  type: list
  elements: dict
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils._check import Check


def readings(results: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils._causes import fault

    checks: list[Check] = []
    for what, result in results.items():
        if "checks" in result:
            checks += [item for item in result["checks"] if item not in checks]
        elif not result.get("skipped"):
            said = " ".join(str(result.get("msg") or "no result").split())
            evidence = [f"{what}: {said}"]
            if result.get("unreachable"):
                checks.append(fault(what, "host_unreachable", "an answer", said, evidence=evidence))
            else:
                checks.append(fault(what, "not_read", "a reading", said, verdict="inconclusive", evidence=evidence))
    return checks


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"readings": readings}
