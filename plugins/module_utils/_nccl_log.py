# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read NCCL logs, in one pass, at constant memory. `_nccl_verdict` judges what is read here.

Known are the line forms of NCCL 2.18 to 2.30, with any prefix before them (Ray, vLLM, journald, docker, timestamps,
colours), several ranks in one file, several starts in one file. What is not known is skipped.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import strerror
from typing import Any, NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._log_source import Source

# Bounds that keep memory flat on logs that are not what they seem.
_MOST_PROCESSES = 128
_MOST_KEYS = 512
_LONGEST_KEY = 512
_LONGEST_TEXT = 1024

_ANSI = re.compile(rb"(?:\x1b|#033)\[[0-9;]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
# What is left of a text without these needs cleaning.
_PLAIN = bytes(range(0x20, 0x7F)).replace(b"#", b"")
# Without these, lines that differ in numbers, addresses and pointers are one.
_DIGITS = b"0123456789abcdef"
# Every line is signed "host:pid:tid [device]".
_HEAD = re.compile(rb"([^\s:]+):(\d+):\d+ \[(-?\d+)\]$")
_SIGNATURE = re.compile(rb"([^\s:]+):(\d+):\d+ \[-?\d+\](?: \S+:\d+(?: \([^)]*\))?)? NCCL (?:INFO|WARN) ")
_REPEATED = re.compile(rb"\[repeated (\d+)x across cluster\]")
_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
_COMM = re.compile(rb"comm (0x[0-9a-f]+) rank (\d+) nranks (\d+)\b")
_BUS = re.compile(rb" busId ([0-9a-f]+)")
_COMM_ID = re.compile(rb" commId (0x[0-9a-f]+)")
# What follows the last dash of such a line, cut to ten bytes.
_STARTED, _COMPLETED, _ABORTED, _DESTROYED = b"Init START", b"Init COMPL", b"Abort COMP", b"Destroy CO"
_NODES = re.compile(rb"comm 0x[0-9a-f]+ rank \d+ nRanks \d+ nNodes (\d+)")
_BOOTSTRAP = re.compile(rb"Bootstrap ?: Using (?:\[\d+\])?(\S+?):(\S+?)<\d+>")
_OOB = re.compile(rb"OOB (\S+?):(\S+?)<\d+>")
# "[index]name:port/link"; 2.30 may put ":rail:plane" before the slash, and a merged device joins its names by "+".
_HCA = re.compile(rb"(?:\[(\d+)\] ?)?([A-Za-z][\w.+-]*)(?::\d*)+/(?:RoCE|IB|UNSPECIFIED)")
_VIRTUAL = re.compile(rb"Made virtual device \[(\d+)\] name=([\w.+-]+)")
_DATA_DIRECT = re.compile(rb"Data Direct DMA Interface is detected for device[: ]\s*([\w.-]+)")
_OVERRIDE = re.compile(rb"Subnet-aware routing: overriding dev (\d+) with dev (\d+)")
_SETTING = re.compile(rb"(NCCL_\w+) set (?:by environment )?to (.+)")
_CHANNEL = re.compile(
    r"(\d+)\[\w+\] -> (\d+)\[\w+\] \[(send|receive)\] via NET/(.+?)/(\d+)(?:\(\d+\))?"
    r"(/GDRDMA(?:\(\w+\))?)?(?:/Shared)?(?: \[repeated .*)?\s*"
)
_VERBS_CALL = re.compile(
    rb"(?:Call to )?((?:ibv|mlx5dv)_\w+)(?:\(\))? (?:failed|returned)(?: with (?:error )?(\d+)?\s*([^,]*)| ?: ?([^,]+))?"
)
_ERRNO = re.compile(rb" errno (\d+)")
_GIDS = re.compile(rb"local GID index (-?\d+), local GID ([^\s,]+), remote GID ([^\s,]+)")
_COMPLETION = re.compile(rb"Got completion from peer \S+ with (?:status=|error )(?:\w+\()?(\d+)")
# 2.18 to 2.22, 2.23 to 2.27, from 2.28 on. What is not among the names of 2.23 to 2.27 is a number.
_EVENT = re.compile(rb"Got (?:non-fatal )?async (?:error )?event ?: (.*?)(?:\(\d+\))?\s*$|unknown event type \((\d+)\)")
_GID_CHANGE = b"18"
# Until 2.27 NCCL names these like the harmless events; libibverbs' words for a queue, or the device, that is lost.
_FATAL_EVENT = re.compile(rb"catastrophic error|work queue error|CQ error|fatal", re.IGNORECASE)
_LOOPBACK = re.compile(rb"connect(?:ing)? to (?:address )?(?:127\.|::1<|\[::1\])", re.IGNORECASE)

# PyTorch's watchdog.
_WATCHDOG = (
    b"collective operation timeout",
    b"Timeout at NCCL work",
    b"due to collective timeout",
    b"NCCL operations have failed or timed out",
)

_ERRNO_OF = {strerror(number).encode(): number for number in errno.errorcode}


@dataclass(slots=True, eq=False)
class Mark:
    """A line that matters: where it first stood, and how often it came."""

    code: str
    cause: str | None
    source: str
    line: int
    raw: bytes
    count: int = 1

    @property
    def text(self) -> str:
        return _text(self.raw)

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.text}"


class Channel(NamedTuple):
    """A network channel. ``peer`` is the rank at its other end, ``device`` the index of NCCL's list."""

    peer: int
    network: str
    device: int
    gdr: bool


@dataclass(slots=True, eq=False)
class Process:
    """What one process wrote. Lines that carry no process go to one with neither host nor pid."""

    host: str
    pid: int
    # CUDA device of its first line. Helper threads sign with another.
    device: str
    source: str
    first: int
    last: int = 0
    version: str | None = None
    rank: int | None = None
    nranks: int = 0
    nnodes: int | None = None
    bus: str | None = None
    ranks: set[int] = field(default_factory=set)
    started: int = 0
    completed: int = 0
    aborted: int = 0
    destroyed: int = 0
    # Communicator pointer -> its id, from start to completion; ids of those that completed.
    open: dict[bytes, str] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    networks: dict[str, Mark] = field(default_factory=dict)
    network: str | None = None
    hcas: dict[str, None] = field(default_factory=dict)
    # Index of a device in NCCL's list -> the HCAs that it is made of.
    devices: dict[int, list[str]] = field(default_factory=dict)
    data_direct: dict[str, None] = field(default_factory=dict)
    oob: str | None = None
    bootstrap: tuple[str, str, Mark] | None = None
    rings: bool = False
    tried_rdma: bool = False
    overrides: dict[int, int] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    gids: dict[str, Any] = field(default_factory=dict)
    warn_lines: int = 0
    # What follows "Channel n/m", as it is -> where it first stood and how often. Few are distinct, so they are parsed late.
    channel_lines: dict[bytes, Mark] = field(default_factory=dict)
    marks: dict[tuple[str, str | None], Mark] = field(default_factory=dict)
    evidence: dict[str, Mark] = field(default_factory=dict)

    @property
    def key(self) -> tuple[bytes, bytes]:
        return self.host.encode(), str(self.pid).encode()

    def channels(self) -> Iterator[tuple[Channel, Mark]]:
        """Network channels with where they stand. Channels inside a host are not among them."""
        for key, mark in self.channel_lines.items():
            found = _CHANNEL.match(_ANSI.sub(b"", key[3:]).decode(errors="replace"))
            if found and found.end() == len(found.string):
                sender, receiver, direction, network, device, gdr = found.groups()
                peer = int(receiver if direction == "send" else sender)
                yield Channel(peer, network, int(device), bool(gdr)), mark

    @property
    def local_only(self) -> bool:
        """Whether all its channels stay inside the host."""
        return bool(self.channel_lines) and not any(self.channels())

    @property
    def unfinished(self) -> bool:
        """Whether a communicator was started that has neither come up nor been given up."""
        return self.started > self.completed + self.aborted


@dataclass
class Log:
    """One log, read. ``processes`` are in the order in which they appear."""

    name: str
    processes: list[Process]
    version: str | None
    lines: int
    modified: float | None = None


def read(source: Source) -> Log:
    """Read one log to its end."""
    return _Reader(source).read()


class _Kind(NamedTuple):
    """How to take a warning. Without a ``code`` it does not matter."""

    code: str | None
    cause: str | None = None


_NUMBERS_DECIDE = _Kind("")


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.number = 0
        self.line = b""
        self.version: str | None = None
        self.nobody = Process("", 0, "", source.name, 0)
        self.processes: list[Process] = []
        self.latest: dict[tuple[bytes, bytes], Process] = {}
        self.by_prefix: dict[bytes, Process] = {}
        # What a warning says, as it is and without its numbers -> how to take it.
        self.kinds: dict[bytes, _Kind] = {}
        # None is a line that says nothing of interest.
        self.handlers: dict[bytes, Callable[[Process, bytes], None] | None] = {
            b"Channel": self.on_channel,
            b"NET/IB": self.on_ib,
            b"NET/IB:": self.on_ib,
            b"NET/Socket": self.on_socket,
            b"Using": self.on_using,
            b"Bootstrap": self.on_bootstrap,
            b"Bootstrap:": self.on_bootstrap,
            b"Connected": self.on_connected,
            b"NCCL": self.on_version,
            b"comm": self.on_comm,
            b"[Rank": self.on_comm,
            b"Failed": self.on_failed,
            b"Count": self.on_failed,
            b"Could": self.on_failed,
            b"dlvsym": self.on_failed,
            b"GPU": self.on_gpu_direct,
            b"Call": self.on_call,
            b"Comm": self.on_setting,
        }

    def read(self) -> Log:
        # The hot loop. `find` is several times as fast as `in`, which takes bytes for a number first.
        by_prefix, handlers = self.by_prefix, self.handlers
        number = 0
        for number, line in enumerate(self.source.lines, 1):
            at = line.find(b" NCCL INFO ")
            if at < 0:
                if line.find(b"NCCL") >= 0 or line.find(b"Unable to find address for") >= 0:
                    self.number = number
                    self.on_line(line)
                continue
            process = by_prefix.get(line[:at])
            if process is None:
                self.number = number
                process = self.process(line[:at])
            process.last = number
            at += 11
            # The first word says whether a line matters.
            word = line[at : line.find(b" ", at)]
            if word == b"Channel":
                seen = process.channel_lines.get(line[line.find(b" : ", at) :])
                if seen is not None:
                    seen.count += 1
                    continue
                if line.find(b" via ", at) < 0:
                    continue
            elif word in handlers and handlers[word] is None and line.find(b" NCCL ", at) < 0:
                continue
            self.number = number
            self.on_info(process, line, line[at:])
        if self.nobody.last:
            self.processes.append(self.nobody)
        return Log(self.source.name, self.processes, self.version, number, self.source.modified)

    def on_line(self, line: bytes) -> None:
        """Any line but one of level INFO."""
        if (at := line.find(b" NCCL WARN ")) >= 0:
            self.on_warning(line, at)
        elif any(line.find(mark) >= 0 for mark in _WATCHDOG):
            self.mark(self.nobody, "watchdog_timeout", line, "collective_timeout")
        elif line.find(b"Unable to find address for") >= 0:  # Gloo
            self.mark(self.nobody, "no_socket_address", line, "socket_ifname_has_no_address")
        elif found := _VERSION.search(line):
            self.version = found[1].decode()

    def on_info(self, process: Process, line: bytes, message: bytes) -> None:
        """A line of level INFO."""
        word = message[: message.find(b" ")]
        handler = self.handlers[word] if word in self.handlers else self.learn(word)
        self.line = line
        other = self.other_writer(message) if message.find(b" NCCL ") > 0 else -1
        if handler:
            handler(process, message if other < 0 else message[:other])
        if other >= 0:
            rest = message[other:]
            if (at := rest.find(b" NCCL WARN ")) == rest.find(b" NCCL "):
                self.on_warning(rest, at)
            elif (at := rest.find(b" NCCL INFO ")) >= 0:
                self.on_info(self.process(rest[:at]), rest, rest[at + 11 :])

    def other_writer(self, message: bytes) -> int:
        """Where another process begins to write, not having waited for the newline of this one; -1 when none does."""
        found = _SIGNATURE.search(message)
        if not found:
            return -1
        # Its host's name touches the last word of this message, so only a name that is known can be told from it.
        ends = [host for host, pid in self.latest if pid == found[2] and found[1].endswith(host)]
        return found.end(1) - len(max(ends, key=len, default=found[1]))

    def learn(self, word: bytes) -> Callable[[Process, bytes], None] | None:
        """The handler of a first word that is not known by name."""
        handler: Callable[[Process, bytes], None] | None = None
        if word.startswith(b"ncclComm"):
            handler = self.on_comm
        elif word.startswith(b"NCCL_"):
            handler = self.on_setting
        elif word.startswith(b"NET/IB"):
            handler = self.on_ib
        elif word.startswith(b"NET/"):
            handler = self.on_gpu_direct
        elif word.endswith(b"Connect:"):
            handler = self.on_call
        if len(self.handlers) < _MOST_KEYS and len(word) < _LONGEST_KEY:
            self.handlers[word] = handler
        return handler

    # Which process wrote a line

    def process(self, prefix: bytes) -> Process:
        """The process that a prefix ends with. Prefixes with timestamps are all new, so what stands behind these is known too."""
        head = prefix[prefix.rfind(b" ", 0, prefix.rfind(b" ")) + 1 :]
        process = self.by_prefix.get(head)
        if process is None:
            found = _HEAD.search(_ANSI.sub(b"", head))
            key = (found[1], found[2]) if found else (b"", b"")
            process = self.latest.get(key) or self.begin(key, found[3].decode() if found else "")
        if len(self.by_prefix) >= _MOST_KEYS:
            self.by_prefix.clear()
        if len(prefix) < _LONGEST_KEY:
            self.by_prefix[head] = self.by_prefix[prefix] = process
        process.last = self.number
        return process

    def begin(self, key: tuple[bytes, bytes], device: str) -> Process:
        if not key[1]:
            return self.nobody
        process = Process(_text(key[0]), int(key[1][:18]), device, self.source.name, self.number, self.number)
        self.processes.append(process)
        self.latest[key] = process
        if len(self.processes) > _MOST_PROCESSES:
            first = self.processes.pop(0)
            if self.latest.get(first.key) is first:
                del self.latest[first.key]
        return process

    # Marks

    def make(self, code: str, line: bytes, cause: str | None = None) -> Mark:
        return Mark(code, cause, self.source.name, self.number, line[:_LONGEST_TEXT])

    def mark(self, process: Process, code: str, line: bytes, cause: str | None = None) -> None:
        seen = process.marks.get((code, cause))
        process.last = self.number
        if seen:
            seen.count += 1
        elif len(process.marks) < _MOST_KEYS:
            process.marks[code, cause] = self.make(code, line, cause)

    def note(self, process: Process, name: str) -> None:
        process.evidence[name] = self.make(name, self.line)

    # Lines of level INFO, by their first word

    def on_channel(self, process: Process, message: bytes) -> None:
        key = message[message.find(b" : ") :]
        seen = process.channel_lines.get(key)
        if seen is not None:
            seen.count += 1
        elif b" via " in key and len(process.channel_lines) < _MOST_KEYS and len(key) < _LONGEST_KEY:
            process.channel_lines[key] = self.make("channel", self.line)

    def on_ib(self, process: Process, message: bytes) -> None:
        process.tried_rdma = True
        if message.find(b" : Using") >= 0:
            for index, name in _HCA.findall(message.partition(b"; OOB ")[0]):
                names = _hcas(name)
                process.hcas.update(dict.fromkeys(names))
                process.devices[int(index[:9] or b"0")] = names
            if process.oob is None and (found := _OOB.search(message)):
                process.oob = _text(found[1] + b":" + found[2])
            self.note(process, "hcas")
        elif message.find(b"No device found") >= 0:
            self.mark(process, "ib_no_device", self.line)
        elif message.find(b"Made virtual device") >= 0:
            if len(process.devices) < _MOST_KEYS and (found := _VIRTUAL.search(message)):
                process.devices[int(found[1][:9])] = _hcas(found[2])
        elif message.find(b"Data Direct") >= 0:
            if found := _DATA_DIRECT.search(message):
                process.data_direct[found[1].decode()] = None
        elif message.find(b": overriding dev") >= 0:
            if len(process.overrides) < _MOST_KEYS and (found := _OVERRIDE.search(message)):
                process.overrides[int(found[1][:9])] = int(found[2][:9])
            self.note(process, "override")
        elif message.find(b"Failed to open mlx5dv symbols") >= 0:
            self.mark(process, "data_direct_missing", self.line)
        else:
            self.on_gpu_direct(process, message)

    def on_socket(self, process: Process, message: bytes) -> None:
        if message.find(b" : Using") >= 0:
            self.note(process, "socket")

    def on_gpu_direct(self, process: Process, message: bytes) -> None:
        if message.find(b"GPU Direct RDMA Disabled") >= 0:
            self.mark(process, "gdr_disabled", self.line)

    def on_using(self, process: Process, message: bytes) -> None:
        if message.startswith(b"Using network "):
            name = _text(message[14:].partition(b" [repeated ")[0])
            process.network = name
            if len(process.networks) < _MOST_KEYS:
                process.networks.setdefault(name, self.make("network", self.line))

    def on_bootstrap(self, process: Process, message: bytes) -> None:
        found = _BOOTSTRAP.search(message)
        if not found:
            return
        if process.bootstrap and process is not self.nobody:
            # NCCL says this once in a process: the same pid again is the next start, as in a container.
            process = self.begin(process.key, process.device)
            self.by_prefix.clear()
        process.bootstrap = (_text(found[1]), _text(found[2]), self.make("bootstrap", self.line))

    def on_connected(self, process: Process, message: bytes) -> None:
        if message.startswith(b"Connected all rings"):
            process.rings = True

    def on_version(self, process: Process, message: bytes) -> None:
        if found := _VERSION.match(message):
            self.version = process.version = found[1].decode()
            self.note(process, "version")

    def on_comm(self, process: Process, message: bytes) -> None:
        dash = message.rfind(b"- ") + 2
        what = message[dash : dash + 10]
        if what not in (_STARTED, _COMPLETED, _ABORTED, _DESTROYED):
            if message.find(b" nNodes ") >= 0 and (found := _NODES.search(message)):
                process.nnodes = max(process.nnodes or 0, int(found[1][:9]))
            return
        if what == _DESTROYED:
            process.destroyed += 1
            return
        found = _COMM.search(message)
        if not found:
            return
        pointer, rank, nranks = found.groups()
        identity = _COMM_ID.search(message, found.end())
        repeated = message.find(b"[repeated ") >= 0 and _REPEATED.search(message)
        times = int(repeated[1][:9]) if repeated else 1
        if process.rank is None:
            bus = _BUS.search(message, found.end())
            process.rank, process.bus = int(rank[:9]), bus[1].decode() if bus else None
        if len(process.ranks) < _MOST_KEYS:
            process.ranks.add(int(rank[:9]))
        process.nranks = max(process.nranks, int(nranks[:9]))
        if what == _STARTED:
            process.started += times
            if len(process.open) < _MOST_KEYS:
                process.open[pointer] = identity[1].decode() if identity else ""
            self.note(process, "started")
        elif what == _COMPLETED:
            process.completed += times
            known = process.open.pop(pointer, "")
            if len(process.finished) < _MOST_KEYS:
                process.finished.add(identity[1].decode() if identity else known)
            self.note(process, "completed")
        else:
            process.aborted += times
            process.open.pop(pointer, None)
            self.note(process, "aborted")

    def on_failed(self, process: Process, message: bytes) -> None:
        if message.find(b"lib") < 0 and message.find(b"mlx5dv_") < 0:
            return
        if b"libibverbs" in message:
            # 2.30 tries libibverbs.so, absent without a development package, before libibverbs.so.1.
            if not message.rstrip().endswith(b"open libibverbs.so"):
                self.mark(process, "libibverbs_missing", self.line)
        elif b"mlx5dv_get_data_direct" in message or b"mlx5dv_reg_dmabuf_mr" in message or b"libmlx5.so" in message:
            self.mark(process, "data_direct_missing", self.line)

    def on_call(self, process: Process, message: bytes) -> None:
        if b"ibv_modify_qp" in message:  # Others are probes, which may fail.
            if kind := self.verbs_call(process, message):
                self.mark(process, kind.code or "", self.line, kind.cause)
        elif b"onnect" in message and b"retrying" in message:
            self.mark(process, "connect_retry", self.line)

    def on_setting(self, process: Process, message: bytes) -> None:
        if message.find(b"NCCL_NET=") >= 0:  # from 2.30 on: "Comm config netName reset to NCCL_NET=Socket"
            name, value = "NCCL_NET", _text(message.partition(b"NCCL_NET=")[2])
        elif found := _SETTING.match(message):
            name, value = found[1].decode(), _text(found[2]).removesuffix(".")
        else:
            return
        if len(process.settings) < _MOST_KEYS:
            process.settings[name] = value
        if name == "NCCL_IB_DISABLE" and value != "0":
            self.mark(process, "ib_disabled", self.line)
        elif name == "NCCL_NET" and value.lower() == "socket":
            self.mark(process, "net_socket_forced", self.line)

    # Warnings

    def on_warning(self, line: bytes, at: int) -> None:
        """A line whose `` NCCL WARN `` is at ``at``; between it and the signature stand file, line and, from 2.30 on, function."""
        process = self.process(line[: line.rfind(b"] ", 0, at) + 1])
        process.warn_lines += 1
        message = line[at + 11 :]
        code, cause = self.kinds.get(message) or self.kind(process, message)
        if code is None:
            return
        if code == "connect_failed" and _LOOPBACK.search(message):
            cause = "bootstrap_on_loopback"
        elif code == "no_socket_interface" and "NCCL_SOCKET_FAMILY" in process.settings:
            cause = "socket_ifname_has_no_address"
        elif code in _ENDING and process.destroyed:
            return  # Ranks that end do so one after the other.
        self.mark(process, code, line, cause)

    def kind(self, process: Process, message: bytes) -> _Kind:
        """How to take a warning. Floods repeat one, or one that differs in its numbers only."""
        shape = message.translate(None, _DIGITS)
        kind = self.kinds.get(shape)
        clean = message
        if kind is None or kind == _NUMBERS_DECIDE:
            clean = _ANSI.sub(b"", message).partition(b" [repeated ")[0]
        if kind is None:
            kind = self.learn_kind(shape, _kind(clean))
        if kind == _NUMBERS_DECIDE:
            kind = self.learn_kind(message, self.by_numbers(process, clean))
        return kind

    def learn_kind(self, message: bytes, kind: _Kind) -> _Kind:
        if len(self.kinds) >= _MOST_KEYS:
            self.kinds.clear()
        if len(message) < _LONGEST_TEXT:
            self.kinds[message] = kind
        return kind

    def by_numbers(self, process: Process, message: bytes) -> _Kind:
        """How to take a warning whose numbers decide what it means."""
        if message.find(b"Got completion") >= 0 and (found := _COMPLETION.search(message)):
            status = int(found[1][:9])
            cause = "roce_completion_timeout" if status in (12, 13) else "rdma_completion_error"
            return _Kind(f"ib_completion_{status}", cause)
        if found := _EVENT.search(message):
            event = found[1] or b""
            if event.lower().startswith(b"gid table change") or found[2] == _GID_CHANGE:
                return _Kind("gid_table_changed", "gid_table_changed")
            if event == b"port error":
                return _Kind("port_error", "link_flap")
            if _FATAL_EVENT.search(event):
                return _Kind("ib_async_fatal", "rdma_device_failed")
            return _Kind("port_active" if event == b"port active" else None)
        return self.verbs_call(process, message) or _Kind("unrecognized", "unrecognized_warning")

    def verbs_call(self, process: Process, message: bytes) -> _Kind | None:
        """A failed call to the RDMA library; None when it is something else."""
        found = _VERBS_CALL.search(message)
        if not found:
            return None
        call, number, text = found[1].decode(), found[2], found[3] or found[4] or b""
        named = _ERRNO.search(text)
        if named:
            number, text = named[1], text[: named.start()]
        code = int(number[:9]) if number else _ERRNO_OF.get(text.strip(), 0)
        gids = _GIDS.search(message)
        if gids:
            process.gids = {"gid_index": int(gids[1][:9]), "local_gid": _text(gids[2]), "remote_gid": _text(gids[3])}
        if "_reg_" in call:
            cause = "rdma_memory_registration_failed"
        elif code == errno.ENOMEM:
            cause = "memlock_limit"
        elif code in (errno.ENODATA, errno.ENODEV) or (gids and gids[2] == b"::"):
            cause = "gid_index_empty"
        elif call == "ibv_modify_qp":
            cause = "gid_pair_has_no_path"
        else:
            cause = "verbs_call_failed"
        return _Kind(call, cause)


_NUMBERS = (b"Got completion", b" event", b"ibv_", b"mlx5dv_reg_")
# NCCL chose something else than it was asked for, and goes on.
_HARMLESS = tuple(
    re.compile(text)
    for text in (
        rb"(?:is being |will be |, )ignor(?:ed|ing)|Ignoring|not using it|falling back|instead$",
        rb"[Ll]imiting value|cap it to|set (?:both )?(?:it )?to|[Ss]etting |leaving it|Unsetting|Enabling",
        rb"[Dd]isabling|is not supported on this system|only supported on x86_64|using dlid as fallback|^CC On,",
    )
)
# What a warning holds -> its code, and the cause that it proves. Without a cause it only follows from something else.
_WARNINGS: tuple[tuple[tuple[bytes, ...], str, str | None], ...] = (
    ((b"GID table changed",), "gid_table_changed", "gid_table_changed"),
    ((b"async fatal event",), "ib_async_fatal", "rdma_device_failed"),
    ((b"communicator encountered a fatal error",), "ib_fatal", None),
    ((b"Connection closed by remote peer",), "peer_closed", "peer_rank_died"),
    ((b"ocketProgressOpt: Call to", b"failed"), "peer_closed", "peer_rank_died"),
    ((b"Socket recv failed while polling",), "proxy_recv_failed", None),
    ((b"Failed to execute operation",), "proxy_failed", None),
    ((b"Error encountered progressing operation",), "proxy_failed", None),
    ((b"[Service thread] ",), "proxy_failed", None),
    ((b"[Proxy Service",), "proxy_failed", None),
    ((b"ncclProxyC",), "proxy_failed", None),
    ((b"ncclAsyncJobComplete",), "job_failed", None),
    ((b"commReclaim:",), "cleanup_failed", None),
    ((b"commDestroySync:",), "cleanup_failed", None),
    ((b"is in abort state",), "aborting", None),
    ((b"no socket interface found",), "no_socket_interface", "socket_ifname_not_found"),
    ((b"NET/Socket : no interface found",), "no_socket_interface", "socket_ifname_not_found"),
    ((b"verify NCCL_OOB_NET_IFNAME",), "no_socket_interface", "socket_ifname_not_found"),
    ((b"is neither AF_INET",), "no_socket_address", "socket_ifname_has_no_address"),
    ((b"No IP interface found",), "no_socket_address", "socket_ifname_has_no_address"),
    ((b"No usable listening interface",), "no_socket_address", "socket_ifname_has_no_address"),
    ((b"No interface found in the same subnet",), "no_socket_address", "socket_ifname_has_no_address"),
    ((b"exceeded retries",), "connect_failed", "bootstrap_connect_failed"),
    ((b"exceeded timeouts",), "connect_failed", "bootstrap_connect_failed"),
    ((b"exceeded error retry count",), "connect_failed", "bootstrap_connect_failed"),
    ((b"onnect to ", b"failed"), "connect_failed", "bootstrap_connect_failed"),
    ((b"ocketPollConnect",), "connect_failed", "bootstrap_connect_failed"),
    ((b"getting address info",), "connect_failed", "bootstrap_connect_failed"),
    ((b"Bootstrap Root :",), "bootstrap_mismatch", "ranks_disagree"),
    ((b"essage truncated :",), "message_truncated", "ranks_disagree"),
    ((b"collective mismatch",), "collective_mismatch", "ranks_disagree"),
    ((b"posted incorrect receive info",), "collective_mismatch", "ranks_disagree"),
    ((b"different number of devices",), "devices_differ", "devices_differ"),
    ((b"different link_layer",), "devices_differ", "devices_differ"),
    ((b"incompatible",), "devices_differ", "devices_differ"),
    ((b"Detected mixed local",), "devices_differ", "devices_differ"),
    ((b"Mismatched NCCL version",), "version_mismatch", "nccl_version_mismatch"),
    ((b"NCCL version mismatch",), "version_mismatch", "nccl_version_mismatch"),
    ((b"Failed to initialize any NET plugin",), "net_plugin_failed", None),
    ((b"Error: network ", b" not found"), "net_plugin_failed", None),
    ((b"Unable to open device",), "ib_open_failed", None),
    ((b"Unable to query ",), "ib_open_failed", None),
    ((b"libibverbs",), "libibverbs_missing", None),
    ((b"mlx5dv",), "data_direct_missing", None),
    ((b"shared memory ",), "shm_failed", "shm_too_small"),
    ((b"Error: failed to extend ",), "shm_failed", "shm_too_small"),
    ((b"Could not map ",), "shm_failed", "shm_too_small"),
    ((b"Duplicate GPU detected",), "duplicate_gpu", "duplicate_gpu"),
    ((b"ultiple ", b"anks ", b"same GPU"), "duplicate_gpu", "duplicate_gpu"),
    ((b"uda failure",), "cuda_failure", "cuda_failure"),
    ((b"CUDA context",), "cuda_failure", "cuda_failure"),
    ((b"Failed to set CUDA device",), "cuda_failure", "cuda_failure"),
    ((b"cudaIpc", b"failed"), "cuda_failure", "cuda_failure"),
    ((b"failed to peer with device",), "cuda_failure", "cuda_failure"),
    ((b"nvml", b"failed"), "cuda_failure", "cuda_failure"),
    ((b"libnvidia-ml",), "cuda_failure", "cuda_failure"),
)


def _kind(message: bytes) -> _Kind:
    """How to take a warning."""
    if b"dlvsym failed on " in message:
        return _Kind("data_direct_missing" if b"mlx5dv" in message else "libibverbs_missing")
    fatal = b" async fatal event" in message
    if not fatal and any(mark in message for mark in _NUMBERS):
        return _NUMBERS_DECIDE
    for needles, code, cause in _WARNINGS:
        if all(needle in message for needle in needles):
            return _Kind(code, cause)
    if any(pattern.search(message) for pattern in _HARMLESS):
        return _Kind(None)
    return _Kind("unrecognized", "unrecognized_warning")


_ENDING = ("peer_closed", "proxy_recv_failed", "proxy_failed")


def _hcas(name: bytes) -> list[str]:
    """HCAs behind a device name: merged names are joined by a plus, those of Data Direct end in _dma."""
    return [part.removesuffix("_dma") for part in name.decode().split("+") if part]


def _text(raw: bytes) -> str:
    """A piece of a log as text for people: cut, without control characters."""
    raw = raw[:_LONGEST_TEXT]
    if not raw.translate(None, _PLAIN):
        return raw.decode("ascii").strip()
    return _CONTROL.sub(" ", _ANSI.sub(b"", raw).decode(errors="replace")).strip()
