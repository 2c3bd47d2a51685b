"""Recipes: variants, overrides and guards."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.plugin_utils._recipe import RecipeError, judge, resolve

BASE: dict[str, Any] = {
    "name": "toy",
    "serve": {"max-num-seqs": 4, "kv-cache-dtype": "fp8"},
    "ports": {"api": 8888},
    "defaults": {"speculation": "mtp"},
    "variants": {
        "ranks": {2: {}, 3: {"serve": {"max-num-seqs": 8}}},
        "speculation": {"mtp": {"serve": {"speculative-config": {"method": "mtp"}}}, "none": {}},
    },
}
GUARD = {
    "name": "seqs",
    "when": "serve['max-num-seqs'] > 4",
    "expected": "at most 4",
    "found": "serve['max-num-seqs']",
    "reason": "The scratch holds four.",
    "remedy": "Lower it.",
}


def test_the_default_variant_applies_when_nothing_is_said() -> None:
    recipe = resolve(BASE, {"speculation": "", "ranks": 2}, {})
    assert recipe["serve"]["speculative-config"] == {"method": "mtp"}
    assert recipe["selected"] == {"speculation": "mtp", "ranks": "2"}
    assert "variants" not in recipe and "defaults" not in recipe


def test_overrides_win_over_variants_and_null_removes() -> None:
    recipe = resolve(BASE, {"ranks": "3"}, {"serve": {"max-num-seqs": 16, "kv-cache-dtype": None}})
    assert recipe["serve"] == {"max-num-seqs": 16}


def test_the_recipe_itself_is_not_changed() -> None:
    resolve(BASE, {"ranks": 3}, {"serve": {"max-num-seqs": 16}})["serve"]["x"] = 1
    assert BASE["serve"] == {"max-num-seqs": 4, "kv-cache-dtype": "fp8"}


@pytest.mark.parametrize(
    ("selected", "overrides", "words"),
    [
        ({"speculation": "eagle"}, {}, ["speculation is 'eagle'", "mtp, none", "recipe_speculation"]),
        ({"ranks": 5}, {}, ["ranks is '5'", "2, 3"]),
        ({}, {"server": {}}, ["recipe_overrides has server", "serve"]),
        ({}, {"serve": {"max_num_seqs": 2}}, ["max_num_seqs", "max-num-seqs"]),
    ],
)
def test_what_makes_no_sense_is_named(selected: dict[str, Any], overrides: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        resolve(BASE, selected, overrides)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("seqs", "accepted", "verdict"), [(4, [], "pass"), (8, [], "fail"), (8, ["seqs"], "warn"), (4, ["seqs"], "pass")]
)
def test_a_guard_fails_or_warns_when_its_risk_is_accepted(seqs: int, accepted: list[str], verdict: str) -> None:
    (found,) = judge({"name": "toy", "serve": {"max-num-seqs": seqs}}, [GUARD], accepted)
    assert found["verdict"] == verdict
    assert found["found"] == str(seqs)
    assert found["remedy"] == ("" if verdict == "pass" else "Lower it.")


def test_an_accepted_risk_without_a_guard_is_a_misspelling() -> None:
    with pytest.raises(RecipeError, match="recipe_accept_risk names sesq, expected names of guards: seqs"):
        judge({"name": "toy", "serve": {"max-num-seqs": 4}}, [GUARD], ["sesq"])


def test_a_guard_about_something_the_recipe_lacks_is_an_error() -> None:
    with pytest.raises(RecipeError, match="guard seqs of recipe toy"):
        judge({"name": "toy", "serve": {}}, [GUARD], [])
