"""Every argument of the vLLM recipes, before the parser of a real vLLM. Run by `make engine`.

TANDEM_VLLM is a command that runs a Python with vLLM in it, such as the interpreter of a virtual environment, or
`docker run --rm --interactive --entrypoint python3 IMAGE`. Without it the image on the demo's first machine is asked.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from unit.recipe.recipes import DRAFTER, NAMES, resolve

from ansible_collections.tandem.serving.plugins.module_utils._launch import Host, launch
from ansible_collections.tandem.serving.plugins.plugin_utils._recipe import RecipeError

HOST = Host(name="tandem-rank", hf_home="/hf", etc="/etc/tandem", cache="/cache", env={}, api_key=False, gpu="GPU-0")
IMAGE = {"ref": "image", "identity": "image"}
CHOICES: list[dict[str, Any]] = [
    {"ranks": ranks, "topology": topology, **choice}
    for ranks, topology in ((2, "pair"), (3, "triangle"), (4, "switch"))
    for choice in (
        {},
        {"profile": "seed"},
        {"speculation": "dflash"},
        {"speculation": "mtp"},
        {"speculation": "none"},
        {"thinking": "false"},
    )
]


def engine() -> list[str]:
    """The command that runs a Python with vLLM."""
    if given := os.environ.get("TANDEM_VLLM"):
        return shlex.split(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("TANDEM_RIG_HOME") or cache / "tandem-rig")
    node = ["docker", "--host", f"unix://{home}/run/docker.sock", "exec", "--interactive", "spark-a", "docker"]
    listed = subprocess.run(
        [*node, "images", "--quiet", "localhost/tandem/smollm2_local"], capture_output=True, text=True, check=False
    )
    assert listed.stdout, f"no vLLM here: set TANDEM_VLLM, or run `make demo` ({listed.stderr.strip()})"
    return [*node, "run", "--rm", "--interactive", "--entrypoint", "python3", listed.stdout.split()[0]]


def lines() -> dict[str, list[str]]:
    """The command line of rank 1, which has all that rank 0 has and --headless, of each vLLM recipe as it can be chosen."""
    found = {}
    for name in NAMES:
        for choice in CHOICES:
            shape = {"ranks": choice["ranks"], "topology": choice["topology"]}
            try:
                recipe = resolve(name, licences=(DRAFTER,), **choice)
            except RecipeError:
                continue
            if recipe["engine"] != "vllm" or choice["ranks"] not in recipe["supported_ranks"]:
                continue
            fabric = {"rank": 1, "nranks": shape["ranks"], "master_address": "10.0.0.1", "env": {}}
            found[f"{name} {choice}"] = launch(recipe, fabric, IMAGE, HOST)["engine"][1:]
    return found


@pytest.fixture(scope="module")
def complaints() -> dict[str, str]:
    """What the engine says of each command line."""
    asked = lines()
    script = (Path(__file__).parent / "parse.py").read_text()
    done = subprocess.run(
        [*engine(), "-c", script],
        input=json.dumps(list(asked.values())),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    return dict(zip(asked, answer["complaints"], strict=True))


def test_the_engine_knows_every_argument(complaints: dict[str, str]) -> None:
    assert len(complaints) > 20
    assert {line: said for line, said in complaints.items() if said} == {}


def test_the_parser_does_complain() -> None:
    wrong = [["serve", "/m", "--nix", "1"], ["serve", "/m", "--speculative-config", '{"metod": "mtp"}']]
    script = (Path(__file__).parent / "parse.py").read_text()
    done = subprocess.run(
        [*engine(), "-c", script], input=json.dumps(wrong), capture_output=True, text=True, timeout=300, check=False
    )
    said = json.loads(done.stdout.splitlines()[-1])["complaints"]
    assert "unrecognized arguments: --nix" in said[0]
    assert "metod" in said[1]
