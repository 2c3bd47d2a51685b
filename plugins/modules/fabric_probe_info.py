#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probe the rails of a rank."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_probe_info
short_description: Probe the rails of a rank
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Pings the peer of each rail, with a small packet and with one that fills the MTU and must not be fragmented, asks the kernel which way
    it would take, and whether the clock is synchronised.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
options:
  rails:
    description:
      - Rails of the fact C(tandem_fabric), each with C(netdev), C(address), C(peer_address) and what names the other end, C(cable), C(peer)
        and C(peer_netdev).
    type: list
    elements: dict
    required: true
  host:
    description: Name of this host in what is returned.
    type: str
    required: true
  mtu:
    description: MTU that the rails must carry.
    type: int
    default: 9000
"""

EXAMPLES = r"""
- name: Probe the rails
  tandem.serving.fabric_probe_info:
    rails: "{{ tandem_fabric.rails }}"
    host: "{{ inventory_hostname }}"
  register: probed
"""

RETURN = r"""
probes:
  description: For each of O(rails) the pings, C(small) and C(full), and the C(route).
  returned: always
  type: list
  elements: dict
reached:
  description: Whether every peer answered.
  returned: always
  type: bool
checks:
  description: Verdicts, one or more of each rail, and of the clock.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _fabric_proof, _netlink
from ansible_collections.tandem.serving.plugins.module_utils._fabric_run import output


def ping(module: AnsibleModule, rail: dict[str, str], payload: int) -> _fabric_proof.Ping:
    """Three packets that must not be fragmented."""
    words = ["-4", "-n", "-M", "do", "-c", "3", "-i", "0.2", "-W", "1", "-s", str(payload)]
    said = output(module, "ping", *words, "-I", rail["address"], rail["peer_address"], errors=True)
    return _fabric_proof.parse_ping(said)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "rails": {"type": "list", "elements": "dict", "required": True},
            "host": {"type": "str", "required": True},
            "mtu": {"type": "int", "default": 9000},
        },
        supports_check_mode=True,
    )
    probes = []
    for rail in module.params["rails"]:
        route = output(module, "ip", "-j", "route", "get", rail["peer_address"], "from", rail["address"])
        small = ping(module, rail, 56)
        probes.append(
            _fabric_proof.Probe(
                rail=rail,
                mtu=module.params["mtu"],
                small=small,
                # Who does not answer a small packet need not be asked with a large one.
                full=ping(module, rail, module.params["mtu"] - _fabric_proof.HEADERS) if small["received"] else small,
                route=_netlink.parse_route(route),
            )
        )
    checks = [item for probe in probes for item in _fabric_proof.judge_probe(module.params["host"], probe)]
    clock = output(module, "timedatectl", "show", "--property=NTPSynchronized", "--value").strip()
    module.exit_json(
        changed=False,
        probes=probes,
        reached=all(probe["small"]["received"] for probe in probes),
        checks=[*checks, _fabric_proof.judge_clock(clock == "yes")],
    )


if __name__ == "__main__":
    main()
