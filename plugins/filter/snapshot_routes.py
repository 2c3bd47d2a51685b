# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter for the role weights."""

from __future__ import annotations

DOCUMENTATION = r"""
name: snapshot_routes
short_description: Plan which host copies a snapshot from which
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - From the fabric of all hosts to the host that each copies from, so that no link carries the same bytes twice.
options:
  _input:
    description: The hosts in rank order, each with its C(tandem_fabric).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the routes
  ansible.builtin.debug:
    msg: "{{ dict(hosts | zip(hosts | map('extract', hostvars, 'tandem_fabric'))) | tandem.serving.snapshot_routes }}"
"""

RETURN = r"""
_value:
  description:
    - For each host C(source), the host to copy from; C(turn), when, counted from 1 and 0 for the head; and C(rails), pairs of the
      address of the C(source) and the host's C(own).
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError


def snapshot_routes(fabrics: dict[str, Any]) -> dict[str, Any]:
    """See the documentation of the filter."""
    from ansible_collections.tandem.serving.plugins.module_utils._snapshot_routes import routes

    try:
        return dict(routes(fabrics))
    except (KeyError, TypeError, ValueError) as error:
        raise AnsibleFilterError(f"Cannot plan the way of the weights: {error}") from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Names and functions."""
        return {"snapshot_routes": snapshot_routes}
