# Copyright: Tandem contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask for the state of this host's rank, and change it. Prints one JSON object.

The head calls ``state``, ``start`` and ``stop`` over SSH with a key that allows nothing else; the units call ``prepare``,
``end`` and ``watch``, the role ``keep`` and ``restore``; a person may call any of them by hand.
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
# Where `systemctl edit` writes.
DROP_INS = Path(f"{UNIT_FILE}.d")
ABOUT = Path("/etc/tandem/rank.json")
DOCKER_SECONDS = 10.0
API_KEY = Path("/etc/tandem/api_key")
# Why the last start was refused, or the rank stopped.
REFUSED = Path("/run/tandem/refused")
WORDS = ("state", "start", "stop", "prepare", "end", "watch", "keep", "restore")


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], check=True, capture_output=True, text=True).stdout


def about() -> dict[str, Any]:
    """What the role wrote about this rank. A file that says nothing counts as changed by hand."""
    try:
        found = dict(json.loads(ABOUT.read_text()))
    except (OSError, ValueError, TypeError):
        found = {"files": {str(ABOUT): ""}}
    unknown: dict[str, Any] = {"files": {}, "links": [], "rails": [], "caches": [], "memory": {}}
    return {**unknown, "set": "", "stop_seconds": 60, "engine": "", **found}


def container() -> dict[str, str] | None:
    """Image and labels of the container that runs; empty when none does, None when Docker does not answer."""
    words = [
        "docker",
        "inspect",
        "--format",
        '{"image":{{json .Config.Image}},"labels":{{json .Config.Labels}}}',
        CONTAINER,
    ]
    try:
        out = subprocess.run(words, check=False, capture_output=True, text=True, timeout=DOCKER_SECONDS).stdout
    except subprocess.TimeoutExpired:
        return None
    found: dict[str, Any] = json.loads(out) if out.startswith("{") else {"image": "", "labels": {}}
    return {"image": found["image"], **(found["labels"] or {})}


def changed(knows: dict[str, Any]) -> list[str]:
    """Files that are not what the role wrote, and what was put beside the unit."""
    return rank_host.changed_files(knows["files"]) + sorted(map(str, DROP_INS.glob("*.conf")))


def configured() -> str:
    """The shared hash in the unit on this host's disk, which the next start would run."""
    found = re.search(r"tandem\.shared=(\w+)", UNIT_FILE.read_text()) if UNIT_FILE.is_file() else None
    return found[1] if found else ""


def state() -> dict[str, Any]:
    lines = systemctl("show", UNIT, f"--property={PROPERTIES}").splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    found_container, knows = container(), about()
    runs = found_container or {"image": ""}
    return {
        "active": found["ActiveState"],
        "sub": found["SubState"],
        "result": found["Result"],
        "exit_status": found["ExecMainStatus"],
        "invocation": found["InvocationID"],
        "since": found["ActiveEnterTimestamp"],
        "docker": found_container is not None,
        "image": runs["image"],
        "model": runs.get("tandem.model", ""),
        "recipe": runs.get("tandem.recipe", ""),
        "rank_hash": runs.get("tandem.rank", ""),
        "shared_hash": runs.get("tandem.shared", ""),
        "configured": configured(),
        "changed": changed(knows),
        "down": rank_host.links_down(rank_host.link_states(knows["links"])),
        "refused": REFUSED.read_text() if REFUSED.is_file() else "",
        "available_gib": round(rank_host.read_memory()["MemAvailable"] / rank_host.GIB, 2),
        "set": knows["set"],
        "rollback": rank_kept.target(knows["set"]),
        "boot": rank_host.BOOT.read_text().strip(),
    }


def prepare() -> None:
    """Make ready for a start; end with 1 and the reason where that cannot be."""
    REFUSED.unlink(missing_ok=True)
    try:
        knows = about()
        if files := changed(knows):
            raise rank_host.RefusedError(
                f"{', '.join(files)} changed since site.yml wrote it: run its start stage, and `systemctl revert {UNIT}` "
                "where the unit was edited"
            )
        rank_host.prepare(knows)
    except (rank_host.RefusedError, OSError) as error:
        refuse(str(error))
        sys.exit(f"This rank does not start: {error}.")


def end() -> None:
    """Ask the container to end."""
    knows = about()
    rank_host.end(CONTAINER, knows["stop_seconds"], has_api=knows["engine"] == "vllm")


def refuse(reason: str) -> None:
    """Keep why this rank does not run."""
    REFUSED.parent.mkdir(exist_ok=True)
    REFUSED.write_text(reason)


def watch() -> None:
    """Stop the rank before the kernel has no memory left to do so. Ends when it did."""
    floor = about()["memory"].get("floor_gib", 0)
    refuse(rank_host.wait_for_shortage(floor))
    systemctl("stop", UNIT)


def act(word: str) -> dict[str, Any]:
    """Do one thing, and tell the state, or for keep and restore what changed."""
    if word == "keep":
        return {"changed": rank_kept.keep(about()["set"], [*about()["files"], str(ABOUT), str(API_KEY)])}
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
    unit_asks = {"prepare": prepare, "end": end, "watch": watch}
    if words[0] in unit_asks:
        unit_asks[words[0]]()
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
