"""The lab's machines: small ones in QEMU, with software RDMA on each interface of the fabric.

Emulated, because that works everywhere. A cable is a socket between two QEMUs, which takes no privileges.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def home() -> Path:
    """Where ``build`` keeps what it makes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TANDEM_RIG_HOME") or cache / "tandem-rig") / "rdma_lab"


# Below those that the kernel gives to connections, and others for each worker of pytest: two labs start at once.
_PORTS = itertools.count(20000 + 1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))


def _free_port() -> int:
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")


class Lab:
    """Machines and their cables.

    ``cables`` are pairs of ends, each (machine, interface, device); the two interfaces of a pair share one wire.
    """

    def __init__(self, folder: Path, cables: Sequence[tuple[tuple[str, str, str], tuple[str, str, str]]]) -> None:
        self.folder = folder
        self.nics: dict[str, list[tuple[str, str, str]]] = {}
        for one, other in cables:
            port = _free_port()
            # The machine that starts first listens.
            first, second = sorted((one, other))
            for end, wire in ((first, f"listen=127.0.0.1:{port}"), (second, f"connect=127.0.0.1:{port}")):
                self.nics.setdefault(end[0], []).append((end[1], end[2], wire))
        self.names = sorted(self.nics)
        self.ports = {name: _free_port() for name in self.names}
        self.machines: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all machines and wait until each answers over SSH."""
        for number, name in enumerate(self.names, 1):
            self.machines.append(self._machine(number, name))
            # Its wires have to be there when the next one wants to connect.
            time.sleep(1)
        self._inventory()
        limit = time.monotonic() + 240
        for name in self.names:
            while self.ssh(name, "systemctl is-active lab-nics", check=False).strip() != "active":
                if time.monotonic() > limit or any(machine.poll() is not None for machine in self.machines):
                    raise RuntimeError(f"{name} did not start: {(self.folder / f'{name}.log').read_text()[-2000:]}")
                time.sleep(1)
            self._connect(name)

    def stop(self) -> None:
        """Stop all machines."""
        for machine in self.machines:
            machine.terminate()
        for machine in self.machines:
            machine.wait(20)

    def _machine(self, number: int, name: str) -> subprocess.Popen[bytes]:
        names = ",".join(f"{netdev}:{device}" for netdev, device, _wire in self.nics[name])
        kernel = (
            "console=ttyS0 quiet panic=-1 rw mitigations=off random.trust_cpu=on net.ifnames=0 tsc=reliable nowatchdog "
            "init_on_alloc=0 audit=0 apparmor=0 nokaslr cryptomgr.notests rcupdate.rcu_expedited=1"
        )
        kernel += f" lab.name={name} lab.nics={names}"
        words = [
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi,tb-size=256",
            "-cpu",
            "max",
            "-machine",
            "q35,usb=off",
        ]
        words += [
            "-nodefaults",
            "-no-user-config",
            "-m",
            "512",
            "-smp",
            "1",
            "-nographic",
            "-no-reboot",
            "-serial",
            "stdio",
        ]
        words += ["-kernel", str(home() / "vmlinuz"), "-initrd", str(home() / "initrd.img"), "-append", kernel]
        words += ["-drive", f"file={home() / 'root.img'},if=none,id=disk,format=raw,snapshot=on"]
        words += ["-device", "virtio-blk-pci,drive=disk", "-device", "virtio-rng-pci"]
        words += [
            "-netdev",
            f"user,id=m,restrict=on,net=10.0.{number}.0/24,hostfwd=tcp:127.0.0.1:{self.ports[name]}-:22",
        ]
        words += ["-device", "virtio-net-pci,netdev=m,romfile="]
        for position, (_netdev, _device, wire) in enumerate(self.nics[name]):
            mac = f"52:54:00:97:{number:02x}:{position:02x}"
            words += ["-netdev", f"socket,id=f{position},{wire}"]
            words += [
                "-device",
                f"virtio-net-pci,netdev=f{position},romfile=,mac={mac},host_mtu=9000,speed=200000,duplex=full",
            ]
        log = (self.folder / f"{name}.log").open("wb")
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def _inventory(self) -> None:
        key = (home() / "host_ed25519.pub").read_text().split()[:2]
        known = "".join(f"[127.0.0.1]:{port} {' '.join(key)}\n" for port in self.ports.values())
        (self.folder / "known_hosts").write_text(known)
        hosts = {
            name: {
                "ansible_host": "127.0.0.1",
                "ansible_port": port,
                "ansible_user": "root",
                "ansible_become": False,
                "ansible_ssh_private_key_file": str(home() / "id_ed25519"),
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={shlex.quote(str(self.folder / 'known_hosts'))}",
            }
            for name, port in self.ports.items()
        }
        (self.folder / "hosts.json").write_text(json.dumps({"ranks": {"hosts": hosts}}))

    def _ssh(self, name: str) -> list[str]:
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "5",
            "ControlPath": f"{self.folder}/{name}.ssh",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.folder / "known_hosts"),
        }
        words = ["ssh", "-i", str(home() / "id_ed25519"), "-p", str(self.ports[name])]
        words += [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return [*words, "root@127.0.0.1"]

    def _connect(self, name: str) -> None:
        """One connection for all commands: a handshake takes long on an emulated processor."""
        words = [*self._ssh(name), "-MNf"]
        nothing = subprocess.DEVNULL
        subprocess.run(words, check=True, stdin=nothing, stdout=nothing, stderr=nothing, timeout=60)

    def ssh(self, name: str, command: str, *, check: bool = True) -> str:
        """Run a shell command on a machine. Returns its standard output."""
        done = subprocess.run([*self._ssh(name), command], capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{name}: {command}: {done.stderr}")
        return done.stdout

    def addresses(self, name: str) -> str:
        """Interfaces of the fabric and their addresses, a line each."""
        return self.ssh(name, "ip -4 -o addr show scope global | grep np | awk '{print $2, $4}'")

    def ansible(self, *words: str, playbook: str = "fabric.yml", **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run a playbook of this folder over the machines."""
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(HERE / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        }
        more = json.dumps({"lab_out": str(self.folder), "fabric_report_dir": str(self.folder), **variables})
        command = ["ansible-playbook", "-i", str(self.folder / "hosts.json"), str(HERE / playbook), "-e", more, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)

    def facts(self, name: str) -> dict[str, Any]:
        """The fact ``tandem_fabric`` of a machine after the last run."""
        return json.loads((self.folder / f"{name}.json").read_text())
