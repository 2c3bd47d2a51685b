# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every cause code that a check can carry: what it means, what it looks like, how to cure it.

One table: the modules take their remedies from it, and docs/checks.md is made of it.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """``looks`` is what a person sees in the log or the tool. ``remedy`` is an imperative sentence, empty when all is right."""

    meaning: str
    looks: str
    remedy: str = ""


NCCL = {
    "ok": Cause("Right.", "RDMA channels only, every communicator complete"),
}

# Heading on the page of checks -> its causes. A code means the same wherever it stands.
TOPICS: dict[str, dict[str, Cause]] = {
    "NCCL logs (`nccl_log_info`)": NCCL,
}

CAUSES: dict[str, Cause] = {code: cause for causes in TOPICS.values() for code, cause in causes.items()}


def remedy(code: str) -> str:
    """How to cure a cause."""
    return CAUSES[code].remedy
