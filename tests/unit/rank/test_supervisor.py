"""The rules of the supervisor."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[3] / "roles/rank/files/supervisor.py"
spec = importlib.util.spec_from_file_location("supervisor", PROGRAM)
assert spec and spec.loader
supervisor = importlib.util.module_from_spec(spec)
sys.modules["supervisor"] = supervisor
spec.loader.exec_module(supervisor)

RULES = supervisor.Rules(ready_seconds=600)


def ranks(*actives: str | None, configured: tuple[str, ...] = ("same", "same"), **told: Any) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "host": f"spark-{'ab'[rank]}",
            "state": None
            if active is None
            else {
                "active": active,
                "result": "exit-code",
                "configured": configured[rank],
                "refused": "",
                "changed": [],
                "down": [],
                "available_gib": 8.0,
                "floor_gib": 0.75,
                **told,
            },
        }
        for rank, active in enumerate(actives)
    ]


def memory(**values: Any) -> Any:
    return supervisor.Memory(**{"served": True, **values})


@pytest.mark.parametrize(
    ("seen", "probe", "kept", "action", "words"),
    [
        (ranks("active", "active"), "answers", memory(), "none", "serving"),
        (ranks("active", "active"), "busy", memory(failures=1), "none", "serving"),
        (ranks("active", "failed"), "starting", memory(), "start", "rank 1 on spark-b is failed"),
        (ranks("inactive", "active"), "starting", memory(), "start", "rank 0 on spark-a is inactive"),
        (ranks("active", "active"), "fails", memory(failures=0), "none", "serving"),
        (ranks("active", "active"), "fails", memory(failures=1), "start", "2 completions in a row failed"),
        (ranks("active", "active"), "starting", memory(served=False, began=900.0), "none", "starting"),
        (ranks("active", "active"), "starting", memory(served=False, began=0.0), "start", "not ready 600 s"),
        (ranks("active", None), "starting", memory(), "wait", "rank 1 on spark-b cannot be asked"),
        (ranks("active", "active", configured=("a", "b")), "answers", memory(), "give_up", "spark-a: a, spark-b: b"),
        (ranks("active", "failed"), "starting", memory(starts=[900.0] * 5), "give_up", "5 starts in a row"),
        (ranks("active", "failed"), "starting", memory(served=False, starts=[990.0]), "wait", "pausing"),
        (ranks("active", "failed"), "starting", memory(served=False, starts=[980.0]), "start", "spark-b is failed"),
        (ranks("active", "failed", refused="no GID"), "starting", memory(), "start", "is failed (no GID)"),
        (
            ranks("active", "active", down=["eth1 is down"]),
            "fails",
            memory(failures=9),
            "wait",
            "eth1 is down on spark-a",
        ),
        (ranks("active", "active", changed=["/etc/tandem/rank.env"]), "answers", memory(), "none", "serving"),
        (
            ranks("active", "failed", changed=["/etc/tandem/rank.env"]),
            "starting",
            memory(),
            "give_up",
            "rank.env on spark-b",
        ),
        (ranks("active", "active", available_gib=0.5), "answers", memory(), "start", "spark-a has 0.5 GiB"),
    ],
)
def test_what_it_does_about_what_it_sees(
    seen: list[dict[str, Any]], probe: str, kept: Any, action: str, words: str
) -> None:
    decided, reason = supervisor.decide(seen, probe, kept, RULES, 1000.0)
    assert decided == action
    assert words in reason


def test_an_answer_forgets_failures_and_starts() -> None:
    kept = memory(served=False, failures=1, starts=[0.0] * 4)
    supervisor.decide(ranks("active", "active"), "answers", kept, RULES, 10.0)
    assert kept.served and kept.failures == 0 and kept.starts == []


def test_the_pause_doubles_with_every_start_that_did_not_serve() -> None:
    for starts, moment, action in [
        (1, 1014.0, "wait"),
        (1, 1016.0, "start"),
        (3, 1059.0, "wait"),
        (3, 1061.0, "start"),
    ]:
        kept = memory(served=False, starts=[1000.0] * starts)
        assert supervisor.decide(ranks("failed", "active"), "starting", kept, RULES, moment)[0] == action
