"""The real recipes, loaded as the role recipe loads them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.tandem.serving.plugins.module_utils._check import Check
from ansible_collections.tandem.serving.plugins.plugin_utils import _recipe

FILES = Path(__file__).parents[3] / "roles" / "recipe" / "files"
NAMES = sorted(path.stem for path in (FILES / "recipes").glob("*.yml"))
DRAFTER = "incoai/GLM-5.3-Flash-DFlash2"
CONTEXT: dict[str, Any] = {
    "nranks": 2,
    "topology": "pair",
    "accepted_licences": [],
    "fabric_subnets": [],
    "api_key": False,
    "image_ref": "",
    "host_env": {},
}
TOPOLOGY = {2: "pair", 3: "triangle", 4: "ring"}


@functools.cache
def _load(folder: str, name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FILES / folder / f"{name}.yml").read_text()))


def layers(name: str) -> list[dict[str, Any]]:
    """The layers of a recipe, from the most general on, the recipe last."""
    recipe = _load("recipes", name)
    return [*(_load("layers", layer) for layer in ["common", *recipe["layers"]]), recipe]


def resolve(
    name: str,
    ranks: int = 2,
    topology: str = "",
    licences: tuple[str, ...] = (),
    overrides: dict[str, Any] | None = None,
    lock: dict[str, Any] | None = None,
    **choices: str,
) -> dict[str, Any]:
    """What the role makes of a recipe. Empty choices take the recipe's defaults."""
    selected = {"ranks": ranks, "topology": topology or TOPOLOGY[ranks]}
    selected |= {key: choices.get(key, "") for key in ("profile", "speculation", "ablation", "thinking")}
    recipe = _recipe.resolve(layers(name), selected, overrides or {}, lock=lock, accepted_licences=licences)
    recipe["files"] = {key: (FILES / file).read_text() for key, file in recipe["files"].items()}
    return recipe


def judge(recipe: dict[str, Any], **context: Any) -> list[Check]:
    """Hold a resolved recipe against its guards, on the ranks and the topology that it was resolved for."""
    shape = {"nranks": int(recipe["selected"]["ranks"]), "topology": recipe["selected"]["topology"]}
    return _recipe.judge(recipe, {**CONTEXT, **shape, **context}, [])
