"""What verify concludes."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.plugin_utils._verify import judge

RECIPE = {"model": {"served_name": "m"}}
FABRIC = {"address": "10.99.0.11", "peers": [{"address": "10.99.0.12"}]}


def connection(local: str, peer: str, port: int = 40000) -> dict[str, Any]:
    return {"local_address": local, "local_port": port, "peer_address": peer, "peer_port": 29521}


ON = connection("10.99.0.11", "10.99.0.12")
OFF = connection("10.98.0.11", "10.98.0.12")
SSH = connection("10.98.0.11", "10.98.0.12", 22)
ELSE = connection("10.98.0.11", "10.98.0.1")


@pytest.mark.parametrize(
    ("connections", "verdict", "cause"),
    [
        ([ON, SSH, ELSE], "pass", "ok"),
        ([ON, OFF], "fail", "ranks_talk_beside_the_fabric"),
        ([connection("10.98.0.11", "10.99.0.12")], "fail", "ranks_talk_beside_the_fabric"),
        ([SSH, ELSE], "fail", "ranks_do_not_talk"),
        ([], "fail", "ranks_do_not_talk"),
    ],
)
def test_the_ranks_talk_over_the_fabric_and_nothing_else(connections: list[Any], verdict: str, cause: str) -> None:
    (found,) = judge({"connections": connections, "others": ["10.98.0.12"]}, RECIPE, FABRIC)
    assert (found["verdict"], found["cause"]) == (verdict, cause)
    assert found["evidence"]


@pytest.mark.parametrize(
    ("health", "models", "causes"),
    [
        (200, {"data": [{"id": "m"}]}, ["ok", "ok"]),
        (503, {"data": [{"id": "m"}]}, ["api_not_healthy", "ok"]),
        (200, {"data": [{"id": "other"}]}, ["ok", "model_not_served"]),
        (200, None, ["ok", "model_not_served"]),
    ],
)
def test_the_api(health: int, models: Any, causes: list[str]) -> None:
    found = judge({"pages": {"health": health, "models": models}}, RECIPE, FABRIC)
    assert [item["cause"] for item in found] == causes


@pytest.mark.parametrize(
    ("log", "metrics", "verdict"),
    [(69888, 69888, "pass"), (69888, 69760, "fail"), (None, 69888, "inconclusive"), (69888, None, "inconclusive")],
)
def test_the_pool_is_the_same_in_log_and_metrics(log: int | None, metrics: int | None, verdict: str) -> None:
    pools = {"log": {"kv_tokens": log}, "metrics": {"kv_tokens": metrics}}
    (found,) = judge({"pools": pools}, RECIPE, FABRIC)
    assert found["verdict"] == verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [({"a": "x", "b": "x"}, "pass"), ({"a": "x", "b": "y"}, "fail"), ({"a": "", "b": ""}, "fail")],
)
def test_what_must_be_equal(values: dict[str, str], verdict: str) -> None:
    (found,) = judge({"same": [{"name": "image", "values": values}]}, RECIPE, FABRIC)
    assert found["verdict"] == verdict
    assert [line.split(":")[0] for line in found["evidence"]] == ["a", "b"]
    assert bool(found["remedy"]) == (verdict == "fail")
