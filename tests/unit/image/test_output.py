"""What Docker's client prints, as progress."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from unit.image.engine import running

from ansible_collections.tandem.serving.plugins.module_utils import _docker_api
from ansible_collections.tandem.serving.plugins.module_utils._image_output import Layers, Steps, follow
from ansible_collections.tandem.serving.plugins.module_utils._progress import Progress

# The API of Docker 26.1 while it pulls: status, layer, current, total.
PULL: list[tuple[str, str, int, int]] = [
    ("Pulling from tandem/engine", "sha256:6f19fa17", 0, 0),
    ("Already exists", "7c0f29b0dcb4", 0, 0),
    ("Pulling fs layer", "8300f0615be6", 0, 0),
    ("Pulling fs layer", "5ecd6253c248", 0, 0),
    ("Downloading", "8300f0615be6", 500, 600),
    ("Downloading", "5ecd6253c248", 100, 1000),
    ("Verifying Checksum", "8300f0615be6", 0, 0),
    ("Download complete", "8300f0615be6", 0, 0),
    ("Extracting", "8300f0615be6", 300, 600),
    ("Download complete", "5ecd6253c248", 0, 0),
    ("Pull complete", "8300f0615be6", 0, 0),
    ("Extracting", "5ecd6253c248", 10, 1000),
    ("Pull complete", "5ecd6253c248", 0, 0),
    ("Status: Downloaded newer image", "", 0, 0),
]
# After so many of them: phase, done, total, item, items.
PULLED = [
    (1, ("download", 0, 0, 0, 0)),
    (4, ("download", 0, 0, 1, 3)),
    (6, ("download", 600, 1600, 1, 3)),
    (8, ("download", 700, 1600, 2, 3)),
    (10, ("unpack", 300, 1600, 1, 3)),
    (12, ("unpack", 610, 1600, 2, 3)),
    (14, ("unpack", 1600, 1600, 3, 3)),
]
# docker buildx 0.13.1 build --progress=plain
BUILD = """\
#0 building with "default" instance using docker driver

#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 88B done
#1 DONE 0.1s

#2 [internal] load .dockerignore
#2 DONE 0.1s

#3 [builder 1/2] FROM localhost/base:1
#3 CACHED

#4 [builder 2/2] RUN make
#4 0.342 compiling [ 50%] kernels.cu
#4 12.10 #3 is no step
"""


def event(status: str, layer: str, current: int, total: int) -> dict[str, Any]:
    detail = {"current": current, "total": total} if total else {}
    return {"status": status, "progressDetail": detail, **({"id": layer} if layer else {})}


@pytest.mark.parametrize(("events", "expected"), PULLED)
def test_pull(events: int, expected: tuple[Any, ...]) -> None:
    layers = Layers()
    for item in PULL[:events]:
        layers.event(event(*item))
    state = layers.state()
    assert tuple(state[key] for key in ("phase", "done", "total", "item", "items")) == expected


def test_load() -> None:
    layers = Layers()
    layers.event(event("Loading layer", "64bd3537b393", 300, 1000))
    layers.event({"stream": "Loaded image: engine:1"})
    state = layers.state()
    assert (state["phase"], state["done"], state["total"]) == ("unpack", 300, 1000)


def test_build() -> None:
    steps = Steps()
    for line in BUILD.splitlines():
        steps.line(line)
    assert steps.state() == {"item": 3, "items": 4, "current": "[builder 2/2] RUN make"}


def test_follow(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    progress = Progress(str(state), "build")
    code, last = follow(["sh", "-c", f"printf '%s' '{BUILD}'; echo no such file >&2; exit 3"], progress)
    assert code == 3
    assert last[-1] == "no such file"
    progress.set(phase="ended")
    found = json.loads(state.read_text())
    assert (found["items"], found["done"]) == (4, len(BUILD.splitlines()) + 1)


def test_pull_asks_for_one_image(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        engine.answer = (200, [event(*PULL[0])])
        assert list(_docker_api.pull("registry:5000/engine", "user", "secret")) == [event(*PULL[0])]
        path, headers = engine.requests[0]
    assert path == "/images/create?fromImage=registry%3A5000%2Fengine%3Alatest"
    login = json.loads(base64.urlsafe_b64decode(headers["X-Registry-Auth"]))
    assert login == {"username": "user", "password": "secret"}


@pytest.mark.parametrize(
    ("status", "events", "said"),
    [
        (404, [{"message": "manifest unknown"}], "Docker answers 404: .*manifest unknown"),
        (200, [{"status": "Pulling fs layer", "id": "a"}, {"error": "unexpected EOF"}], "Docker says: unexpected EOF"),
    ],
)
def test_pull_that_fails(monkeypatch: pytest.MonkeyPatch, status: int, events: list[dict[str, Any]], said: str) -> None:
    with running() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        engine.answer = (status, events)
        with pytest.raises(_docker_api.DockerError, match=said):
            list(_docker_api.pull("engine:1"))


def test_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(_docker_api.DockerError, match="broke off at /images/create"):
        list(_docker_api.pull("engine:1"))
