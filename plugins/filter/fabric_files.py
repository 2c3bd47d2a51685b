# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a rank's rails as network configuration."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_files
short_description: Write a rank's rails as network configuration
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Makes the files that netplan, NetworkManager or systemd-networkd reads.
positional: backend, mtu
options:
  _input:
    description: The plan of a rank, the fact C(tandem_fabric).
    type: dict
    required: true
  backend:
    description: What configures the network of the host.
    type: str
    choices: [netplan, networkmanager, networkd]
    required: true
  mtu:
    description: MTU of the rails.
    type: int
    default: 9000
"""

EXAMPLES = r"""
- name: Show what netplan would read
  ansible.builtin.debug:
    msg: "{{ (tandem_fabric | tandem.serving.fabric_files('netplan')).0.content }}"
"""

RETURN = r"""
_value:
  description: List of files, each with C(path) and C(content).
  type: list
  elements: dict
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.tandem.serving.plugins.module_utils import _fabric_files
    from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import Plan


def fabric_files(plan: Plan, backend: _fabric_files.Backend, mtu: int = 9000) -> list[_fabric_files.File]:
    """See DOCUMENTATION."""
    from ansible_collections.tandem.serving.plugins.module_utils import _fabric_files

    return _fabric_files.files(plan, backend, int(mtu))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        return {"fabric_files": fabric_files}
