"""The README's commands, as a person types them: in the repository, with nothing set."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINES = (ROOT / "README.md").read_text().splitlines()
COMMANDS = [line.split("#")[0].strip() for line in LINES if line.startswith("ansible-playbook ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_it_finds_all_that_it_names(command: str, tmp_path: Path) -> None:
    bare = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    words = [*shlex.split(command), "--syntax-check"]
    done = subprocess.run(
        words, cwd=ROOT, env=bare | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 10
