# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge NCCL logs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
name: nccl_log
short_description: Judge NCCL logs on the controller
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Does for logs on the controller what M(tandem.serving.nccl_log_info) does for logs on a host.
positional: platform
options:
  _input:
    description:
      - The text of a log, or a dictionary of names to texts, or a list of files and glob patterns on the controller.
    type: raw
    required: true
  platform:
    description: The kind of machine that wrote the log. Found out from device names by default.
    type: str
    choices: [gb10, gb300, generic]
"""

EXAMPLES = r"""
- name: Judge one log
  ansible.builtin.debug:
    msg: "{{ (lookup('ansible.builtin.file', 'rank0.log') | tandem.serving.nccl_log('gb10')).summary }}"

- name: Judge the logs of all ranks together, without loading them
  ansible.builtin.debug:
    msg: "{{ (['logs/*/nccl_*.log'] | tandem.serving.nccl_log).checks }}"
"""

RETURN = r"""
_value:
  description:
    - A dictionary with C(platform), C(summary), C(files), C(ranks), C(warning_lines) and C(checks), as
      M(tandem.serving.nccl_log_info) returns them.
  type: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError


def nccl_log(logs: str | Mapping[str, str] | Sequence[str], platform: str | None = None) -> dict[str, Any]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _log_source, _nccl_log, _nccl_verdict

    if platform is not None and platform not in _nccl_verdict.PLATFORMS:
        raise AnsibleFilterError(f"nccl_log: platform '{platform}' is none of {', '.join(_nccl_verdict.PLATFORMS)}.")
    if isinstance(logs, str):
        sources = [_log_source.from_text("content", logs)]
    elif isinstance(logs, Mapping):
        sources = [_log_source.from_text(name, text) for name, text in logs.items()]
    elif isinstance(logs, Sequence):
        sources = [_log_source.from_file(path) for path in _log_source.expand(logs)]
    else:
        raise AnsibleFilterError(
            f"nccl_log: expected text, a dictionary or a list of files, found {type(logs).__name__}."
        )
    try:
        return _nccl_verdict.judge([_nccl_log.read(source) for source in sources], platform)
    except _log_source.LogError as error:
        raise AnsibleFilterError(f"nccl_log: {error}") from error


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"nccl_log": nccl_log}
