# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Docker's client prints while it pulls or builds, as progress."""

from __future__ import annotations

import re
import subprocess
from collections import deque

from ansible_collections.tandem.serving.plugins.module_utils._progress import Progress

# 64bd3537b393: Pull complete
_LAYER = re.compile(r"^(?P<item>[0-9a-f]{12}): (?P<status>.+)$")
_LAYER_ENDS = ("Pull complete", "Already exists")
# #7 [builder 3/12] RUN make, #7 DONE 3.1s, #7 CACHED, #7 0.123 what the step prints
_STEP = re.compile(r"^#(?P<item>\d+) (?P<status>.+)$")
_STEP_ENDS = ("DONE", "CACHED")
_STEP_NAME = re.compile(r"\[.*\] ?\S.*")


class Output:
    """Follows the output line by line: how many of the layers or steps that are known are done, and what is being done."""

    def __init__(self) -> None:
        self.items = 0
        self.done = 0
        self.current = ""
        self._states: dict[str, bool] = {}

    def line(self, text: str) -> None:
        """One more line."""
        if match := _LAYER.match(text):
            ended = match["status"].startswith(_LAYER_ENDS)
            self.current = text
        elif match := _STEP.match(text):
            ended = match["status"].startswith(_STEP_ENDS)
            if _STEP_NAME.match(match["status"]):
                self.current = match["status"]
        else:
            return
        self._states[match["item"]] = self._states.get(match["item"], False) or ended
        self.items = len(self._states)
        self.done = sum(self._states.values())


def follow(command: list[str], progress: Progress) -> tuple[int, list[str]]:
    """Run a command and show its progress. Returns its exit status and the last lines that it printed."""
    output = Output()
    last: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for text in process.stdout:
            last.append(text.rstrip())
            output.line(last[-1])
            progress.set(item=output.done, items=output.items, current=output.current)
    return process.returncode, list(last)
