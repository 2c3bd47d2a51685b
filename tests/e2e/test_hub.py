"""The hub refuses, breaks off, or the person at the terminal does: nothing is lost, and no finished file is fetched twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Play = Callable[..., Any]
Command = Callable[..., str]

SHARD = "model-00002-of-00004.safetensors"


def sizes(command: Command, host: str, folder: str) -> dict[str, int]:
    """Size of each file of the snapshot, links followed."""
    found = command(host, f"find -L {folder}/hub/models--*/snapshots -type f -printf '%f %s\\n'")
    return {name: int(size) for name, size in (line.split() for line in found.splitlines())}


def test_a_hub_that_refuses_is_told_before_anything_slow(play: Play, hub: Any, empty: str) -> None:
    hub.fault(kind="status", status=401, match="/api/models/", times=9)
    run = play("site.yml", weights_hf_home=empty)
    assert run.status == "failed"
    assert "401" in run.failure
    assert "token" in run.failure
    assert "Look for the image" not in run.tasks


def test_a_revision_that_the_hub_lacks_is_told_before_anything_slow(play: Play, empty: str) -> None:
    run = play("site.yml", weights_hf_home=empty, recipe_overrides={"model": {"revision": "0" * 40}})
    assert run.status == "failed"
    assert "404" in run.failure
    assert "0" * 40 in run.failure
    assert "Look for the image" not in run.tasks


def test_a_cut_connection_goes_on_where_it_stopped(play: Play, hub: Any, empty: str, command: Command) -> None:
    hub.fault(kind="cut", match=SHARD, after=20_000_000, times=2)
    hub.fault(kind="status", match="model-00003", status=429, retry_after=1)
    run = play("site.yml", tags="download", weights_hf_home=empty)
    assert run.status == "successful", run.failure
    wanted, sent = sizes(command, "spark-a", empty), hub.sent()
    # A cut loses the piece that was on its way, 1 MiB at most.
    assert wanted[SHARD] <= sent.pop(SHARD) <= wanted.pop(SHARD) + 2 * 2**20
    assert sent == wanted


def test_a_download_that_is_interrupted_goes_on(
    play: Play, interrupt: Callable[..., str], hub: Any, empty: str, command: Command
) -> None:
    hub.fault(kind="rate", match="safetensors", after=15_000_000, times=100)
    interrupt("site.yml", "download", lambda: "config.json" in hub.sent(), weights_hf_home=empty)
    run = play("site.yml", tags="download", weights_hf_home=empty)
    assert run.status == "successful", run.failure
    assert hub.sent() == sizes(command, "spark-a", empty)


def test_a_copy_that_is_interrupted_goes_on(
    play: Play, interrupt: Callable[..., str], empty: str, command: Command
) -> None:
    assert play("site.yml", tags="download", weights_hf_home=empty).status == "successful"
    blobs = f"ls {empty}/hub/models--*/blobs/* 2>/dev/null | wc -l"
    interrupt("site.yml", "sync", lambda: command("spark-b", blobs) != "0", weights_hf_home=empty)
    run = play("site.yml", tags="sync", weights_hf_home=empty)
    assert run.status == "successful", run.failure
    assert sizes(command, "spark-b", empty) == sizes(command, "spark-a", empty)
    assert play("site.yml", tags="sync", weights_hf_home=empty).changed == {}
