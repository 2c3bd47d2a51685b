"""The role itself, on the hosts of an inventory that nobody can reach."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLAY = "- {hosts: ranks, gather_facts: false, roles: [tandem.serving.recipe]}\n"


def run(folder: Path, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run the role alone on two Sparks that do not exist."""
    play = folder / "play.yml"
    play.write_text(PLAY)
    words = ["ansible-playbook", str(play), "-i", str(ROOT / "inventories" / "two_spark"), "-e", json.dumps(variables)]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_wrong_value_is_refused_before_any_host_is_touched(tmp_path: Path) -> None:
    done = run(tmp_path, recipe_overrides={"serve": {"moe-backend": "marlin", "kv-cache-dtype": "nvfp4"}})
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert "glm53_flash_exl3 is refused before any host is touched" in said
    assert "moe_backend: expected no moe-backend, found marlin." in said
    assert "Set kv-cache-dtype to fp8." in said
    assert "UNREACHABLE" not in done.stdout


def test_a_named_risk_is_taken(tmp_path: Path) -> None:
    done = run(tmp_path, recipe_overrides={"serve": {"moe-backend": "marlin"}}, recipe_accept_risk=["moe_backend"])
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"recipe_name": "glm53"}, "Recipe 'glm53' does not exist. Expected one of: glm53_flash_exl3"),
        ({"recipe_speculation": "eagle"}, "speculation is 'eagle', expected one of dflash, mtp, none"),
        ({"recipe_accept_risk": ["moe"]}, "recipe_accept_risk names moe, expected names of guards"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, variables: dict[str, Any], words: str) -> None:
    done = run(tmp_path, **variables)
    assert done.returncode != 0
    assert words in " ".join((done.stdout + done.stderr).split())
