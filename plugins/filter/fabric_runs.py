# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which rails to measure, and in which order."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_runs
short_description: Say which rails to measure, and in which order
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Each cable both ways, of each its halves alone and then both at once.
positional: tcp_port
options:
  _input:
    description: Host to its plan, the fact C(tandem_fabric).
    type: dict
    required: true
  tcp_port:
    description: First TCP port by which two ends find each other.
    type: int
    default: 18515
"""

EXAMPLES = r"""
- name: Show what would be measured
  ansible.builtin.debug:
    msg: "{{ plans | tandem.serving.fabric_runs | map(attribute='cable') }}"
"""

RETURN = r"""
_value:
  description:
    - Runs, each with C(cable), C(sender), C(receiver), and the streams of M(tandem.serving.fabric_bandwidth_info), C(send) and C(receive).
  type: list
  elements: dict
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Plan


def fabric_runs(plans: Mapping[str, Plan], tcp_port: int = 18515) -> list[dict[str, Any]]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _fabric_proof

    return _fabric_proof.runs(plans, int(tcp_port))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"fabric_runs": fabric_runs}
