"""Run the product's playbooks through ansible-runner, as AWX does, and look at the events."""

from __future__ import annotations

import collections
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ansible_runner
import pytest

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "inventories" / "local_pair"
ENVIRONMENT = {
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
}
RIG = Path(
    os.environ.get("TANDEM_RIG_HOME") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tandem-rig"
)


class Run:
    """One run of a playbook. Everything a test asks for comes from event data, never from what was printed."""

    def __init__(self, runner: Any) -> None:
        self.status: str = runner.status
        self.stats: dict[str, dict[str, int]] = runner.stats or {}
        self.events: list[dict[str, Any]] = list(runner.events)
        self.printed: str = runner.stdout.read()

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
        """The messages of all failed tasks and unreachable hosts, or what was printed where no task failed."""
        bad = ("runner_on_failed", "runner_item_on_failed", "runner_on_unreachable")
        found = [event["event_data"] for event in self.events if event["event"] in bad]
        messages = [
            f"{data['host']}: {data['res'].get('msg', data['res'])}" for data in found if not data.get("ignore_errors")
        ]
        return "\n".join(messages) or self.printed

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
                envvars=ENVIRONMENT,
                quiet=True,
            )
        )

    return run


@pytest.fixture
def command() -> Callable[..., str]:
    """Run a shell command as root on one of the two machines."""
    addresses = {"spark-a": "10.98.0.11", "spark-b": "10.98.0.12"}

    def run(host: str, words: str) -> str:
        ssh = ["ssh", "-F", f"{RIG}/ssh/config", addresses[host]]
        done = subprocess.run([*ssh, f"sudo sh -c {shlex.quote(words)}"], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return run


@pytest.fixture
def interrupt() -> Callable[..., str]:
    """Run a playbook in a terminal of its own, press Ctrl-C as soon as something is true, and return what it printed."""

    def run(playbook: str, tags: str, when: Callable[[], bool], **extra: Any) -> str:
        words = [playbook, "-i", INVENTORY, "--tags", tags, "-e", json.dumps(extra)]
        with subprocess.Popen(
            [Path(sys.executable).with_name("ansible-playbook"), *words],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as playing:
            while not when():
                assert playing.poll() is None, playing.communicate()[0]
                time.sleep(0.1)
            os.killpg(playing.pid, signal.SIGINT)
            return playing.communicate()[0]

    return run


class Hub:
    """The rig's hub: what goes wrong there, and how much of each file it sent since the test began."""

    url = "http://10.98.0.1:18080"

    def __init__(self) -> None:
        self._log = RIG / "run" / "hub-access.jsonl"
        self._begin = self._log.stat().st_size

    def fault(self, **fault: Any) -> None:
        """The next requests fail so. See tests/hub/README.md."""
        self._ask("POST", json.dumps(fault).encode())

    def forget(self) -> None:
        """Let everything go well again."""
        self._ask("DELETE", None)

    def _ask(self, method: str, body: bytes | None) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/_faults", body, method=method)).close()

    def sent(self) -> dict[str, int]:
        """Bytes of each file that went out."""
        total: dict[str, int] = collections.defaultdict(int)
        with self._log.open() as log:
            log.seek(self._begin)
            for line in log:
                entry = json.loads(line)
                if entry["sent"]:
                    total[entry["path"].rsplit("/", 1)[-1]] += entry["sent"]
        return dict(total)


@pytest.fixture
def hub() -> Iterator[Hub]:
    """The rig's hub, with no fault left behind."""
    found = Hub()
    yield found
    found.forget()


@pytest.fixture
def empty(command: Callable[..., str]) -> Iterator[str]:
    """A folder for weights that neither host has yet."""
    folder = "/var/lib/tandem/e2e-weights"
    yield folder
    for host in ("spark-a", "spark-b"):
        command(host, f"rm -rf {folder}")
