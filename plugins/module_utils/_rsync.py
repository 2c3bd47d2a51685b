# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch files from the daemons that the role share starts on another host."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[[list[str]], tuple[int, str, str]]

# Exit codes of rsync after which another try, or another rail, may help: sockets, streams and time-outs.
_PASSING = (10, 12, 30, 35)
_REFUSED = 5


def run(words: list[str], password: str | None) -> tuple[int, str, str]:
    """Run rsync: its code, output and errors. From threads, unlike AnsibleModule.run_command, which changes os.environ."""
    environment = {**os.environ, "RSYNC_PASSWORD": password or "", "LC_ALL": "C"}
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


class RsyncError(Exception):
    """A file that cannot be fetched, in one sentence."""


class PassingError(RsyncError):
    """One that another try may fetch."""


class Share:
    """A folder on another host. Transfers take turns over its addresses, one for each rail. A path is a folder of this host."""

    def __init__(self, params: dict[str, Any], run: Run) -> None:
        self._params = params
        self._run = run
        self._turns = itertools.cycle(params["sources"])
        self._lock = threading.Lock()

    def append(self, path: str, partial: Path) -> None:
        """Fetch what a partial copy of a file still lacks. What is there is not compared: take a checksum at the end.

        Raises PassingError where another try may help, OSError for a full disk, and RsyncError for the rest.
        """
        with self._lock:
            address = next(self._turns)
        place = address if address.startswith("/") else f"{address}:{self._params['port']}"
        source, options = f"{place}/{path}", []
        if place != address:
            source = f"rsync://{self._params['user']}@{place}/{self._params['share']}/{path}"
            options = ["--contimeout=10", "--timeout=60"]
        # A module that is killed takes its rsync along: left alone it would go on writing beside that of the next run.
        words = ["setpriv", "--pdeathsig", "KILL", "rsync", "--append", *options, source, str(partial)]
        code, _out, error = self._run(words)
        if code == 0:
            return
        reason = error.strip().splitlines()[0] if error.strip() else f"rsync ended with {code}"
        if "No space left on device" in error:
            raise OSError(errno.ENOSPC, reason)
        if code == _REFUSED:
            raise RsyncError(f"The daemon at {place} refuses this host: {reason}.")
        if code in _PASSING:
            raise PassingError(f"{place}: {reason}")
        raise RsyncError(f"{path} cannot be copied from {place}: {reason} (rsync {code}).")
