"""What all unit tests share: how long an example takes is for tests/bench to say."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("tandem", deadline=None)
settings.load_profile("tandem")
