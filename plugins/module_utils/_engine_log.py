# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an engine's log, in one pass, at constant memory. `_engine_verdict` judges what is read here.

Knows vLLM since V0 and TensorFold, and what systemd, docker and the kernel write beside them, with any prefix before the
lines (Ray, docker, timestamps, colours). Of each start only counts and a few lines are kept, of all starts only the last.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils._engine_rules import (
    ORDER,
    PHASE_MARKS,
    PHASES,
    RULES,
    any_of,
    says,
)
from ansible_collections.tandem.serving.plugins.module_utils._kv_pool import METRICS, Pool
from ansible_collections.tandem.serving.plugins.module_utils._log_source import Source, from_text

# Bounds that keep memory flat on logs that are not what they seem.
_MOST_NAMES = 1024
_LONGEST_TEXT = 600
_EVIDENCE = 3

# A line that holds none of these says nothing here, and of a long log that is most lines. They begin with what is rare in
# prose, because the pattern is tried wherever a first character fits.
_MARKS = (
    "Error|ERROR|Exception|Errno|EADDR|EXL3|EngineCore e|KV |NCCL|NVIDIA|NVML|NVRM|NV_ERR|No |GiB|Available |"
    "Access to|Auto-fit|Application|Automatically|Failed|Free |Fatal|Finished|Maximum|Memory|Main process|Model |"
    "Segmentation|Setting att|Selected b|Sparse|SemLock|SIG|Start|LLM |Launching|Loading|Loaded|LIVE!|CUDA|"
    "CRITICAL|CONSTRAINT|Cannot |Connection|Capturing|Compiling|Deactivated|DefaultCPU|DP |Dynamo|Worker proc|"
    "Watchdog|Shutting|Waiting|Warming|Timed out|The client|Using max|Uvicorn|Unable|Unknown|RPC |Resolved|"
    "Profiling|Pull|Illegal|Init|Xid|Bus error|Out of|OOM|Killed|Graph|] torch|] init |=tcp:|[tensorfold|[glm53|"
    "[c10d|[Gloo|: error|: unsat|: segf|: vllm|) exceeds|::bad|xited |xit |xl3|=13|=killed|# |_blocks is|"
    ", may waste|(core|:cache_config_info|_health:pool_tokens|SpecDecoding|non-def|Stopping|[shutdown"
)
_WORTH = any_of(*_MARKS.split("|"))
# What most lines of a serving engine are: its access log, and its statistics. NCCL's have a reader of their own.
_ACCESS = b'HTTP/1.1" '
_STATISTICS = b" throughput: "
_NCCL = b" NCCL INFO "

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|#033\[[0-9;]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")
_PROCESS = re.compile(r"\((?P<name>[A-Za-z][\w.-]*)(?: rank=\d+)? pid=(?P<pid>\d{1,18})(?:, ip=(?P<ip>[^)\s]+))?\) ?")
# Names that one start gives to one process only.
_SINGLE = re.compile(r"(?:APIServer|EngineCore(?:_DP\d+)?|(?:Vllm)?Worker(?:_[A-Z]+\d+)+|VllmWorker-\d+)$")
_HEADER = re.compile(
    r"(?P<level>INFO|WARNING|ERROR|DEBUG|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[?[\w./]+:\d+\] ?"
)

_API = re.compile(r"vLLM API server version|non-default args|(?:^|systemd\[\d+\]: )Starting \S+\.service\b")
_STOP = re.compile(
    r"\[shutdown\] |received signal=SIGTERM|(?:^|systemd\[\d+\]: )Stopping \S+\.service\b|INFO: +Shutting down$"
    r"|Application shutdown complete|Finished server process"
)
_INIT = re.compile(r"Initializing an? (?:V\d )?LLM engine|Launching vLLM \(v|CUDA rank \d+ startup estimate")
# Lines that every process writes once in a start at most, and errors that only a start can have.
_ONCE = ("Starting to load model", "Available KV cache memory: ", "KV cache size: ", "# CPU blocks: ")
_START_ERRORS = (
    "on startup is less than",
    "KV cache is needed, which is larger",
    "for the cache blocks",
    "stored in KV cache (",
)
_VERSION = re.compile(
    r"(?:LLM engine|Launching vLLM) \(v([^)\s]+)\)|vLLM API server version (\d[^\s,]*)|\bversion (\d+\.\d+\.\d+\S*)$"
)
_RENDEZVOUS = re.compile(
    r"distributed_init_method=tcp://([^\s,]+)|head node address (\S+:\d+)|following rank 0 at (\S+:\d+)"
    r"|onnect to \(([^,)\s]+), ?(\d+)\)"
)
_MEETING = ("tcp://", "onnect to (", "head node address", "following rank 0")
_SHARDS = re.compile(r"(\d{1,3})% Completed \| (\d{1,6})/(\d{1,6})|(\d{1,3})%\|[^|]*\| (\d{1,6})/(\d{1,6})")
_LAYERS = re.compile(r"Loaded layer (\d{1,6})/(\d{1,6})")
_PERCENT = re.compile(r"loader: +(\d{1,3})%")
_TIER = re.compile(r"configured_tier=(\S+).*?effective_tier=(\S+)")

_ENGINE = re.compile(rb"Engine (\d{1,6}): ")
_STATISTIC = {
    "prompt_tokens_per_s": re.compile(r"Avg prompt throughput: (\d+(?:\.\d+)?)"),
    "generation_tokens_per_s": re.compile(r"Avg generation throughput: (\d+(?:\.\d+)?)"),
    "running": re.compile(r"Running: (\d+)"),
    "waiting": re.compile(r"(?:Waiting|Pending): (\d+)"),
    "kv_usage_percent": re.compile(r"KV cache usage: (\d+(?:\.\d+)?)"),
    "prefix_hit_percent": re.compile(r"[Pp]refix cache hit rate: (?:GPU: )?(\d+(?:\.\d+)?)"),
}
_DRAFTING = {
    "mean_acceptance_length": re.compile(r"Mean acceptance length: (\d+(?:\.\d+)?)"),
    "accepted_tokens": re.compile(r"Accepted: (\d+) tokens"),
    "drafted_tokens": re.compile(r"Drafted: (\d+) tokens"),
    "acceptance_percent": re.compile(r"Avg Draft acceptance rate: (\d+(?:\.\d+)?)%"),
}
_POSITIONS = re.compile(r"Per-position acceptance rate: (\d[\d., ]*)")

_EXCEPTION = re.compile(
    r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failure|Timeout|NotFound))(?::(?:\s.*)?)?$"
)
_SECONDARY = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|See (?:root cause|stack trace) above"
    r"|EngineDeadError|CancelledError|KeyboardInterrupt|SystemExit"
)
_OWN_ERROR = re.compile(
    r"error: |\s*Value error, |Fatal |terminate called|.*core dumped|Bus error|Illegal instruction|Segmentation fault|Killed$"
    r"|.*(?:NCCL WARN |Out of memory: Killed|NVRM: |code=(?:exited|killed|dumped), status=[^0])"
)
_TRACE_NOISE = re.compile(
    r'\s*(?:File ".*", line \d+|[\^~]+$|Traceback \(most recent|During handling|The above exception|  )'
)
_HARMLESS = ("DEBUG", "INFO", "WARNING")
_STALL = "No available shared memory broadcast block found"
_NOT_FOUND = re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory\s*$")

_FAULTY = any_of(*dict.fromkeys(mark for rule in RULES for mark in rule.marks))
_PLACE = {name: place for place, name in enumerate(PHASES)}


@dataclass
class Fault:
    """One way in which the start ended, with the lines that say so."""

    code: str
    says: str
    evidence: list[str] = field(default_factory=list)


@dataclass
class Start:
    """One start of an engine, as far as its lines tell."""

    pool: Pool = field(default_factory=Pool)
    phase: str = "unknown"
    lines: int = 0
    served: bool = False
    stopped: bool = False
    headless: bool = False
    version: str | None = None
    rendezvous: str | None = None
    progress: dict[str, int] | None = None
    # Raw last lines by engine: one in ten seconds for weeks, so they are parsed when somebody asks.
    statistics: dict[bytes, bytes] = field(default_factory=dict)
    drafting: bytes = b""
    exl3: list[str] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    faults: dict[str, Fault] = field(default_factory=dict)
    exception: Fault | None = None
    warnings: set[str] = field(default_factory=set)
    stalls: int = 0
    stall_lines: list[str] = field(default_factory=list)
    inits: set[str] = field(default_factory=set)
    once: set[tuple[str, str]] = field(default_factory=set)
    pids: dict[str, str] = field(default_factory=dict)
    # Lines of the engine's /metrics, where they are what is read.
    metrics: list[str] = field(default_factory=list)
    semlock: str = ""

    def fault(self) -> Fault | None:
        """The root of what went wrong, as far as lines name it."""
        return min(self.faults.values(), key=lambda fault: ORDER[fault.code]) if self.faults else None

    def stats(self) -> dict[str, dict[str, float]]:
        """The last statistics line of each engine."""
        read = {}
        for engine, line in self.statistics.items():
            text = line.decode("utf-8", "replace")
            read[engine.decode()] = {
                name: float(found[1]) for name, pattern in _STATISTIC.items() if (found := pattern.search(text))
            }
        return read

    def speculation(self) -> dict[str, Any] | None:
        """The last line about drafts."""
        if not self.drafting:
            return None
        text = self.drafting.decode("utf-8", "replace")
        read: dict[str, Any] = {
            name: float(found[1]) for name, pattern in _DRAFTING.items() if (found := pattern.search(text))
        }
        if found := _POSITIONS.search(text):
            read["per_position"] = [float(rate) for rate in re.findall(r"\d+(?:\.\d+)?", found[1])]
        return read


@dataclass
class Log:
    """One log, read. ``start`` is the last start in it; ``failed_before`` says whether an earlier one had a fault."""

    name: str
    start: Start
    starts: int
    failed_before: bool
    last_errors: list[str]
    lines: int


def read(source: Source, errors: int = 20) -> Log:
    """Read one log to its end. ``errors`` is how many of the engine's last own error lines to keep."""
    return _Reader(source.name, errors).read(source)


def read_texts(text: str | Sequence[str]) -> list[Log]:
    """Read a text, or several."""
    texts = [text] if isinstance(text, str) else text
    return [read(from_text("text" if len(texts) == 1 else f"text {at}", one)) for at, one in enumerate(texts)]


class _Reader:
    def __init__(self, name: str, errors: int) -> None:
        self.name = name
        self.number = 0
        self.start = Start()
        self.starts = 0
        self.failed_before = False
        self.errors: deque[tuple[str, str]] = deque(maxlen=errors)
        self.known: set[tuple[str, str]] = set()

    def read(self, source: Source) -> Log:
        worth = _WORTH.search
        number = 0
        # bytes.find, because the operator "in" takes five times as long on bytes.
        for number, line in enumerate(source.lines, 1):
            if line.find(_ACCESS) >= 0 or not worth(line):
                continue
            if line.find(_STATISTICS) >= 0:
                self.on_statistics(line)
                continue
            if line.find(_NCCL) >= 0:
                self.on_nccl()
                continue
            self.number = number
            for part in line.split(b"\r"):
                if part.strip():
                    self.on_line(part.decode("utf-8", "replace"))
        errors = [where + text for where, text in self.errors]
        return Log(self.name, self.start, self.starts, self.failed_before, errors, number)

    def on_nccl(self) -> None:
        start = self.start
        start.stalls = 0
        if _PLACE[start.phase] < _PLACE["rendezvous"]:
            start.phase = "rendezvous"
        start.lines += 1

    def on_statistics(self, line: bytes) -> None:
        start = self.start
        start.stalls = 0
        if b"SpecDecoding metrics" in line:
            start.drafting = line[:2000]
            return
        found = _ENGINE.search(line)
        engine = found[1] if found else b"000"
        if engine in start.statistics or len(start.statistics) < _MOST_NAMES:
            start.statistics[engine] = line[:2000]

    def on_line(self, raw: str) -> None:
        if raw.startswith(METRICS):
            self.start.lines += 1
            self.start.served, self.start.phase = True, "serving"
            self.start.metrics = [*self.start.metrics, raw][-_MOST_NAMES:]
            return
        text = _ANSI.sub("", raw) if "\x1b" in raw or "#033" in raw else raw
        text = _CONTROL.sub(" ", text).rstrip()
        process = _PROCESS.search(text)
        name, pid = (process["name"], process["pid"]) if process else ("", "")
        if process and process["ip"]:
            name = f"{name}@{process['ip']}"
        self.on_boundary(name, pid, text)
        start = self.start
        start.lines += 1
        message = text[process.end() :] if process else text
        header = _HEADER.search(message)
        level = header["level"] if header else ""
        if header:
            message = message[header.end() :]
        self.on_phase(text)
        self.on_facts(text, message)
        code = start.pool.read(name, text, f"{self.name}:{self.number}: ")
        if _STALL in text:
            self.on_stall(text)
        if _STOP.search(text):
            start.stopped = True
        if level in _HARMLESS or start.stopped:
            # What the engine got over, traceback and all, or how it went down when told to.
            return
        if code:
            self.add(code, says(code), text)
        self.on_fault(text)
        self.on_error(level, text, message)

    # Where a start begins

    def on_boundary(self, name: str, pid: str, text: str) -> None:
        start = self.start
        marked = any(mark in text for mark in ("LLM", "non-default", ".service", "startup estimate"))
        api, init = marked and bool(_API.search(text)), marked and bool(_INIT.search(text))
        single = bool(pid and _SINGLE.match(name))
        once = next((mark for mark in _ONCE if mark in text), "")
        over = start.served or start.stopped
        failed = bool(start.faults or start.exception)
        anew = (
            # A process that there is only one of has another pid, which was not here before.
            (single and start.pids.get(name, pid) != pid and (name, pid) not in self.known)
            or (api and (over or failed or _PLACE[start.phase] >= _PLACE["rendezvous"]))
            or (init and (name in start.inits or over))
            # Containers give the same pid to every start.
            or (bool(once) and (over or (failed and (not name or (name, once) in start.once))))
            or (over and any(mark in text for mark in _START_ERRORS))
        )
        if anew and start.lines:
            self.failed_before = self.failed_before or failed
            self.starts += 1
            self.errors.clear()
            start = self.start = Start()
        self.starts = self.starts or 1
        if once and len(start.once) < _MOST_NAMES:
            start.once.add((name, once))
        if init and len(start.inits) < _MOST_NAMES:
            start.inits.add(name)
        if single and len(self.known) < _MOST_NAMES:
            start.pids[name] = pid
            self.known.add((name, pid))

    # What a line tells

    def on_phase(self, text: str) -> None:
        start = self.start
        for phase, marks in PHASE_MARKS:
            for mark in marks:
                if mark in text:
                    break
            else:
                continue
            start.stalls = 0
            if _PLACE[phase] > _PLACE[start.phase]:
                start.phase = phase
            if phase == "loading":
                self.on_progress(text)
            elif phase == "serving" and not start.served:
                start.served = True
                # What was reported before did not end the start.
                start.faults.clear()
                start.exception = None
            return

    def on_progress(self, text: str) -> None:
        if found := _SHARDS.search(text):
            percent, done, total = (int(group) for group in found.groups() if group)
        elif found := _LAYERS.search(text):
            done, total = int(found[1]), int(found[2])
            percent = 100 * done // total if total else 0
        elif found := _PERCENT.search(text):
            percent = done = int(found[1])
            total = 100
        else:
            return
        self.start.progress = {"done": done, "total": total, "percent": percent}

    def on_facts(self, text: str, message: str) -> None:
        start = self.start
        if not start.version and (found := _VERSION.search(message)):
            start.version = next(group for group in found.groups() if group)
        if "headless" in text:
            start.headless = True
        if found := _RENDEZVOUS.search(text) if any(mark in text for mark in _MEETING) else None:
            start.rendezvous = found[1] or found[2] or found[3] or f"{found[4]}:{found[5]}"
        if "EXL3 " in message or message.startswith("exl3 "):
            if len(start.exl3) < 8 and message[:200] not in start.exl3:
                start.exl3.append(message[:200])
            tiers = _TIER.search(message)
            if ("degraded" in message or (tiers and tiers[1] != tiers[2])) and len(start.degraded) < _EVIDENCE:
                start.degraded.append(self.line(text))

    def on_stall(self, text: str) -> None:
        start = self.start
        start.warnings.add("shm_broadcast_stall")
        start.stalls += 1
        if len(start.stall_lines) < _EVIDENCE:
            start.stall_lines.append(self.line(text))

    def on_fault(self, text: str) -> None:
        start = self.start
        if "SemLock._rebuild" in text:
            start.semlock = self.line(text)
            return
        if start.semlock and _NOT_FOUND.search(text):
            # Two lines of one traceback: what was to be opened, and that it is gone.
            start.warnings.add("semlock_missing")
            self.add("ipc_removed_by_logind", says("ipc_removed_by_logind"), text)
            start.faults["ipc_removed_by_logind"].evidence.insert(0, start.semlock)
            start.semlock = ""
            return
        if not _FAULTY.search(text.encode("utf-8", "replace")):
            return
        for rule in RULES:
            if start.served and not rule.serving:
                continue
            for mark in rule.marks:
                if mark in text:
                    break
            else:
                continue
            found = rule.pattern.search(text) if rule.pattern else None
            if rule.pattern and not found:
                continue
            details = {key: value for key, value in found.groupdict().items() if value} if found else {}
            self.add(rule.code, rule.says.format_map({"what": details.get("appear", "?"), **details}), text)
            if rule.code == "rendezvous_timeout":
                start.warnings.add("rendezvous_timeout")
            elif rule.code == "rank_stalled":
                start.warnings.add("rpc_timeout")
            return

    def add(self, code: str, sentence: str, text: str) -> None:
        fault = self.start.faults.setdefault(code, Fault(code, sentence))
        if len(fault.evidence) < _EVIDENCE:
            fault.evidence.append(self.line(text))

    def on_error(self, level: str, text: str, message: str) -> None:
        exception = _EXCEPTION.match(message)
        if exception and not self.start.served and not _SECONDARY.search(message):
            what = message[:_LONGEST_TEXT]
            self.start.exception = Fault("engine_exception", says("engine_exception", what=what), [self.line(text)])
        severe = level and message.strip() and not _TRACE_NOISE.match(message)
        if (severe or exception or _OWN_ERROR.match(message)) and not (
            self.errors and self.errors[-1][1] == text[:_LONGEST_TEXT]
        ):
            self.errors.append((f"{self.name}:{self.number}: ", text[:_LONGEST_TEXT]))

    def line(self, text: str) -> str:
        return f"{self.name}:{self.number}: {text.strip()[:_LONGEST_TEXT]}"
