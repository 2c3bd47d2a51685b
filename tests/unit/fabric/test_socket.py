"""Plans of sockets: which interface the ranks share, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.module_utils import _topology

Hosts = dict[str, dict[str, Any]]


def host(number: int) -> dict[str, Any]:
    """Loopback, a management and a fabric interface, and Docker's bridge, which is the same everywhere."""
    addresses = {
        "lo": ("127.0.0.1", 8, "host"),
        "eth0": (f"10.98.0.{number}", 24, "global"),
        "docker0": ("172.17.0.1", 16, "global"),
        "eth1": (f"10.99.0.{number}", 24, "global"),
    }
    return {
        "netdevs": [
            {
                "name": name,
                "speed": 10000,
                "addresses": [{"address": address, "prefixlen": length, "family": "inet", "scope": scope}],
            }
            for name, (address, length, scope) in addresses.items()
        ],
        "protected": ["eth0"],
    }


def plan(hosts: Hosts, *subnets: str) -> dict[str, Any]:
    return _topology.plan(hosts, "pair", "socket", _topology.Options(subnets=subnets))


@pytest.mark.parametrize("subnets", [(), ("10.99.0.0/24",)])
def test_the_shared_interface_is_found(subnets: tuple[str, ...]) -> None:
    plans = plan({"a": host(1), "b": host(2)}, *subnets)
    assert [item["verdict"] for one in plans.values() for item in one["checks"]] == ["pass", "pass"]
    assert plans["b"]["env"] == {
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "eth1",
        "TP_SOCKET_IFNAME": "eth1",
        "VLLM_HOST_IP": "10.99.0.2",
    }
    assert plans["b"]["master_address"] == "10.99.0.1"
    assert plans["a"]["peers"] == [{"host": "b", "rank": 1, "address": "10.99.0.2"}]
    assert plans["a"]["rails"][0]["peer_address"] == "10.99.0.2"


def address(name: str, *found: tuple[str, str]) -> Callable[[Hosts], None]:
    """Give an interface of b other addresses."""

    def apply(hosts: Hosts) -> None:
        netdev = next(item for item in hosts["b"]["netdevs"] if item["name"] == name)
        netdev["addresses"] = [
            {"address": one, "prefixlen": 32 if name == "lo" else 24, "family": "inet", "scope": scope}
            for one, scope in found
        ]

    return apply


def alias(hosts: Hosts) -> None:
    address("eth1")(hosts)
    address("lo", ("127.0.0.1", "host"), ("10.99.0.2", "global"))(hosts)


@pytest.mark.parametrize(
    ("change", "cause", "verdict", "words"),
    [
        (alias, "loopback_alias", "fail", "take 10.99.0.2 off lo"),
        (address("eth1"), "fabric_interface_not_found", "fail", "an interface of b an address in 10.99.0.0/24"),
        (address("eth1", ("10.99.0.1", "global")), "duplicate_address", "fail", "Change 10.99.0.1 on one of"),
        (
            lambda hosts: hosts["b"].update(protected=["eth0", "eth1"]),
            "management_carries_fabric",
            "warn",
            "Reach b by another interface",
        ),
    ],
)
def test_mutation(change: Callable[[Hosts], None], cause: str, verdict: str, words: str) -> None:
    hosts = {"a": host(1), "b": host(2)}
    change(hosts)
    odd = [item for item in plan(hosts, "10.99.0.0/24")["b"]["checks"] if item["verdict"] != "pass"]
    assert [(item["cause"], item["verdict"]) for item in odd] == [(cause, verdict)]
    assert words in odd[0]["remedy"]
