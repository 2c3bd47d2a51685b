"""What each rank of each inventory runs is what was reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.golden.render import CASES, HERE, ROOT, differences, render


@pytest.mark.parametrize("name", CASES)
def test_unit_environment_and_arguments_are_those_that_were_reviewed(name: str, tmp_path: Path) -> None:
    render(name, tmp_path)
    assert "".join(differences(name, tmp_path)) == "", "run tests/unit/golden/render.py --update, and review the change"


def test_every_inventory_and_every_golden_folder_has_a_case() -> None:
    assert {case.inventory for case in CASES.values()} == {path.name for path in (ROOT / "inventories").iterdir()}
    assert {path.name for path in HERE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_ranks_differ_in_rank_addresses_and_headless_alone(name: str) -> None:
    head, *workers = (path.read_text().splitlines() for path in sorted((HERE / name).glob("*.args")))
    for worker in workers:
        own = {line.split()[0] for line in {*head} ^ {*worker}}
        assert own <= {"--headless", "--node-rank", "--rank", "--name", "--host", "--port"}
