# Copyright: Tandem contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask for the state of this host's rank, and change it. Prints one JSON object.

The head calls ``state``, ``start`` and ``stop`` over SSH with a key that allows nothing else; the unit calls ``prepare`` and
``end``, the role ``keep`` and ``restore``; a person may call any of them by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import rank_host
import rank_kept

UNIT = "tandem-rank.service"
CONTAINER = "tandem-rank"
PROPERTIES = "ActiveState,SubState,Result,ExecMainStatus,InvocationID,ActiveEnterTimestamp"
UNIT_FILE = Path("/etc/systemd/system") / UNIT
ABOUT = Path("/etc/tandem/rank.json")
# Why the last start was refused.
REFUSED = Path("/run/tandem/refused")
WORDS = ("state", "start", "stop", "prepare", "end", "keep", "restore")


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], check=True, capture_output=True, text=True).stdout


def about() -> dict[str, Any]:
    """What the role wrote about this rank."""
    found: dict[str, Any] = json.loads(ABOUT.read_text()) if ABOUT.is_file() else {}
    return {"files": {}, "links": [], "rails": [], "memory": {}, "set": "", "stop_seconds": 60, **found}


def container() -> dict[str, str]:
    """Image and labels of the container that runs; empty when none does."""
    words = [
        "docker",
        "inspect",
        "--format",
        '{"image":{{json .Config.Image}},"labels":{{json .Config.Labels}}}',
        CONTAINER,
    ]
    out = subprocess.run(words, check=False, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(out) if out.startswith("{") else {"image": "", "labels": {}}
    return {"image": found["image"], **(found["labels"] or {})}


def configured() -> str:
    """The shared hash in the unit on this host's disk, which the next start would run."""
    found = re.search(r"tandem\.shared=(\w+)", UNIT_FILE.read_text()) if UNIT_FILE.is_file() else None
    return found[1] if found else ""


def state() -> dict[str, Any]:
    lines = systemctl("show", UNIT, f"--property={PROPERTIES}").splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    runs, knows = container(), about()
    return {
        "active": found["ActiveState"],
        "sub": found["SubState"],
        "result": found["Result"],
        "exit_status": found["ExecMainStatus"],
        "invocation": found["InvocationID"],
        "since": found["ActiveEnterTimestamp"],
        "image": runs["image"],
        "rank_hash": runs.get("tandem.rank", ""),
        "shared_hash": runs.get("tandem.shared", ""),
        "configured": configured(),
        "changed": rank_host.changed_files(knows["files"]),
        "down": rank_host.links_down(rank_host.link_states(knows["links"])),
        "refused": REFUSED.read_text() if REFUSED.is_file() else "",
        "available_gib": round(rank_host.read_memory()["MemAvailable"] / rank_host.GIB, 2),
        "floor_gib": knows["memory"].get("floor_gib", 0),
        "set": knows["set"],
        "rollback": rank_kept.target(knows["set"]),
        "boot": rank_host.BOOT.read_text().strip(),
    }


def prepare() -> None:
    """Make ready for a start; end with 1 and the reason where that cannot be."""
    REFUSED.unlink(missing_ok=True)
    try:
        rank_host.prepare(about())
    except rank_host.RefusedError as error:
        REFUSED.parent.mkdir(exist_ok=True)
        REFUSED.write_text(str(error))
        sys.exit(f"This rank does not start: {error}.")


def act(word: str) -> dict[str, Any]:
    """Do one thing, and tell the state, or for keep and restore what changed."""
    if word == "keep":
        return {"changed": rank_kept.keep(about()["set"], [*about()["files"], str(ABOUT)])}
    if word == "restore":
        return {"restored": rank_kept.restore(about()["set"])}
    if word == "start":
        systemctl("daemon-reload")
    if word in ("start", "stop"):
        systemctl(word, UNIT)
    return state()


def main(words: list[str]) -> int:
    if len(words) != 1 or words[0] not in WORDS:
        print(f"rank_ctl: expected one of {', '.join(WORDS)}; found {' '.join(words) or 'nothing'}", file=sys.stderr)
        return 2
    if words[0] in ("prepare", "end"):
        if words[0] == "prepare":
            prepare()
        else:
            rank_host.end(CONTAINER, about()["stop_seconds"])
        return 0
    try:
        print(json.dumps(act(words[0])))
    except subprocess.CalledProcessError as error:
        refused = REFUSED.read_text() if REFUSED.is_file() else error.stderr.strip()
        print(refused, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
