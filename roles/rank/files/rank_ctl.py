# Copyright: Tandem contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask for the state of this host's rank, start it or stop it. Prints one JSON object.

The head calls it over SSH with a key that allows nothing else; a person may call it by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

UNIT = "tandem-rank.service"
CONTAINER = "tandem-rank"
PROPERTIES = "ActiveState,SubState,Result,ExecMainStatus,InvocationID,ActiveEnterTimestamp"


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], check=True, capture_output=True, text=True).stdout


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
    unit = Path("/etc/systemd/system") / UNIT
    found = re.search(r"tandem\.shared=(\w+)", unit.read_text()) if unit.is_file() else None
    return found[1] if found else ""


def state() -> dict[str, str]:
    lines = systemctl("show", UNIT, f"--property={PROPERTIES}").splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    runs = container()
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
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }


def main(words: list[str]) -> int:
    if len(words) != 1 or words[0] not in ("state", "start", "stop"):
        print(f"rank_ctl: expected one of state, start, stop; found {' '.join(words) or 'nothing'}", file=sys.stderr)
        return 2
    try:
        if words[0] == "start":
            systemctl("daemon-reload")
        if words[0] != "state":
            systemctl(words[0], UNIT)
        print(json.dumps(state()))
    except subprocess.CalledProcessError as error:
        print(f"rank_ctl: {' '.join(error.cmd)} ended with {error.returncode}: {error.stderr.strip()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
