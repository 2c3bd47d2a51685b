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
