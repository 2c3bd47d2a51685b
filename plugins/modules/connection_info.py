#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List TCP connections and listening ports."""

from __future__ import annotations

DOCUMENTATION = r"""
module: connection_info
short_description: List TCP connections and listening ports
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads the kernel's tables, without a program that might be missing. It is how ranks without NCCL show over which addresses they talk.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
options:
  proc_root:
    description: Where the proc file system is. With C(/proc/PID) the network namespace of that process is read.
    type: path
    default: /proc
  local_addresses:
    description: Only sockets with one of these addresses on this host.
    type: list
    elements: str
    default: []
  peer_addresses:
    description: Only connections to one of these addresses.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Look whether this rank talks to the other one over the fabric
  tandem.serving.connection_info:
    local_addresses: ["{{ tandem_fabric.address }}"]
    peer_addresses: "{{ tandem_fabric.peers | map(attribute='address') | list }}"
  register: sockets

- name: See that it does
  ansible.builtin.assert:
    that: sockets.connections | length > 0
"""

RETURN = r"""
connections:
  description: Established connections.
  returned: always
  type: list
  elements: dict
  contains:
    local_address:
      description: Address on this host. IPv4 within IPv6 is given as IPv4.
      type: str
    local_port:
      description: Port on this host.
      type: int
    peer_address:
      description: Address of the other end.
      type: str
    peer_port:
      description: Port of the other end.
      type: int
listening:
  description: Listening sockets.
  returned: always
  type: list
  elements: dict
  contains:
    local_address:
      description: Address on this host, C(0.0.0.0) or C(::) for all.
      type: str
    local_port:
      description: Port on this host.
      type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _connections


def table(root: Path, name: str) -> str:
    """One of the kernel's tables. A kernel without IPv6 has only the first."""
    path = root / "net" / name
    return path.read_text(encoding="ascii", errors="replace") if name == "tcp" or path.exists() else ""


def main() -> None:
    """Run the module."""
    addresses = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "proc_root": {"type": "path", "default": "/proc"},
            "local_addresses": addresses,
            "peer_addresses": addresses,
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        text = "\n".join(table(Path(params["proc_root"]), name) for name in ("tcp", "tcp6"))
    except OSError as error:
        module.fail_json(
            msg=f"Cannot read {error.filename}: {error.strerror}. Set proc_root to where the proc file system is mounted, or become root."
        )
    found = _connections.select(_connections.sockets(text), params["local_addresses"], params["peer_addresses"])
    both = ("local_address", "local_port", "peer_address", "peer_port")
    module.exit_json(
        changed=False,
        connections=[{key: getattr(item, key) for key in both} for item in found if not item.listening],
        listening=[{key: getattr(item, key) for key in both[:2]} for item in found if item.listening],
    )


if __name__ == "__main__":
    main()
