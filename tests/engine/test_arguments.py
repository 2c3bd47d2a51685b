"""Every argument of the vLLM recipes, before the parser of the vLLM release that the recipe's image has. Run by `make engine`.

A release is the Python of its wheel, without its kernels, on the libraries of the engine of the demo: TANDEM_VLLM is a command that runs
a Python with these, such as the interpreter of a virtual environment. Without it the image on the demo's first machine is taken.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
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
        {"profile": "desktop"},
        {"speculation": "dflash"},
        {"speculation": "mtp"},
        {"speculation": "none"},
        {"thinking": "false"},
    )
]


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
# What newer releases ask for beside the libraries of the demo's engine.
LIBRARIES = ["orjson"]


def release(version: str) -> Path:
    """A folder with the Python of a release, fetched once."""
    folder = CACHE / "tandem-vllm" / "releases" / version
    if (folder / "vllm" / "version.py").exists():
        return folder
    pip = [sys.executable, "-m", "pip", "--quiet"]
    wanted = ["--no-deps", "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64"]
    wanted += ["--platform=manylinux_2_17_x86_64"]
    subprocess.run([*pip, "install", *wanted, "--target", folder, *LIBRARIES], check=True)
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([*pip, "download", *wanted, "--dest", work, f"vllm=={version}"], check=True)
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith((".py", ".json", "METADATA"))])
    return folder


def engine(version: str = "") -> list[str]:
    """The command that runs a Python with vLLM: the demo's own, or of a release."""
    place = release(version) if version else None
    own = {"PYTHONPATH": str(place), "VLLM_TARGET_DEVICE": "cpu"} if place else {}
    if given := os.environ.get("TANDEM_VLLM"):
        return ["env", *(f"{name}={value}" for name, value in own.items()), *shlex.split(given)]
    home = Path(os.environ.get("TANDEM_RIG_HOME") or CACHE / "tandem-rig")
    docker = ["docker", "--host", f"unix://{home}/run/docker.sock"]
    node = [*docker, "exec", "--interactive", "spark-a", "docker"]
    listed = subprocess.run(
        [*node, "images", "--quiet", "10.98.0.1:15000/tandem/vllm-cpu"], capture_output=True, text=True
    )
    assert listed.stdout, f"no vLLM here: set TANDEM_VLLM, or run `make demo` ({listed.stderr.strip()})"
    words = [*node, "run", "--rm", "--interactive", "--entrypoint", "python3"]
    if place:
        there = f"/var/tmp/vllm-{version}"
        subprocess.run([*docker, "cp", "--quiet", f"{place}/.", f"spark-a:{there}"], check=True)
        words += ["--volume", f"{there}:{place}:ro"]
    words += [word for name, value in own.items() for word in ("--env", f"{name}={value}")]
    return [*words, listed.stdout.split()[0]]


def release_of(recipe: dict[str, Any]) -> str:
    """The release that the recipe's image has; empty for that of the demo."""
    image = recipe["image"]
    found = re.search(r":v(\d+\.\d+\.\d+)", image.get("base") or image.get("ref") or "")
    return found[1] if found else ""


def lines() -> dict[str, dict[str, list[str]]]:
    """Release to the command lines of rank 1, which has all that rank 0 has and --headless, of its recipes as they can be chosen."""
    found: dict[str, dict[str, list[str]]] = {}
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
            words = launch(recipe, fabric, IMAGE, HOST)["engine"][1:]
            found.setdefault(release_of(recipe), {})[f"{name} {choice}"] = words
    return found


def ask(version: str, asked: list[list[str]]) -> dict[str, Any]:
    """What the engine of a release says of command lines."""
    script = (Path(__file__).parent / "parse.py").read_text()
    done = subprocess.run(
        [*engine(version), "-c", script], input=json.dumps(asked), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("version", sorted(lines()))
def test_the_release_knows_every_argument(version: str) -> None:
    asked = lines()[version]
    wrong = [["serve", "/m", "--nix", "1"], ["serve", "/m", "--speculative-config", '{"metod": "mtp"}']]
    answer = ask(version, [*asked.values(), *wrong])
    assert answer["version"].startswith(version)
    *complaints, unknown, misspelt = answer["complaints"]
    assert {line: said for line, said in zip(asked, complaints, strict=True) if said} == {}
    # It does complain.
    assert "unrecognized arguments: --nix" in unknown
    assert "metod" in misspelt


def test_every_recipe_for_vllm_is_asked_about() -> None:
    assert sorted(lines()) == ["", "0.30.0", "0.33.0"]
