"""A download and a copy, killed at random points and run again, until they are through."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hub.server import Repo
from unit.daemon import Daemon, free_port

from ansible_collections.tandem.serving.plugins.module_utils import _hub
from ansible_collections.tandem.serving.plugins.module_utils._manifest import File, to_dicts
from ansible_collections.tandem.serving.plugins.module_utils._progress import Progress
from ansible_collections.tandem.serving.plugins.module_utils._snapshot import Snapshot
from ansible_collections.tandem.serving.plugins.modules import hf_snapshot, snapshot_sync

REPO = "org/model"
MIB = 2**20
KILLS = 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / REPO
    folder.mkdir(parents=True)
    for number in range(6):
        (folder / f"model-{number}.safetensors").write_bytes(random.Random(number).randbytes(8 * MIB))
    return tmp_path / "root"


@pytest.fixture
def hub(tmp_path: Path, root: Path) -> Iterator[str]:
    """A process of its own, since this one forks."""
    server, port = Path(__file__).parents[2] / "hub" / "server.py", free_port()
    words = [sys.executable, str(server), f"--root={root}", f"--port={port}", f"--log={tmp_path / 'access'}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
        process.terminate()


def listing(root: Path) -> list[File]:
    return [File(file.path, file.size, file.oid, file.git_oid) for file in Repo(root / REPO).files.values()]


def blobs(cache: Path) -> dict[str, int]:
    """Complete blobs and when they were made."""
    return {path.name: path.stat().st_mtime_ns for path in cache.glob("*/blobs/*") if not path.suffix}


def size(cache: Path) -> int:
    total = 0
    for path in cache.glob("*/blobs/*"):
        # A part may take its name just now.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def in_a_session(work: Callable[[], object]) -> None:
    os.setsid()
    work()


def kill_often(work: Callable[[], object], cache: Path) -> None:
    """Kill the work soon after it began to write, again and again; then let it end."""
    chance = random.Random(1)
    for _kill in range(KILLS):
        known, before = blobs(cache), size(cache)
        process = multiprocessing.get_context("fork").Process(target=in_a_session, args=(work,))
        process.start()
        while process.is_alive() and size(cache) == before:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        assert known.items() <= blobs(cache).items(), "what was complete stays as it was"
    work()


def same(root: Path, cache: Path, revision: str) -> bool:
    folder = Snapshot(cache, REPO, revision).path
    return all(
        (folder / file.path).read_bytes() == file.source.read_bytes() for file in Repo(root / REPO).files.values()
    )


def test_a_download_ends_in_spite_of_twenty_kills(hub: str, root: Path, tmp_path: Path) -> None:
    revision = Repo(root / REPO).revision
    params = {
        "repo": REPO,
        "revision": revision,
        "cache_dir": str(tmp_path / "cache"),
        "allow": [],
        "ignore": [],
        "fallback_repo": None,
        "fallback_trusted": False,
        "workers": 2,
        "state": "present",
    }
    work = hf_snapshot.Task(params, _hub.Hub(hub, None), Progress(None, "look"), False).run
    kill_often(work, tmp_path / "cache")
    assert same(root, tmp_path / "cache", revision)
    lines = [json.loads(line) for line in (tmp_path / "access").read_text().splitlines()]
    assert any(line["range"] for line in lines), "files went on where they stopped"


@pytest.fixture
def head(root: Path, tmp_path: Path) -> Iterator[Daemon]:
    cache = Snapshot(tmp_path / "head", REPO, Repo(root / REPO).revision)
    cache.blobs.mkdir(parents=True)
    for file in listing(root):
        cache.blob(file).write_bytes((root / REPO / file.path).read_bytes())
        cache.link(file)
    daemon = Daemon(tmp_path, "weights", tmp_path / "head", "--bwlimit=20000")
    yield daemon
    daemon.stop()


def copy(root: Path, tmp_path: Path, daemon: Daemon) -> Callable[[], object]:
    params = {
        "repo": REPO,
        "revision": Repo(root / REPO).revision,
        "cache_dir": str(tmp_path / "worker"),
        "manifest": to_dicts(listing(root)),
        "sources": ["127.0.0.1"],
        "port": daemon.port,
        "share": daemon.share,
        "password": "right",
        "streams": 2,
        "verify": False,
    }
    return partial(snapshot_sync.sync, params, Progress(None, "look"), False)


def test_a_copy_ends_in_spite_of_twenty_kills(root: Path, tmp_path: Path, head: Daemon) -> None:
    kill_often(copy(root, tmp_path, head), tmp_path / "worker")
    assert same(root, tmp_path / "worker", Repo(root / REPO).revision)
    assert sum(head.sent().values()) < 1.5 * sum(file.size for file in listing(root))


def test_what_a_killed_copy_leaves_running_is_waited_for(root: Path, tmp_path: Path, head: Daemon) -> None:
    work = copy(root, tmp_path, head)
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    while size(tmp_path / "worker") < MIB:
        time.sleep(0.002)
    process.kill()
    process.join()
    work()
    assert same(root, tmp_path / "worker", Repo(root / REPO).revision)
    assert sum(head.sent().values()) < 1.01 * sum(file.size for file in listing(root)), "no byte came twice"
