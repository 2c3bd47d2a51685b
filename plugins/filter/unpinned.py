# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Name what a recipe leaves to move."""

from __future__ import annotations

DOCUMENTATION = r"""
name: unpinned
short_description: Name what a recipe leaves to move
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Lists the images that a recipe names by tag, and the models that it names by branch.
options:
  _input:
    description: A resolved recipe.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show what has no pin
  ansible.builtin.debug:
    msg: "{{ tandem_recipe | tandem.serving.unpinned }}"
"""

RETURN = r"""
_value:
  description: C(images), a list of names, and C(revisions), a list of C(repo) and C(revision), for M(tandem.serving.pin_info).
  type: dict
"""

from collections.abc import Mapping
from typing import Any


def unpinned(recipe: Mapping[str, Any]) -> dict[str, list[Any]]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.plugin_utils import _recipe

    return _recipe.unpinned(recipe)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"unpinned": unpinned}
