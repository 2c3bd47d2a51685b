"""recipe_profile auto: by the memory of the hosts."""

from __future__ import annotations

import pytest
from unit.recipe.recipes import DRAFTER, NAMES, judge, layers, resolve

from ansible_collections.tandem.serving.plugins.plugin_utils import _recipe

SPARK = 121.69


def choose(*hosts: tuple[float, float | None], name: str = "glm53_flash_exl3", ranks: int = 2) -> str:
    selected = {"ranks": ranks, "topology": "switch" if ranks == 4 else "pair", "profile": "auto"}
    return _recipe.choose_profile(layers(name), selected, {}, hosts, accepted_licences=[DRAFTER])


@pytest.mark.parametrize(
    ("free", "profile"),
    [(119.0, "seed"), (116.0, "current"), (111.0, "desktop"), (90.0, "desktop"), (None, "seed")],
)
def test_the_first_that_fits_is_taken(free: float | None, profile: str) -> None:
    assert choose((SPARK, free), (SPARK, free)) == profile


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("profile", ["seed", "current", "desktop"])
def test_no_profile_is_refused(ranks: int, profile: str) -> None:
    topology = "switch" if ranks == 4 else ""
    recipe = resolve("glm53_flash_exl3", ranks, topology, licences=(DRAFTER,), profile=profile)
    checks = judge(recipe, accepted_licences=[DRAFTER])
    assert [item["name"] for item in checks if item["verdict"] == "fail"] == []


def test_the_host_with_the_least_decides() -> None:
    assert choose((SPARK, 119.0), (SPARK, 116.0)) == "current"


def test_without_hosts_it_is_the_default() -> None:
    assert choose() == ""


@pytest.mark.parametrize("name", [name for name in NAMES if name != "glm53_flash_exl3"])
def test_recipes_without_profiles_keep_their_default(name: str) -> None:
    assert choose((SPARK, 100.0), name=name) == ""


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_profile_asks_for_no_more_than_the_one_before(ranks: int) -> None:
    profiles = ["seed", "current", "desktop"]
    topology = "switch" if ranks == 4 else ""
    shares = [resolve("glm53_flash_exl3", ranks, topology, profile=name)["serve"] for name in profiles]
    assert sorted((serve["gpu-memory-utilization"] for serve in shares), reverse=True) == [
        serve["gpu-memory-utilization"] for serve in shares
    ]
