"""The table of playbooks/status.yml."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.tandem.serving.plugins.plugin_utils._status import open_requests, runs, served, status

METRICS = """\
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:cache_config_info{engine="0",block_size="128",kv_cache_size_tokens="69888"} 1.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 40.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 36.0
"""
STATE: dict[str, Any] = {
    "active": "active",
    "result": "success",
    "since": "Sun 2026-11-29 16:58:52 UTC",
    "image": "localhost/tandem/smollm2_local:0123456789ab",
    "shared_hash": "7987f6fb6fd0c4f9",
    "docker": True,
    "recipe": "smollm2_local",
    "model": "someone/model@0123",
}


def told(state: dict[str, Any]) -> dict[str, Any]:
    """What a task registers that ran rank_ctl."""
    return {"rc": 0, "stdout": json.dumps(state)}


GONE = {
    "unreachable": True,
    "msg": "Failed to connect to the host via ssh:\nssh: connect to host spark-b port 22: No route to host",
}


def test_the_metrics_are_read() -> None:
    assert served(METRICS) == {
        "KV pool": "69,888 tokens",
        "requests": "2 running, 1 waiting",
        "acceptance": "90% of 40 drafted tokens",
    }
    assert served("") == {"KV pool": "unknown", "requests": "unknown", "acceptance": "no drafts counted"}
    tensorfold = served("tensorfold_health:busy 1\ntensorfold_health:pool_tokens 2922752\n")
    assert (tensorfold["KV pool"], tensorfold["requests"]) == ("2,922,752 tokens", "1 running, 0 waiting")


def test_one_line_a_rank_and_the_supervisor_below() -> None:
    seen = {
        "unit": "active",
        "action": "none",
        "reason": "serving",
        "when": 0.0,
        "fault": "rank 1 on spark-b is failed (exit-code)",
        "fault_at": 60.0,
        "heals": 2,
    }
    text = status({"spark-a": told(STATE), "spark-b": GONE}, METRICS, seen, "socket", {})
    lines = text.splitlines()
    assert lines[0].split() == ["rank", "host", "unit", "since", "image", "config", "transport"]
    assert lines[1].startswith("0     spark-a  active") and "7987f6fb6fd0  socket" in lines[1]
    assert lines[2] == "1     spark-b  cannot be asked"
    assert "supervisor (active): none, serving (1970-01-01T00:00:00+00:00)" in lines
    assert (
        "last failure: rank 1 on spark-b is failed (exit-code) (1970-01-01T00:01:00+00:00; 2 starts since the supervisor began)"
        in lines
    )
    assert "model: someone/model@0123" in lines


def test_a_rank_that_ended_shows_its_result_and_a_new_pair_no_supervisor() -> None:
    ended = {**STATE, "active": "failed", "result": "exit-code"}
    text = status({"spark-a": told(ended)}, "", {"unit": "inactive"}, "rdma", {})
    assert "failed (exit-code)" in text
    assert "supervisor (inactive): has decided nothing yet" in text


def test_what_is_odd_about_a_rank_is_said() -> None:
    odd = {
        **STATE,
        "changed": ["/etc/tandem/rank.env"],
        "down": ["eth1 is down"],
        "refused": "no memory",
        "docker": False,
    }
    assert status({"spark-b": told(odd)}, "", {"unit": "active"}, "socket", {}).splitlines()[-4:] == [
        "spark-b: Docker does not answer",
        "spark-b: /etc/tandem/rank.env changed since site.yml wrote it",
        "spark-b: eth1 is down",
        "spark-b: does not run: no memory",
    ]


def test_requests_that_run_and_wait_are_counted() -> None:
    assert open_requests(METRICS) == 3
    assert open_requests("") == 0
    assert open_requests("tensorfold_health:busy 2") == 2


def test_the_transport_is_what_nccl_wrote_and_not_what_was_planned() -> None:
    heard = {
        "spark-a": {"transport": "ib", "hcas": ["rocep1s0f0", "roceP2p1s0f0"]},
        "spark-b": {"transport": "socket", "hcas": []},
        "spark-c": {},
    }
    states = dict.fromkeys(heard, told(STATE))
    lines = status(states, "", {"unit": "active"}, "rdma", heard).splitlines()
    assert [line.split("7987f6fb6fd0")[1].strip() for line in lines[1:4]] == [
        "ib rocep1s0f0 roceP2p1s0f0",
        "socket",
        "unknown",
    ]


def test_what_runs_is_told_by_the_containers_by_host_where_they_differ() -> None:
    other = {**STATE, "model": "someone/other@4567"}
    assert runs({"spark-a": STATE, "spark-b": None}, "model") == "someone/model@0123"
    assert (
        runs({"spark-a": STATE, "spark-b": other}, "model")
        == "someone/model@0123 on spark-a, someone/other@4567 on spark-b"
    )
    assert runs({"spark-a": {**STATE, "model": ""}}, "model") == "nothing runs"
    assert runs({"spark-a": None}, "model") == "unknown"


def test_a_host_that_tells_nothing_says_why() -> None:
    bare = {
        "rc": 2,
        "stdout": "",
        "stderr": "python3: can't open file '/usr/rank_ctl.py': [Errno 2] No such file or directory",
    }
    lines = status({"spark-a": bare, "spark-b": GONE}, "", {"unit": ""}, "rdma", {}).splitlines()
    assert "supervisor: unknown" in lines and "recipe: unknown" in lines
    assert lines[-2:] == [
        "spark-a: nothing is installed here: run site.yml",
        "spark-b: ssh: connect to host spark-b port 22: No route to host",
    ]
