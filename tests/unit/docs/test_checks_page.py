"""The page of checks is the one that the table makes, and the table knows every cause."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GENERATOR = runpy.run_path(str(ROOT / "docs/checks.py"))
TOPICS = GENERATOR["TOPICS"]
CAUSES = {code for causes in TOPICS.values() for code in causes}
MODULES = sorted((ROOT / "plugins").rglob("*.py"))


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs/checks.md").read_text() == GENERATOR["page"](), "make docs"


def literals(node: ast.expr) -> Iterator[str]:
    """Strings that an expression can be, as far as it says."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_cause_is_explained(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    words = [word.value for call in calls for word in call.keywords if word.arg == "cause"]
    words += [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "fault"]
    causes = {text for word in words for text in literals(word)}
    assert sorted(causes - CAUSES) == []


def test_a_fault_has_a_remedy_and_a_pass_has_none() -> None:
    for causes in TOPICS.values():
        for code, cause in causes.items():
            assert cause.meaning.endswith("."), code
            assert cause.looks, code
            assert bool(cause.remedy) != (code.startswith("ok") and "missing" not in code), code
