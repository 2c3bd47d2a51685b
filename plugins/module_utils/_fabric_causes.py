# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every cause code of the fabric: what it means, what it looks like, how to cure it.

The words in braces are filled in with the interface, cable, host or address that is wrong.
"""

from __future__ import annotations

from functools import partial

from ansible_collections.tandem.serving.plugins.module_utils import _causes
from ansible_collections.tandem.serving.plugins.module_utils._causes import Cause

FABRIC = {
    "no_rdma_device": Cause(
        "The host shows no RDMA device.",
        "/sys/class/infiniband is empty",
        "Load the driver (modprobe mlx5_ib), and look for the NIC with lspci; without RDMA set the recipe's transport to socket.",
    ),
    "port_without_interface": Cause(
        "A RoCE port is up, and its interface is not to be seen here, so that it has neither addresses nor GIDs.",
        "a container with /dev/infiniband and a network of its own",
        "Run the container of {hca} in the host's network (--network host), or look from the host.",
    ),
    "port_down": Cause(
        "A port that should be in use has no link.",
        "state DOWN, ethtool: Link detected: no (No cable)",
        "Look at the cable in {where}: push it in until it clicks, or swap it; then ip link set {netdev} up.",
    ),
    "overheat": Cause(
        "The NIC or the cable's module shut the link off because of heat.",
        "ethtool: Link detected: no (Overheat)",
        "Let the machine cool down and clear its air flow, then unplug and plug the cable in {where}.",
    ),
    "link_below_200g": Cause(
        "The link runs at less than its rate.",
        "ethtool: Speed: 100000Mb/s",
        "Check the cable in {where}; on a switch set the port to 200G-baseCR4 without auto-negotiation.",
    ),
    "gid_index_empty": Cause(
        "The GID table has no RoCE v2 row for the interface's address.",
        "ibv_modify_qp failed with 61 No data available, about a minute after start",
        "Take {netdev} down and up (ip link set), or reload the driver, so that {hca} builds its GID table anew.",
    ),
    "no_address": Cause(
        "An active port has no IPv4 address, so that nothing can use it.",
        "ip addr shows only fe80::",
        "Give {netdev} an address: set fabric_configure to true, or add it to the network configuration yourself.",
    ),
    "gid_index_differs": Cause(
        "The two halves of a port have their address at different GID indexes.",
        "no value of NCCL_IB_GID_INDEX is right for both",
        "Leave NCCL_IB_GID_INDEX unset, NCCL then chooses for each device; set addr-gen-mode eui64 on both halves to make them equal.",
    ),
    "second_link_local": Cause(
        "An interface has two IPv6 link-local addresses, so that the GID of its IPv4 address moves at the next boot.",
        "two fe80:: rows of RoCE v2 in the GID table",
        "Set addr-gen-mode eui64 for {netdev} (or turn IPv6 off there), and bring the interface up anew.",
    ),
    "halves_in_one_subnet": Cause(
        "Both halves of a port have an address in the same subnet, so that the kernel sends everything through one of them.",
        "counters of the other half stay flat, half the bandwidth",
        "Move {address} of {netdev} into a subnet of its own, at both ends of the cable.",
    ),
    "one_of_two_port_halves": Cause(
        "Only one of the two PCIe halves of a port can be used.",
        "about 100 Gb/s instead of 200",
        "Give {netdev}, the other half of the same port, an address in a subnet of its own at both ends of the cable.",
    ),
    "netdev_mtu_1500": Cause(
        "The interface's MTU is that of the internet.",
        "ibv_devinfo: active_mtu 1024",
        "Set the MTU of {netdev} to 9000 at both ends of the cable, and in the network configuration so that it stays.",
    ),
    "mtu_mismatch": Cause(
        "Two ends of a cable, or two halves of a port, have different MTUs.",
        "a large ping fails where a small one passes",
        "Set the MTU of {netdev} to {mtu}, in the network configuration so that it stays.",
    ),
    "firmware_mix": Cause(
        "NICs run different firmware.",
        "different fw_ver",
        "Bring all NICs to the same firmware (fwupdmgr update, or mlxfwmanager), then power the machines off and on.",
    ),
    "pcie_width": Cause(
        "A half of the port has fewer PCIe lanes than it should.",
        "current_link_width 2",
        "Update the BIOS (those before April 2026 wire the second half of a DGX Spark at x2), then power the machine off and on.",
    ),
    "rank_count": Cause(
        "The topology does not fit the number of ranks.",
        "three hosts in the group, fabric_topology pair",
        "Set fabric_topology to {fitting}, or change the hosts of the group.",
    ),
    "mesh_of_four": Cause(
        "Four machines with two ports each cannot all be cabled to one another: that takes three ports.",
        "four hosts, fabric_topology triangle",
        "Cable them as a ring (fabric_topology ring), or to a switch (fabric_topology switch).",
    ),
    "no_cable": Cause(
        "No port has heard a port of the other host.",
        "no neighbour on any RDMA interface",
        "Connect a port of {one} to a port of {other} with a QSFP cable, and look for a link: {ports}.",
    ),
    "cable_missing": Cause(
        "Two machines that the topology joins have no cable between them.",
        "neighbours of one rank only",
        "Connect a free port of {one} to a free port of {other}: {ports}.",
    ),
    "doubled_cable": Cause(
        "Two machines have two cables between them, so that a port for the third is missing.",
        "both ports hear the same host",
        "Move one end of {cable} to {other}.",
    ),
    "mirrored_cabling": Cause(
        "A cable of the triangle joins ports of the same number, so that the directed ring does not close.",
        "ibv_modify_qp failed with 110 Connection timed out, and a hint about cross-rail",
        "Cable port 0 of each machine to port 1 of the next: {wanted}. Wrong now: {cable}.",
    ),
    "rank_order": Cause(
        "The order of the hosts is not that of the cables, so that a rank's neighbour in the ring is across.",
        "NCCL times out between two ranks that have no cable",
        "Order the hosts of the group in the inventory as {order}.",
    ),
    "not_a_ring": Cause(
        "The cables do not form one ring.",
        "a machine with one cable, or with neighbours that are not joined further",
        "Cable each machine to the next one and the last to the first. Found: {cables}.",
    ),
    "switch_found": Cause(
        "A port hears more than one machine, so that it is cabled to a switch.",
        "several neighbours on one interface",
        "Set fabric_topology to switch, or take the switch out.",
    ),
    "not_on_switch": Cause(
        "A machine hears none of the others.",
        "no neighbour on its RDMA interfaces",
        "Cable {host} to the switch, and put its port into the same VLAN as the others': {ports}.",
    ),
    "wiring_unproven": Cause(
        "No port has heard another one, so that shared subnets stand in for cables.",
        "empty neighbour tables",
        "Turn IPv6 on for the fabric's interfaces (link-local is enough), or run lldpd on all hosts: the role then sees the cables.",
    ),
    "rail_without_address": Cause(
        "Two ends of a cable have no addresses in one subnet.",
        "ip addr shows none, or another subnet than at the other end",
        "Set fabric_configure to true, or give {netdev} of {host} the address {address} for the cable {cable}.",
    ),
    "one_subnet_for_two_cables": Cause(
        "Two cables carry the same subnet, so that the kernel sends everything over one of them.",
        "ibv_modify_qp failed with 110 Connection timed out",
        "Give each cable a subnet of its own: move {cable} out of {subnet}, at both ends.",
    ),
    "nccl_without_subnets": Cause(
        "This NCCL does not know subnets, and takes any NIC for any peer.",
        "NCCL before 2.30.7 ignores NCCL_IB_SUBNET_AWARE_ROUTING silently",
        "Use an image with NCCL 2.30.7 or newer, or cable the machines to a switch.",
    ),
    "nccl_version_unknown": Cause(
        "Nobody has said which NCCL the image has; without a switch it needs 2.30.7 or newer.",
        "fabric_nccl_version is empty",
        "Look at the image's NCCL (python3 -c 'import torch; print(torch.cuda.nccl.version())') and set fabric_nccl_version.",
    ),
    "no_management_address": Cause(
        "The ranks have no network on which all reach all, which the rendezvous needs.",
        "no interface with the SSH connection or a default route",
        "Give {host} an address on the management network, with a default route.",
    ),
    "transit_missing": Cause(
        "The machine across the ring cannot be reached over the fabric.",
        "no route to its loopback address",
        "Set fabric_configure to true, or add the routes of the plan yourself. Until then large copies take the management network.",
    ),
    "ip_forward_off": Cause(
        "A machine of the ring does not pass packets on to the next.",
        "net.ipv4.ip_forward = 0",
        "Set fabric_configure to true, or sysctl -w net.ipv4.ip_forward=1 on {host}.",
    ),
    "docker_forward_drop": Cause(
        "Docker drops the packets that a machine of the ring should pass on.",
        "iptables: FORWARD policy DROP, no rule in DOCKER-USER",
        "Set fabric_configure to true, or on {host}: iptables -I DOCKER-USER -i {into} -o {out} -j ACCEPT, for both directions.",
    ),
    "pfc_off": Cause(
        "Priority flow control is off on a port that is cabled to a switch, so that the switch drops packets under load.",
        "dcb pfc show: prio-pfc 3:off",
        "Set fabric_configure to true, or on {host}: dcb pfc set dev {netdev} prio-pfc 3:on; dcb app replace dev {netdev} dscp-prio 26:3. "
        "On the switch turn PFC on for priority 3 and trust DSCP.",
    ),
    "route_not_on_rail": Cause(
        "The kernel sends packets for the peer out of another interface.",
        "ip route get: via another device",
        "On {host} give {netdev} its address and subnet, and remove the other route to {address}.",
    ),
    "peer_unreachable": Cause(
        "The peer does not answer on this rail.",
        "100% packet loss",
        "Check the cable {cable}, and that {peer} has {address} on {peer_netdev}: ip addr show {peer_netdev}.",
    ),
    "local_mtu": Cause(
        "The own interface's MTU is too small.",
        "ping: local error: message too long",
        "Set the MTU of {netdev} on {host} to 9000, in the network configuration so that it stays.",
    ),
    "path_mtu": Cause(
        "Large packets do not arrive: the other end, or a switch, has a smaller MTU.",
        "a small ping passes, one of MTU - 28 does not",
        "Set the MTU of {peer_netdev} on {peer} to 9000, and that of a switch between them to 9216 or more.",
    ),
    "packets_lost": Cause(
        "Some packets are lost on the rail.",
        "ping: 33% packet loss",
        "Reseat or swap the cable {cable}, and look at ethtool -S {netdev}.",
    ),
    "errors_counted": Cause(
        "An error counter went up while the rails were probed.",
        "port_rcv_errors, link_downed and their like",
        "Reseat or swap the cable of {netdev}; on a switch check PFC or ECN and the traffic class.",
    ),
    "clock_not_synchronised": Cause(
        "The clock follows no time server.",
        "timedatectl: NTPSynchronized=no",
        "Start systemd-timesyncd or chrony; where the time server's route goes through docker0, pin it to the gateway.",
    ),
    "rdma_failed": Cause(
        "RDMA does not work on a rail where IP does.",
        "ib_write_bw prints no result: Failed to modify QP, or a timeout",
        "Check the GID index of {hca} at both ends of {cable} (rdma_info shows the tables), and that no firewall drops UDP port 4791.",
    ),
    "perftest_missing": Cause(
        "Bandwidth could not be measured: ib_write_bw is missing, or the receiver's does not listen.",
        "ib_write_bw is not installed, or: Couldn't connect",
        "Install the package perftest on {sender} and {receiver}, and let TCP port 18515 and those after it through, "
        "or set fabric_bandwidth to false.",
    ),
    "bandwidth_low": Cause(
        "RDMA is slower than the cable.",
        "ib_write_bw below the threshold of the topology",
        "Check speed and MTU at both ends of {cable}, the PCIe width of {hca}, and that nothing else uses it.",
    ),
    "nic_power_stuck": Cause(
        "The NIC is stuck in a state in which it gives 13 Gb/s at a link of 200.",
        "12.9 to 13.3 Gb/s on every half; sometimes nvidia-smi shows the GPU at 507 MHz with a power cap too",
        "Shut both machines of {cable} down and take them off the power for a minute; a reboot does not cure it.",
    ),
    "twin_flat": Cause(
        "One of the two halves of the port carries nothing.",
        "port_xmit_data of one half stays flat while the other's runs",
        "Give {flat} its address in a subnet of its own at both ends of {cable}, and name both devices in NCCL_IB_HCA.",
    ),
    "fabric_interface_not_found": Cause(
        "No interface has an address in the fabric's subnet.",
        "ip addr shows none in it",
        "Give an interface of {host} an address in {subnets}, or set fabric_subnets to the subnets that the hosts share.",
    ),
    "loopback_alias": Cause(
        "The fabric's address is an alias on the loopback device.",
        "ip addr show lo lists it; SSH over it works, NCCL hangs in ncclCommInitRank",
        "Use the address of the NIC itself: take {address} off {netdev} and give the cable's interface an address of its own.",
    ),
    "management_carries_fabric": Cause(
        "The fabric is the management network.",
        "the interface with the SSH connection or the default route has the fabric's address, or is the only RDMA port",
        "Reach {host} by another interface, or cable another port: {netdev} carries the connection, and is never touched.",
    ),
    "duplicate_address": Cause(
        "Two hosts, or two interfaces, have the same address.",
        "the same address twice in ip addr",
        "Change {address} on one of {places}.",
    ),
}

# A check that did not pass, with the remedy of its cause.
fault = partial(_causes.fault, table=FABRIC)
