"""The pair, as the tests of the whole job have it."""

from __future__ import annotations

from e2e.conftest import command, play

__all__ = ["command", "play"]
