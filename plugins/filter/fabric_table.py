# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show a fabric as text."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_table
short_description: Show a fabric as text
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - One line for each rail, with its device, GID index, addresses, cable and the measured Gb/s, and what is wrong with it.
options:
  _input:
    description: Host to its fact C(tandem_fabric), in rank order.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the fabric
  ansible.builtin.debug:
    msg: "{{ (fabrics | tandem.serving.fabric_table).split('\n') }}"
"""

RETURN = r"""
_value:
  description: The table.
  type: str
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Plan


def fabric_table(plans: Mapping[str, Plan]) -> str:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _fabric_picture

    return _fabric_picture.table(plans)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"fabric_table": fabric_table}
