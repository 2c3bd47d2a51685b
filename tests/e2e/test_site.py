"""The whole job on the local pair, then everything that may go wrong with it. The tests share the two machines and run in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

INVENTORY = Path(__file__).resolve().parents[2] / "inventories" / "local_pair"

Play = Callable[..., Any]
Command = Callable[..., str]


def checks_of(run: Any) -> list[dict[str, Any]]:
    """All checks of the report that the run wrote."""
    hosts = json.loads(Path("report/report.json").read_text())["hosts"]
    assert run.results("Write the report")
    return [check for checks in hosts.values() for check in checks]


def test_one_playbook_ends_with_an_answer_and_every_check_passes(play: Play) -> None:
    run = play("site.yml")
    assert run.status == "successful", run.failure
    answers = run.results("Let the canary sing")[-1]["answers"]
    assert "Paris" in answers["answer"]["text"]
    verdicts = {check["verdict"] for check in checks_of(run)}
    assert verdicts <= {"pass", "warn"}
    assert [check["name"] for check in checks_of(run) if not check["evidence"]] == []


def test_a_second_run_changes_nothing(play: Play) -> None:
    run = play("site.yml")
    assert run.status == "successful", run.failure
    assert run.changed == {}


def test_check_mode_runs_through_and_changes_nothing(play: Play, command: Command) -> None:
    show = "systemctl show -p InvocationID tandem-rank"
    before = command("spark-a", show), command("spark-b", show)
    run = play("site.yml", check=True)
    assert run.status == "successful", run.failure
    assert run.changed == {}
    assert (command("spark-a", show), command("spark-b", show)) == before


def test_sync_alone_does_nothing_and_reads_no_contents(play: Play) -> None:
    run = play("site.yml", tags="sync")
    assert run.status == "successful", run.failure
    assert run.changed == {}
    (told,) = run.results("Tell that there is nothing to copy")
    assert "Nothing to copy" in told["msg"]


def test_the_worker_host_gets_the_same_answer_over_the_management_address(command: Command) -> None:
    body = json.dumps(
        {
            "model": "smollm2-135m",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 24,
            "temperature": 0,
        }
    )
    url = "http://10.98.0.11:8888/v1/chat/completions"
    out = command("spark-b", f"curl -s -H 'Content-Type: application/json' -d '{body}' {url}")
    assert "Paris" in out


def test_a_worker_out_of_reach_is_named(play: Play, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(
        "ranks: {hosts: {spark-b: {ansible_host: 10.98.0.99, ansible_ssh_common_args: '-o ConnectTimeout=3'}}}\n"
    )
    run = play("site.yml", inventory=[INVENTORY, inventory])
    assert run.status == "failed"
    assert "spark-b" in run.failure
    assert "10.98.0.99" in run.failure


def test_a_taken_port_is_found_before_anything_slow(play: Play, command: Command) -> None:
    command("spark-a", "systemd-run --unit squatter python3 -m http.server 8890")
    try:
        run = play("site.yml", recipe_overrides={"ports": {"api": 8890}})
    finally:
        command("spark-a", "systemctl stop squatter")
    assert run.status == "failed"
    assert "port_taken" in run.failure
    assert "python3" in run.failure
    assert "Pull the image" not in run.tasks


def test_a_disk_too_small_for_the_missing_bytes_is_found_before_the_download(play: Play, command: Command) -> None:
    command("spark-a", "mkdir -p /mnt/small && mount -t tmpfs -o size=100M tmpfs /mnt/small")
    try:
        run = play("site.yml", weights_hf_home="/mnt/small")
        assert command("spark-a", "find /mnt/small -type f | wc -l") == "0"
    finally:
        command("spark-a", "umount /mnt/small")
    assert run.status == "failed"
    assert "MiB" in run.failure or "GiB" in run.failure
    assert "/mnt/small" in run.failure


def test_a_refused_recipe_touches_no_host(play: Play) -> None:
    run = play("site.yml", recipe_overrides={"ports": {"api": 29521}})
    assert run.status == "failed"
    assert "one_port_for_two" in run.failure
    assert "Look at the host" not in run.tasks


def test_a_rank_that_crashes_at_start_shows_its_own_last_lines(play: Play) -> None:
    run = play(
        "site.yml",
        tags="start",
        recipe_overrides={"serve": {"max-model-len": 999999}},
        recipe_accept_risk=["context_over_model"],
    )
    assert run.status == "failed"
    assert "999999" in run.failure
    assert "ended" in run.failure


def test_the_next_run_mends_it_even_after_an_interrupted_one(
    play: Play, interrupt: Callable[..., str], command: Command
) -> None:
    interrupt("site.yml", "start", lambda: command("spark-a", "systemctl is-active tandem-rank || true") == "active")
    run = play("site.yml", tags="start,verify")
    assert run.status == "successful", run.failure


def test_a_corrupted_shard_on_the_worker_is_found_and_only_that_file_is_sent_again(
    play: Play, command: Command
) -> None:
    shard = "$(readlink -f /var/lib/tandem/huggingface/hub/models--*/snapshots/*/model-00002-of-*.safetensors)"
    command("spark-b", f"printf x | dd of={shard} bs=1 seek=4096 conv=notrunc status=none")
    run = play("site.yml", tags="sync", weights_verify=True)
    assert run.status == "successful", run.failure
    fetched = [result["wrong"] for result in run.results("Copy") if result.get("wrong")]
    assert fetched == [["model-00002-of-00004.safetensors"]]
    assert play("site.yml", tags="sync", weights_verify=True).changed == {}
