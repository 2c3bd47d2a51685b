# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold a host against a recipe."""

from __future__ import annotations

DOCUMENTATION = r"""
name: host_checks
short_description: Hold a host against a recipe
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Judges what M(tandem.serving.host_info) found.
positional: recipe, ports, disks
options:
  _input:
    description: Result of M(tandem.serving.host_info).
    type: dict
    required: true
  recipe:
    description: The fact C(tandem_recipe).
    type: dict
    required: true
  ports:
    description: What a port is for to its number, for the ports that have to be free on this host.
    type: dict
    default: {}
  disks:
    description: A path to the bytes that are still missing under it.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Hold the host against the recipe
  ansible.builtin.set_fact:
    checks: "{{ host | tandem.serving.host_checks(tandem_recipe, {'API': 8888}, {'/var/lib/tandem': 1024}) }}"
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


def host_checks(
    host: Mapping[str, Any],
    recipe: Mapping[str, Any],
    ports: Mapping[str, int] | None = None,
    disks: Mapping[str, int] | None = None,
) -> list[Check]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _host

    checks = _host.judge(host, recipe)
    checks += [_host.judge_port(int(port), host["listeners"], what) for what, port in (ports or {}).items()]
    missing = disks or {}
    checks += [
        _host.judge_disk(disk, int(missing[disk["path"]]), disk["path"])
        for disk in host["disks"]
        if disk["path"] in missing
    ]
    return checks


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"host_checks": host_checks}
