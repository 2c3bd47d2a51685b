# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge the journals of the ranks."""

from __future__ import annotations

DOCUMENTATION = r"""
name: log_lines
short_description: Merge the journals of the ranks into one text
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Makes the text of C(playbooks/logs.yml), in the order of time.
positional: ranks
options:
  _input:
    description: What C(journalctl --output=json) printed for each rank.
    type: list
    elements: str
    required: true
  ranks:
    description: The numbers of these ranks.
    type: list
    elements: int
    required: true
"""

EXAMPLES = r"""
- name: Show what the ranks wrote
  ansible.builtin.debug:
    msg: "{{ [journal.stdout] | tandem.serving.log_lines([0]) }}"
"""

RETURN = r"""
_value:
  description: One line an entry, with its time in UTC and its rank.
  type: str
"""

from collections.abc import Sequence
from typing import Any


def log_lines(printed: Sequence[str], ranks: Sequence[int]) -> str:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.plugin_utils import _journal

    return _journal.merge(printed, ranks)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"log_lines": log_lines}
