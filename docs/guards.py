"""Write docs/guards.md from the files of the recipes.

PYTHONPATH=collections python docs/guards.py
"""

from __future__ import annotations

from pathlib import Path

import yaml

PAGE = Path(__file__).with_suffix(".md")
FILES = PAGE.parents[1] / "roles" / "recipe" / "files"

HEAD = """<!-- Made by docs/guards.py. Change roles/recipe/files instead. -->

# Guards

A guard looks at the resolved recipe, before any host is touched, for something that is known to fail. What it finds is refused with its
reason and its cure. To go on in spite of it, name the guard in `recipe_accept_risk`: it is then reported as a warning.

Each guard stands in the file of the layer, or of the recipe, whose fact it is.
"""
TITLES = {
    "layers/common": "Every recipe",
    "layers/rdma": "Ranks that talk RDMA",
    "layers/gb10": "DGX Spark (GB10)",
    "layers/gb300": "DGX Station (GB300)",
    "layers/vllm": "vLLM",
    "layers/tensorfold": "TensorFold",
}


def page() -> str:
    """The page."""
    parts = [HEAD]
    names = list(TITLES) + [f"recipes/{path.stem}" for path in sorted((FILES / "recipes").glob("*.yml"))]
    for name in names:
        guards = yaml.safe_load((FILES / f"{name}.yml").read_text()).get("guards", [])
        if guards:
            parts.append(f"\n## {TITLES.get(name) or 'Recipe ' + name.removeprefix('recipes/')}\n")
        for guard in guards:
            kind = " (a warning)" if guard.get("verdict") == "warn" else ""
            parts.append(f"\n### `{guard['name']}`{kind}\n\n{guard['reason'].strip()}\n")
            parts.append(f"\n- Expected: {guard['expected']}\n- What to do: {guard['remedy']}\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
