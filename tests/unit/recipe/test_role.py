"""The role itself, on the hosts of an inventory that nobody can reach."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from unit.recipe.recipes import DRAFTER

ROOT = Path(__file__).resolve().parents[3]
PLAY = """\
- hosts: ranks
  gather_facts: false
  roles: [tandem.serving.recipe]
  tasks:
    - ansible.builtin.debug: {var: tandem_recipe.url}
"""


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


def test_what_hosts_add_to_the_environment_is_judged_too(tmp_path: Path) -> None:
    done = run(tmp_path, rank_env={"NCCL_NET": "Socket"})
    assert done.returncode != 0
    assert "rdma_off: expected NCCL_NET=IB, and NCCL_IB_DISABLE not set, found Socket." in " ".join(done.stdout.split())


def test_a_named_risk_is_taken(tmp_path: Path) -> None:
    done = run(tmp_path, recipe_overrides={"serve": {"moe-backend": "marlin"}}, recipe_accept_risk=["moe_backend"])
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"recipe_name": "glm53"}, "Recipe 'glm53' does not exist. Expected one of: glm53_flash_exl3"),
        ({"recipe_speculation": "eagle"}, "speculation is 'eagle', expected one of dflash, mtp, none"),
        ({"recipe_accept_risk": ["moe"]}, "recipe_accept_risk names moe, expected names of guards"),
        ({"recipe_accept_licences": "x" + DRAFTER}, f"recipe_accept_licences names x{DRAFTER}, expected"),
        ({"recipe_overrides": {"serve": {"max-model-len": None}}}, "'dict object'' has no attribute ''max-model-len''"),
        ({"recipe_overrides": {"serve": ["a"]}}, 'recipe_overrides.serve is ["a"], expected a mapping'),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, variables: dict[str, Any], words: str) -> None:
    done = run(tmp_path, **variables)
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert words in said
    # Once by the task, once by the first host.
    assert said.count(words.split(",")[0]) <= 2
    assert "filter plugin" not in said


def test_a_wrong_topology_is_named_as_the_user_set_it(tmp_path: Path) -> None:
    done = run(tmp_path, fabric_topology="star")
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "any number on a switch, found 2 ranks on a star." in said
    assert "Set fabric_topology to" in said
    assert "argument_spec_data" not in said


def test_text_is_a_list_with_commas(tmp_path: Path) -> None:
    overrides = {"serve": {"moe-backend": "marlin", "async-scheduling": True}}
    accepted = "moe_backend, async_scheduling,licence"
    done = run(tmp_path, recipe_overrides=overrides, recipe_accept_risk=accepted, recipe_accept_licences=DRAFTER)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_licence_is_accepted_by_its_whole_name(tmp_path: Path) -> None:
    done = run(tmp_path, recipe_speculation="dflash", recipe_accept_licences=f"{DRAFTER}x")
    assert done.returncode != 0
    assert f"recipe_accept_licences names {DRAFTER}x" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8888"),
        ("192.168.1.7", "http://192.168.1.7:8888"),
        ("::1", "http://[::1]:8888"),
        ("localhost", "http://localhost:8888"),
    ],
)
def test_the_head_asks_its_api_where_it_is_bound(tmp_path: Path, bind: str, url: str) -> None:
    done = run(tmp_path, recipe_overrides={"ports": {"bind": bind}})
    assert f"tandem_recipe.url: {url}\n" in done.stdout
