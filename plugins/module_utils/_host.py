# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has to bring before anything expensive starts.

The functions named ``parse_*`` read what the kernel and a few tools print; ``judge`` holds it against the recipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ansible_collections.tandem.serving.plugins.module_utils._causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check

GIB = 1 << 30
_LISTENER = re.compile(r"^LISTEN\s+\d+\s+\d+\s+(?P<address>\S+):(?P<port>\d+)\s+\S+(?:\s+users:\((?P<users>.*)\))?")
_USER = re.compile(r'\("(?P<name>[^"]*)",pid=(?P<pid>\d+)')


class Listener(TypedDict):
    """One listening TCP socket. ``process`` is empty where the kernel does not tell, ``own`` says it is the rank itself."""

    address: str
    port: int
    process: str
    pid: int
    own: bool


class Gpu(TypedDict):
    """One GPU as nvidia-smi names it.

    ``memory`` and ``used`` of it are in bytes, 0 where it shares the host's. ``stuck`` says that it asks for a reset.
    """

    name: str
    uuid: str
    driver: str
    memory: int
    used: int
    stuck: bool


class GpuProcess(TypedDict):
    """One process that computes on the GPU ``gpu``, a UUID. ``own`` says it is the rank itself."""

    gpu: str
    pid: int
    process: str
    own: bool


class Disk(TypedDict):
    """Free bytes under a path, and where the path is mounted."""

    path: str
    mount: str
    free: int


def parse_meminfo(text: str) -> dict[str, int]:
    """``/proc/meminfo`` in bytes."""
    found = re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in found}


def parse_listeners(text: str) -> list[Listener]:
    """The output of ``ss -Hltnp``."""
    listeners = []
    for line in text.splitlines():
        match = _LISTENER.match(line.strip())
        if not match:
            continue
        user = _USER.search(match["users"] or "")
        listeners.append(
            Listener(
                address=match["address"],
                port=int(match["port"]),
                process=user["name"] if user else "",
                pid=int(user["pid"]) if user else 0,
                own=False,
            )
        )
    return listeners


def parse_gpus(text: str) -> list[Gpu]:
    """The output of ``nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,memory.used --format=csv,noheader``."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5:
            continue
        sizes = [re.match(r"(\d+) MiB", cell) for cell in cells[3:]]
        memory, used = (int(mib[1]) << 20 if mib else 0 for mib in sizes)
        stuck = any("ERR!" in cell or "requires reset" in cell for cell in cells)
        gpus.append(Gpu(name=cells[0], uuid=cells[1], driver=cells[2], memory=memory, used=used, stuck=stuck))
    return gpus


def parse_gpu_processes(text: str) -> list[GpuProcess]:
    """The output of ``nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader``."""
    found = re.findall(r"^(\S+), (\d+), (.*)$", text, re.MULTILINE)
    return [GpuProcess(gpu=gpu, pid=int(pid), process=process.strip(), own=False) for gpu, pid, process in found]


def gib(size: float) -> str:
    """Bytes for people."""
    return f"{size / GIB:.1f} GiB"


def judge_disk(disk: Disk, needed: int, what: str) -> Check:
    """Whether ``needed`` bytes, those that are still missing, fit under a path."""
    name = f"disk for {what}"
    evidence = [f"{disk['path']} is on {disk['mount']}: {gib(disk['free'])} free, {gib(needed)} still missing"]
    if disk["free"] >= needed:
        return check(name, "pass", f"{gib(needed)} free", gib(disk["free"]), evidence=evidence)
    return fault(
        name,
        "disk_too_small",
        f"{gib(needed)} free for the bytes that are still missing",
        gib(disk["free"]),
        evidence=evidence,
        missing=gib(needed - disk["free"]),
        mount=disk["mount"],
        path=disk["path"],
    )


def judge_port(port: int, listeners: Iterable[Listener], what: str) -> Check:
    """Whether nobody listens on a port that the head needs."""
    holder = next((item for item in listeners if item["port"] == port and not item["own"]), None)
    if holder is None:
        return check(
            f"port {port}",
            "pass",
            f"free for the {what}",
            "free or the rank's own",
            evidence=[f"ss -ltnp: nothing of others on {port}"],
        )
    who = f"{holder['process'] or 'a process of another user'} (pid {holder['pid'] or 'unknown'})"
    return fault(
        f"port {port}",
        "port_taken",
        f"free for the {what}",
        f"held by {who} on {holder['address']}",
        evidence=[f"ss -ltnp: {holder['address']}:{port} {who}"],
        who=who,
    )


def judge(host: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[Check]:
    """The checks that need nothing but the host and the recipe. ``host`` is what the module ``host_info`` returns."""
    checks: list[Check] = []
    if recipe["platform"] == "generic":
        lines = [f"/proc/cpuinfo: avx2 {'is among' if 'avx2' in host['cpu_flags'] else 'is missing from'} the flags"]
        if "avx2" in host["cpu_flags"]:
            return [check("processor", "pass", "AVX2", "AVX2", evidence=lines)]
        return [fault("processor", "cpu_without_avx2", "AVX2", "no AVX2", evidence=lines)]
    if host["page_size"] != 4096:
        lines = [f"getconf PAGESIZE: {host['page_size']}"]
        checks.append(fault("page size", "page_size_64k", 4096, host["page_size"], verdict="warn", evidence=lines))
    memory = host["memory"]
    if memory["cma_free"] > memory["cma_total"]:
        lines = [f"/proc/meminfo: CmaTotal {memory['cma_total'] >> 10} kB, CmaFree {memory['cma_free'] >> 10} kB"]
        checks.append(fault("kernel memory", "kho_cma_pool", "CmaFree within CmaTotal", "more", evidence=lines))
    if host["swappiness"] == 0:
        lines = ["/proc/sys/vm/swappiness: 0"]
        checks.append(fault("swappiness", "swappiness_zero", "vm.swappiness of 1 to 100", 0, evidence=lines))
    if host["remove_ipc"]:
        lines = ["/etc/systemd/logind.conf: no RemoveIPC=no"]
        wanted = "RemoveIPC=no in logind.conf"
        checks.append(fault("RemoveIPC", "logind_removes_ipc", wanted, "yes", verdict="warn", evidence=lines))
    return checks + _judge_gpu(host["gpus"], host["gpu_processes"], recipe)


def _judge_gpu(gpus: list[Gpu], processes: list[GpuProcess], recipe: Mapping[str, Any]) -> list[Check]:
    wanted = {"gb10": "GB10", "gb300": "GB300"}.get(recipe["platform"], "")
    evidence = [
        f"nvidia-smi: {gpu['name']}, driver {gpu['driver']}"
        + (f", {gib(gpu['used'])} of {gib(gpu['memory'])} in use" if gpu["memory"] else "")
        for gpu in gpus
    ]
    fitting = [gpu for gpu in gpus if wanted in gpu["name"]]
    if not fitting:
        found = ", ".join(gpu["name"] for gpu in gpus) or "no GPU that nvidia-smi lists"
        return [fault("gpu", "gpu_not_found", f"a GPU named {wanted}", found, evidence=evidence)]
    if fitting[0]["stuck"]:
        return [
            fault(
                "gpu",
                "gpu_requires_reset",
                f"a GPU named {wanted} that works",
                "it asks for a reset",
                evidence=evidence,
            )
        ]
    checks = [check("gpu", "pass", f"a GPU named {wanted}", fitting[0]["name"], evidence=evidence)]
    if fitting[0]["driver"].startswith("590."):
        wanted = "a driver of another series than 590"
        checks.append(fault("driver", "driver_590", wanted, fitting[0]["driver"], evidence=evidence))
    others = [item for item in processes if item["gpu"] == fitting[0]["uuid"] and not item["own"]]
    if others:
        who = ", ".join(f"{item['process']} (pid {item['pid']})" for item in others)
        wanted = "no process but the rank's"
        checks.append(fault("gpu processes", "gpu_in_use", wanted, who, verdict="warn", evidence=evidence))
    return checks
