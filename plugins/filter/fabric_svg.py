# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw a fabric."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_svg
short_description: Draw a fabric
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Hosts, ports, halves, rails with their addresses and the measured Gb/s. What is wrong is red, and said in words below.
options:
  _input:
    description: Host to its fact C(tandem_fabric), in rank order.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Draw the fabric
  ansible.builtin.copy:
    content: "{{ fabrics | tandem.serving.fabric_svg }}"
    dest: fabric.svg
    mode: "0644"
"""

RETURN = r"""
_value:
  description: The picture as SVG.
  type: str
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Plan


def fabric_svg(plans: Mapping[str, Plan]) -> str:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _fabric_picture

    return _fabric_picture.svg(plans)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"fabric_svg": fabric_svg}
