# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From states of long work, seen now and then, to a line for people."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

# The rate is taken over so many looks, so that it neither jumps nor remembers yesterday.
_LOOKS = 12


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class Meter:
    """Follows one work. Times are seconds of any clock that only goes forward."""

    def __init__(self, now: float) -> None:
        self._began = self._moved = now
        self._seen: deque[tuple[float, float]] = deque(maxlen=_LOOKS)
        self._last: Any = None

    def look(self, state: Mapping[str, Any], now: float) -> str:
        """The line for a state."""
        mark = (state["phase"], state["done"], state["item"], state["current"])
        if mark != self._last:
            self._moved = now
            if self._last and mark[0] != self._last[0]:
                self._seen.clear()
            self._last = mark
        self._seen.append((now, state["done"]))
        parts = [str(state["phase"]), *self._amount(state), *self._items(state)]
        if len(parts) == 1:
            parts.append(_duration(now - self._began))
        return " | ".join(parts)

    def stalled(self, now: float) -> float:
        """Seconds without any advance."""
        return now - self._moved

    def _rate(self) -> float:
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return max(0.0, (after - before) / (last - first)) if last > first else 0.0

    def _amount(self, state: Mapping[str, Any]) -> list[str]:
        done, total, unit = state["done"], state["total"], state["unit"]
        if not total:
            return []
        percent = f"{100 * done / total:.0f} %"
        if unit != "bytes":
            return [f"{done:.0f} of {total:.0f} {unit} ({percent})"]
        parts = [f"{_size(done)} of {_size(total)} ({percent})"]
        rate = self._rate()
        if rate > 0:
            parts += [f"{_size(rate)}/s", f"{_duration((total - done) / rate)} left"]
        return parts

    @staticmethod
    def _items(state: Mapping[str, Any]) -> list[str]:
        if not state["items"]:
            return [state["current"]] if state["current"] else []
        return [f"{state['item']} of {state['items']} {state['current']}".rstrip()]
