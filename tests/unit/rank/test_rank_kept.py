"""The configurations that have served."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "roles/rank/files"))
rank_kept: Any = importlib.import_module("rank_kept")


class Host:
    """A host on which sets are written, served and rolled back."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kept = root / "kept"
        self.kept.mkdir()
        self.env = root / "etc" / "rank.env"
        self.env.parent.mkdir()

    def write(self, name: str) -> None:
        self.env.write_text(name)

    def serve(self) -> bool:
        return bool(rank_kept.keep(self.env.read_text(), [str(self.env)], self.kept))

    def target(self) -> str:
        return str(rank_kept.target(self.env.read_text(), self.kept))

    def restore(self) -> str:
        return str(rank_kept.restore(self.env.read_text(), self.kept))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_first_configuration_has_none_before_it(host: Host) -> None:
    host.write("a")
    assert host.serve()
    assert not host.serve()
    assert (host.target(), host.restore()) == ("", "")


def test_back_goes_to_the_one_before_and_then_no_further(host: Host) -> None:
    for name in ("a", "b"):
        host.write(name)
        host.serve()
    host.env.chmod(0o600)
    assert host.restore() == "a"
    assert host.env.read_text() == "a"
    assert host.restore() == ""
    assert not host.serve()


def test_a_configuration_that_never_served_gives_way_to_the_last_that_did(host: Host) -> None:
    for name in ("a", "b"):
        host.write(name)
        host.serve()
    host.write("broken")
    assert host.restore() == "b"
    assert host.restore() == "a"


def test_no_more_than_two_are_kept(host: Host) -> None:
    for name in ("a", "b", "c", "b"):
        host.write(name)
        assert host.serve()
    assert sorted(item.name for item in host.kept.iterdir()) == ["b", "c", "current", "previous"]
    assert host.restore() == "c"


def test_a_file_that_changed_under_the_same_name_is_kept_anew(host: Host, tmp_path: Path) -> None:
    key = tmp_path / "etc" / "api_key"
    files = [str(host.env), str(key)]
    for name in ("a", "b"):
        host.write(name)
        key.write_text(name)
        assert rank_kept.keep(name, files, host.kept)
    key.write_text("new")
    assert rank_kept.keep("b", files, host.kept)
    assert not rank_kept.keep("b", files, host.kept)
    assert rank_kept.target("b", host.kept) == "a"
    assert rank_kept.restore("b", host.kept) == "a"
