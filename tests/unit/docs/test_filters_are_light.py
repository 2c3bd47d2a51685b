"""Ansible imports every filter of the collection in each task that uses one: none may bring the rest of the collection with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "ansible_collections.tandem.serving.plugins"
SCRIPT = f"""
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"{PACKAGE}.filter.{{name}}").FilterModule().filters()
print(*(name for name in sys.modules if name.startswith(("{PACKAGE}.module_utils.", "{PACKAGE}.plugin_utils."))))
"""


def test_loading_the_filters_loads_nothing_else() -> None:
    names = [path.stem for path in (ROOT / "plugins" / "filter").glob("*.py")]
    assert len(names) > 20
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names], cwd=ROOT / "collections", capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
