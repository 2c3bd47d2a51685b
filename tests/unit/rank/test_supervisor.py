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
                "docker": True,
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
        (ranks("active", "active", configured=("a", "b")), "answers", memory(), "none", "serving"),
        (ranks("active", "failed", configured=("a", "b")), "starting", memory(), "give_up", "spark-a: a, spark-b: b"),
        (ranks("active", "active", docker=False), "fails", memory(failures=9), "wait", "Docker on spark-a, spark-b"),
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


def test_the_rank_that_says_why_is_named_before_one_that_never_started() -> None:
    seen = ranks("inactive", "inactive")
    seen[1]["state"]["refused"] = "no memory"
    assert "rank 1 on spark-b is inactive (no memory)" in supervisor.decide(seen, "starting", memory(), RULES, 0.0)[1]
    assert "rank 1 on spark-b" in supervisor.decide(ranks("inactive", "failed"), "starting", memory(), RULES, 0.0)[1]


class Hosts(supervisor.Supervisor):  # type: ignore[misc, name-defined]
    """A supervisor of three ranks, some of which cannot be stopped or started."""

    def __init__(self, deaf: dict[str, int]) -> None:
        listed = [{"rank": rank, "host": f"spark-{rank}", "address": "10.0.0.1"} for rank in range(3)]
        super().__init__({"ready_seconds": 600, "ranks": listed})
        self.deaf, self.told = deaf, []

    def call(self, rank: Any, word: str) -> dict[str, Any] | None:
        self.told.append(f"{word} {rank['rank']}")
        return None if self.deaf.get(word) == rank["rank"] else {}


def test_all_stop_and_then_start_the_head_last() -> None:
    hosts = Hosts({})
    hosts.start_together("why")
    assert sorted(hosts.told[:3]) == ["stop 0", "stop 1", "stop 2"]
    assert hosts.told[3:] == ["start 2", "start 1", "start 0"]
    assert (hosts.memory.fault, hosts.memory.heals, len(hosts.memory.starts)) == ("why", 1, 1)


def test_nothing_starts_while_one_of_the_old_ranks_may_still_run() -> None:
    hosts = Hosts({"stop": 2})
    hosts.start_together("why")
    assert not [told for told in hosts.told if told.startswith("start")]
    assert hosts.memory.heals == 0
    # So that it pauses before the next one, and gives up in the end.
    assert len(hosts.memory.starts) == 1


def test_the_head_does_not_start_without_its_workers() -> None:
    hosts = Hosts({"start": 1})
    hosts.start_together("why")
    assert hosts.told[3:] == ["start 2", "start 1"]


def test_an_engine_that_reads_a_long_prompt_is_busy_and_one_that_stands_still_fails() -> None:
    page = 'vllm:prompt_tokens_total{{engine="0"}} 10.0\nvllm:kv_cache_usage_perc{{engine="0"}} {}\n'

    def probed(*pages: str) -> str:
        hosts, told = Hosts({}), iter(pages)
        hosts.config["model"] = "model"
        hosts.fetch = lambda path, body=None: next(told) if path == "/metrics" else "{}"
        return str(hosts.probe())

    assert probed(page.format(0.1), page.format(0.2)) == "busy"
    assert probed(page.format(0.1), page.format(0.1)) == "fails"


def test_a_full_disk_does_not_keep_from_healing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "STATE", tmp_path / "gone" / "supervisor.json")
    supervisor.write_state("start", "why", memory())
    assert "supervisor.json" in capsys.readouterr().err
