"""image_import against a real rsync daemon, configured by the role's own template, and killed at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.daemon import Daemon
from unit.image import graph
from unit.image.engine import Engine, running

from ansible_collections.tandem.serving.plugins.module_utils import _image_layout
from ansible_collections.tandem.serving.plugins.module_utils._image_store import GraphStore, Image

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
LAYERS = 6


class Head:
    """A host that offers an image of a few MiB. ``rate`` limits what it sends, in KiB a second."""

    def __init__(self, root: Path, rate: int) -> None:
        noise = random.Random(7)
        inspected, _tars = graph.make(
            root / "docker", [{f"file{number}": noise.randbytes(MIB)} for number in range(LAYERS)]
        )
        store = GraphStore(root / "docker", "overlay2")
        self.image: Image = store.image(inspected)
        self.out = root / "out"
        (self.out / _image_layout.BLOBS).mkdir(parents=True)
        self.files = _image_layout.small_files(self.image)
        for name, data in self.files.items():
            (self.out / name).write_bytes(data)
        for layer in self.image["layers"]:
            _image_layout.write_blob(layer, store.read(layer), self.out, lambda count: None)
        self.daemon = Daemon(root, "image", self.out, f"--bwlimit={rate}")


class Worker:
    """A host with a stand-in for Docker."""

    def __init__(self, root: Path, head: Head, engine: Engine) -> None:
        self.root, self.head, self.engine = root, head, engine
        self.spool = root / "in"
        self.spool.mkdir()
        (root / "bin").mkdir()
        # The client tags.
        (root / "bin/docker").write_text("#!/bin/sh\n")
        (root / "bin/docker").chmod(0o755)

    def start(self, password: str = "right", **more: Any) -> subprocess.Popen[str]:
        arguments = {
            "name": "localhost/tandem/test:1",
            "path": str(self.spool),
            "files": sorted(self.head.files),
            "layers": self.head.image["layers"],
            "sources": ["127.0.0.1"],
            "port": self.head.daemon.port,
            "share": self.head.daemon.share,
            "password": password,
            **more,
        }
        module = "ansible_collections.tandem.serving.plugins.modules.image_import"
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module],
            env={
                **os.environ,
                "DOCKER_HOST": self.engine.host,
                "PATH": f"{self.root}/bin:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT / "collections"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, **more: Any) -> dict[str, Any]:
        process = self.start(**more)
        text = process.communicate(timeout=120)[0]
        return dict(json.loads(text))

    def arrived(self) -> int:
        """Bytes in the spool. A file may get its final name while we look."""
        total = 0
        for path in self.spool.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size if path.is_file() else 0
        return total

    def whole(self) -> dict[str, int]:
        """The proven layers of the spool by name, with their inode, which changes when one is written anew."""
        blobs = self.spool / _image_layout.BLOBS
        layers = {Path(_image_layout.blob_path(layer["digest"])).name for layer in self.head.image["layers"]}
        return {path.name: path.stat().st_ino for path in blobs.glob("*") if path.name in layers}


@pytest.fixture
def head(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Head]:
    (tmp_path / "head").mkdir()
    made = Head(tmp_path / "head", getattr(request, "param", 0))
    yield made
    made.daemon.stop()


@pytest.fixture
def worker(tmp_path: Path, head: Head) -> Iterator[Worker]:
    (tmp_path / "worker").mkdir()
    with running() as engine:
        yield Worker(tmp_path / "worker", head, engine)


def test_ship(head: Head, worker: Worker) -> None:
    result = worker.run()
    assert result["changed"]
    assert result["bytes"] == sum(layer["size"] for layer in head.image["layers"])
    sent = {path.relative_to(head.out).as_posix(): path.read_bytes() for path in head.out.rglob("*") if path.is_file()}
    assert worker.engine.loaded == sent


def test_ship_of_one_missing_layer(head: Head, worker: Worker) -> None:
    result = worker.run(layers=head.image["layers"][-1:])
    assert result["bytes"] == head.image["layers"][-1]["size"]
    assert len(worker.engine.loaded) == len(head.files) + 1


@pytest.mark.parametrize("head", [4096], indirect=True)
def test_killed_at_any_moment(head: Head, worker: Worker) -> None:
    moments = random.Random(11)
    before: dict[str, int] = {}
    for _try in range(20):
        goal = worker.arrived() + moments.randrange(MIB // 2)
        process = worker.start(streams=2)
        while process.poll() is None and worker.arrived() < goal:
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        now = worker.whole()
        assert before.items() <= now.items()
        before = now
    assert before
    result = worker.run()
    assert result["changed"] and "msg" not in result
    assert before.items() <= worker.whole().items()
    assert len(worker.engine.loaded) == len(head.files) + LAYERS


def test_flipped_bit_in_a_cut_layer(head: Head, worker: Worker) -> None:
    layer = head.image["layers"][2]
    part = worker.spool / _image_layout.blob_path(layer["digest"])
    part.parent.mkdir(parents=True)
    part.with_suffix(".part").write_bytes(b"x" * 1000)
    failed = worker.run()
    assert f"blob {layer['digest']} arrived with the digest" in failed["msg"]
    assert worker.engine.loaded == {}
    assert worker.run()["bytes"] < sum(layer["size"] for layer in head.image["layers"])
    assert len(worker.engine.loaded) == len(head.files) + LAYERS


def test_wrong_password(worker: Worker) -> None:
    failed = worker.run(password="guessed")
    assert "refuses this host: @ERROR: auth failed on module image" in failed["msg"]


def test_no_daemon(head: Head, worker: Worker) -> None:
    head.daemon.stop()
    failed = worker.run()
    assert "localhost/tandem/test:1 cannot be loaded: 127.0.0.1" in failed["msg"]
    assert "Connection refused" in failed["msg"]


def test_what_docker_says(worker: Worker) -> None:
    worker.engine.answer = (200, [{"error": "no space left on device"}])
    assert worker.run()["msg"] == "localhost/tandem/test:1 cannot be loaded: Docker says: no space left on device"
    worker.engine.answer = (200, [])
    assert worker.run()["bytes"] == 0
