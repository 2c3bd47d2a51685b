# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolve a recipe."""

from __future__ import annotations

DOCUMENTATION = r"""
name: recipe
short_description: Resolve a recipe
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Applies the selected variants and the user's overrides to the data of a recipe's file.
positional: selected, overrides
options:
  _input:
    description: The data of a recipe's file.
    type: dict
    required: true
  selected:
    description: Selector to value, such as C(ranks) to C(2). An empty value takes the recipe's default.
    type: dict
    required: true
  overrides:
    description: What the user changes. A key set to null is taken away.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Resolve
  ansible.builtin.set_fact:
    tandem_recipe: "{{ data | tandem.serving.recipe({'ranks': 2, 'speculation': 'none'}, {}) }}"
"""

RETURN = r"""
_value:
  description: The recipe, with RV(_value.selected) as it was resolved.
  type: dict
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.tandem.serving.plugins.plugin_utils import _recipe


def recipe(base: Mapping[str, Any], selected: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """See DOCUMENTATION."""
    try:
        return _recipe.resolve(base, selected, overrides)
    except _recipe.RecipeError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"recipe": recipe}
