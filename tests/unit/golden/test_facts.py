"""What TensorFold and Stations are given is what the facts say, by the stand-in that tests/standin runs in the engine's place."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from unit.golden.render import CASES, HERE, ROOT

sys.path.insert(0, str(ROOT / "tests/standin/image"))
standin: Any = importlib.import_module("standin")

RANKS = sorted(
    path
    for path in HERE.glob("*/*.args")
    if path.read_text().startswith("tensorfold ") or "station" in path.parent.name
)


def words(path: Path) -> list[str]:
    """The engine's arguments after the model. JSON has no blanks here."""
    program, serve, _, *rest = path.read_text().split()
    assert (program, serve) in [("tensorfold", "serve"), ("vllm", "serve")]
    return rest


def judge(program: str, given: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse as the stand-in does."""
    for name in [name for name in os.environ if name.startswith(("TF_", "TENSORFOLD_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    {"tensorfold": standin.refuse_tensorfold, "vllm": standin.refuse_station}[program](standin.parse(given))


def environment(path: Path) -> dict[str, str]:
    """The rank's, and what the stand-in has to know of the system."""
    given = dict(line.split("=", 1) for line in path.with_suffix(".env").read_text().splitlines())
    return {**given, "STANDIN_TOPOLOGY": CASES[path.parent.name].topology}


@pytest.mark.parametrize("path", RANKS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_facts_know_all_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge(path.read_text().split()[0], words(path), environment(path), monkeypatch)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--nix", "1"], "unrecognized arguments: --nix"),
        (["--parallel", "9"], "--parallel: invalid choice: '9'"),
        (["--thinking", "yes"], "--thinking: invalid choice"),
    ],
)
def test_anything_else_is_refused(
    change: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = HERE / "two_spark_tensorfold" / "spark-2.args"
    with pytest.raises(SystemExit):
        judge("tensorfold", [*words(path), *change], environment(path), monkeypatch)
    assert said in capsys.readouterr().err


def test_there_are_ranks_of_every_kind() -> None:
    assert len({path.parent.name for path in RANKS}) >= 6
