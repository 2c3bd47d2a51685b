# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the state of all ranks."""

from __future__ import annotations

DOCUMENTATION = r"""
name: status
short_description: Show the state of all ranks as text
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Makes the table of C(playbooks/status.yml).
positional: metrics, supervisor, planned, nccl
options:
  _input:
    description: The hosts in rank order, each with what came of the command C(rank_ctl state) there, as a task registers it.
    type: dict
    required: true
  metrics:
    description: Text of the API's C(/metrics).
    type: str
    required: true
  supervisor:
    description: What the supervisor wrote about its last look, and the state of its C(unit), empty where it could not be asked.
    type: dict
    required: true
  planned:
    description: The recipe's transport, V(rdma) or V(socket).
    type: str
    required: true
  nccl:
    description: For each host the C(summary) of M(tandem.serving.nccl_log_info) for this start, empty where there is none.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the ranks
  ansible.builtin.debug:
    msg: "{{ answers | tandem.serving.status(metrics.content, supervisor, 'rdma', summaries) }}"
"""

RETURN = r"""
_value:
  description: Text for a terminal.
  type: str
"""

from collections.abc import Mapping
from typing import Any


def status(
    answers: Mapping[str, Mapping[str, Any]],
    metrics: str,
    supervisor: Mapping[str, Any],
    planned: str,
    nccl: Mapping[str, Any],
) -> str:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.plugin_utils import _status

    return _status.status(answers, metrics, supervisor, planned, nccl)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"status": status}
