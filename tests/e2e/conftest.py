"""Run the product's playbooks through ansible-runner, as AWX does, and look at the events."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ansible_runner
import pytest

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "inventories" / "local_pair"


class Run:
    """One run of a playbook. Everything a test asks for comes from event data, never from what was printed."""

    def __init__(self, runner: Any) -> None:
        self.status: str = runner.status
        self.stats: dict[str, dict[str, int]] = runner.stats or {}
        self.events: list[dict[str, Any]] = list(runner.events)

    def results(self, task: str = "") -> list[dict[str, Any]]:
        """What the tasks of this name returned."""
        ended = ("runner_on_ok", "runner_on_failed", "runner_item_on_ok", "runner_item_on_failed")
        found = [event["event_data"] for event in self.events if event["event"] in ended]
        return [data["res"] for data in found if task in data.get("task", "")]

    @property
    def changed(self) -> dict[str, int]:
        """Number of changed tasks by host."""
        return dict(self.stats.get("changed", {}))

    @property
    def failure(self) -> str:
        """The messages of all failed tasks and unreachable hosts."""
        bad = ("runner_on_failed", "runner_item_on_failed", "runner_on_unreachable")
        found = [event["event_data"] for event in self.events if event["event"] in bad]
        return "\n".join(
            f"{data['host']}: {data['res'].get('msg', data['res'])}" for data in found if not data.get("ignore_errors")
        )

    @property
    def tasks(self) -> set[str]:
        """Names of the tasks that ran on a host."""
        return {event["event_data"]["task"] for event in self.events if event["event"] == "runner_on_ok"}

    def progress(self) -> list[str]:
        """The lines that long tasks printed while they ran."""
        return [event["stdout"] for event in self.events if event["event"] == "verbose" and event["stdout"]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Run]:
    """Run a playbook of the repository on the local pair."""

    def run(
        playbook: str, tags: str = "", inventory: Sequence[Path] = (INVENTORY,), check: bool = False, **extra: Any
    ) -> Run:
        work = tmp_path / "runner"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        return Run(
            ansible_runner.run(
                private_data_dir=str(work),
                project_dir=str(ROOT),
                playbook=playbook,
                inventory=[str(place) for place in inventory],
                tags=tags or None,
                extravars=extra,
                cmdline="--check" if check else None,
                envvars={
                    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                    "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
                },
                quiet=True,
            )
        )

    return run


@pytest.fixture
def command() -> Callable[..., str]:
    """Run a shell command as root on one of the two machines."""
    home = (
        os.environ.get("TANDEM_RIG_HOME")
        or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tandem-rig"
    )
    addresses = {"spark-a": "10.98.0.11", "spark-b": "10.98.0.12"}

    def run(host: str, words: str) -> str:
        ssh = ["ssh", "-F", f"{home}/ssh/config", addresses[host]]
        done = subprocess.run([*ssh, f"sudo sh -c {shlex.quote(words)}"], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return run
