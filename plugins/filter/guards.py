# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold a recipe against its guards."""

from __future__ import annotations

DOCUMENTATION = r"""
name: guards
short_description: Hold a recipe against its guards
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Returns a check for each of the recipe's guards. A guard that finds what it looks for fails, or warns when its risk was accepted.
positional: context, accepted
options:
  _input:
    description: A resolved recipe. Its C(guards) each have C(name), C(when), C(expected), C(found), C(reason), C(remedy).
    type: dict
    required: true
  context:
    description: What the guards' expressions name beside the recipe.
    type: dict
    required: true
  accepted:
    description: Names of the guards whose risk the user accepts.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Hold the recipe against its guards
  ansible.builtin.set_fact:
    checks: "{{ tandem_recipe | tandem.serving.guards({'nranks': 2}, recipe_accept_risk) }}"
"""

RETURN = r"""
_value:
  description: List of checks, or the text of the error where an accepted risk or an expression makes no sense.
  type: raw
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils._check import Check


def guards(recipe: Mapping[str, Any], context: Mapping[str, Any], accepted: Iterable[str] = ()) -> list[Check] | str:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.plugin_utils import _recipe

    try:
        return _recipe.judge(recipe, context, accepted)
    except _recipe.RecipeError as error:
        return str(error)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"guards": guards}
