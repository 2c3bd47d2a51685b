"""The way of the weights through each topology."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.module_utils._snapshot_routes import routes


def fabric(cables: dict[str, list[str]]) -> dict[str, Any]:
    """Hosts a, b, ...: subnet to the hosts that have an address in it. Addresses are subnet.host."""
    hosts = sorted({host for ends in cables.values() for host in ends})
    return {
        host: {"rails": [{"subnet": net, "address": f"{net}.{host}"} for net, ends in cables.items() if host in ends]}
        for host in hosts
    }


PAIR = {"n1": ["a", "b"], "n2": ["a", "b"]}
TRIANGLE = {"n1": ["a", "b"], "n2": ["b", "c"], "n3": ["c", "a"]}
RING = {"n1": ["a", "b"], "n2": ["b", "c"], "n3": ["c", "d"], "n4": ["d", "a"]}
SWITCH = {"n1": ["a", "b", "c", "d"], "n2": ["a", "b", "c", "d"]}


@pytest.mark.parametrize(
    ("cables", "expected"),
    [
        (PAIR, {"a": ("", 0), "b": ("a", 1)}),
        (TRIANGLE, {"a": ("", 0), "b": ("a", 1), "c": ("a", 1)}),
        (RING, {"a": ("", 0), "b": ("a", 1), "d": ("a", 1), "c": ("b", 2)}),
        (SWITCH, {"a": ("", 0), "b": ("a", 1), "c": ("b", 2), "d": ("c", 3)}),
    ],
    ids=["pair", "triangle", "ring", "switch"],
)
def test_each_link_carries_the_bytes_once(cables: dict[str, list[str]], expected: dict[str, tuple[str, int]]) -> None:
    found = routes(fabric(cables))
    assert {host: (route["source"], route["turn"]) for host, route in found.items()} == expected
    senders = [rail["source"] for route in found.values() for rail in route["rails"]]
    assert len(senders) == len(set(senders))


def test_both_halves_of_a_cable_are_used() -> None:
    assert routes(fabric(PAIR))["b"]["rails"] == [{"source": "n1.a", "own": "n1.b"}, {"source": "n2.a", "own": "n2.b"}]


def test_a_host_without_a_rail_is_named() -> None:
    with pytest.raises(ValueError, match=r"no rail leads to c: expected a subnet .* found \[\['n3'\]\]"):
        routes(fabric({"n1": ["a", "b"], "n3": ["c"]}))
