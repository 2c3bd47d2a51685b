"""Four machines, with the stand-in's image in the rig's registry."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.conftest import ENVIRONMENT, play
from standin.dress import NODES

__all__ = ["archive", "command", "image", "machines", "play", "ship"]

HERE = Path(__file__).parent
IMAGE = "10.98.0.1:15000/tandem/standin:1"
# As the recipe and the inventory of four machines name them.
LOADED = "tensorfold-glm53:v0.6.0"
ARCHIVE = "/var/lib/tandem/tensorfold-glm53.tar"
# Enough for Python and a shell, small enough to be on its way for seconds only.
BASE = "bin lib lib64 usr/lib64 usr/lib/x86_64-linux-gnu usr/lib/python3.* usr/bin/python3* usr/bin/{chmod,dash,env,ln,mkdir,sh,touch}"


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two machines beside the rig's, and the folder with what SSH needs to know of all four."""
    home = tmp_path_factory.mktemp("machines")

    def make(state: str) -> None:
        words = [
            str(Path(sys.executable).with_name("ansible-playbook")),
            str(HERE / "machines.yml"),
            "-i",
            "localhost,",
        ]
        words += ["-e", json.dumps({"standin_home": str(home), "standin_state": state})]
        done = subprocess.run(words, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        make("present")
        yield home
    finally:
        make("absent")


@pytest.fixture(scope="session")
def command(machines: Path) -> Callable[..., str]:
    """Run a shell command as root on a node, with what it is given on standard input."""

    def run(host: str, words: str, given: bytes = b"") -> str:
        ssh = ["ssh", "-F", str(machines / "ssh/config"), f"10.98.0.{NODES[host]}"]
        done = subprocess.run(
            [*ssh, f"sudo sh -c {shlex.quote(words)}"], input=given, stdout=subprocess.PIPE, check=True
        )
        return done.stdout.decode().strip()

    return run


@pytest.fixture(scope="session")
def ship(command: Callable[..., str]) -> Callable[[str, Path, Path], None]:
    """Copy a folder to a place on a node."""

    def copy(host: str, folder: Path, place: Path) -> None:
        packed = subprocess.run(["tar", "-C", str(folder), "-c", "."], check=True, capture_output=True).stdout
        command(host, f"rm -rf {place} && mkdir -p {place} && tar -C {place} -x", packed)

    return copy


@pytest.fixture(scope="session")
def image(command: Callable[..., str], ship: Callable[[str, Path, Path], None]) -> Iterator[str]:
    """The stand-in's image by digest. Its base is a node's own Python."""
    place = Path("/var/tmp/tandem-standin-image")
    ship("spark-a", HERE / "image", place)
    command("spark-a", f"cd /; bash -c 'tar -c {BASE}' | docker import - tandem/standin-base")
    command("spark-a", f"docker build --quiet --build-arg BASE=tandem/standin-base --tag {IMAGE} {place}")
    command("spark-a", f"rm -r {place}; docker push --quiet {IMAGE}")
    yield command("spark-a", f"docker image inspect --format '{{{{index .RepoDigests 0}}}}' {IMAGE}")
    for host in list(NODES)[:2]:
        command(
            host,
            "docker images --quiet --filter label=tandem.standin | sort -u | xargs --no-run-if-empty docker rmi --force",
        )
    command("spark-a", "docker rmi tandem/standin-base")


@pytest.fixture(scope="session")
def archive(command: Callable[..., str], image: str) -> Iterator[None]:
    """The same image as somebody who builds the branch for four machines has it on the head."""
    command("spark-a", f"docker tag {image} {LOADED}; docker save --output {ARCHIVE} {LOADED}; docker rmi {LOADED}")
    yield
    command("spark-a", f"rm {ARCHIVE}")
