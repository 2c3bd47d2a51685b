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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ARGUMENTS: dict[str, dict[str, Any]] = {
    "sources": {"type": "list", "elements": "str", "default": []},
    "port": {"type": "int", "default": 18730},
    "share": {"type": "str"},
    "password": {"type": "str", "no_log": True},
    "streams": {"type": "int", "default": 4},
}

# Exit codes of rsync after which another try, or another rail, may help: sockets, streams and time-outs.
_PASSING = (10, 12, 30, 35)
_REFUSED = 5


class RsyncError(Exception):
    """A file that cannot be fetched, in one sentence."""


class PassingError(RsyncError):
    """One that another try may fetch."""


class Share:
    """A folder on another host, or on this one. Transfers take turns over its addresses, one for each rail.

    ``params`` are those of `ARGUMENTS`, ``held`` is what `alone` yields: an rsync that a killed module leaves behind goes on to the end of
    its file, and who comes next has to wait for that. Raises RsyncError where no address is given.
    """

    def __init__(self, params: Mapping[str, Any], held: int) -> None:
        if not params["sources"]:
            raise RsyncError("there is no address to fetch files from; name it in sources")
        self._params = params
        self._held = held
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
            source = f"rsync://tandem@{place}/{self._params['share']}/{path}"
            options = ["--contimeout=10", "--timeout=60"]
        code, error = self._run(["--append", "--copy-links", *options, source, str(partial)])
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

    def _run(self, words: list[str]) -> tuple[int, str]:
        """Exit status and errors of rsync."""
        # From threads, unlike AnsibleModule.run_command, which changes os.environ.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            ["rsync", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, "RSYNC_PASSWORD": self._params["password"] or "", "LC_ALL": "C"},
            pass_fds=[self._held],
        )
        return done.returncode, done.stderr
