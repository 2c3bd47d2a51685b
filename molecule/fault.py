"""Do harm to work that brings files into a folder, at random points of it. Runs as root on the host of the work.

fault.py kill STATE FOLDER TOTAL TIMES   kill the work that STATE names, TIMES times, before TOTAL bytes are in FOLDER
fault.py fill FOLDER BYTES               use up the disk of FOLDER once it has grown by BYTES
fault.py hang_up FOLDER BYTES SECONDS    end all SSH sessions once FOLDER has grown by BYTES, and let none in for SECONDS
fault.py damage SNAPSHOT                 flip a bit of its first shard, cut its second short, remove its third
fault.py look FOLDER                     tell inode and time of each complete file

Prints JSON. ``kill`` fails when a file that was complete at a kill is another one later, or one that was not is smaller later.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

PATIENCE = 240


def files(folder: Path) -> list[os.DirEntry[str]]:
    """All files below a folder."""
    found = []
    for root, _folders, names in os.walk(folder):
        if names:
            with os.scandir(root) as entries:
                found += [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    return found


def size(folder: Path) -> int:
    """Bytes below a folder."""
    total = 0
    for entry in files(folder):
        with contextlib.suppress(FileNotFoundError):
            total += entry.stat(follow_symlinks=False).st_size
    return total


def complete(folder: Path) -> dict[str, list[int]]:
    """Inode and time of all files that are named after their content."""
    stats = {entry.name: entry.stat() for entry in files(folder) if re.fullmatch("[0-9a-f]{40,64}", entry.name)}
    return {name: [stat.st_ino, stat.st_mtime_ns] for name, stat in stats.items()}


def arrived(folder: Path) -> dict[str, int]:
    """Bytes that are there of each content, which has the same name before its first dot when it is not complete."""
    found: dict[str, int] = {}
    for entry in files(folder):
        if re.match("[0-9a-f]{40,64}", entry.name):
            name = entry.name.partition(".")[0]
            with contextlib.suppress(FileNotFoundError):
                found[name] = max(found.get(name, 0), entry.stat().st_size)
    return found


def wait_for(ready: Callable[[], bool], what: str) -> None:
    """Wait, looking often."""
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end:
            sys.exit(f"{what} did not come")
        time.sleep(0.001)


def process_of(state: Path) -> int:
    """The living process that a state names, or 0."""
    try:
        pid = int(json.loads(state.read_text())["pid"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError):
        return 0
    return pid


def kill(state: Path, folder: Path, total: int, times: int) -> None:
    """Each time the next process that begins, after a random part of what is left."""
    known: dict[str, list[int]] = {}
    had: dict[str, int] = {}
    killed: list[int] = []
    at = []
    while len(killed) < times:
        wait_for(lambda: process_of(state) not in (0, *killed[-1:]), f"process {len(killed) + 1}")
        pid, before = process_of(state), size(folder)
        enough = before + random.uniform(0, 2 * max(0, total - before) / (times - len(killed) + 2))
        wait_for(partial(advanced, state, pid, folder, enough), f"byte {enough:.0f}")
        with contextlib.suppress(ProcessLookupError):
            # All of it, as a power cut would.
            os.killpg(os.getpgid(pid), signal.SIGKILL)
            killed.append(pid)
            at.append(size(folder))
        # What was killed takes a moment to end.
        time.sleep(0.05)
        now = complete(folder)
        lost = [name for name, found in known.items() if now.get(name) != found]
        if lost:
            sys.exit(f"complete, and then not the same: {lost}")
        have = arrived(folder)
        shrunk = [name for name, bytes_had in had.items() if have.get(name, 0) < bytes_had]
        if shrunk:
            sys.exit(f"begun anew instead of gone on with: {shrunk}")
        known, had = now, have
    print(json.dumps({"killed": len(killed), "at": at, "complete": known}))


def advanced(state: Path, pid: int, folder: Path, enough: float) -> bool:
    """Whether the work is so far, or over."""
    return size(folder) >= enough or process_of(state) != pid


def fill(folder: Path, amount: int) -> None:
    """The file that uses up the disk is FOLDER.filler."""
    before = size(folder)
    wait_for(lambda: size(folder) >= before + amount, f"byte {amount}")
    at, block = size(folder), bytes(2**20)
    with folder.with_suffix(".filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(block):
            pass
    print(json.dumps({"at": at}))


def hang_up(folder: Path, amount: int, seconds: float) -> None:
    """The daemon comes back whatever happens here."""
    before = size(folder)
    wait_for(lambda: size(folder) >= before + amount, f"byte {amount}")
    subprocess.run(["systemctl", "stop", "ssh.service", "ssh.socket"], check=False)
    try:
        sessions = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cmdline").read_bytes().startswith((b"sshd: ", b"sshd-session: ")):
                    os.kill(int(process.name), signal.SIGKILL)
                    sessions.append(process.name)
        time.sleep(seconds)
    finally:
        subprocess.run(["systemctl", "start", "ssh.service"], check=True)
    print(json.dumps({"sessions": len(sessions), "at": size(folder)}))


def damage(snapshot: Path) -> None:
    """The shards are links to the contents, which are what is harmed."""
    shards = [path.resolve() for path in sorted(snapshot.glob("*.safetensors"))[:3]]
    bytes_lost = sum(path.stat().st_size for path in shards)
    with shards[0].open("r+b") as file:
        file.seek(1_000_000)
        byte = file.read(1)[0]
        file.seek(1_000_000)
        file.write(bytes([byte ^ 1]))
    os.truncate(shards[1], 1_000_000)
    shards[2].unlink()
    kept = {
        name: found for name, found in complete(shards[0].parent).items() if name not in {path.name for path in shards}
    }
    print(json.dumps({"bytes": bytes_lost, "kept": kept}))


def look(folder: Path) -> None:
    """What damage tells of the files that it left alone, for all files."""
    print(json.dumps(complete(folder)))


def main(what: str, *words: str) -> None:
    """Entry point."""
    if what == "kill":
        kill(Path(words[0]), Path(words[1]), int(words[2]), int(words[3]))
    elif what == "fill":
        fill(Path(words[0]), int(words[1]))
    elif what == "damage":
        damage(Path(words[0]))
    elif what == "look":
        look(Path(words[0]))
    else:
        hang_up(Path(words[0]), int(words[1]), float(words[2]))


if __name__ == "__main__":
    main(*sys.argv[1:])
