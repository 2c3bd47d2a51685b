#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather RDMA devices, their ports, GIDs and network interfaces, and judge them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_info
short_description: Gather RDMA devices, their ports, GIDs and network interfaces, and judge them
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads sysfs and netlink only. Needs none of ibdev2netdev, show_gids and ibv_devinfo, and no root.
  - Knows that a port of a DGX Spark is two PCIe functions, and finds the twin of each.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
options:
  root:
    description:
      - Folder that holds C(sys), such as the root file system of a container or a saved tree.
      - Below any other root than C(/) addresses come from C(ip_addr.json) there, the output of C(ip -j addr), else from the GID tables;
        what ethtool says of a link from C(ethtool/<interface>.txt).
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Look at the RDMA devices
  tandem.serving.rdma_info:
  register: rdma

- name: Show which interface each port has
  ansible.builtin.debug:
    msg: "{{ rdma.devices | map(attribute='ports') | flatten | items2dict(key_name='hca', value_name='netdev') }}"
"""

RETURN = r"""
devices:
  description:
    - RDMA devices, each with C(name), C(driver), C(firmware), C(board), C(guid), C(system_guid), C(pci) address, C(pcie_width) in lanes,
      C(pcie_speed) and C(ports).
    - A port has C(hca), C(port), C(state), C(phys_state), C(link_layer), C(rate), C(netdev), C(active_mtu) in bytes, C(speed) in Mb/s,
      C(counters), C(twin), the device that is the other half of the same port, C(cage), the number of the socket, and C(gids), the used
      rows of its GID table, each with C(index), C(gid), C(type), C(netdev) and C(address).
  returned: always
  type: list
  elements: dict
netdevs:
  description:
    - Network interfaces, each with C(name), C(mac), C(mtu), C(speed) in Mb/s, C(carrier), C(operstate), C(driver), C(pci), C(link), what
      ethtool says of a link that is down, and C(addresses).
  returned: always
  type: list
  elements: dict
neighbours:
  description: Machines that the kernel has heard of, each with C(netdev), C(address), C(mac) and C(state). Empty below another root.
  returned: always
  type: list
  elements: dict
protected:
  description: Interfaces that carry the SSH connection or the default route. Nobody should change them from afar.
  returned: always
  type: list
  elements: str
checks:
  description: What is odd, and what is right.
  returned: always
  type: list
  elements: dict
"""

import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _netlink, _rdma, _rdma_verdict
from ansible_collections.tandem.serving.plugins.module_utils._fabric_run import output


def ssh_address() -> str:
    """The address of this host that the SSH connection uses: sudo hides it, a parent process still knows."""
    process = os.getpid()
    while process > 1:
        try:
            environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            status = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return ""
        for entry in environment:
            if entry.startswith(b"SSH_CONNECTION="):
                return entry.split(b"=", 1)[1].decode().split()[2]
        # The process' name may hold blanks and brackets.
        process = int(status.rpartition(")")[2].split()[1])
    return ""


def protected(module: AnsibleModule, netdevs: list[_rdma.Netdev]) -> list[str]:
    """Interfaces with the SSH connection's address or the default route."""
    address = ssh_address().removeprefix("::ffff:")
    found = {netdev["name"] for netdev in netdevs if address in [item["address"] for item in netdev["addresses"]]}
    for family in ("-4", "-6"):
        found |= set(_netlink.parse_default_routes(output(module, "ip", family, "-j", "route", "show", "default")))
    return sorted(found - {"lo"})


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    root = Path(module.params["root"])
    live = root == Path("/")
    addresses = output(module, "ip", "-j", "addr") if live else _rdma.text(root / "ip_addr.json")
    facts: dict[str, Any] = _rdma.read(root, _netlink.parse_addresses(addresses))
    ports = {port["netdev"] for device in facts["devices"] for port in device["ports"]}
    for netdev in facts["netdevs"]:
        if netdev["name"] in ports and not netdev["carrier"]:
            said = (
                output(module, "ethtool", netdev["name"])
                if live
                else _rdma.text(root / "ethtool" / f"{netdev['name']}.txt")
            )
            netdev["link"] = _rdma.parse_link(said)
    module.exit_json(
        changed=False,
        neighbours=_netlink.parse_neighbours(output(module, "ip", "-j", "neigh")) if live else [],
        protected=protected(module, facts["netdevs"]) if live else [],
        checks=_rdma_verdict.judge(facts["devices"], facts["netdevs"]),
        **facts,
    )


if __name__ == "__main__":
    main()
