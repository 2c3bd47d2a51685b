"""The tag of a build follows its inputs and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.tandem.serving.plugins.filter.tree_digest import tree_digest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "Dockerfile").write_text("FROM base\n")
    (tmp_path / "src/run").write_text("run\n")
    return tmp_path


def touch(tree: Path) -> None:
    os.utime(tree / "Dockerfile", (0, 0))


def compile_python(tree: Path) -> None:
    (tree / "src/run.pyc").write_bytes(b"compiled")


def change(tree: Path) -> None:
    (tree / "src/run").write_text("walk\n")


def rename(tree: Path) -> None:
    (tree / "src/run").rename(tree / "src/walk")


def make_executable(tree: Path) -> None:
    (tree / "src/run").chmod(0o755)


def add_empty(tree: Path) -> None:
    (tree / "src/py.typed").touch()


@pytest.mark.parametrize("action", [touch, compile_python])
def test_same(tree: Path, action: Callable[[Path], None]) -> None:
    before = tree_digest(str(tree))
    action(tree)
    assert tree_digest(str(tree)) == before


@pytest.mark.parametrize("action", [change, rename, make_executable, add_empty])
def test_other(tree: Path, action: Callable[[Path], None]) -> None:
    before = tree_digest(str(tree))
    action(tree)
    assert tree_digest(str(tree)) != before


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(AnsibleFilterError, match="is not a folder on the controller"):
        tree_digest(str(tmp_path / "none"))
