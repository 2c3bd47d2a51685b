"""The files of a rank: written together or not at all, and told truly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODULE = "ansible_collections.tandem.serving.plugins.modules.rank_files"


def run(tmp_path: Path, *files: dict[str, Any], check: bool = False) -> dict[str, Any]:
    """Run the module as Ansible does. Returns what it answers."""
    arguments = {"files": files, "_ansible_check_mode": check, "_ansible_remote_tmp": str(tmp_path / "remote")}
    code = (
        "import sys; from ansible.module_utils.testing import patch_module_args; import json;"
        f"import {MODULE} as module\n"
        "with patch_module_args(json.load(sys.stdin)): module.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(arguments),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_written_once(tmp_path: Path) -> None:
    one, two = tmp_path / "made/for/it/unit", tmp_path / "key"
    files = ({"path": str(one), "content": "a\n"}, {"path": str(two), "secret": "hush-hush", "mode": "0600"})

    planned = run(tmp_path, *files, check=True)
    assert planned["written"] == [str(one), str(two)]
    assert not one.exists()

    done = run(tmp_path, *files)
    assert done["diff"] == planned["diff"]
    assert done["diff"][0]["after"] == "a\n"
    assert "hush-hush" not in json.dumps({**done, "invocation": None})
    assert (one.read_text(), two.read_text()) == ("a\n", "hush-hush")
    assert (mode(one.parent), mode(one), mode(two)) == (0o755, 0o644, 0o600)

    again = run(tmp_path, *files)
    assert (again["changed"], again["written"], again["diff"]) == (False, [], [])


@pytest.mark.parametrize("check", [True, False])
def test_a_mode_alone_is_a_change(tmp_path: Path, check: bool) -> None:
    file = tmp_path / "rank.env"
    file.write_text("A=1\n")
    file.chmod(0o666)
    done = run(tmp_path, {"path": str(file), "content": "A=1\n", "mode": "0600"}, check=check)
    assert done["written"] == [str(file)]
    assert (done["diff"][0]["before"]["mode"], done["diff"][0]["after"]["mode"]) == ("0666", "0600")
    assert mode(file) == (0o666 if check else 0o600)


def test_a_refused_file_changes_none(tmp_path: Path) -> None:
    kept = tmp_path / "unit"
    kept.write_text("old\n")
    refused = {"path": str(tmp_path / "sudoers"), "content": "what?\n", "validate": "grep -q ALL %s"}
    answer = run(tmp_path, {"path": str(kept), "content": "new\n"}, refused)
    assert answer["failed"] and "sudoers" in answer["msg"] and "No file was changed" in answer["msg"]
    assert kept.read_text() == "old\n"
    assert not (tmp_path / "sudoers").exists()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "unit").mkdir()
    answer = run(tmp_path, {"path": str(tmp_path / "unit"), "content": "new\n"})
    assert answer["failed"] and f"Expected a file at {tmp_path / 'unit'}" in answer["msg"]
