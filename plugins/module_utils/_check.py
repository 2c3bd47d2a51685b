# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A check: one expectation, what was found instead, and what to do about it.

Every module, planner and role of the collection reports in this one shape, so that a report is a list of checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

Verdict = Literal["pass", "warn", "fail", "inconclusive"]

# From best to worst. Inconclusive stands below warn: nothing was proven, and nothing was found wrong either.
_ORDER: tuple[Verdict, ...] = ("pass", "inconclusive", "warn", "fail")


class Check(TypedDict):
    """One verdict. ``evidence`` holds lines a person can look up, ``file:line: text`` where a file was read."""

    name: str
    verdict: Verdict
    cause: str
    expected: str
    found: str
    evidence: list[str]
    remedy: str


def check(
    name: str,
    verdict: Verdict,
    expected: Any,
    found: Any,
    *,
    cause: str = "ok",
    evidence: Iterable[str] = (),
    remedy: str = "",
) -> Check:
    """Build a check. ``cause`` is a short code, ``remedy`` an imperative sentence (empty on pass)."""
    return Check(
        name=name,
        verdict=verdict,
        cause=cause,
        expected=str(expected),
        found=str(found),
        evidence=list(evidence),
        remedy=remedy,
    )


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of several verdicts: fail, warn, inconclusive, pass. Nothing at all is inconclusive."""
    found = list(verdicts)
    return max(found, key=_ORDER.index) if found else "inconclusive"
