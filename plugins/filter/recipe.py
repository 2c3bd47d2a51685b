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
  - Stacks the layers of a recipe, and applies the selected variants, the user's overrides and the lock file.
positional: selected, overrides
options:
  _input:
    description: The layers, from the most general to the recipe itself.
    type: list
    elements: dict
    required: true
  selected:
    description: Selector to value, such as C(ranks) to C(2). An empty value takes the recipe's default.
    type: dict
    required: true
  overrides:
    description: What the user changes. A key set to null is taken away.
    type: dict
    default: {}
  lock:
    description: Tags to digests in C(images), C(repo@branch) to commits in C(revisions).
    type: dict
    default: {}
  accepted_licences:
    description: Repositories whose licences the user accepts. They decide between defaults.
    type: list
    elements: str
    default: []
  hosts:
    description:
      - Total and free memory of each host in GiB, the second null where it cannot be told.
      - C(profile) V(auto) takes the first of the recipe's profiles that fits all of them; without hosts it is the default.
    type: list
    elements: list
    default: []
"""

EXAMPLES = r"""
- name: Resolve
  ansible.builtin.set_fact:
    tandem_recipe: "{{ layers | tandem.serving.recipe({'ranks': 2, 'speculation': 'none'}) }}"
"""

RETURN = r"""
_value:
  description:
    - The recipe, with RV(_value.selected) as it was resolved, RV(_value.passed_over), the defaults that wait for a licence, and
      RV(_value.misspelt), flags that look like another one.
    - The text of the error where the user's choices make no sense.
  type: raw
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any


def recipe(
    layers: Sequence[Mapping[str, Any]],
    selected: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    lock: Mapping[str, Any] | None = None,
    accepted_licences: Collection[str] = (),
    hosts: Iterable[tuple[float, float | None]] = (),
) -> dict[str, Any] | str:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.plugin_utils import _recipe

    options = {"lock": lock, "accepted_licences": accepted_licences}
    try:
        if selected.get("profile") == "auto":
            profile = _recipe.choose_profile(layers, selected, overrides or {}, hosts, **options)
            selected = {**selected, "profile": profile}
        return _recipe.resolve(layers, selected, overrides or {}, lock=lock, accepted_licences=accepted_licences)
    except _recipe.RecipeError as error:
        return str(error)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"recipe": recipe}
