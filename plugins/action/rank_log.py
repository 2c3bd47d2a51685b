# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the journal of a rank, or show it while it is written."""

from __future__ import annotations

import shlex
import time
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.tandem.serving.plugins.plugin_utils import _journal

display = Display()

_PAUSE = 1.0


class ActionModule(ActionBase):
    """See the module of this name."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """See the module's documentation."""
        del tmp
        super().run(task_vars=task_vars or {})
        _validation, arguments = self.validate_argument_spec(
            {
                "lines": {"type": "int", "default": 200},
                "since": {"type": "str", "default": ""},
                "rank": {"type": "int", "default": 0},
                "follow": {"type": "bool", "default": False},
                "seconds": {"type": "int", "default": 0},
            }
        )
        started = time.monotonic()
        printed = self._read(_journal.command(str(arguments["lines"]), arguments["since"]))
        if not arguments["follow"]:
            return {"changed": False, "stdout": printed}
        cursor = ""
        while True:
            for entry in _journal.entries(printed):
                display.display(_journal.line(entry, arguments["rank"]))
                cursor = entry.cursor or cursor
            if arguments["seconds"] and time.monotonic() - started > arguments["seconds"]:
                return {"changed": False, "stdout": ""}
            time.sleep(_PAUSE)
            printed = self._again(_journal.command("0", cursor=cursor), arguments["rank"])

    def _read(self, words: list[str]) -> str:
        done = self._low_level_execute_command(shlex.join(words))
        if done["rc"]:
            raise AnsibleActionFail(f"journalctl ended with {done['rc']}: {done['stderr'].strip()}")
        return str(done["stdout"])

    def _again(self, words: list[str], rank: int) -> str:
        """As ``_read``, but a host that is out of reach, such as one that boots, is asked again."""
        said = False
        while True:
            try:
                return self._read(words)
            except AnsibleConnectionFailure as error:
                if not said:
                    display.display(f"rank {rank} is out of reach ({error}); trying again")
                said = True
                self._connection.reset()
                time.sleep(_PAUSE)
