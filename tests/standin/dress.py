"""Let nodes look like DGX Sparks or DGX Stations, as far as the roles look.

A cable is a VXLAN between the nodes at its ends, a switch is one between all. On it lie the interfaces of a port, with the names, MAC
addresses and subnets of saved machines. Over /sys/class lies a folder with what the kernel of such a machine shows. nvidia-smi and
NVIDIA's hook for Docker are scripts.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from unit.fabric import tree
from unit.golden import fabrics

Command = Callable[..., str]
# The last number of a node's addresses.
NODES = {"spark-a": 11, "spark-b": 12, "spark-c": 13, "spark-d": 14}
# The tree has links with whole paths in it, so that it has to be at one place on all machines.
SYS = Path(tempfile.gettempdir()) / "tandem-standin"

_GPUS = {
    "spark_bare": "NVIDIA GB10, GPU-5b10, 580.173.02, [N/A], [N/A]\n",
    # A display GPU is listed first.
    "station": "NVIDIA RTX PRO 4000 Blackwell, GPU-d15p1ay0, 580.173.02, 24467 MiB, 310 MiB\n"
    "NVIDIA GB300, GPU-6b300, 580.173.02, 258048 MiB, 4 MiB\n",
}
_HOOK = "/usr/bin/nvidia-container-runtime-hook"
_SMI = "/usr/local/bin/nvidia-smi"
# Undoes what the role fabric may have configured, too. What is not there need not be undone.
_UNDRESS = f"""
umount /sys/class
for kind in macvlan vxlan; do
    for link in $(ip -o link show type $kind | sed -E 's/^[0-9]+: ([^:@]+).*/\\1/'); do ip link del $link; done
done
rm -rf /dev/infiniband {_SMI} {_HOOK} {SYS}
systemctl disable --now tandem-fabric-transit
iptables -F DOCKER-USER
rm -f /etc/systemd/system/tandem-fabric-transit.service /etc/sysctl.d/60-tandem-fabric.conf /etc/systemd/network/05-tandem-*
systemctl stop systemd-networkd.socket systemd-networkd
systemctl mask systemd-networkd
ip address flush dev lo to 192.168.99.0/24
systemctl daemon-reload
systemctl reset-failed docker
systemctl restart docker
"""


def links(cables: Iterable[tuple[int, int, int, int]]) -> list[set[tuple[int, int]]]:
    """Ends, as rank and port, that hear each other: those of one cable, or of cables that meet in a switch."""
    found: list[set[tuple[int, int]]] = []
    for one, port, other, other_port in cables:
        ends = {(one, port), (other, other_port)}
        met = [link for link in found if link & ends]
        found = [*(link for link in found if link not in met), ends.union(*met)]
    return found


def machines(kind: str, cabling: str) -> dict[str, tree.Spec]:
    """The saved machine of each node in rank order, cabled. Its management interface is the node's."""
    cables = fabrics.CABLES[cabling]
    ranks = 1 + max(rank for link in links(cables) for rank, _ in link)
    found = tree.machines(list(NODES)[:ranks], kind)
    fabrics.address(list(found.values()), cables, cabling == "switch")
    for spec in found.values():
        for name in spec["protected"]:
            del spec["netdevs"][name]
            spec["devices"] = {hca: item for hca, item in spec["devices"].items() if item["netdev"] != name}
    return found


def plug(rank: int, spec: tree.Spec, cabling: str) -> list[str]:
    """Commands that give a node its ends of the cables."""
    fabric = [f"10.99.0.{number}" for number in NODES.values()]
    words = []
    for number, ends in enumerate(links(fabrics.CABLES[cabling]), 1):
        for port in [port for end, port in ends if end == rank]:
            words.append(f"ip link add cable{number} type vxlan id {number} local {fabric[rank]} dstport 4789")
            for far in [fabric[end] for end, _ in ends if end != rank]:
                words.append(f"bridge fdb append 00:00:00:00:00:00 dev cable{number} dst {far}")
            words.append(f"ip link set cable{number} mtu 9000 arp off up")
            for name, half in fabrics.halves(spec, port).items():
                words += [
                    f"ip link add link cable{number} name {name} address {half['mac']} mtu 9000 type macvlan mode bridge",
                    f"ip addr add {half['addresses'][0]} dev {name}",
                    f"ip link set {name} up",
                ]
    return words


def dress(kind: str, cabling: str, command: Command, ship: Callable[[str, Path, Path], None]) -> None:
    """Dress as many nodes as are cabled. ``command`` runs a shell command as root on a node, ``ship`` copies a folder there."""
    for rank, (host, spec) in enumerate(machines(kind, cabling).items()):
        shutil.rmtree(SYS, ignore_errors=True)
        tree.write(SYS, spec)
        ship(host, SYS, SYS)
        words = [
            *plug(rank, spec, cabling),
            # What the nodes have beside, where the kernel has it.
            f"for item in /sys/class/net/*; do name=${{item##*/}}; place={SYS}/sys/class/net/$name; "
            '[ -e "$place" ] || ln -s "$(readlink -f "$item")" "$place"; done',
            f"mount --bind {SYS}/sys/class /sys/class",
            "mkdir -p /dev/infiniband && mknod /dev/infiniband/uverbs0 c 231 192",
            f"printf {shlex.quote('#!/bin/sh' + chr(10) + 'cat <<END' + chr(10) + _GPUS[kind] + 'END' + chr(10))} > {_SMI}",
            f"printf {shlex.quote('#!/bin/sh' + chr(10))} > {_HOOK}",
            f"chmod +x {_SMI} {_HOOK}",
            # What the role fabric configures the network with, where a system lets it.
            "systemctl unmask systemd-networkd; systemctl start systemd-networkd",
            # Docker looks for the hook when it starts.
            "systemctl reset-failed docker; systemctl restart docker",
        ]
        command(host, "set -e; " + "; ".join(words))
    shutil.rmtree(SYS)


def undress(hosts: Iterable[str], command: Command) -> None:
    """Take all of it away again, whatever a node wears. The ranks do not run."""
    for host in hosts:
        command(host, _UNDRESS)
