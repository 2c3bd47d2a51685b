"""The page of guards is made from the recipes."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_says_what_the_files_say() -> None:
    made = runpy.run_path(str(DOCS / "guards.py"))["page"]()
    assert (DOCS / "guards.md").read_text() == made, "run PYTHONPATH=collections python docs/guards.py"
