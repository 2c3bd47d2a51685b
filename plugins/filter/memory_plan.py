# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the memory of a rank."""

from __future__ import annotations

DOCUMENTATION = r"""
name: memory_plan
short_description: Plan the memory of a rank
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - From the constants of a recipe and the memory of a host to what the rank needs, the KV pool it gets, and what to change when it
    does not fit.
positional: total_gib, free_gib
options:
  _input:
    description: The fact C(tandem_recipe). Its C(memory) section holds the constants.
    type: dict
    required: true
  total_gib:
    description: GiB of memory that the engine sees.
    type: float
    required: true
  free_gib:
    description: GiB that are available before the start. Without it only the size of the pool is judged.
    type: float
"""

EXAMPLES = r"""
- name: See whether the recipe fits this host
  ansible.builtin.set_fact:
    plan: "{{ tandem_recipe | tandem.serving.memory_plan(121.69, host.memory.available / 1024 ** 3) }}"
"""

RETURN = r"""
_value:
  description:
    - C(fits), C(shortfall_gib), C(needed_gib), C(kv_gib), C(kv_needed_gib), C(pages), C(request_pages), C(kv_tokens),
      C(max_concurrency), C(largest_max_model_len), C(largest_len_of_all), C(advice) and C(checks), all of one rank.
    - C(known) is false, and there are no figures, when the recipe has no constants.
  type: dict
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError


def memory_plan(recipe: Mapping[str, Any], total_gib: float, free_gib: float | None = None) -> dict[str, Any]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _memory_plan

    try:
        return _memory_plan.plan(recipe, float(total_gib), None if free_gib is None else float(free_gib))
    except KeyError as error:
        raise AnsibleFilterError(
            f"recipe {recipe.get('name', '')}: {error} is missing, expected weights_gib, page_bytes and page_tokens in memory, and "
            "max-model-len in serve or context in model."
        ) from error


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"memory_plan": memory_plan}
