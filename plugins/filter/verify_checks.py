# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Conclude from what the role verify found."""

from __future__ import annotations

DOCUMENTATION = r"""
name: verify_checks
short_description: Conclude from what was found about a running server
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Makes checks of what the modules found. Each section of the input is judged by itself.
positional: recipe, fabric
options:
  _input:
    description:
      - C(pages) holds the status of C(health) and the answer of C(models).
      - C(pools) holds the summaries of M(tandem.serving.kv_pool_info) by C(log) and by C(metrics).
      - C(connections) of M(tandem.serving.connection_info), with C(others), the peers' addresses outside the fabric.
      - C(same) lists what must be equal, each with C(name), C(values) by host and C(remedy).
    type: dict
    required: true
  recipe:
    description: The fact C(tandem_recipe).
    type: dict
    required: true
  fabric:
    description: The fact C(tandem_fabric).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Judge the API
  ansible.builtin.set_fact:
    checks: "{{ {'pages': {'health': 200, 'models': answer.json}} | tandem.serving.verify_checks(tandem_recipe, tandem_fabric) }}"
"""

RETURN = r"""
_value:
  description: List of checks.
  type: list
  elements: dict
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils._check import Check


def verify_checks(found: Mapping[str, Any], recipe: Mapping[str, Any], fabric: Mapping[str, Any]) -> list[Check]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.plugin_utils import _verify

    return _verify.judge(found, recipe, fabric)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"verify_checks": verify_checks}
