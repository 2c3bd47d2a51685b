# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge saved logs."""

from __future__ import annotations

DOCUMENTATION = r"""
name: diagnose
short_description: Judge saved logs
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads a file, or every file below a folder but C(*.md), on the controller. Whether it is a log of NCCL, a log of an engine,
    or what nccl-tests or perftest printed is found out by what it says.
positional: platform
options:
  _input:
    description: The file or folder. A folder should hold the logs of one server, of any of its ranks.
    type: path
    required: true
  platform:
    description: The kind of machine that wrote the logs. Found out by default.
    type: str
    choices: [gb10, gb300, generic]
seealso:
  - plugin: tandem.serving.report
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Judge what a user has sent
  ansible.builtin.debug:
    msg: "{{ '/tmp/logs' | tandem.serving.diagnose | tandem.serving.report }}"
"""

RETURN = r"""
_value:
  description: Files to their lists of checks. What the NCCL logs of several ranks say together stands under C(all ranks).
  type: dict
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils._check import Check


def diagnose(folder: str, platform: str | None = None) -> dict[str, list[Check]]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils._log_source import LogError
    from ansible_collections.tandem.serving.plugins.module_utils._nccl_verdict import PLATFORMS
    from ansible_collections.tandem.serving.plugins.plugin_utils import _diagnose

    if platform is not None and platform not in PLATFORMS:
        raise AnsibleFilterError(f"diagnose: platform: expected one of {', '.join(PLATFORMS)}, found '{platform}'.")
    try:
        return _diagnose.diagnose(Path(folder).expanduser(), platform)
    except LogError as error:
        raise AnsibleFilterError(f"diagnose: {error}") from error


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"diagnose": diagnose}
