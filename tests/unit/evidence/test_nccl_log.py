# ruff: noqa: E501
"""The reading of NCCL logs over all samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.module_utils import _log_source, _nccl_log, _nccl_verdict

FIXTURES = Path(__file__).parent.parent / "fixtures/nccl"
SAMPLES = sorted(FIXTURES.glob("*.log"))


def judge(*texts: str | bytes, platform: str | None = None, **options: Any) -> dict[str, Any]:
    """Judge texts as the logs ``log0``, ``log1`` .."""
    logs = [_nccl_log.read(_log_source.from_text(f"log{number}", text)) for number, text in enumerate(texts)]
    return _nccl_verdict.judge(logs, platform, **options)


@pytest.mark.parametrize("log", SAMPLES, ids=lambda path: path.stem)
def test_samples_read_as_expected(log: Path) -> None:
    expected = json.loads(log.with_suffix(".expect.json").read_text())
    del expected["kind"], expected["case"]
    summary = judge(log.read_bytes(), platform=expected["platform"])["summary"]
    assert {name: summary.get(name, "absent") for name in expected} == expected


ONE_PROCESS = {"started": 1, "completed": 1, "aborted": 0}
SOCKETS = {"ib": 0, "socket": 4, "gdr": 0}
NONE = {"ib": 0, "socket": 0, "gdr": 0}


@pytest.mark.parametrize(
    ("name", "verdict", "cause", "fields"),
    [
        ("p2p", "inconclusive", "no_cross_node_channel", {"transport": "unknown", "network": ["Socket"], "net_channels": NONE}),
        ("socket", "fail", "no_rdma_device_in_container", {"transport": "socket", "hcas": [], "oob": "eth0:192.0.2.2"}),
        ("forced_ib", "fail", "no_rdma_device_in_container", {"transport": "unknown", "communicators": {**ONE_PROCESS, "started": 0, "completed": 0}}),
        ("warn_level", "inconclusive", "debug_level_too_low", {"nccl_version": "2.28.9", "network": []}),
        ("loopback", "fail", "no_rdma_device_in_container", {"bootstrap": "lo:127.0.0.1", "init_complete": True}),
        ("no_interface", "fail", "socket_ifname_not_found", {"warnings": ["no_socket_interface"], "nccl_version": None}),
        ("no_ipv6_address", "fail", "socket_ifname_has_no_address", {"warnings": ["no_socket_interface"]}),
        ("ib_disabled", "fail", "ib_disabled_by_env", {"warnings": ["ib_disabled"], "oob": None}),
        ("net_socket", "fail", "ib_disabled_by_env", {"warnings": [], "oob": None}),
        ("killed", "fail", "no_rdma_device_in_container", {"warnings": ["ib_no_device", "peer_closed"], "warn_lines": 1}),
        ("abort", "fail", "no_rdma_device_in_container", {"communicators": {**ONE_PROCESS, "aborted": 1}, "init_complete": False}),
        ("watchdog", "fail", "no_rdma_device_in_container", {"warnings": ["ib_no_device", "watchdog_timeout"], "warn_lines": 0}),
        ("vllm_tp2", "inconclusive", "no_cross_node_channel", {"network": ["Socket"], "net_channels": NONE, "nccl_version": "2.28.9"}),
        ("split", "inconclusive", "no_cross_node_channel", {"communicators": {**ONE_PROCESS, "started": 2, "completed": 2}}),
        ("timestamps", "fail", "no_rdma_device_in_container", {"net_channels": SOCKETS, "nccl_version": "2.28.9"}),
        ("subsys_all", "fail", "no_rdma_device_in_container", {"net_channels": SOCKETS, "rings_connected": True}),
    ],
)  # fmt: skip
def test_real_logs(name: str, verdict: str, cause: str, fields: dict[str, Any]) -> None:
    """Two GPUs of one host without RDMA, NCCL 2.28.9, made by tests/gpu/nccl_logs.py and engine.py: rank 0 alone, then both."""
    texts = [path.read_bytes() for path in sorted((FIXTURES / "real" / name).glob("*.log"))]
    summary = judge(texts[0])["summary"]
    assert {field: summary[field] for field in fields} == fields
    assert (summary["verdict"], summary["cause"]) == (verdict, cause)
    both = judge(*texts)["summary"]
    assert (both["verdict"], both["cause"]) == (verdict, cause)
