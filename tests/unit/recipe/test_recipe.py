"""Recipes: variants, overrides and guards."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.plugin_utils._recipe import RecipeError, judge, resolve, stack, unpinned

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
    recipe = resolve([BASE], {"speculation": "", "ranks": 2}, {})
    assert recipe["serve"]["speculative-config"] == {"method": "mtp"}
    assert recipe["selected"] == {"speculation": "mtp", "ranks": "2"}
    assert "variants" not in recipe and "defaults" not in recipe


def test_overrides_win_over_variants_and_null_removes() -> None:
    recipe = resolve([BASE], {"ranks": "3"}, {"serve": {"max-num-seqs": 16, "kv-cache-dtype": None}})
    assert recipe["serve"] == {"max-num-seqs": 16}


def test_the_recipe_itself_is_not_changed() -> None:
    resolve([BASE], {"ranks": 3}, {"serve": {"max-num-seqs": 16}})["serve"]["x"] = 1
    assert BASE["serve"] == {"max-num-seqs": 4, "kv-cache-dtype": "fp8"}


@pytest.mark.parametrize(
    ("selected", "overrides", "words"),
    [
        ({"speculation": "eagle"}, {}, ["speculation is 'eagle'", "mtp, none", "recipe_speculation"]),
        ({"ranks": 5}, {}, ["ranks is '5'", "2, 3"]),
        ({}, {"server": {}}, ["recipe_overrides has server", "serve"]),
        ({}, '{"serve": {}}', ["recipe_overrides is text", "expected a mapping", "-e '{"]),
        ({}, {"serve": {"max_num_seqs": 2}}, ["max_num_seqs", "max-num-seqs"]),
    ],
)
def test_what_makes_no_sense_is_named(selected: dict[str, Any], overrides: Any, words: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        resolve([BASE], selected, overrides)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("seqs", "accepted", "verdict"), [(4, [], "pass"), (8, [], "fail"), (8, ["seqs"], "warn"), (4, ["seqs"], "pass")]
)
def test_a_guard_fails_or_warns_when_its_risk_is_accepted(seqs: int, accepted: list[str], verdict: str) -> None:
    (found,) = judge({"name": "toy", "serve": {"max-num-seqs": seqs}, "guards": [GUARD]}, {}, accepted)
    assert found["verdict"] == verdict
    assert found["found"] == str(seqs)
    assert found["remedy"] == ("" if verdict == "pass" else "Lower it.")


def test_an_accepted_risk_without_a_guard_is_a_misspelling() -> None:
    with pytest.raises(RecipeError, match="recipe_accept_risk names sesq, expected names of guards: seqs"):
        judge({"name": "toy", "serve": {"max-num-seqs": 4}, "guards": [GUARD]}, {}, ["sesq"])


def test_a_guard_about_something_the_recipe_lacks_is_an_error() -> None:
    with pytest.raises(RecipeError, match="guard seqs of recipe toy"):
        judge({"name": "toy", "serve": {}, "guards": [GUARD]}, {}, [])


def test_layers_merge_and_all_their_guards_stay() -> None:
    below = {"serve": {"max-num-seqs": 1, "dtype": "bfloat16"}, "env": {"A": 1}, "guards": [GUARD]}
    found = stack([below, {**BASE, "guards": [{**GUARD, "name": "other"}]}])
    assert found["serve"] == {"max-num-seqs": 4, "kv-cache-dtype": "fp8", "dtype": "bfloat16"}
    assert found["env"] == {"A": 1}
    assert [guard["name"] for guard in found["guards"]] == ["seqs", "other"]


def test_a_variant_may_change_the_variants_that_come_after_it() -> None:
    four = {"variants": {"speculation": {"mtp": {"serve": {"speculative-config": {"num_speculative_tokens": 3}}}}}}
    base = {**BASE, "variants": {**BASE["variants"], "ranks": {4: four}}}
    recipe = resolve([base], {"ranks": 4, "speculation": "mtp"}, {})
    assert recipe["serve"]["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 3}
    assert resolve([base], {"ranks": 4, "speculation": "none"}, {})["serve"] == BASE["serve"]


LICENSED = {
    **BASE,
    "defaults": {"speculation": ["dflash", "mtp"]},
    "variants": {"speculation": {"dflash": {"licences": {"org/draft": "CC BY-NC-ND 4.0"}}, "mtp": {}}},
}


@pytest.mark.parametrize(
    ("asked", "accepted", "chosen", "passed_over"),
    [
        ("", [], "mtp", ["dflash"]),
        ("", ["org/draft"], "dflash", []),
        ("", ["org/other"], "mtp", ["dflash"]),
        ("dflash", [], "dflash", []),
        ("mtp", ["org/draft"], "mtp", []),
    ],
)
def test_a_default_waits_for_its_licence(asked: str, accepted: list[str], chosen: str, passed_over: list[str]) -> None:
    recipe = resolve([LICENSED], {"speculation": asked}, {}, accepted_licences=accepted)
    assert recipe["selected"]["speculation"] == chosen
    assert [item["choice"] for item in recipe["passed_over"]] == passed_over
    assert bool(recipe.get("licences")) == (chosen == "dflash")


PINNED = "sha256:" + "a" * 64
MOVING: dict[str, Any] = {
    "name": "toy",
    "model": {"repo": "org/model", "revision": "main"},
    "drafter": {"repo": "org/draft", "revision": "b" * 40},
    "image": {"source": "build", "base": "base:1"},
}


def test_the_lock_pins_what_moves_and_nothing_else() -> None:
    assert unpinned(MOVING) == {"images": ["base:1"], "revisions": [{"repo": "org/model", "revision": "main"}]}
    lock = {"images": {"base:1": PINNED, "other:1": PINNED}, "revisions": {"org/model@main": "c" * 40}}
    recipe = resolve([MOVING], {}, {}, lock=lock)
    assert recipe["model"]["revision"] == "c" * 40
    assert recipe["drafter"]["revision"] == "b" * 40
    assert recipe["image"]["base"] == f"base:1@{PINNED}"
    assert unpinned(recipe) == {"images": [], "revisions": []}


def test_a_lock_of_another_tag_does_not_apply() -> None:
    recipe = resolve([MOVING], {}, {"image": {"base": "base:2"}}, lock={"images": {"base:1": PINNED}})
    assert recipe["image"]["base"] == "base:2"


def test_a_guard_may_warn_and_use_terms() -> None:
    guard = {**GUARD, "when": "twice > 4", "found": "twice", "verdict": "warn"}
    recipe = {"name": "toy", "seqs": 3, "terms": {"twice": "2 * seqs"}, "guards": [guard]}
    (found,) = judge(recipe, {}, [])
    assert (found["verdict"], found["found"], found["cause"]) == ("warn", "6", "seqs")


def test_a_term_that_asks_for_what_is_missing_is_an_error() -> None:
    with pytest.raises(RecipeError, match="term twice of recipe toy"):
        judge({"name": "toy", "terms": {"twice": "2 * seqs"}, "guards": []}, {}, [])
