"""What Docker's client prints, as progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.tandem.serving.plugins.module_utils._image_output import Output, follow
from ansible_collections.tandem.serving.plugins.module_utils._progress import Progress

# docker 26.1 pull, not on a terminal.
PULL = """\
10.98.0.1:15000/tandem/engine@sha256:6f19fa17: Pulling from tandem/engine
7c0f29b0dcb4: Already exists
5bdbe2f3f3a8: Pulling fs layer
1a2b3c4d5e6f: Pulling fs layer
1a2b3c4d5e6f: Waiting
5bdbe2f3f3a8: Verifying Checksum
5bdbe2f3f3a8: Download complete
5bdbe2f3f3a8: Pull complete
"""
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


@pytest.mark.parametrize(
    ("text", "done", "items", "current"),
    [
        pytest.param("", 0, 0, "", id="nothing"),
        pytest.param(PULL, 2, 3, "5bdbe2f3f3a8: Pull complete", id="pull"),
        pytest.param(BUILD, 3, 5, "[builder 2/2] RUN make", id="build"),
        pytest.param("Loaded image: engine:1\n", 0, 0, "", id="load"),
    ],
)
def test_progress(text: str, done: int, items: int, current: str) -> None:
    output = Output()
    for line in text.splitlines():
        output.line(line)
    assert (output.done, output.items, output.current) == (done, items, current)


def test_follow(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    progress = Progress(str(state), "pull")
    code, last = follow(["sh", "-c", f"printf '%s' '{PULL}'; echo no such manifest >&2; exit 3"], progress)
    assert code == 3
    assert last[-1] == "no such manifest"
    progress.set(phase="ended")
    assert json.loads(state.read_text())["items"] == 3
