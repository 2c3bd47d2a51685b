#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out which machines each interface of the fabric hears."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_link_info
short_description: Find out which machines each interface of the fabric hears
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Lets each interface say hello to all on its link, over IPv6 and to the IPv4 addresses that are given, and returns who answers. With
    lldpd, also whom that has heard of.
  - Run it on all hosts at the same time.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
options:
  netdevs:
    description: Interfaces to look at.
    type: list
    elements: str
    required: true
  addresses:
    description: IPv4 addresses of the other hosts. Those in a subnet of one of O(netdevs) are asked over it.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: See what is cabled to what
  tandem.serving.fabric_link_info:
    netdevs: [enp1s0f0np0, enP2p1s0f0np0]
  register: links
"""

RETURN = r"""
neighbours:
  description: Machines, each with C(netdev), C(address), C(mac) and C(state).
  returned: always
  type: list
  elements: dict
forwarding:
  description:
    - Whether the host passes packets on, as C(ip_forward), C(policy) of the FORWARD chain, and C(docker_user), the rules of Docker's chain.
    - The chains are read by root only.
  returned: always
  type: dict
lossless:
  description:
    - Of each of O(netdevs) whether priority flow control is on for the traffic class of RDMA, priority 3 for DSCP 26. Null where the device
      does not tell.
  returned: always
  type: dict
backend:
  description: What configures the network, V(netplan), V(networkmanager), V(networkd), or empty.
  returned: always
  type: str
"""

import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _netlink
from ansible_collections.tandem.serving.plugins.module_utils._fabric_plan import network
from ansible_collections.tandem.serving.plugins.module_utils._fabric_run import output


def greet(module: AnsibleModule) -> None:
    """Let every interface say hello, so that both ends learn of each other."""
    addresses = _netlink.parse_addresses(output(module, "ip", "-j", "addr"))
    for netdev in module.params["netdevs"]:
        output(module, "ping", "-6", "-n", "-c", "2", "-i", "0.3", "-W", "1", f"ff02::1%{netdev}")
        subnets = [
            network(item["address"], item["prefixlen"])
            for item in addresses.get(netdev, [])
            if item["family"] == "inet"
        ]
        own = {item["address"] for item in addresses.get(netdev, [])}
        for peer in module.params["addresses"]:
            near = any(network(peer, 32).subnet_of(subnet) for subnet in subnets if subnet.prefixlen < 32)
            if near and peer not in own:
                output(module, "ping", "-n", "-c", "1", "-W", "1", "-I", netdev, peer)


def heard(module: AnsibleModule) -> list[_netlink.Neighbour]:
    """Neighbours that answer: the kernel remembers for long what was once at the other end of a cable."""
    found: dict[tuple[str, str], _netlink.Neighbour] = {}
    for item in _netlink.parse_neighbours(output(module, "ip", "-j", "neigh")):
        if item["netdev"] not in module.params["netdevs"] or (item["netdev"], item["mac"]) in found:
            continue
        scope = f"%{item['netdev']}" if item["address"].startswith("fe80:") else ""
        words = ["-n", "-c", "1", "-W", "1", "-I", item["netdev"], f"{item['address']}{scope}"]
        if output(module, "ping", *words):
            found[item["netdev"], item["mac"]] = item
    return list(found.values())


def forwarding(module: AnsibleModule) -> dict[str, Any]:
    """Whether packets are passed on."""
    rules = output(module, "iptables", "-S", "FORWARD")
    policy = re.search(r"^-P FORWARD (\w+)", rules, re.MULTILINE)
    return {
        "ip_forward": Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() == "1",
        "policy": policy[1] if policy else "",
        "docker_user": [
            rule for rule in output(module, "iptables", "-S", "DOCKER-USER").splitlines() if rule.startswith("-A")
        ],
    }


def lossless(module: AnsibleModule, netdev: str) -> bool | None:
    """Whether the port takes part in flow control."""
    pfc = output(module, "dcb", "pfc", "show", "dev", netdev, "prio-pfc")
    app = output(module, "dcb", "-N", "app", "show", "dev", netdev, "dscp-prio")
    return _netlink.parse_lossless(pfc, app)


def backend(module: AnsibleModule) -> str:
    """What configures the network of this host."""
    if module.get_bin_path("netplan", opt_dirs=["/usr/sbin"]) and Path("/etc/netplan").is_dir():
        return "netplan"
    if module.get_bin_path("nmcli") and Path("/run/NetworkManager").is_dir():
        return "networkmanager"
    return "networkd" if Path("/run/systemd/netif").is_dir() else ""


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "netdevs": {"type": "list", "elements": "str", "required": True},
            "addresses": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    greet(module)
    neighbours = heard(module)
    neighbours += _netlink.parse_lldp(output(module, "lldpcli", "-f", "json0", "show", "neighbors"))
    module.exit_json(
        changed=False,
        neighbours=[item for item in neighbours if item["netdev"] in module.params["netdevs"]],
        forwarding=forwarding(module),
        lossless={netdev: lossless(module, netdev) for netdev in module.params["netdevs"]},
        backend=backend(module),
    )


if __name__ == "__main__":
    main()
