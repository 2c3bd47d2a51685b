"""Let the two nodes of the rig look like DGX Sparks or DGX Stations, as far as the roles look.

The fabric's interfaces are on the nodes' own, with the names, MAC addresses and subnets of saved machines. Over /sys/class lies a
folder with what the kernel of such a machine shows. nvidia-smi and NVIDIA's hook for Docker are scripts.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from unit.fabric import tree

Command = Callable[..., str]
HOSTS = ["spark-a", "spark-b"]
# The tree has links with whole paths in it, so that it has to be at one place on all machines.
SYS = Path(tempfile.gettempdir()) / "tandem-standin"
MANAGEMENT = "eth0"

_GPUS = {
    "spark_one_cable": "NVIDIA GB10, GPU-5b10, 580.173.02, [N/A]\n",
    # A display GPU is listed first.
    "station": "NVIDIA RTX PRO 4000 Blackwell, GPU-d15p1ay0, 580.173.02, 24467 MiB\nNVIDIA GB300, GPU-6b300, 580.173.02, 258048 MiB\n",
}
_HOOK = "/usr/bin/nvidia-container-runtime-hook"
_SMI = "/usr/local/bin/nvidia-smi"


def machines(kind: str) -> dict[str, tree.Spec]:
    """The saved machine for each host: its cables are in subnets of their own, its management interface is the node's."""
    found = tree.machines(HOSTS, kind)
    for number, spec in enumerate(found.values(), 1):
        if kind == "station":
            # The nodes have one network: two rails on it would look like a switch.
            spec["netdevs"]["cx8r1"] |= {"up": False, "ethtool": "no (No cable)"}
        cabled = rails(spec)
        for subnet, name in enumerate(cabled, 100):
            spec["netdevs"][name]["addresses"] = [f"192.168.{subnet}.{number}/24"]
        for name in spec["protected"]:
            del spec["netdevs"][name]
            spec["devices"] = {hca: item for hca, item in spec["devices"].items() if item["netdev"] != name}
    return found


def rails(spec: tree.Spec) -> list[str]:
    """Interfaces with a cable in them."""
    skipped = {"lo", *spec["protected"]}
    return [name for name, item in spec["netdevs"].items() if name not in skipped and item.get("up", True)]


def dress(kind: str, command: Command, ship: Callable[[str, Path, Path], None]) -> None:
    """Dress both nodes. ``command`` runs a shell command as root on a node, ``ship`` copies a folder to a place there."""
    for host, spec in machines(kind).items():
        shutil.rmtree(SYS, ignore_errors=True)
        tree.write(SYS, spec)
        ship(host, SYS, SYS)
        words = []
        for name in rails(spec):
            netdev = spec["netdevs"][name]
            words += [
                f"ip link add link eth1 name {name} address {netdev['mac']} mtu 9000 type macvlan mode bridge",
                f"ip addr add {netdev['addresses'][0]} dev {name}",
                f"ip link set {name} up",
            ]
        words += [
            # What the nodes have beside, where the kernel has it.
            f"for item in /sys/class/net/*; do name=${{item##*/}}; place={SYS}/sys/class/net/$name; "
            '[ -e "$place" ] || ln -s "$(readlink -f "$item")" "$place"; done',
            f"mount --bind {SYS}/sys/class /sys/class",
            "mkdir -p /dev/infiniband && mknod /dev/infiniband/uverbs0 c 231 192",
            f"printf {shlex.quote('#!/bin/sh' + chr(10) + 'cat <<END' + chr(10) + _GPUS[kind] + 'END' + chr(10))} > {_SMI}",
            f"printf {shlex.quote('#!/bin/sh' + chr(10))} > {_HOOK}",
            f"chmod +x {_SMI} {_HOOK}",
            # Docker looks for the hook when it starts.
            "systemctl reset-failed docker; systemctl restart docker",
        ]
        command(host, "set -e; " + "; ".join(words))
    shutil.rmtree(SYS)


def undress(kind: str, command: Command) -> None:
    """Take all of it away again. The ranks do not run."""
    for host, spec in machines(kind).items():
        links = " ".join(rails(spec))
        command(
            host,
            f"umount /sys/class; for link in {links}; do ip link del $link; done; rm -rf /dev/infiniband {_SMI} {_HOOK} {SYS}; "
            "systemctl reset-failed docker; systemctl restart docker",
        )
