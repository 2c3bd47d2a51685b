# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where logs come from: files, text, the journal of a unit, a container.

A log is read as a stream of ``bytes`` lines and never held in memory: a gigabyte of it costs as much memory as a page.
Reading is tolerant, because broken logs are what one has after a crash: an overlong line loses its middle, a cut
gzip member ends where it breaks. Only a source that cannot be opened at all raises `LogError`.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import json
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

# For a module: argument_spec.update(ARGUMENTS), and the two constraints. Documented in doc_fragments/log_source.py.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "paths": {"type": "list", "elements": "path"},
    "content": {"type": "str"},
    "journal_unit": {"type": "str"},
    "journal_scope": {"type": "str", "choices": ["invocation", "boot"], "default": "invocation"},
    "container": {"type": "str"},
    "since": {"type": "str"},
}
ONE_SOURCE = [("paths", "content", "journal_unit", "container")]

BLOCK = 1 << 20
_LONGEST_LINE = 1 << 16
# Where a record holds the message: journald, docker, and programs that log in JSON.
# Lines of what is read as a whole.
_LONGEST_TEXT = 100_000
_MESSAGE = ("MESSAGE", "log", "message")


class Stream(Protocol):
    """What is read: a file, an unpacked file, a pipe, a buffer."""

    def read1(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class LogError(Exception):
    """A source that cannot be read. The message says which, why, and what to do."""


class Source(NamedTuple):
    """One log. ``lines`` can be walked once; ``modified`` is seconds since the epoch, for files."""

    name: str
    lines: Iterator[bytes]
    modified: float | None = None


def sources(params: Mapping[str, Any]) -> Iterator[Source]:
    """The logs that module parameters (`ARGUMENTS`) name, in order. Patterns that match nothing give no source."""
    since = parse_time(params["since"]) if params.get("since") else None
    for path in expand(params.get("paths") or []):
        yield from_file(path)
    if params.get("content") is not None:
        yield from_text("content", params["content"])
    if params.get("journal_unit"):
        yield from_journal(params["journal_unit"], params.get("journal_scope") or "invocation", since)
    if params.get("container"):
        yield from_container(params["container"], since)


def expand(patterns: Sequence[str]) -> list[str]:
    """The files that paths and glob patterns name, each once: patterns in the order given, their matches sorted."""
    found: dict[str, None] = {}
    for pattern in patterns:
        # A file whose name holds brackets is itself before it is a pattern.
        names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
        found.update(dict.fromkeys(name for name in names if Path(name).is_file()))
    return list(found)


def from_text(name: str, text: str | bytes) -> Source:
    """Text as a source."""
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return Source(name, split(io.BytesIO(raw)))


def from_file(path: str) -> Source:
    """A file, unpacked on the fly when its name ends in .gz."""
    try:
        modified = Path(path).stat().st_mtime
        stream = gzip.open(path) if path.endswith(".gz") else Path(path).open("rb")  # noqa: SIM115
    except OSError as error:
        raise LogError(
            f"Cannot read the log {path}: {error.strerror}. Check the path, or become a user who may read it."
        ) from error
    return Source(path, split(stream), modified)


def text(source: Source) -> str:
    """A short log as a whole, of a long one its head."""
    return b"\n".join(islice(source.lines, _LONGEST_TEXT)).decode(errors="replace")


def from_journal(unit: str, scope: str = "invocation", since: float | None = None) -> Source:
    """The journal of a unit, of its last invocation or of this boot."""
    command = ["journalctl", "--no-pager", "--quiet", "--all", "--output", "cat", "--boot"]
    invocation = _invocation(unit) if scope == "invocation" else ""
    if since is not None:
        command += ["--since", f"@{since:.0f}"]
    if invocation:
        # What the unit's processes wrote, and what systemd wrote about them.
        command += [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
    else:
        command += ["--unit", unit]
    return Source(f"journal:{unit}", _run(command))


def from_container(container: str, since: float | None = None) -> Source:
    """What a container has written to standard output and error."""
    command = ["docker", "logs"]
    if since is not None:
        command += ["--since", f"{since:.0f}"]
    return Source(f"container:{container}", _run([*command, "--", container]))


def parse_time(text: str) -> float:
    """Seconds since the epoch of ``1764433200``, ``@1764433200`` or an ISO 8601 time (local time when it names no zone)."""
    plain = text.strip().removeprefix("@")
    try:
        return float(plain)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(plain.replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise LogError(
            f"'{text}' is no time: expected seconds since the epoch (as `systemctl show --timestamp=unix` prints) or ISO 8601."
        ) from None


def split(stream: Stream) -> Iterator[bytes]:
    """Lines of a stream without their newline; of a log in JSON, its messages. Closes the stream at its end."""
    with closing(stream):
        blocks = iter(lambda: _read(stream), b"")
        first = next(blocks, b"")
        blocks = chain([first], blocks)
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            blocks = _from_utf16(blocks)
        lines = _lines(blocks)
        yield from _messages(lines) if first.startswith(b'{"') else lines


def _from_utf16(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """What PowerShell writes when a command's output is sent to a file."""
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "replace")


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        lines = (rest[:_LONGEST_LINE] + block).split(b"\n")
        rest = lines.pop()
        yield from lines
    if rest:
        yield rest


def _messages(lines: Iterable[bytes]) -> Iterator[bytes]:
    """What the records say that ``journalctl --output json`` prints, or that docker keeps. Other lines stay as they are."""
    for line in lines:
        try:
            record = json.loads(line)
            said = next(record[name] for name in _MESSAGE if name in record)
            # journald prints as numbers what is not text: colours, for example.
            raw = said.encode("utf-8", "replace") if isinstance(said, str) else bytes(said)
        except (ValueError, TypeError, StopIteration, RecursionError):
            yield line
        else:
            yield from raw.removesuffix(b"\n").split(b"\n")


def _read(stream: Stream) -> bytes:
    try:
        # read would lose, with the error, what it has read before.
        return stream.read1(BLOCK)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b""


def _invocation(unit: str) -> str:
    """Identifier of the unit's last invocation; empty when systemd no longer knows it."""
    command = ["systemctl", "show", "--property", "InvocationID", "--value", "--", unit]
    return b"".join(_run(command)).decode().strip()


def _run(command: list[str]) -> Iterator[bytes]:
    """Lines that a command prints, standard error included, while it runs. `LogError` when it fails."""
    with tempfile.TemporaryFile() as errors:
        # docker writes a container's standard error to its own; both are the log, in the order they come.
        both = command[0] == "docker"
        try:
            # run_command of a module would hold the whole log in memory.
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if both else errors
            )
        except OSError as error:
            raise LogError(f"Cannot run {command[0]}: {error.strerror}.") from error
        output = cast(Stream, process.stdout)
        last = b""
        try:
            for last in split(output):  # pylint: disable=use-yield-from
                yield last
        finally:
            output.close()
            code = process.wait()
        if code:
            errors.seek(0)
            message = (last if both else errors.read(2000)).decode(errors="replace").strip()
            raise LogError(f"{' '.join(command)} failed with {code}: {message}")
