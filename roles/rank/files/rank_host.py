# Copyright: Tandem contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this host has to bring before its rank starts: the files as they were written, the fabric, GIDs and memory.

``about`` is the content of /etc/tandem/rank.json, which the role writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

GIB = 1 << 30
# A rank that was killed leaves about 20 GiB of unified memory behind, until the next boot.
LEAK = 8 * GIB
BOOT = Path("/proc/sys/kernel/random/boot_id")
MEMORY = Path("/var/lib/tandem/memory.json")
# NCCL writes here, one folder for each start.
NCCL_LOGS = Path("/var/log/tandem/nccl")
KEPT_LOGS = 20
# Compiled kernels and byte code, by what they are for.
CACHES = Path("/var/lib/tandem/cache")
KEPT_CACHES = 8
# What has to be found out anew at each start, as docker --env-file reads it.
START_ENV = Path("/run/tandem/start.env")


# Seconds that an API without its engine has to answer its clients.
ALONE = 5


class RefusedError(Exception):
    """The rank cannot start. The text says what was expected, what was found, and what to do."""


def changed_files(files: Mapping[str, str]) -> list[str]:
    """Those files that are not what the role wrote: path to SHA-256."""
    found = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files if Path(path).is_file()}
    return sorted(path for path, digest in files.items() if found.get(path) != digest)


def link_states(netdevs: Sequence[str], net: Path = Path("/sys/class/net")) -> dict[str, str]:
    """Interface to what the kernel says of it: up, down, ..., or missing."""
    states = {}
    for netdev in netdevs:
        file = net / netdev / "operstate"
        states[netdev] = file.read_text().strip() if file.is_file() else "missing"
    return states


def links_down(states: Mapping[str, str]) -> list[str]:
    """Interfaces that carry nothing. Some drivers never say more than unknown."""
    return [f"{netdev} is {state}" for netdev, state in states.items() if state not in ("up", "unknown")]


def gid_index(hca: str, address: str, infiniband: Path = Path("/sys/class/infiniband")) -> int | None:
    """Index of the RoCE v2 GID of an IPv4 address, which moves when addresses come in another order."""
    port = infiniband / hca / "ports/1"
    wanted = ipaddress.IPv4Address(address)
    for file in sorted((port / "gids").glob("*"), key=lambda path: int(path.name)):
        # An entry without a GID cannot be read, or its type cannot.
        with contextlib.suppress(OSError, ValueError):
            kind = (port / "gid_attrs/types" / file.name).read_text().strip()
            if kind == "RoCE v2" and ipaddress.IPv6Address(file.read_text().strip()).ipv4_mapped == wanted:
                return int(file.name)
    return None


def gid_environment(rails: Sequence[Mapping[str, Any]], infiniband: Path = Path("/sys/class/infiniband")) -> str:
    """NCCL_IB_GID_INDEX as it is now; empty, which NCCL takes for unset, where the rails differ."""
    indexes = set()
    for rail in rails:
        index = gid_index(rail["hca"], rail["address"], infiniband)
        if index is None:
            raise RefusedError(
                f"{rail['hca']} has no RoCE v2 GID of {rail['address']}: look whether {rail['netdev']} has this address"
            )
        indexes.add(index)
    if not indexes:
        return ""
    return f"NCCL_IB_GID_INDEX={indexes.pop() if len(indexes) == 1 else ''}\n"


def meminfo(text: str) -> dict[str, int]:
    """``/proc/meminfo`` in bytes."""
    return {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}


def read_memory() -> dict[str, int]:
    return meminfo(Path("/proc/meminfo").read_text())


def drop_page_cache() -> None:
    """CUDA counts the page cache as memory in use."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1\n")


def free_memory(
    memory: Mapping[str, Any],
    read: Callable[[], Mapping[str, int]] = read_memory,
    sleep: Callable[[float], None] = time.sleep,
    patience: int = 60,
) -> int:
    """Wait until the memory that the rank asks for is free, and return how much is. A rank that ended gives it back slowly."""
    for second in range(patience + 1):
        found = read()
        needed = int(memory["share"] * found["MemTotal"] + memory["gib"] * GIB)
        if found["MemAvailable"] >= needed:
            return found["MemAvailable"]
        if second < patience:
            sleep(1)
    raise RefusedError(
        f"expected {needed / GIB:.1f} GiB of free memory, found {found['MemAvailable'] / GIB:.1f} GiB, after {patience} s: "
        "end what uses it, lower the recipe's limits, or reboot when nothing seems to"
    )


def wait_for_shortage(
    floor: float,
    read: Callable[[], Mapping[str, int]] = read_memory,
    sleep: Callable[[float], None] = time.sleep,
    patience: int = 3,
) -> str:
    """Return, with what to tell, when less than ``floor`` GiB of memory are left for ``patience`` seconds."""
    short = 0
    while short < patience:
        sleep(1)
        available = read()["MemAvailable"] / GIB
        short = short + 1 if available < floor else 0
    return f"{available:.2f} GiB of memory were left, less than {floor} GiB: lower the recipe's limits, or end what else uses it"


def leaked(available: int, boot: str, file: Path = MEMORY) -> float:
    """GiB that are missing since the first start after the boot; 0 where that is no more than usual."""
    try:
        kept = json.loads(file.read_text())
    except (OSError, ValueError):
        kept = {}
    if kept.get("boot") != boot:
        kept = {"boot": boot, "available": available}
        # A full disk is no reason not to start.
        with contextlib.suppress(OSError):
            file.write_text(json.dumps(kept))
    missing = kept["available"] - available
    return round(missing / GIB, 1) if missing > LEAK else 0.0


def forget(folder: Path, kept: int) -> None:
    """Remove all but the newest folders."""
    found = sorted(folder.glob("*"), key=lambda path: path.stat().st_mtime)
    for old in found[:-kept]:
        shutil.rmtree(old)


def prepare(about: Mapping[str, Any]) -> None:
    """Make ready for a start, or raise RefusedError."""
    if down := links_down(link_states(about["links"])):
        raise RefusedError(f"the fabric does not work: {', '.join(down)}")
    forget(NCCL_LOGS, KEPT_LOGS)
    for cache in filter(os.path.isdir, about["caches"]):
        os.utime(cache)
    forget(CACHES, KEPT_CACHES)
    START_ENV.parent.mkdir(exist_ok=True)
    START_ENV.write_text(gid_environment(about["rails"]))
    if about["memory"]["kind"] == "unified":
        drop_page_cache()
    available = free_memory(about["memory"])
    if lost := leaked(available, BOOT.read_text().strip()):
        print(
            f"{lost} GiB of memory are missing since the boot: a rank was killed before. A reboot frees them",
            file=sys.stderr,
        )


def processes(container: str) -> dict[int, str]:
    """Processes of a container with their state, such as T for one that is frozen. The first one stands first."""
    words = ["docker", "top", container, "-eo", "pid,stat,args"]
    try:
        listed = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20).stdout
    except subprocess.TimeoutExpired:
        return {}
    found = re.findall(r"^\s*(\d+)\s+(\S+)\s+(.*)", listed, re.MULTILINE)
    # Python's own helper lives as long as the first process.
    return {int(pid): state for pid, state, args in found if "resource_tracker" not in args}


def tell(pids: Iterable[int], what: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def end(container: str, seconds: int, has_api: bool) -> None:
    """Ask a container to end. Docker kills what is left after ``seconds``.

    Frozen processes are woken, so that they hear it. vLLM's API, when it is left alone without the engine that it started, waits
    for clients who will get no answer, and is killed: it holds no memory of a GPU.
    """
    before = processes(container)
    tell((pid for pid, state in before.items() if state.startswith("T")), signal.SIGCONT)
    words = ["docker", "stop", "--time", str(seconds), container]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as stopping:
        alone = 0
        while has_api and alone < ALONE and stopping.poll() is None:
            time.sleep(1)
            alone = alone + 1 if len(before) > 1 and len(processes(container)) == 1 else 0
        if stopping.poll() is None and has_api:
            tell(processes(container), signal.SIGKILL)
    # What a power cut left behind.
    subprocess.run(["docker", "rm", "--force", container], capture_output=True, check=False)
