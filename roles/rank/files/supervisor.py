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
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

GAVE_UP = 3
CONFIG = Path("/etc/tandem/supervisor.json")
STATE = Path("/var/lib/tandem/supervisor.json")
PROGRESS = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:kv_cache_usage_perc",
    "tensorfold_health:pool_free_tokens",
    "tensorfold_health:rounds_total",
)

Probe = Literal["answers", "fails", "busy", "starting"]
Action = Literal["none", "wait", "start", "give_up"]


@dataclass
class Memory:
    """What the rules remember between two looks.

    Moments are seconds of a monotonic clock. ``starts`` are those since the ranks last served, ``heals`` counts all of them,
    ``fault`` is the last reason for one and ``fault_at`` its time since 1970.
    """

    began: float = 0.0
    served: bool = False
    failures: int = 0
    starts: list[float] = field(default_factory=list)
    heals: int = 0
    fault: str = ""
    fault_at: float = 0.0


@dataclass(frozen=True)
class Rules:
    """Limits. ``patience`` probes in a row may fail, and ``attempts`` starts in a row may not lead to an answer."""

    ready_seconds: float
    patience: int = 2
    attempts: int = 5
    pause: float = 15.0


def decide(
    ranks: Sequence[Mapping[str, Any]], probe: Probe, memory: Memory, rules: Rules, now: float
) -> tuple[Action, str]:
    """What to do about what was seen, and why.

    ``ranks`` has, per rank, ``rank``, ``host`` and ``state`` (what rank_ctl told, None when it could not be asked).
    Updates ``memory``.
    """
    silent = [name(item) for item in ranks if item["state"] is None]
    if silent:
        return "wait", f"{', '.join(silent)} cannot be asked"
    if hung := [item["host"] for item in ranks if not item["state"]["docker"]]:
        return "wait", f"Docker on {', '.join(hung)} does not answer: restart it, or the host"
    if down := [f"{link} on {item['host']}" for item in ranks for link in item["state"]["down"]]:
        return "wait", f"the fabric does not work: {', '.join(down)}"
    reason = _fault(ranks, probe, memory, rules, now)
    if not reason:
        return "none", "serving" if memory.served else "starting"
    hashes = {item["host"]: item["state"]["configured"][:12] for item in ranks}
    if len(set(hashes.values())) > 1:
        named = ", ".join(f"{host}: {value or 'nothing'}" for host, value in hashes.items())
        return "give_up", f"the ranks are configured differently ({named}); run the start stage of site.yml"
    if changed := [f"{file} on {item['host']}" for item in ranks for file in item["state"]["changed"]]:
        return (
            "give_up",
            f"{', '.join(changed)} changed since site.yml wrote it; run its start stage. Before that: {reason}",
        )
    if len(memory.starts) >= rules.attempts:
        return "give_up", f"{len(memory.starts)} starts in a row led to no answer; the last fault: {reason}"
    # The first start after a fault is at once, each further one waits twice as long.
    if memory.starts and now - memory.starts[-1] < rules.pause * 2 ** (len(memory.starts) - 1):
        return "wait", f"pausing before the next start: {reason}"
    return "start", reason


def name(item: Mapping[str, Any]) -> str:
    return f"rank {item['rank']} on {item['host']}"


def _fault(ranks: Sequence[Mapping[str, Any]], probe: Probe, memory: Memory, rules: Rules, now: float) -> str:
    """Why the ranks have to start again, or nothing."""
    ended = [item for item in ranks if item["state"]["active"] not in ("active", "activating")]
    if ended:
        # One that says why comes before those that were stopped for it, or never started.
        item = min(ended, key=lambda item: (not item["state"]["refused"], item["state"]["active"] != "failed"))
        state = item["state"]
        return f"{name(item)} is {state['active']} ({state['refused'] or state['result']})"
    if probe in ("answers", "busy"):
        memory.served, memory.failures = True, 0
        memory.starts.clear()
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

    def call(self, rank: Mapping[str, Any], word: str) -> dict[str, Any] | None:
        """Let rank_ctl on the rank's host do one thing. None when it cannot be asked."""
        control = self.config["control"]
        words = [*control["program"], word]
        if rank["rank"]:
            options = ["BatchMode=yes", "StrictHostKeyChecking=yes", f"UserKnownHostsFile={control['known_hosts']}"]
            options += ["ConnectTimeout=5", "ServerAliveInterval=5", "ServerAliveCountMax=2"]
            words = ["ssh", "-i", control["key"], *(part for option in options for part in ("-o", option))]
            words += [f"{control['user']}@{rank['address']}", word]
        limit = 30 if word == "state" else self.config["stop_seconds"] + 120
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

    def progress(self) -> list[str]:
        """Metrics that change while the engine works. Raises OSError.

        vLLM counts the tokens of a prompt when it has read all of it, but fills the KV cache as it reads.
        """
        return [line for line in self.fetch("/metrics").splitlines() if line.startswith(PROGRESS)]

    def probe(self) -> Probe:
        """Ask for one token. A server that is only busy still counts tokens."""
        try:
            before = self.progress()
        except OSError:
            return "fails" if self.memory.served else "starting"
        messages = [{"role": "user", "content": "Hello"}]
        body = {"model": self.config["model"], "messages": messages, "max_tokens": 1, "temperature": 0}
        try:
            if json.loads(self.fetch("/v1/chat/completions", body))["choices"]:
                return "answers"
        except (OSError, ValueError, LookupError, TypeError):
            pass
        try:
            return "busy" if self.progress() != before else "fails"
        except OSError:
            return "fails"

    def start_together(self, reason: str) -> None:
        """Stop what runs, on all hosts at once; start all, the head last."""
        ranks = self.config["ranks"]
        with ThreadPoolExecutor(len(ranks)) as pool:
            stopped = list(pool.map(lambda rank: self.call(rank, "stop"), ranks))
        if None in stopped:
            # It may run on, and would be the only one of the old ranks. This counts as a start that led to no answer.
            self.memory.starts.append(time.monotonic())
            return
        for rank in reversed(ranks):
            if self.call(rank, "start") is None:
                break
        now = time.monotonic()
        memory = self.memory
        memory.began, memory.served, memory.failures = now, False, 0
        memory.starts.append(now)
        memory.heals, memory.fault, memory.fault_at = memory.heals + 1, reason, time.time()

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
                self.start_together(reason)
            # After a first failure the second look is at once.
            time.sleep(1 if self.memory.failures else self.config["interval"])


def write_state(action: Action, reason: str, memory: Memory) -> None:
    """Leave what was decided for ``playbooks/status.yml``. A full disk does not keep from healing."""
    fresh = STATE.with_suffix(".new")
    try:
        fresh.write_text(json.dumps({"action": action, "reason": reason, "when": time.time(), **asdict(memory)}))
        fresh.replace(STATE)
    except OSError as error:
        print(f"{STATE}: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(Supervisor(json.loads(CONFIG.read_text())).run())
