"""The playbooks for every day, on the local pair. The tests share the two machines and run in order."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Play = Callable[..., Any]
Command = Callable[..., str]
HOSTS = ("spark-a", "spark-b")
WRITE = "Write the configuration, the programs and the units"


def ask(prompt: str, tokens: int = 24, timeout: float = 120) -> str:
    """A chat completion over the management address."""
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    request = urllib.request.Request(
        "http://10.98.0.11:8888/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return str(json.loads(answer.read())["choices"][0]["message"]["content"])


def serves() -> bool:
    return "Paris" in ask("What is the capital of France?")


def units(command: Command) -> list[str]:
    """States of the supervisor and of both ranks."""
    return [
        command("spark-a", "systemctl is-active tandem-supervisor || true"),
        *(command(host, "systemctl is-active tandem-rank || true") for host in HOSTS),
    ]


def argument(command: Command, host: str) -> str:
    return command(host, "grep -o -- '--max-num-seqs [0-9]*' /etc/systemd/system/tandem-rank.service")


def state(command: Command, host: str) -> dict[str, Any]:
    return dict(json.loads(command(host, "python3 /usr/local/libexec/tandem/rank_ctl.py state")))


def shown(run: Any, task: str) -> str:
    """What a task showed."""
    return "\n".join(str(result["msg"]) for result in run.results(task) if result.get("msg"))


def changed_tasks(run: Any) -> set[str]:
    ended = ("runner_on_ok", "runner_item_on_ok")
    return {
        event["event_data"]["task"]
        for event in run.events
        if event["event"] in ended and event["event_data"]["res"].get("changed")
    }


def test_an_upgrade_restarts_once_and_only_for_a_change(play: Play, command: Command) -> None:
    assert play("site.yml").status == "successful"
    before = [state(command, host)["invocation"] for host in HOSTS]
    assert play("playbooks/upgrade.yml").changed == {}
    assert [state(command, host)["invocation"] for host in HOSTS] == before
    run = play("playbooks/upgrade.yml", recipe_overrides={"serve": {"max-num-seqs": 3}})
    assert run.status == "successful", run.failure
    assert [argument(command, host) for host in HOSTS] == ["--max-num-seqs 3"] * 2
    assert serves()
    # What has to change for other arguments, and nothing beside.
    written = {path for result in run.results(WRITE) for path in result["written"]}
    assert written == {"/etc/systemd/system/tandem-rank.service", "/etc/tandem/rank.json"}
    assert changed_tasks(run) == {
        WRITE,
        "Stop the supervisor, so that it does not start them again",
        "Stop the head",
        "Stop the workers",
        "Start the ranks, the head last",
        "Let the supervisor come with the next boot",
        "Keep the configuration that serves",
        "Let the supervisor keep the ranks together",
    }


def test_one_command_returns_to_the_configuration_before(play: Play, command: Command) -> None:
    preview = play("playbooks/rollback.yml", check=True)
    assert preview.changed == {} and "back to" in shown(preview, "Tell where this goes")
    run = play("playbooks/rollback.yml")
    assert run.status == "successful", run.failure
    assert [argument(command, host) for host in HOSTS] == ["--max-num-seqs 4"] * 2
    assert serves()
    assert units(command) == ["active"] * 3
    again = play("playbooks/rollback.yml")
    assert again.status == "successful" and again.changed == {}


def test_a_configuration_that_never_served_is_left_behind_as_well(play: Play, command: Command) -> None:
    # More memory is to stay free than any host has: the watch ends the ranks while they load.
    greedy = {"serve": {"max-num-seqs": 3}, "memory": {"floor_gib": 99999}}
    run = play("playbooks/upgrade.yml", recipe_overrides=greedy)
    assert run.status == "failed"
    assert "GiB of memory were left, less than 99999 GiB" in run.failure
    assert play("playbooks/rollback.yml").status == "successful"
    assert serves()
    assert len({state(command, host)["set"] for host in HOSTS}) == 1


def test_a_restart_restarts_all_and_what_is_refused_stops_nothing(play: Play, command: Command) -> None:
    before = [state(command, host)["invocation"] for host in HOSTS]
    refused = play("playbooks/restart.yml", recipe_overrides={"ports": {"api": 70000}})
    assert refused.status == "failed" and "70000" in refused.failure
    assert [state(command, host)["invocation"] for host in HOSTS] == before
    run = play("playbooks/restart.yml")
    assert run.status == "successful", run.failure
    assert not {state(command, host)["invocation"] for host in HOSTS} & set(before)
    assert serves()


def test_logs_are_those_of_the_rank_asked_for(play: Play) -> None:
    lines = shown(play("playbooks/logs.yml", rank=1, lines=30), "Show the lines").splitlines()
    assert len(lines) == 30 and all(" rank 1 | " in line for line in lines)
    merged = shown(play("playbooks/logs.yml", lines=30), "Show the lines").splitlines()
    assert {line.split(" | ")[0].split(" ", 2)[2] for line in merged} >= {"rank 0", "rank 1"}
    assert merged == sorted(merged, key=lambda line: line[:18])
    followed = play("playbooks/logs.yml", rank=0, lines=5, follow=True, seconds=2).progress()
    assert sum(" rank 0 | " in line or " supervisor | " in line for line in followed) >= 5


def test_a_planned_stop_is_not_healed(play: Play, command: Command) -> None:
    assert play("playbooks/stop.yml").status == "successful"
    time.sleep(25)
    assert units(command) == ["inactive"] * 3
    assert play("playbooks/stop.yml").changed == {}
    assert play("playbooks/start.yml").status == "successful"
    assert serves()


def test_a_drain_waits_for_the_request_that_runs(play: Play, command: Command) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, "Write a long story about a lighthouse.", 1200)
        time.sleep(1)
        run = play("playbooks/drain.yml", rank_drain_seconds="600")
        assert run.status == "successful", run.failure
        assert running.done() and running.result()
    assert units(command) == ["inactive"] * 3
    assert play("playbooks/start.yml").status == "successful"


def test_a_change_by_hand_on_one_host_is_found_before_the_next_start_and_named(play: Play, command: Command) -> None:
    command("spark-b", "echo VLLM_LOGGING_LEVEL=DEBUG >> /etc/tandem/rank.env; docker stop tandem-rank")
    for _ in range(60):
        if units(command)[0] == "failed":
            break
        time.sleep(1)
    told = shown(play("playbooks/status.yml"), "Show the ranks")
    assert "supervisor (failed): give_up, /etc/tandem/rank.env on spark-b changed since site.yml wrote it" in told
    run = play("playbooks/start.yml")
    assert run.status == "successful", run.failure
    assert serves()
    assert state(command, "spark-b")["changed"] == []


def test_a_reset_leaves_the_weights_and_nothing_else(play: Play, command: Command) -> None:
    preview = play("playbooks/reset.yml", check=True)
    assert preview.status == "successful", preview.failure
    assert units(command) == ["active"] * 3
    run = play("playbooks/reset.yml")
    assert run.status == "successful", run.failure
    for host in HOSTS:
        assert command(host, "ls /var/lib/tandem") == "huggingface"
        left = "ls -d /etc/tandem /usr/local/libexec/tandem /opt/tandem /etc/systemd/system/tandem* 2>/dev/null || true"
        assert command(host, left) == ""
        assert command(host, "docker images --quiet 'localhost/tandem/*'") == ""
    assert play("playbooks/reset.yml").changed == {}
    told = shown(play("playbooks/status.yml"), "Show the ranks")
    assert told.count("cannot be asked") == 2 and "supervisor (inactive)" in told
    assert told.count("nothing is installed here: run site.yml") == 2
    back = play("site.yml")
    assert back.status == "successful", back.failure
    assert serves()
