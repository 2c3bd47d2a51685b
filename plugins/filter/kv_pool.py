# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the size of an engine's KV pool out of text."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kv_pool
short_description: Read the size of an engine's KV pool out of text
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Does on the controller, with saved text, what M(tandem.serving.kv_pool_info) does on a host.
positional: platform, min_tokens, max_model_len
options:
  _input:
    description: An engine's log or its metrics page. A list of texts is one of each rank.
    type: raw
    required: true
  platform:
    description: The machine the log is from, C(gb10), C(gb300) or C(generic). Found out when not given.
    type: str
  min_tokens:
    description: How many tokens the pool is wanted to hold.
    type: int
  max_model_len:
    description: How long a request the pool is wanted to hold, in tokens.
    type: int
"""

EXAMPLES = r"""
- name: Say what the pool holds
  ansible.builtin.debug:
    msg: "{{ (lookup('ansible.builtin.file', 'rank0.log') | tandem.serving.kv_pool).summary.holds }}"
"""

RETURN = r"""
_value:
  description: C(summary) and C(checks), as M(tandem.serving.kv_pool_info) returns them.
  type: dict
"""

from collections.abc import Sequence
from typing import Any


def kv_pool(
    text: str | Sequence[str],
    platform: str | None = None,
    min_tokens: int | None = None,
    max_model_len: int | None = None,
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils._engine_log import read_texts
    from ansible_collections.tandem.serving.plugins.module_utils._engine_verdict import judge_pool

    summary, checks = judge_pool(
        read_texts(text), platform=platform, min_tokens=min_tokens, max_model_len=max_model_len
    )
    return {"summary": summary, "checks": checks}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"kv_pool": kv_pool}
