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


def test_the_pool_of_the_local_pair_is_the_measured_one() -> None:
    assert plan(resolve("smollm2_local"), 24)["kv_tokens"] == 69888
