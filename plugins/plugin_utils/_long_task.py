# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the progress of a module that works long.

An action plugin with the name of such a module is two lines::

    class ActionModule(LongTask):
        "Download with progress."

It starts the module through Ansible's own async wrapper, so that the work outlives a lost connection and an interrupted run,
looks at its state file, and prints one line per interval through Display, which ansible-playbook, ansible-runner and AWX show at
once. Work of the same module that a former run left behind is watched to its end when it has the same arguments, and awaited
before a new start when it has others. The module takes ``progress_file`` and reports with module_utils/_progress.py.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import shlex
import time
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.tandem.serving.plugins.plugin_utils._meter import Meter

display = Display()

FOLDER = "/run/tandem"
# Longest work, and how long a host may stay out of reach while it goes on.
_DAY = 24 * 3600
_OUT_OF_REACH = 600

# What one look asks of the host: the job's note, its result so far, its state, and whether it lives: the process of that state, or the
# wrapper, which writes the result a moment after that process ended. That first: what is dead has no result to come.
_LOOK = r"""
note={note}; state={state}
show() {{ if [ -s "$1" ]; then cat "$1"; else echo null; fi; echo; }}
pid=$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$state" 2>/dev/null)
jid=$(sed -n 's/.*"jid": "j\([0-9]*\).*/\1/p' "$note" 2>/dev/null)
if [ -z "$pid" ] || kill -0 "$pid" 2>/dev/null || grep -qsa "[j]$jid" /proc/[0-9]*/cmdline; then alive=true; else alive=false; fi
show "$note"
show "$(sed -n 's/.*"results_file": "\([^"]*\)".*/\1/p' "$note" 2>/dev/null)"
show "$state"
echo $alive
"""


class LongTask(ActionBase):
    """Runs the module of its own name, and shows how it advances."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """See the module's documentation."""
        del tmp
        variables = task_vars or {}
        super().run(task_vars=variables)
        arguments = dict(self._task.args)
        if self._task.check_mode:
            return self._run_module(arguments, variables)
        name = self._task.action.rsplit(".", 1)[-1]
        self._host = str(variables.get("inventory_hostname", ""))
        self._interval = float(variables.get("tandem_progress_interval", 5))
        self._stall = float(variables.get("tandem_progress_stall", 900))
        self._state = str(arguments.get("progress_file") or f"{FOLDER}/{name}.json")
        self._note = f"{self._state}.job"
        key = hashlib.sha256(json.dumps([name, arguments], sort_keys=True, default=str).encode()).hexdigest()
        left = self._look()
        if left.running:
            same = left.note["key"] == key
            self._say(
                "goes on, left by a former run" if same else "another one, left by a former run, has to end first"
            )
            result = self._watch(variables)
            if same:
                return result
        self._start(arguments, key, variables)
        return self._watch(variables)

    def _run_module(self, arguments: dict[str, Any], variables: dict[str, Any], name: str = "") -> dict[str, Any]:
        return dict(
            self._execute_module(
                module_name=name or self._task.action,
                module_args=arguments,
                task_vars=variables,
                wrap_async=not name and not self._task.check_mode,
            )
        )

    def _start(self, arguments: dict[str, Any], key: str, variables: dict[str, Any]) -> None:
        self._shell(f"mkdir -p {shlex.quote(posixpath.dirname(self._state))}; rm -f {shlex.quote(self._state)}")
        self._task.async_val = _DAY
        try:
            started = self._run_module({**arguments, "progress_file": self._state}, variables)
        finally:
            self._task.async_val = 0
        if "ansible_job_id" not in started:
            raise AnsibleActionFail(
                f"Cannot start {self._task.action} in the background: {started.get('msg', started)}"
            )
        note = {"key": key, "jid": started["ansible_job_id"], "results_file": started["results_file"]}
        self._shell(f"printf %s {shlex.quote(json.dumps(note))} > {shlex.quote(self._note)}")

    def _watch(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Print until the work ends, then return what it returned."""
        meter = Meter(time.monotonic())
        shown = time.monotonic()
        seen = ""
        pause = 0.2
        while True:
            look = self._look()
            if not look.running:
                break
            now = time.monotonic()
            if look.state:
                seen = meter.look(look.state, now)
            if now - shown >= self._interval:
                self._say(seen or "starting")
                shown = now
            if meter.stalled(now) > self._stall:
                self._end(look)
                return self._failed(
                    f"did not advance for {self._stall:.0f} s and was ended. Its last state: {seen or 'none'}. "
                    "Run it again to go on where it stopped; tandem_progress_stall sets how long it may rest."
                )
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)
        ended = self._job(look.note, "status", variables)
        self._job(look.note, "cleanup", variables)
        self._shell(f"rm -f {shlex.quote(self._note)} {shlex.quote(self._state)}")
        # Of a module that said nothing at all, the wrapper tells that it cannot read its result.
        if not look.ended or ended.get("data") == "":
            return self._failed(
                f"was killed before it ended. Its last state: {seen or 'none'}. "
                "Look for the OOM killer in the kernel's log, then run it again: it goes on where it stopped."
            )
        return {
            key: value
            for key, value in ended.items()
            if key not in ("ansible_job_id", "results_file", "started", "finished")
        }

    def _job(self, note: dict[str, Any], mode: str, variables: dict[str, Any]) -> dict[str, Any]:
        folder = posixpath.dirname(note["results_file"])
        return self._run_module(
            {"jid": note["jid"], "mode": mode, "_async_dir": folder}, variables, "ansible.legacy.async_status"
        )

    def _look(self) -> _Seen:
        """What the host tells, waiting while it is out of reach."""
        script = _LOOK.format(note=shlex.quote(self._note), state=shlex.quote(self._state))
        lost = 0.0
        while True:
            try:
                lines = [line for line in self._shell(script).splitlines() if line.strip()]
                note, result, state = (_decode(line) for line in lines[:3])
                return _Seen(note, result, state, alive=lines[3:] == ["true"])
            except AnsibleConnectionFailure as error:
                lost = lost or time.monotonic()
                if time.monotonic() - lost > _OUT_OF_REACH:
                    raise
                self._say(f"out of reach ({error}); the work goes on there, trying again")
                self._connection.reset()
                time.sleep(self._interval)

    def _failed(self, reason: str) -> dict[str, Any]:
        """Not an exception, which would pass by ``until`` and ``failed_when``."""
        return {"failed": True, "msg": f"{self._task.action} on {self._host} {reason}"}

    def _end(self, look: _Seen) -> None:
        if look.state.get("pid"):
            self._shell(f"kill -TERM {int(look.state['pid'])} || true")

    def _shell(self, script: str) -> str:
        return str(self._low_level_execute_command(script)["stdout"])

    def _say(self, text: str) -> None:
        display.display(f"{self._host} | {text}")


class _Seen:
    """One look at the host."""

    def __init__(self, note: dict[str, Any], result: dict[str, Any], state: dict[str, Any], alive: bool) -> None:
        self.note = note
        self.state = state
        # The wrapper writes "started" first, and the module's result in its place at the end.
        self.ended = bool(result) and not result.get("started")
        self.running = bool(note) and bool(result) and not self.ended and alive


def _decode(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
