# Copyright: Tandem contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep all ranks together: start them in order, and start them again together when one of them is lost.

Runs on the head as tandem-supervisor.service and asks every rank through rank_ctl, the other hosts over SSH. /health stays
200 with a dead peer, so it asks for a real completion. Whether the ranks are wanted is whether this service runs: a planned
stop stops it first.

``decide`` holds the rules and touches nothing; the rest of the file looks, acts and writes the state for people to read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

GAVE_UP = 3
CONFIG = Path("/etc/tandem/supervisor.json")
STATE = Path("/var/lib/tandem/supervisor.json")

Probe = Literal["answers", "fails", "busy", "starting"]
Action = Literal["none", "wait", "start", "give_up"]


@dataclass
class Memory:
    """What the rules remember between two looks. Times are seconds of a monotonic clock."""

    began: float = 0.0
    served: bool = False
    failures: int = 0
    fault: str = ""
    starts: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Rules:
    """Limits. ``attempts`` starts within ``window`` seconds are enough; ``patience`` is how many probes in a row may fail."""

    ready_seconds: float
    patience: int = 2
    attempts: int = 5
    window: float = 3600.0
    pause: float = 15.0


def decide(
    ranks: Sequence[Mapping[str, Any]], probe: Probe, memory: Memory, rules: Rules, now: float
) -> tuple[Action, str]:
    """What to do about what was seen, and why.

    ``ranks`` has, per rank, ``rank``, ``host`` and ``state`` (what rank_ctl told, None when it could not be asked).
    Updates ``memory``.
    """
    silent = [f"rank {item['rank']} on {item['host']}" for item in ranks if item["state"] is None]
    if silent:
        return "wait", f"{', '.join(silent)} cannot be asked"
    hashes = {item["host"]: item["state"]["configured"][:12] for item in ranks}
    if len(set(hashes.values())) > 1:
        named = ", ".join(f"{host}: {value or 'nothing'}" for host, value in hashes.items())
        return "give_up", f"the ranks are configured differently ({named}); run the start stage of site.yml"
    reason = _fault(ranks, probe, memory, rules, now)
    memory.fault = reason or memory.fault
    if not reason:
        return "none", "serving" if memory.served else "starting"
    recent = [moment for moment in memory.starts if now - moment < rules.window]
    memory.starts = recent
    if len(recent) >= rules.attempts:
        return "give_up", f"{len(recent)} starts within {rules.window:.0f} s did not last; the last fault: {reason}"
    # The first start after a fault is at once, each further one waits twice as long.
    if recent and now - memory.starts[-1] < rules.pause * 2 ** (len(recent) - 1) and not memory.served:
        return "wait", f"pausing before the next start: {reason}"
    return "start", reason


def _fault(ranks: Sequence[Mapping[str, Any]], probe: Probe, memory: Memory, rules: Rules, now: float) -> str:
    """Why the ranks have to start again, or nothing."""
    for item in ranks:
        if item["state"]["active"] not in ("active", "activating"):
            return f"rank {item['rank']} on {item['host']} is {item['state']['active']} ({item['state']['result']})"
    if probe in ("answers", "busy"):
        memory.served, memory.failures = True, 0
        return ""
    if not memory.served:
        late = now - memory.began > rules.ready_seconds
        return f"not ready {rules.ready_seconds:.0f} s after the start" if late else ""
    memory.failures += 1
    if memory.failures >= rules.patience:
        return f"{memory.failures} completions in a row failed while all units were active"
    return ""


class Supervisor:
    """The side that looks and acts."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.rules = Rules(ready_seconds=config["ready_seconds"])
        self.memory = Memory(began=time.monotonic())
        self.tokens = -1.0

    def call(self, rank: Mapping[str, Any], word: str) -> dict[str, Any] | None:
        """Let rank_ctl on the rank's host do one thing. None when it cannot be asked."""
        control = self.config["control"]
        words = [*control["program"], word]
        if rank["rank"]:
            options = ["BatchMode=yes", "StrictHostKeyChecking=yes", f"UserKnownHostsFile={control['known_hosts']}"]
            options += ["ConnectTimeout=5", "ServerAliveInterval=5", "ServerAliveCountMax=2"]
            words = ["ssh", "-i", control["key"], *(part for option in options for part in ("-o", option))]
            words += [f"{control['user']}@{rank['address']}", word]
        limit = 30 if word == "state" else self.config["stop_seconds"] + 60
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=limit, check=True)
            told = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            detail = getattr(error, "stderr", "") or error
            print(f"rank {rank['rank']} on {rank['host']}: {word}: {str(detail).strip()}", file=sys.stderr)
            return None
        return told if isinstance(told, dict) else None

    def fetch(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """A body of the API. Raises OSError."""
        key = Path(self.config["key_file"]).read_text().strip()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"{self.config['url']}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=self.config["probe_seconds"]) as answer:
            return str(answer.read().decode(errors="replace"))

    def generated(self) -> float:
        """Tokens that the engine has read and written so far, as its metrics count them; -1 when it does not say."""
        try:
            lines = self.fetch("/metrics").splitlines()
        except OSError:
            return -1.0
        names = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))

    def probe(self) -> Probe:
        """Ask for one token. A server that is only busy still counts tokens."""
        try:
            self.fetch("/health")
        except OSError:
            return "fails" if self.memory.served else "starting"
        body = {"model": self.config["model"], "prompt": "1 2 3", "max_tokens": 1, "temperature": 0}
        try:
            self.fetch("/v1/completions", body)
        except OSError:
            before, self.tokens = self.tokens, self.generated()
            return "busy" if 0 <= before < self.tokens else "fails"
        self.tokens = self.generated()
        return "answers"

    def start_together(self) -> None:
        """Stop what runs, the head first; start all, the head last."""
        for rank in self.config["ranks"]:
            self.call(rank, "stop")
        for rank in reversed(self.config["ranks"]):
            if self.call(rank, "start") is None:
                break
        now = time.monotonic()
        self.memory.began, self.memory.served, self.memory.failures = now, False, 0
        self.memory.starts.append(now)

    def look(self) -> tuple[Action, str]:
        """One look at all ranks, and what follows from it."""
        ranks = [{**rank, "state": self.call(rank, "state")} for rank in self.config["ranks"]]
        active = all(item["state"] and item["state"]["active"] == "active" for item in ranks)
        probe = self.probe() if active else "starting"
        action, reason = decide(ranks, probe, self.memory, self.rules, time.monotonic())
        write_state(action, reason, self.memory)
        return action, reason

    def run(self) -> int:
        """Look, act, wait; until the ranks cannot be helped."""
        said = ""
        while True:
            action, reason = self.look()
            if f"{action}: {reason}" != said:
                said = f"{action}: {reason}"
                print(said, flush=True)
            if action == "give_up":
                return GAVE_UP
            if action == "start":
                self.start_together()
            time.sleep(self.config["interval"])


def write_state(action: Action, reason: str, memory: Memory) -> None:
    """Leave what was decided for ``playbooks/status.yml``."""
    fresh = STATE.with_suffix(".new")
    fresh.write_text(json.dumps({"action": action, "reason": reason, "when": time.time(), **asdict(memory)}))
    fresh.replace(STATE)


if __name__ == "__main__":
    sys.exit(Supervisor(json.loads(CONFIG.read_text())).run())
