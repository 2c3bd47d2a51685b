# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Docker tells while it pulls, loads or builds, as progress."""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping
from typing import IO, Any, cast

from ansible_collections.tandem.serving.plugins.module_utils._progress import Progress

_FETCHED = ("Download complete", "Pull complete", "Already exists")
_UNPACKED = ("Pull complete", "Already exists")
# #7 [builder 3/12] RUN make, #7 DONE 3.1s, #7 CACHED, #7 0.123 what the step prints
_STEP = re.compile(r"^#(?P<item>[1-9]\d*) (?P<status>.+)$")
_STEP_ENDS = ("DONE", "CACHED")
_STEP_NAME = re.compile(r"\[.*\] ?\S.*")


class Layers:
    """Follows the events of a pull or a load."""

    def __init__(self) -> None:
        self._fetched: dict[str, bool] = {}
        self._unpacked: dict[str, bool] = {}
        self._bytes: dict[str, dict[str, int]] = {"Downloading": {}, "Extracting": {}}
        self._totals: dict[str, int] = {}
        self._current = ""

    def event(self, event: Mapping[str, Any]) -> None:
        """One more event."""
        layer, status = str(event.get("id", "")), str(event.get("status", ""))
        if not layer or status.startswith("Pulling from"):
            return
        kind = "Extracting" if status == "Loading layer" else status
        self._fetched[layer] = self._fetched.get(layer, False) or status.startswith(_FETCHED) or kind == "Extracting"
        self._unpacked[layer] = self._unpacked.get(layer, False) or status.startswith(_UNPACKED)
        self._current = f"{layer} {status}"
        detail = event.get("progressDetail") or {}
        if kind in self._bytes and detail.get("total"):
            self._bytes[kind][layer] = int(detail["current"])
            self._totals[layer] = int(detail["total"])

    def state(self) -> dict[str, Any]:
        """What Progress.set takes. Downloading counts until all layers are here, then unpacking does."""
        fetched = all(self._fetched.values())
        counted = self._unpacked if fetched else self._fetched
        now = self._bytes["Extracting" if fetched else "Downloading"]
        return {
            "phase": "unpack" if fetched and self._fetched else "download",
            "done": sum(total if counted[layer] else now.get(layer, 0) for layer, total in self._totals.items()),
            "total": sum(self._totals.values()),
            "item": sum(counted.values()),
            "items": len(counted),
            "current": self._current,
        }


def watch(events: Iterable[Mapping[str, Any]], progress: Progress) -> list[str]:
    """Follow the events of a pull or a load to their end. Returns the lines that belong to no layer."""
    layers = Layers()
    said = []
    for event in events:
        layers.event(event)
        progress.set(**layers.state())
        if "stream" in event:
            said.append(str(event["stream"]).strip())
    return said


class Steps:
    """Follows the lines of a build: how many of the steps that are known are done, and what is being done."""

    def __init__(self) -> None:
        self.current = ""
        self._ended: dict[str, bool] = {}

    def line(self, text: str) -> None:
        """One more line."""
        match = _STEP.match(text)
        if not match:
            return
        ended = match["status"].startswith(_STEP_ENDS)
        self._ended[match["item"]] = self._ended.get(match["item"], False) or ended
        if _STEP_NAME.match(match["status"]):
            self.current = match["status"]

    def state(self) -> dict[str, Any]:
        """What Progress.set takes."""
        return {"item": sum(self._ended.values()), "items": len(self._ended), "current": self.current}


def follow(command: list[str], progress: Progress) -> tuple[int, list[str]]:
    """Run a build and show its progress. Returns its exit status and the last lines that it printed."""
    steps = Steps()
    last: deque[str] = deque(maxlen=20)
    # run_command of a module shows nothing before the end.
    with subprocess.Popen(  # pylint: disable=ansible-bad-function
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for text in cast(IO[str], process.stdout):
            last.append(text.rstrip())
            steps.line(last[-1])
            # A step that prints is not stalled.
            progress.add(1)
            progress.set(**steps.state())
    return process.returncode, list(last)
