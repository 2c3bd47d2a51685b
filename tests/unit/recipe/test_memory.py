"""The recipes' limits fit the memory of the machines that they are for, by the memory plan."""

from __future__ import annotations

from typing import Any

import pytest
from unit.recipe.recipes import DRAFTER, resolve

from ansible_collections.tandem.serving.plugins.module_utils._memory_plan import plan

SPARK_GIB = 121.69


@pytest.mark.parametrize(("ranks", "topology"), [(2, "pair"), (3, "triangle"), (4, "switch")])
@pytest.mark.parametrize("choice", [{}, {"profile": "seed"}, {"speculation": "mtp"}, {"speculation": "none"}])
def test_one_request_of_the_maximum_length_fits(ranks: int, topology: str, choice: dict[str, Any]) -> None:
    recipe = resolve("glm53_flash_exl3", ranks, topology, licences=(DRAFTER,), **choice)
    found = plan(recipe, SPARK_GIB)
    assert found["fits"] and found["max_concurrency"] >= 1
    # An idle Spark has about 118 GiB to give.
    assert found["needed_gib"] < 118


def test_the_pool_of_tensorfold_is_the_published_one() -> None:
    assert plan(resolve("glm53_flash_tensorfold"), SPARK_GIB)["kv_tokens"] == 2922496


def test_the_cache_of_three_holds_the_most_that_was_reported() -> None:
    assert plan(resolve("glm53_flash_tensorfold", 3), SPARK_GIB)["kv_tokens"] // 10000 == 595


@pytest.mark.parametrize(("ranks", "needed"), [(2, 102.59), (3, 102.7), (4, 89.4)])
@pytest.mark.parametrize(
    ("more", "verdict", "cause"),
    [(-1, "fail", "startup_free_memory_below_request"), (1, "warn", "little_memory_free"), (25, "pass", "ok")],
)
def test_tensorfold_asks_for_memory_on_any_number(
    ranks: int, needed: float, more: int, verdict: str, cause: str
) -> None:
    found = plan(resolve("glm53_flash_tensorfold", ranks, licences=(DRAFTER,)), SPARK_GIB, needed + more)
    assert found["needed_gib"] == needed
    assert (found["checks"][0]["verdict"], found["checks"][0]["cause"]) == (verdict, cause)
    assert found["fits"] is (verdict != "fail")


def test_the_pool_of_the_local_pair_is_the_measured_one() -> None:
    assert plan(resolve("smollm2_local"), 24)["kv_tokens"] == 69888
