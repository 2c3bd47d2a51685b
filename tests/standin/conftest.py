"""The rig, dressed, with the stand-in's image in its registry."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.conftest import command, play

__all__ = ["command", "image", "play", "ship"]

HOSTS = {"spark-a": "10.98.0.11", "spark-b": "10.98.0.12"}
IMAGE = "10.98.0.1:15000/tandem/standin:1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
RIG = Path(os.environ.get("TANDEM_RIG_HOME") or CACHE / "tandem-rig")


@pytest.fixture
def ship() -> Callable[[str, Path, Path], None]:
    """Copy a folder to a place on a node."""

    def copy(host: str, folder: Path, place: Path) -> None:
        packed = subprocess.run(["tar", "-C", str(folder), "-c", "."], check=True, capture_output=True).stdout
        words = ["ssh", "-F", str(RIG / "ssh/config"), HOSTS[host]]
        unpack = f"sudo rm -rf {place} && sudo mkdir -p {place} && sudo tar -C {place} -x"
        subprocess.run([*words, unpack], input=packed, check=True)

    return copy


@pytest.fixture
def image(command: Callable[..., str], ship: Callable[[str, Path, Path], None]) -> str:
    """The stand-in's image by digest. Its base is the demo's engine."""
    place = Path("/var/tmp/tandem-standin-image")
    ship("spark-a", Path(__file__).parent / "image", place)
    base = command("spark-a", "docker images --quiet 10.98.0.1:15000/tandem/vllm-cpu | head -1")
    assert base, "no engine on spark-a: run `make demo`"
    command("spark-a", f"docker build --quiet --build-arg BASE={base} --tag {IMAGE} {place}")
    command("spark-a", f"rm -r {place}; docker push --quiet {IMAGE}")
    return command("spark-a", f"docker image inspect --format '{{{{index .RepoDigests 0}}}}' {IMAGE}")
