# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state file of long work: what a module is doing, for whoever watches.

A module that works long takes ``progress_file`` (`ARGUMENTS`, documented in doc_fragments/progress.py) and writes its state
there while it works. The action plugin of the same name, a subclass of plugin_utils/_long_task.py, reads it and prints.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

ARGUMENTS: dict[str, dict[str, Any]] = {"progress_file": {"type": "path"}}

_SECONDS = 0.5


class Progress:
    """Writes the state, at most twice a second. Safe to call from threads. Without a path it does nothing.

    The state is a JSON object: ``pid``; ``phase``, what is being done; ``unit``, ``bytes`` or what else is counted;
    ``done`` of ``total``; ``item`` of ``items``, and the ``current`` one by name. ``total`` and ``items`` are 0 when unknown.
    """

    def __init__(self, path: str | None, phase: str, total: int = 0, items: int = 0, unit: str = "bytes") -> None:
        self._file = self._open(path) if path else -1
        self._lock = threading.Lock()
        self._written = 0.0
        self._state: dict[str, Any] = {
            "pid": os.getpid(),
            "phase": phase,
            "unit": unit,
            "done": 0,
            "total": total,
            "item": 0,
            "items": items,
            "current": "",
        }
        self._write()

    def add(self, done: int) -> None:
        """So much more is done."""
        with self._lock:
            self._state["done"] += done
            self._write_sometimes()

    def set(self, **state: Any) -> None:
        """Replace parts of the state, such as ``phase``, ``done`` or ``current``."""
        with self._lock:
            now = "phase" in state and state["phase"] != self._state["phase"]
            self._state.update(state)
            if now:
                self._write()
            else:
                self._write_sometimes()

    def next_item(self, current: str) -> None:
        """The next item begins."""
        with self._lock:
            self._state["item"] += 1
            self._state["current"] = current
            self._write_sometimes()

    def _write_sometimes(self) -> None:
        if time.monotonic() - self._written >= _SECONDS:
            self._write()

    def _write(self) -> None:
        if self._file < 0:
            return
        self._written = time.monotonic()
        text = json.dumps(self._state).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))

    @staticmethod
    def _open(path: str) -> int:
        """Opened once, and not replaced at each write: the module may go on as another user, who could not do that."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
