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
positional: metrics, supervisor, about, transport
options:
  _input:
    description: The hosts in rank order, each with the state of its rank, null where it could not be asked.
    type: dict
    required: true
  metrics:
    description: Text of the API's C(/metrics).
    type: str
    required: true
  supervisor:
    description: What the supervisor wrote about its last look.
    type: dict
    required: true
  about:
    description: Names and values to show.
    type: dict
    required: true
  transport:
    description: How the ranks talk.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the ranks
  ansible.builtin.debug:
    msg: "{{ states | tandem.serving.status(metrics.content, supervisor, {'recipe': tandem_recipe.name}, 'rdma') }}"
"""

RETURN = r"""
_value:
  description: Text for a terminal.
  type: str
"""

from collections.abc import Mapping
from typing import Any


def status(
    states: Mapping[str, Any], metrics: str, supervisor: Mapping[str, Any], about: Mapping[str, str], transport: str
) -> str:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.plugin_utils import _status

    return _status.status(states, metrics, supervisor, about, transport)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"status": status}
