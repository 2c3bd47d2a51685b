# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quote a word for a unit."""

from __future__ import annotations

DOCUMENTATION = r"""
name: systemd_quote
short_description: Quote a word for an Exec line of a systemd unit
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Escapes what systemd would read as a specifier, a variable or the end of a word.
options:
  _input:
    description: The word.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Quote
  ansible.builtin.debug:
    msg: "{{ ['echo', '100 %'] | map('tandem.serving.systemd_quote') | join(' ') }}"
"""

RETURN = r"""
_value:
  description: The quoted word.
  type: str
"""

from typing import Any


def systemd_quote(word: str) -> str:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _launch

    return _launch.systemd_quote(word)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"systemd_quote": systemd_quote}
