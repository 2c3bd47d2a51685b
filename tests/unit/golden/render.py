"""Render the golden files: for each inventory, the unit, the environment and the arguments of each rank.

    python tests/unit/golden/render.py --update    writes them again
    python tests/unit/golden/render.py             says what differs

Ansible renders them from the real recipe, the real templates of the role rank and the plan that the real planner makes
for saved machines; only the image is made up.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests")]

from unit.golden import fabrics

DRAFTER = {"recipe_accept_licences": ["incoai/GLM-5.3-Flash-DFlash2"]}
EXL3 = {"recipe_name": "glm53_flash_exl3"}
DIRECTION = {"direction": "/srv/tandem/direction.safetensors", "hidden": 4096}


class Case(NamedTuple):
    """An inventory, how its machines are cabled, and what a user adds to it."""

    inventory: str
    cables: str = "pair"
    topology: str = "pair"
    variables: Mapping[str, Any] = types.MappingProxyType({})
    fixture: str = "spark_bare"


CASES = {
    "local_pair": Case("local_pair"),
    "two_spark": Case("two_spark"),
    "two_spark-dflash": Case("two_spark", "pair2", variables=DRAFTER),
    "two_spark-seed": Case("two_spark", variables={**DRAFTER, "recipe_profile": "seed"}),
    "two_spark-key": Case("two_spark", variables={"rank_api_key": "golden", "recipe_thinking": False}),
    "two_spark-ablation": Case(
        "two_spark", variables={"recipe_ablation": True, "recipe_overrides": {"ablation": DIRECTION}}
    ),
    "two_spark_tensorfold": Case("two_spark_tensorfold", variables=DRAFTER),
    "three_spark": Case("three_spark", "triangle", "triangle", DRAFTER),
    "three_spark-exl3": Case("three_spark", "triangle", "triangle", {**DRAFTER, **EXL3}),
    "four_spark-ring": Case("four_spark", "ring", "ring", DRAFTER),
    "four_spark-switch": Case("four_spark", "switch", "switch", DRAFTER),
    "four_spark-exl3": Case("four_spark", "switch", "switch", {**DRAFTER, **EXL3}),
    "two_station": Case("two_station", fixture="station"),
    "two_station-two_rails": Case("two_station", "pair2", fixture="station"),
}


def _hosts(inventories: list[str]) -> list[str]:
    """The hosts of the group of ranks, in its order."""
    words = ["ansible-inventory", *(word for path in inventories for word in ("-i", path)), "--list"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    return list(json.loads(listed.stdout)["ranks"]["hosts"])


def render(name: str, out: Path) -> None:
    """Render one case into a folder. Raises RuntimeError with what Ansible printed."""
    case = CASES[name]
    inventory = ROOT / "inventories" / case.inventory
    with tempfile.TemporaryDirectory() as folder:
        # A role's defaults give way to whatever an inventory says.
        defaults = Path(folder) / "defaults.yml"
        variables = yaml.safe_load((ROOT / "roles" / "rank" / "defaults" / "main.yml").read_text())
        defaults.write_text(yaml.safe_dump({"all": {"vars": variables}}))
        inventories = [str(defaults), str(inventory)]
        extra = {
            "fabric_topology": case.topology,
            "golden_fabric": _plans(case, inventory, _hosts(inventories), Path(folder)),
            "golden_out": str(Path(folder) / "golden.json"),
            "image_ref": "localhost/golden@sha256:0",
            **case.variables,
        }
        given = Path(folder) / "variables.json"
        given.write_text(json.dumps(extra))
        words = ["ansible-playbook", str(HERE / "render.yml"), "-e", f"@{given}"]
        words += [word for path in inventories for word in ("-i", path)]
        environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stdout[-3000:]}{done.stderr[-1000:]}")
        rendered = json.loads((Path(folder) / "golden.json").read_text())
    for host, files in rendered.items():
        for suffix, text in files.items():
            if text:
                (out / f"{host}.{suffix}").write_text(text)


def _plans(case: Case, inventory: Path, hosts: list[str], folder: Path) -> dict[str, Any]:
    if case.inventory == "local_pair":
        return fabrics.socket(hosts)
    said = yaml.safe_load((inventory / "group_vars" / "ranks" / "main.yml").read_text())
    recipe = case.variables.get("recipe_name", said["recipe_name"])
    options = {
        "platform": "gb300" if case.fixture == "station" else "gb10",
        "engine": "tensorfold" if recipe.endswith("tensorfold") else "vllm",
        "nccl": "2.30.7",
    }
    return fabrics.rdma(folder, hosts, case.topology, case.cables, case.fixture, **options)


def differences(name: str, out: Path) -> Iterator[str]:
    """What differs between the committed files of a case and those in a folder, as a unified diff."""
    committed, made = ({path.name: path for path in folder.glob("*.*")} for folder in (HERE / name, out))
    for file in sorted({*committed, *made}):
        before, after = (
            found[file].read_text().splitlines(keepends=True) if file in found else [] for found in (committed, made)
        )
        yield from difflib.unified_diff(before, after, f"golden/{name}/{file}", f"rendered/{name}/{file}")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Render the golden files.")
    parser.add_argument("--update", action="store_true", help="write them again")
    parser.add_argument("cases", nargs="*", help="only these")
    asked = parser.parse_args()
    names = asked.cases or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).mkdir()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: render(name, Path(folder) / name), names))
        changed = [line for name in names for line in differences(name, Path(folder) / name)]
        sys.stdout.writelines(changed)
        if asked.update:
            for name in names:
                shutil.rmtree(HERE / name, ignore_errors=True)
                shutil.copytree(Path(folder) / name, HERE / name)
            return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
