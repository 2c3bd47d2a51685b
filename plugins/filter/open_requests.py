# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count the requests that run or wait."""

from __future__ import annotations

DOCUMENTATION = r"""
name: open_requests
short_description: Count the requests that run or wait
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads the text of an engine's C(/metrics).
options:
  _input:
    description: The text. Empty where nothing answered.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Wait for the requests that run
  ansible.builtin.uri:
    url: http://127.0.0.1:8888/metrics
    return_content: true
  register: page
  until: page.content | tandem.serving.open_requests == 0
"""

RETURN = r"""
_value:
  description: Number of requests.
  type: int
"""

from typing import Any


def open_requests(metrics: str) -> int:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.plugin_utils import _status

    return _status.open_requests(metrics)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"open_requests": open_requests}
