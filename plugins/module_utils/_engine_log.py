# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an engine's log, in one pass, at constant memory. `_engine_verdict` judges what is read here.

Knows vLLM since V0 and TensorFold, and what systemd, docker and the kernel write beside them, with any prefix before the
lines (Ray, docker, timestamps, colours). Of each start only counts and a few lines are kept, of all starts only the last.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._engine_rules import (
    ORDER,
    PHASE_MARKS,
    PHASES,
    RULES,
    Rule,
    any_of,
    says,
)
from ansible_collections.tandem.serving.plugins.module_utils._kv_pool import METRICS, Pool, worth_reading
from ansible_collections.tandem.serving.plugins.module_utils._log_source import Source, from_text

# Bounds that keep memory flat on logs that are not what they seem.
_MOST_NAMES = 1024
_MOST_SHAPES = 2048
_LONGEST_TEXT = 600
_LONGEST_LINE = 8000
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
# What a fault can hold. Lines of a level that ends nothing hold none.
_FAULT_MARKS = tuple(dict.fromkeys(mark for rule in RULES for mark in rule.marks))
_HARMLESS_LINE = re.compile(rb"\b(?:INFO|WARNING|DEBUG) (?:\d{4}-)?\d\d-\d\d \d\d:")
# What most lines of a serving engine are: its access log, what people ask and get, and its statistics. NCCL's have a reader
# of their own.
_ACCESS = (b'HTTP/1.1" ', b"] Received request ", b"] Added request ", b"] Generated response ")
_STATISTICS = b" throughput: "
_NCCL = b" NCCL INFO "

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|#033\[[0-9;]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")
_PROCESS = re.compile(r"\((?P<name>[A-Za-z][\w.-]*)(?: rank=\d+)? pid=(?P<pid>\d{1,18})(?:, ip=(?P<ip>[^)\s]+))?\) ?")
_PROCESSES = re.compile(r"(?:\([A-Za-z][\w.-]*(?: rank=\d+)? pid=\d+[^)]*\) ?)+")
# Nothing but that.
_BARE = re.compile(rb"\s*(?:\([\w.-]+(?: rank=\d+)? pid=\d+[^)]*\)\s*)*")
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

# Lines that differ in numbers, addresses and identifiers only have one shape, and are understood once.
_DIGITS = b"0123456789abcdef"
# In these a number changes what is meant.
_NUMBERED = any_of("status=", "exit", "code 1", "Errno", "=13")
_METRICS = tuple(name.encode() for name in METRICS)
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

    phase: str = "unknown"
    lines: int = 0
    served: bool = False
    stopped: bool = False
    headless: bool = False
    version: str | None = None
    # Raw last lines that tell these, for they come often and are asked for once.
    meeting: bytes = b""
    loading: bytes = b""
    failing: tuple[str, int, bytes] | None = None
    # Raw last lines by engine: one in ten seconds for weeks, so they are parsed when somebody asks.
    statistics: dict[bytes, bytes] = field(default_factory=dict)
    drafting: bytes = b""
    exl3: list[str] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    faults: dict[str, Fault] = field(default_factory=dict)
    warnings: set[str] = field(default_factory=set)
    stalls: int = 0
    stall_lines: list[str] = field(default_factory=list)
    inits: set[str] = field(default_factory=set)
    once: set[tuple[str, str]] = field(default_factory=set)
    pids: dict[str, str] = field(default_factory=dict)
    # Lines of the engine's /metrics, where they are what is read.
    metrics: list[str] = field(default_factory=list)
    semlock: str = ""
    # Lines about the pool that it has not read: of most starts in a long log nobody asks.
    unread: list[tuple[str, str, int, bytes]] = field(default_factory=list)
    known_pool: Pool = field(default_factory=Pool)

    @property
    def pool(self) -> Pool:
        """The KV pool of the start."""
        for who, name, number, line in self.unread:
            self.known_pool.read(who, _text(line), f"{name}:{number}: ")
        self.unread.clear()
        return self.known_pool

    @property
    def rendezvous(self) -> str | None:
        """Where the ranks meet, as host:port."""
        found = _RENDEZVOUS.search(_text(self.meeting))
        return (found[1] or found[2] or found[3] or f"{found[4]}:{found[5]}") if found else None

    @property
    def progress(self) -> dict[str, int] | None:
        """How much of the weights is loaded: done, total and percent."""
        text = _text(self.loading)
        if found := _SHARDS.search(text):
            percent, done, total = (int(group) for group in found.groups() if group)
        elif found := _LAYERS.search(text):
            done, total = int(found[1]), int(found[2])
            percent = 100 * done // total if total else 0
        elif found := _PERCENT.search(text):
            percent = done = int(found[1])
            total = 100
        else:
            return None
        return {"done": done, "total": total, "percent": percent}

    @property
    def exception(self) -> Fault | None:
        """The last exception, which need not have a name here."""
        if not self.failing:
            return None
        name, number, line = self.failing
        what = _parts(_text(line))[1][:_LONGEST_TEXT]
        return Fault("engine_exception", says("engine_exception", what=what), [_where(name, number, line)])

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


class _Who(NamedTuple):
    """The process that signed a line. ``single``: one start gives the name to one process only. ``worker`` tells the ranks apart."""

    name: str
    pid: str
    single: bool
    worker: str


class _Meaning(NamedTuple):
    """What lines of one shape do."""

    # Where a start begins
    begins: bool
    api: bool
    init: bool
    once: str
    start_error: bool
    # What a start tells
    phase: str
    progress: bool
    tells: bool
    version: bool
    headless: bool
    meeting: bool
    exl3: bool
    pool: bool
    stall: bool
    stop: bool
    # What goes wrong
    harmless: bool
    pool_fault: str
    fails: bool
    semlock: bool
    gone: bool
    rule: Rule | None
    serving_rule: Rule | None
    exception: bool
    error: bool


class _Reader:
    def __init__(self, name: str, errors: int) -> None:
        self.name = name
        self.number = 0
        self.start = Start()
        self.starts = 0
        self.failed_before = False
        self.errors: deque[tuple[int, bytes]] = deque(maxlen=errors)
        self.known: set[tuple[str, str]] = set()
        # By the shape of a line: what it does, or who takes it, or None when nobody needs to look at it.
        self.meanings: dict[bytes, _Meaning | Callable[[_Reader, bytes], None] | None] = {}
        self.signers: dict[bytes, _Who] = {}

    def read(self, source: Source) -> Log:
        meanings = self.meanings
        number = 0
        for number, line in enumerate(source.lines, 1):
            meaning = meanings.get(line.translate(None, _DIGITS), _unknown)
            if meaning is None:
                continue
            self.number = number
            if meaning is _unknown:
                meaning = self.learn(line)
            if isinstance(meaning, _Meaning):
                self.on_line(meaning, line)
            elif meaning:
                meaning(self, line)
        errors = [_where(self.name, number, line) for number, line in self.errors]
        return Log(self.name, self.start, self.starts, self.failed_before, errors, number)

    def learn(self, line: bytes) -> _Meaning | Callable[[_Reader, bytes], None] | None:
        """What lines of this shape do; None for most."""
        meaning: _Meaning | Callable[[_Reader, bytes], None] | None
        # bytes.find, because the operator "in" takes five times as long on bytes.
        if any(line.find(mark) >= 0 for mark in _ACCESS) or not (
            _WORTH.search(line) or (not _HARMLESS_LINE.search(line) and _rules(_text(line)))
        ):
            meaning = None
        elif line.find(_STATISTICS) >= 0:
            meaning = _Reader.on_statistics
        elif line.find(_NCCL) >= 0:
            meaning = _Reader.on_nccl
        elif line.startswith(_METRICS):
            meaning = _Reader.on_metrics
        elif line.find(b"\r") >= 0 and len([part for part in line.split(b"\r") if not _BARE.fullmatch(part)]) > 1:
            return _Reader.on_parts
        else:
            meaning = _meaning(line)
            if _NUMBERED.search(line):
                return meaning
        if len(line) < _LONGEST_LINE:
            if len(self.meanings) >= _MOST_SHAPES:
                self.meanings.clear()
            self.meanings[line.translate(None, _DIGITS)] = meaning
        return meaning

    # Lines of other kinds

    def on_parts(self, line: bytes) -> None:
        """A progress bar, which writes over itself."""
        for part in line.split(b"\r"):
            meaning = self.meanings.get(part.translate(None, _DIGITS), _unknown)
            if meaning is _unknown:
                meaning = self.learn(part)
            if isinstance(meaning, _Meaning):
                self.on_line(meaning, part)

    def on_metrics(self, line: bytes) -> None:
        start = self.start
        start.lines += 1
        start.served, start.phase = True, "serving"
        if len(start.metrics) < _MOST_NAMES:
            start.metrics.append(line.decode("utf-8", "replace"))

    def on_nccl(self, line: bytes) -> None:
        del line
        start = self.start
        start.stalls = 0
        if _PLACE[start.phase] < _PLACE["rendezvous"]:
            start.phase = "rendezvous"
        start.lines += 1

    def on_statistics(self, line: bytes) -> None:
        start = self.start
        start.stalls = 0
        if line.find(b"SpecDecoding metrics") >= 0:
            start.drafting = line[:2000]
            return
        found = _ENGINE.search(line)
        engine = found[1] if found else b"000"
        if engine in start.statistics or len(start.statistics) < _MOST_NAMES:
            start.statistics[engine] = line[:2000]

    # The engine's own lines

    def on_line(self, meaning: _Meaning, line: bytes) -> None:
        who = self.who(line)
        if meaning.begins or (who.single and self.start.pids.get(who.name) != who.pid):
            self.on_boundary(meaning, who)
        start = self.start
        self.starts = self.starts or 1
        start.lines += 1
        if meaning.phase:
            self.on_phase(meaning.phase)
        if meaning.progress:
            start.loading = line
        if meaning.tells:
            self.on_facts(meaning, line)
        if meaning.pool:
            start.unread.append((who.worker, self.name, self.number, line[:_LONGEST_LINE]))
            if len(start.unread) >= _MOST_NAMES:
                start.pool  # noqa: B018
        if meaning.stall:
            self.on_stall(line)
        if meaning.stop:
            start.stopped = True
        if meaning.harmless or start.stopped:
            # What the engine got over, traceback and all, or how it went down when told to.
            return
        if meaning.pool_fault:
            self.add(meaning.pool_fault, line)
        if meaning.fails:
            self.on_fault(meaning, line)
        if meaning.exception and not start.served:
            start.failing = self.name, self.number, line[:_LONGEST_LINE]
        if meaning.error and not (self.errors and self.errors[-1][1] == line[:_LONGEST_LINE]):
            self.errors.append((self.number, line[:_LONGEST_LINE]))

    def who(self, line: bytes) -> _Who:
        """Who signed a line, as "(Worker_TP0 pid=95)", or "(EngineCore pid=90) (RayWorkerWrapper pid=411, ip=10.0.0.2)"."""
        at = line.find(b" pid=")
        if at < 0:
            return _NOBODY
        end = line.find(b")", at) + 1
        while line.startswith(b" (", end):
            after = line.find(b")", end) + 1
            if line.find(b" pid=", end, after) < 0:
                break
            end = after
        part = line[line.rfind(b"(", 0, at) : end]
        who = self.signers.get(part)
        if who is None:
            who = _who(_text(part))
            if len(self.signers) >= _MOST_NAMES:
                self.signers.clear()
            self.signers[part] = who
        return who

    # Where a start begins

    def on_boundary(self, meaning: _Meaning, who: _Who) -> None:
        start, once = self.start, meaning.once
        over = start.served or start.stopped
        failed = bool(start.faults or start.failing)
        anew = (
            # A process that there is only one of has another pid, which was not here before.
            (who.single and start.pids.get(who.name, who.pid) != who.pid and (who.name, who.pid) not in self.known)
            or (meaning.api and (over or failed or _PLACE[start.phase] >= _PLACE["rendezvous"]))
            or (meaning.init and (who.name in start.inits or over))
            # Containers give the same pid to every start.
            or (bool(once) and (over or (failed and (not who.name or (who.name, once) in start.once))))
            or (over and meaning.start_error)
        )
        if anew and start.lines:
            self.failed_before = self.failed_before or failed
            self.starts = max(self.starts, 1) + 1
            self.errors.clear()
            start = self.start = Start()
        if once and len(start.once) < _MOST_NAMES:
            start.once.add((who.name, once))
        if meaning.init and len(start.inits) < _MOST_NAMES:
            start.inits.add(who.name)
        if who.single and len(self.known) < _MOST_NAMES:
            start.pids[who.name] = who.pid
            self.known.add((who.name, who.pid))

    # What a line tells

    def on_phase(self, phase: str) -> None:
        start = self.start
        start.stalls = 0
        if _PLACE[phase] > _PLACE[start.phase]:
            start.phase = phase
        if phase == "serving" and not start.served:
            start.served = True
            # What was reported before did not end the start.
            start.faults.clear()
            start.failing = None

    def on_facts(self, meaning: _Meaning, line: bytes) -> None:
        start = self.start
        if meaning.version and not start.version and (found := _VERSION.search(_parts(_text(line))[1])):
            start.version = next(group for group in found.groups() if group)
        if meaning.headless:
            start.headless = True
        if meaning.meeting:
            start.meeting = line
        if meaning.exl3:
            message = _parts(_text(line))[1]
            if len(start.exl3) < 8 and message[:200] not in start.exl3:
                start.exl3.append(message[:200])
            tiers = _TIER.search(message)
            if ("degraded" in message or (tiers and tiers[1] != tiers[2])) and len(start.degraded) < _EVIDENCE:
                start.degraded.append(_where(self.name, self.number, line))

    def on_stall(self, line: bytes) -> None:
        start = self.start
        start.warnings.add("shm_broadcast_stall")
        start.stalls += 1
        if len(start.stall_lines) < _EVIDENCE:
            start.stall_lines.append(_where(self.name, self.number, line))

    def on_fault(self, meaning: _Meaning, line: bytes) -> None:
        start = self.start
        if meaning.semlock:
            start.semlock = _where(self.name, self.number, line)
            return
        if start.semlock and meaning.gone:
            # Two lines of one traceback: what was to be opened, and that it is gone.
            start.warnings.add("semlock_missing")
            self.add("ipc_removed_by_logind", line)
            start.faults["ipc_removed_by_logind"].evidence.insert(0, start.semlock)
            start.semlock = ""
            return
        rule = meaning.serving_rule if start.served else meaning.rule
        if not rule:
            return
        self.add(rule.code, line, rule)
        if rule.code == "rendezvous_timeout":
            start.warnings.add("rendezvous_timeout")
        elif rule.code == "rank_stalled":
            start.warnings.add("rpc_timeout")

    def add(self, code: str, line: bytes, rule: Rule | None = None) -> None:
        fault = self.start.faults.get(code)
        if not fault:
            self.start.faults[code] = fault = Fault(code, _sentence(rule, _text(line)) if rule else says(code))
        if len(fault.evidence) < _EVIDENCE:
            fault.evidence.append(_where(self.name, self.number, line))


_NOBODY = _Who("", "", False, "")


def _unknown(reader: _Reader, line: bytes) -> None:
    """Stands for a shape that was not met so far."""


def _who(signed: str) -> _Who:
    names = [(found["name"], found["pid"], found["ip"]) for found in _PROCESS.finditer(signed)]
    if not names:
        return _NOBODY
    (name, pid, address), (worker, number, place) = names[0], names[-1]
    single = bool(not address and _SINGLE.match(name))
    if not _SINGLE.match(worker):
        # Ray gives all workers one name.
        worker = f"{worker} {number}@{place}" if place else f"{worker} {number}"
    return _Who(f"{name}@{address}" if address else name, pid, single, worker)


def _text(line: bytes) -> str:
    """A line as text for people, without colours and control characters."""
    text = line.decode("utf-8", "replace")
    if not text.isprintable():
        text = _CONTROL.sub(" ", _ANSI.sub("", text))
    elif "#033" in text:
        text = _ANSI.sub("", text)
    return text.rstrip()


def _parts(text: str) -> tuple[str, str]:
    """Level and message of a line. Without a level it is empty."""
    signed = _PROCESSES.search(text)
    message = text[signed.end() :] if signed else text
    header = _HEADER.search(message)
    return (header["level"], message[header.end() :]) if header else ("", message)


def _where(name: str, number: int, line: bytes) -> str:
    """A line as evidence."""
    return f"{name}:{number}: {_text(line).strip()[:_LONGEST_TEXT]}"


def _meaning(line: bytes) -> _Meaning:
    text = _text(line)
    level, message = _parts(text)
    marked = any(mark in text for mark in ("LLM", "non-default", ".service", "startup estimate"))
    api, init = marked and bool(_API.search(text)), marked and bool(_INIT.search(text))
    once = next((mark for mark in _ONCE if mark in text), "")
    start_error = any(mark in text for mark in _START_ERRORS)
    phase = next((phase for phase, marks in PHASE_MARKS if any(mark in text for mark in marks)), "")
    version, headless = bool(_VERSION.search(message)), "headless" in text
    meeting = any(mark in text for mark in _MEETING) and bool(_RENDEZVOUS.search(text))
    exl3 = "EXL3 " in message or message.startswith("exl3 ")
    semlock, gone = "SemLock._rebuild" in text, bool(_NOT_FOUND.search(text))
    rules = [] if level in _HARMLESS else _rules(text)
    exception = bool(_EXCEPTION.match(message))
    severe = level and message.strip() and not _TRACE_NOISE.match(message)
    return _Meaning(
        begins=bool(api or init or once or start_error),
        api=api,
        init=init,
        once=once,
        start_error=start_error,
        phase=phase,
        progress=phase == "loading" and any(pattern.search(text) for pattern in (_SHARDS, _LAYERS, _PERCENT)),
        tells=version or headless or meeting or exl3,
        version=version,
        headless=headless,
        meeting=meeting,
        exl3=exl3,
        pool=worth_reading(text),
        stall=_STALL in text,
        stop=bool(_STOP.search(text)),
        harmless=level in _HARMLESS,
        pool_fault=Pool().read("", text, "") if worth_reading(text) else "",
        fails=bool(rules or semlock or gone),
        semlock=semlock,
        gone=gone,
        rule=next(iter(rules), None),
        serving_rule=next((rule for rule in rules if rule.serving), None),
        exception=exception and not _SECONDARY.search(message),
        error=bool(severe or exception or _OWN_ERROR.match(message)),
    )


def _rules(text: str) -> list[Rule]:
    """The rules that a line meets, the root first."""
    found = {mark for mark in _FAULT_MARKS if mark in text}
    return [
        rule for rule in RULES if not found.isdisjoint(rule.marks) and (not rule.pattern or rule.pattern.search(text))
    ]


def _sentence(rule: Rule, text: str) -> str:
    """What a rule says of a line."""
    found = rule.pattern.search(text) if rule.pattern else None
    details = {key: value.rstrip(". ") for key, value in found.groupdict().items() if value} if found else {}
    # What a cut line lacks is unknown.
    return rule.says.format_map(defaultdict(lambda: details.get("appear") or details.get("image") or "?", details))
