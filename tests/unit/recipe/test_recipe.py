"""Recipes: variants, overrides and guards."""

from __future__ import annotations

from typing import Any

import pytest
from unit.recipe.recipes import DRAFTER, NAMES
from unit.recipe.recipes import layers as load
from unit.recipe.recipes import resolve as real

from ansible_collections.tandem.serving.plugins.plugin_utils._recipe import (
    RecipeError,
    _check_overrides,
    judge,
    resolve,
    stack,
    unpinned,
)

BASE: dict[str, Any] = {
    "name": "toy",
    "serve": {"max-num-seqs": 4, "kv-cache-dtype": "fp8"},
    "ports": {"api": 8888},
    "env": {"A": 1},
    "defaults": {"speculation": "mtp"},
    "variants": {
        "topology": {"pair": {}},
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
        ({"profile": "seed"}, {}, ["profile is 'seed', expected nothing", "Leave recipe_profile empty"]),
        ({"topology": "star"}, {}, ["topology is 'star', expected one of pair", "Set fabric_topology"]),
        (
            {},
            {"serve": "x"},
            ['recipe_overrides.serve is "x"', "a mapping", '{"recipe_overrides": {"serve": {"max-num-seqs": 4}}}'],
        ),
        ({}, {"serve": ["a"]}, ['recipe_overrides.serve is ["a"], expected a mapping']),
        ({}, {"serve": None}, ["recipe_overrides.serve is null, expected a mapping"]),
        ({}, {"model": None}, ["recipe_overrides.model is null, expected a mapping"]),
        ({}, {"limits": None}, ["recipe_overrides.limits is null", '{"limits": {"ready_seconds": 3600}}']),
        ({}, {"ports": 8000}, ["recipe_overrides.ports is 8000, expected a mapping"]),
        ({}, {"env": ["A=1"]}, ['recipe_overrides.env is ["A=1"], expected a mapping', '{"env": {"A": 1}}']),
        ({}, {"env": {"B": [1]}}, ["recipe_overrides.env.B is [1], expected text"]),
        ({}, {"serve": {"max-num-seqs": "lots"}}, ['recipe_overrides.serve.max-num-seqs is "lots", expected a number']),
        ({}, {"serve": {"max-num-seqs": "0,80"}}, ['is "0,80", expected a number', '{"max-num-seqs": 4}']),
        ({}, {"serve": {"max-num-seqs": True}}, ["is true, expected a number"]),
        ({}, {"ports": {"api": "abc"}}, ['recipe_overrides.ports.api is "abc", expected a number']),
        ({}, {"ports": {"apii": 1}}, ["recipe_overrides.ports has apii, expected only api, bind, master"]),
        ({}, {"memory": {"host_gb": 1}}, ["recipe_overrides.memory has host_gb", "host_gib"]),
        ({}, {"memory": {"host_gib": "eight"}}, ['recipe_overrides.memory.host_gib is "eight", expected a number']),
        ({}, {"memory": {"window": {"token": 1}}}, ["recipe_overrides.memory.window has token, expected only"]),
        ({}, {"limits": {"stop_second": 1}}, ["recipe_overrides.limits has stop_second", "stop_seconds"]),
    ],
)
def test_what_makes_no_sense_is_named(selected: dict[str, Any], overrides: Any, words: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        resolve([BASE], selected, overrides)
    for word in words:
        assert word in str(error.value)


def test_other_values_of_the_same_kind_are_taken() -> None:
    recipe = resolve(
        [BASE],
        {"ranks": 2},
        {"serve": {"new-flag": [1], "kv-cache-dtype": 8}, "env": {"A": "x"}, "limits": {"probe_seconds": 5}},
    )
    assert recipe["serve"] == {"max-num-seqs": 4, "kv-cache-dtype": 8, "new-flag": [1]}
    assert (recipe["env"], recipe["limits"]) == ({"A": "x"}, {"probe_seconds": 5})
    assert recipe["misspelt"] == {}


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("max-num-seq", {"max-num-seq": "max-num-seqs"}),
        ("kv-cahce-dtype", {"kv-cahce-dtype": "kv-cache-dtype"}),
        ("max-num-seqs", {}),
        ("no-kv-cache-dtype", {}),
        ("max-model-len", {}),
    ],
)
def test_a_flag_that_looks_like_another_is_told(flag: str, meant: dict[str, str]) -> None:
    assert resolve([BASE], {}, {"serve": {flag: 1}})["misspelt"] == meant


def test_a_section_that_a_recipe_leaves_out_may_be_given() -> None:
    assert resolve([BASE], {}, {"drafter": {"repo": "org/draft"}})["drafter"] == {"repo": "org/draft"}


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_a_closed_section_is_known(name: str) -> None:
    for ranks in load(name)[-1]["supported_ranks"]:
        for section in ("ports", "limits", "memory"):
            _check_overrides({}, {section: real(name, ranks, licences=(DRAFTER,))[section]})


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
    with pytest.raises(RecipeError, match=r"guard seqs of recipe toy: .*Look in recipe_overrides for a key"):
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
        ("dflash", [], "dflash", []),
        ("mtp", ["org/draft"], "mtp", []),
    ],
)
def test_a_default_waits_for_its_licence(asked: str, accepted: list[str], chosen: str, passed_over: list[str]) -> None:
    recipe = resolve([LICENSED], {"speculation": asked}, {}, accepted_licences=accepted)
    assert recipe["selected"]["speculation"] == chosen
    assert [item["choice"] for item in recipe["passed_over"]] == passed_over
    assert bool(recipe.get("licences")) == (chosen == "dflash")


def test_a_licence_that_no_variant_asks_for_is_a_misspelling() -> None:
    words = (
        "recipe_accept_licences names org/drafts, expected repositories whose licence recipe toy asks for: org/draft"
    )
    with pytest.raises(RecipeError, match=words):
        resolve([LICENSED], {}, {}, accepted_licences=["org/drafts"])


def test_a_recipe_without_licences_minds_none() -> None:
    assert resolve([BASE], {}, {}, accepted_licences=["org/draft"])["passed_over"] == []


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
