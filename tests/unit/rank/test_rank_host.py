"""What a host has to bring before its rank starts."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "roles/rank/files"))
rank_host: Any = importlib.import_module("rank_host")

GIB = 1 << 30


def test_files_changed_or_lost_are_named(tmp_path: Path) -> None:
    files = {}
    for name in ("same", "other", "lost"):
        (tmp_path / name).write_text("written")
        files[str(tmp_path / name)] = hashlib.sha256(b"written").hexdigest()
    (tmp_path / "other").write_text("by hand")
    (tmp_path / "lost").unlink()
    assert rank_host.changed_files(files) == [str(tmp_path / "lost"), str(tmp_path / "other")]


def test_links_that_carry_nothing_are_named(tmp_path: Path) -> None:
    for netdev, state in {"up0": "up", "dumb0": "unknown", "cut0": "lowerlayerdown"}.items():
        (tmp_path / netdev).mkdir()
        (tmp_path / netdev / "operstate").write_text(f"{state}\n")
    states = rank_host.link_states(["up0", "dumb0", "cut0", "gone0"], tmp_path)
    assert rank_host.links_down(states) == ["cut0 is lowerlayerdown", "gone0 is missing"]


@pytest.fixture
def infiniband(tmp_path: Path) -> Path:
    """Two devices. The address of the first is at 3 and, as RoCE v1, at 2; that of the second at 5."""
    for hca, entries in {
        "rocep1s0f0": {0: ("zzzz", "RoCE v2"), 2: ("c0a8:6401", "IB/RoCE v1"), 3: ("c0a8:6401", "RoCE v2")},
        "roceP2p1s0f0": {5: ("c0a8:6501", "RoCE v2"), 10: ("c0a8:6502", "RoCE v2")},
    }.items():
        port = tmp_path / hca / "ports/1"
        (port / "gids").mkdir(parents=True)
        (port / "gid_attrs/types").mkdir(parents=True)
        for index, (tail, kind) in entries.items():
            (port / "gids" / str(index)).write_text(f"0000:0000:0000:0000:0000:ffff:{tail}\n")
            (port / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")
    return tmp_path


def rail(hca: str, address: str) -> dict[str, str]:
    return {"hca": hca, "netdev": "enp1s0f0np0", "address": address}


def test_the_index_is_that_of_the_address_now(infiniband: Path) -> None:
    assert rank_host.gid_index("rocep1s0f0", "192.168.100.1", infiniband) == 3
    assert rank_host.gid_index("roceP2p1s0f0", "192.168.101.2", infiniband) == 10
    one = rail("rocep1s0f0", "192.168.100.1")
    assert rank_host.gid_environment([one], infiniband) == "NCCL_IB_GID_INDEX=3\n"


def test_rails_with_other_indexes_leave_the_choice_to_nccl(infiniband: Path) -> None:
    rails = [rail("rocep1s0f0", "192.168.100.1"), rail("roceP2p1s0f0", "192.168.101.1")]
    assert rank_host.gid_environment(rails, infiniband) == "NCCL_IB_GID_INDEX=\n"


def test_without_rdma_there_is_nothing_to_say(infiniband: Path) -> None:
    assert rank_host.gid_environment([], infiniband) == ""


def test_an_address_without_gid_refuses_the_start(infiniband: Path) -> None:
    with pytest.raises(rank_host.RefusedError, match=r"rocep1s0f0 has no RoCE v2 GID of 10\.0\.0\.1.*enp1s0f0np0"):
        rank_host.gid_environment([rail("rocep1s0f0", "10.0.0.1")], infiniband)


def memory(*available: float) -> Any:
    looks = iter(available)
    last = available[-1]
    return lambda: {"MemTotal": 120 * GIB, "MemAvailable": int(next(looks, last) * GIB)}


def test_it_waits_for_what_the_rank_before_gives_back() -> None:
    slept: list[float] = []
    asked = {"share": 0.85, "gib": 0}
    assert rank_host.free_memory(asked, memory(90, 95, 103), slept.append) == 103 * GIB
    assert len(slept) == 2


@pytest.mark.parametrize(
    ("asked", "needed"), [({"share": 0.85, "gib": 0}, "102.0"), ({"share": 0, "gib": 104}, "104.0")]
)
def test_too_little_memory_refuses_the_start(asked: dict[str, float], needed: str) -> None:
    with pytest.raises(rank_host.RefusedError, match=f"expected {needed} GiB of free memory, found 101.5 GiB"):
        rank_host.free_memory(asked, memory(101.5), lambda _: None)


def test_memory_that_a_killed_rank_kept_is_noticed_until_the_next_boot(tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    assert rank_host.leaked(110 * GIB, "boot-1", file) == 0
    assert rank_host.leaked(105 * GIB, "boot-1", file) == 0
    assert rank_host.leaked(89 * GIB, "boot-1", file) == 21.0
    assert rank_host.leaked(108 * GIB, "boot-2", file) == 0
    assert json.loads(file.read_text()) == {"boot": "boot-2", "available": 108 * GIB}


def test_what_a_full_disk_cannot_keep_is_no_reason_not_to_start(tmp_path: Path) -> None:
    assert rank_host.leaked(110 * GIB, "boot-1", tmp_path / "gone" / "memory.json") == 0


def test_memory_has_to_be_short_for_a_while() -> None:
    slept: list[float] = []
    told = rank_host.wait_for_shortage(0.75, memory(8, 0.5, 0.5, 2, 0.6, 0.5, 0.4), slept.append)
    assert told.startswith("0.40 GiB of memory were left, less than 0.75 GiB") and len(slept) == 7


def test_the_logs_of_the_last_starts_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"start-{number}").mkdir()
        (tmp_path / f"start-{number}" / "spark_1.log").write_text("NCCL INFO")
        os.utime(tmp_path / f"start-{number}", (number, number))
    rank_host.forget(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["start-3", "start-4"]
    rank_host.forget(tmp_path / "none", 2)


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """An API and its engine, and a docker that asks the engine to end and waits for both."""
    found = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    pids = [str(process.pid) for process in found]
    living = f"ps -o pid,stat,args -p {','.join(pids)} | grep -v ' Z'"
    docker = tmp_path / "docker"
    docker.write_text(
        f"#!/bin/sh\ncase $1 in top) {living} ;; "
        f"stop) kill -TERM {pids[1]}; while {living} | grep -q sleep; do sleep 0.1; done ;; esac\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(rank_host, "ALONE", 1)
    yield found
    for process in found:
        process.kill()


def test_a_frozen_engine_hears_that_it_has_to_end_and_a_lonely_api_is_killed(
    rank: list[subprocess.Popen[bytes]],
) -> None:
    api, engine = rank
    engine.send_signal(signal.SIGSTOP)
    rank_host.end("tandem-rank", 60, has_api=True)
    assert [api.wait(10), engine.wait(10)] == [-signal.SIGKILL, -signal.SIGTERM]


def test_nothing_is_killed_while_the_engine_ends(
    rank: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, engine = rank
    monkeypatch.setattr(rank_host, "ALONE", 30)
    told: list[Any] = []
    monkeypatch.setattr(rank_host, "tell", lambda pids, what: told.append((list(pids), what)))
    threading.Timer(2, api.terminate).start()
    rank_host.end("tandem-rank", 60, has_api=True)
    assert told == [([], signal.SIGCONT)]
    assert [api.wait(10), engine.wait(10)] == [-signal.SIGTERM] * 2


def test_an_engine_of_one_process_is_never_killed_however_long_its_helper_is_gone(
    rank: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, helper = rank
    told: list[Any] = []
    monkeypatch.setattr(rank_host, "tell", lambda pids, what: told.append(what))
    threading.Timer(3, engine.terminate).start()
    rank_host.end("tandem-rank", 60, has_api=False)
    assert told == [signal.SIGCONT]
    assert [engine.wait(10), helper.wait(10)] == [-signal.SIGTERM] * 2
