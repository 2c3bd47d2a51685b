# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read out of text how far an engine's last start came, and what ended it."""

from __future__ import annotations

DOCUMENTATION = r"""
name: engine_log
short_description: Read out of text how far an engine's last start came, and what ended it
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Does on the controller, with saved text, what M(tandem.serving.engine_log_info) does on a host.
positional: exit_status
options:
  _input:
    description: An engine's log. A list of texts is one of each rank.
    type: raw
    required: true
  exit_status:
    description: The exit status of the engine's process, if it has ended.
    type: int
"""

EXAMPLES = r"""
- name: Say why the engine ended
  ansible.builtin.debug:
    msg: "{{ (lookup('ansible.builtin.file', 'rank0.log') | tandem.serving.engine_log).summary.sentence }}"
"""

RETURN = r"""
_value:
  description: C(summary), C(checks) and C(last_errors), as M(tandem.serving.engine_log_info) returns them.
  type: dict
"""

from collections.abc import Sequence
from typing import Any


def engine_log(text: str | Sequence[str], exit_status: int | None = None) -> dict[str, Any]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils._engine_log import read_texts
    from ansible_collections.tandem.serving.plugins.module_utils._engine_verdict import judge

    logs = read_texts(text)
    summary, checks = judge(logs, exit_status)
    return {"summary": summary, "checks": checks, "last_errors": [line for log in logs for line in log.last_errors]}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"engine_log": engine_log}
