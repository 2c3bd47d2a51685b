"""What a rank tells of itself, and when it does not start."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "roles/rank/files"))
rank_ctl: Any = importlib.import_module("rank_ctl")


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's files: a unit that is as it was written."""
    unit = tmp_path / "tandem-rank.service"
    unit.write_text("--label tandem.shared=abc")
    about = {"files": {str(unit): hashlib.sha256(unit.read_bytes()).hexdigest()}, "set": "one"}
    (tmp_path / "rank.json").write_text(json.dumps(about))
    for name, path in {
        "ABOUT": tmp_path / "rank.json",
        "UNIT_FILE": unit,
        "DROP_INS": tmp_path / "tandem-rank.service.d",
        "REFUSED": tmp_path / "run" / "refused",
    }.items():
        monkeypatch.setattr(rank_ctl, name, path)
    return tmp_path


def refusal(etc: Path) -> str:
    """Why it does not start, which status.yml shows, too."""
    with pytest.raises(SystemExit) as ended:
        rank_ctl.prepare()
    told = (etc / "run" / "refused").read_text()
    assert told in str(ended.value)
    return told


@pytest.mark.parametrize("content", [None, "", "{", "[1]", "null"])
def test_a_rank_that_does_not_know_itself_names_the_file(etc: Path, content: str | None) -> None:
    (etc / "rank.json").unlink()
    if content is not None:
        (etc / "rank.json").write_text(content)
    assert rank_ctl.changed(rank_ctl.about()) == [str(etc / "rank.json")]
    assert f"{etc}/rank.json changed since site.yml wrote it: run its start stage" in refusal(etc)


def test_what_was_put_beside_the_unit_is_named_with_its_cure(etc: Path) -> None:
    assert rank_ctl.changed(rank_ctl.about()) == []
    (etc / "tandem-rank.service.d").mkdir()
    (etc / "tandem-rank.service.d" / "override.conf").write_text("[Service]\nNice=5\n")
    told = refusal(etc)
    assert "override.conf changed" in told and "systemctl revert tandem-rank.service" in told


def test_whatever_keeps_it_from_starting_is_told(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(about: Any) -> None:
        raise OSError(28, "No space left on device", "/run/tandem/start.env")

    monkeypatch.setattr(rank_ctl.rank_host, "prepare", full)
    assert "No space left on device" in refusal(etc)


def test_a_docker_that_does_not_answer_is_waited_for_no_longer_than_a_while(
    etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = etc / "docker"
    docker.write_text("#!/bin/sh\nexec sleep 60\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{etc}:{os.environ['PATH']}")
    monkeypatch.setattr(rank_ctl, "DOCKER_SECONDS", 0.2)
    assert rank_ctl.container() is None
