# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journals of several ranks as one text for people. Pure: what journalctl printed in, lines out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

UNITS = ("tandem-rank.service", "tandem-supervisor.service")
# Colours and other orders to a terminal.
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Entry(NamedTuple):
    """One line of a journal. ``moment`` in microseconds since 1970, ``cursor`` is its place in that journal."""

    moment: int
    unit: str
    text: str
    cursor: str


def command(lines: str, since: str = "", cursor: str = "") -> list[str]:
    """The words of journalctl: the newest ``lines``, all ``since`` a time that it understands, or what is after ``cursor``."""
    # Ansible gives it a terminal, on which it would colour even JSON.
    words = [
        "env",
        "SYSTEMD_COLORS=0",
        "journalctl",
        "--quiet",
        "--no-pager",
        "--output=json",
        "--output-fields=MESSAGE,UNIT,_SYSTEMD_UNIT",
    ]
    words += [f"--unit={unit}" for unit in UNITS]
    if cursor:
        return [*words, f"--after-cursor={cursor}"]
    return [*words, f"--since={since}" if since else f"--lines={lines}"]


def _text(message: Any) -> str:
    """The message of an entry. journalctl writes a list of bytes where it is no UTF-8, and null where it is too long."""
    if isinstance(message, list):
        message = bytes(message).decode(errors="replace")
    plain = _ESCAPE.sub("", message if isinstance(message, str) else "(too long to show)")
    return "".join(letter if letter.isprintable() else " " for letter in plain.expandtabs()).rstrip()


def entries(printed: str) -> Iterator[Entry]:
    """What journalctl printed as JSON, one object a line. A line that is cut off is left out."""
    for line in printed.splitlines():
        try:
            found = json.loads(line)
            moment = int(found["__REALTIME_TIMESTAMP"])
        except (KeyError, TypeError, ValueError):
            continue
        # What systemd itself says of a unit names it in UNIT.
        unit = found.get("UNIT") or found.get("_SYSTEMD_UNIT") or ""
        yield Entry(moment, str(unit), _text(found.get("MESSAGE")), str(found.get("__CURSOR", "")))


def line(entry: Entry, rank: int) -> str:
    """One line for people. Times are UTC, as the engines write theirs."""
    when = datetime.fromtimestamp(entry.moment / 1e6, timezone.utc)
    who = f"rank {rank}" if entry.unit == UNITS[0] else "supervisor"
    return f"{when:%m-%d %H:%M:%S}.{when.microsecond // 1000:03d} {who} | {entry.text}"


def merge(printed: Sequence[str], ranks: Sequence[int]) -> str:
    """The journals of several ranks in the order of time. ``printed`` is what journalctl printed for each of ``ranks``."""
    found = [(entry, rank) for text, rank in zip(printed, ranks, strict=True) for entry in entries(text)]
    return "\n".join(line(entry, rank) for entry, rank in sorted(found, key=lambda item: item[0].moment))
