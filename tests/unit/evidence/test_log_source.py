"""Where logs come from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.tandem.serving.plugins.module_utils import _log_source
from ansible_collections.tandem.serving.plugins.module_utils._log_source import LogError


def names(*patterns: Path | str) -> list[str]:
    return [Path(name).name for name in _log_source.expand([str(pattern) for pattern in patterns])]


def test_paths_and_patterns(tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "c[1].log", "sub/d.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert names(tmp_path / "*.log") == ["a.log", "b.log", "c[1].log"]
    assert names(tmp_path / "c[1].log") == ["c[1].log"]
    assert names(tmp_path / "**/*.log") == ["a.log", "b.log", "c[1].log", "d.log"]
    assert names(tmp_path / "b.log", tmp_path / "*.log") == ["b.log", "a.log", "c[1].log"]
    assert names(tmp_path / "none*", tmp_path) == []


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"Cannot read the log .*gone\.log: No such file or directory"):
        _log_source.from_file(str(tmp_path / "gone.log"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1764433200", 1764433200.0),
        ("@1764433200", 1764433200.0),
        ("2025-11-29T16:20:00Z", 1764433200.0),
        ("2025-11-29 17:20:00+01:00", 1764433200.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert _log_source.parse_time(text) == seconds


def test_no_time() -> None:
    with pytest.raises(LogError, match="'yesterday' is no time: expected seconds"):
        _log_source.parse_time("yesterday")


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\n\nb", "\n"])
def test_lines_are_those_of_the_text(text: str) -> None:
    lines = [line.decode() for line in _log_source.from_text("text", text).lines]
    assert lines == (text.removesuffix("\n").split("\n") if text else [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_what_powershell_saves_is_text(encoding: str) -> None:
    raw = "\ufeff" * (encoding == "utf-16-be") + "Größe\r\n" * 50_000
    lines = list(_log_source.from_text("log", raw.encode(encoding) + b"\x00").lines)
    assert lines[:50_000] == ["Größe\r".encode()] * 50_000


def test_a_long_log_is_read_in_part(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a\n" * 150_000)
    (tmp_path / "b").write_bytes(b"a\nb\xff")
    assert len(_log_source.text(_log_source.from_file(str(tmp_path / "a")))) < 250_000
    assert _log_source.text(_log_source.from_file(str(tmp_path / "b"))) == "a\nb\ufffd"


def test_records_in_json_are_their_messages() -> None:
    """journalctl --output json, docker's own files, structured logs; a line that is cut, or no record."""
    records = [
        {"__CURSOR": "s=1", "MESSAGE": "first", "_PID": "1"},
        {"MESSAGE": list(b"\x1b[31mcolour\xff"), "PRIORITY": "6"},
        {"log": "two\nlines\n", "stream": "stderr", "time": "2026-11-02T10:14:01Z"},
        {"message": "structured", "level": "INFO"},
        {"MESSAGE": None},
        {"other": 1},
    ]
    raw = [json.dumps(record).encode() for record in records]
    lines = list(_log_source.from_text("log", b"\n".join([*raw, raw[0][:20], b"plain"])).lines)
    assert lines == [
        b"first",
        b"\x1b[31mcolour\xff",
        b"two",
        b"lines",
        b"structured",
        raw[4],
        raw[5],
        raw[0][:20],
        b"plain",
    ]


def test_an_overlong_line_loses_its_middle(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_bytes(b"begin" + b"x" * 5_000_000 + b"end\nnext\n")
    first, second = _log_source.from_file(str(path)).lines
    assert first.startswith(b"begin")
    assert first.endswith(b"end")
    assert len(first) < 2_500_000
    assert second == b"next"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that print how they were called; systemctl knows one invocation, docker no container named gone."""
    for name, script in {
        "journalctl": 'echo "$@"',
        "systemctl": '[ "$6" = new.service ] || echo 0123abcd',
        "docker": '[ "$3" = gone ] && { echo "No such container: gone" >&2; exit 1; }; echo "$@"; echo error >&2',
    }.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.usefixtures("programs")
def test_the_journal_of_the_last_invocation() -> None:
    [source] = _log_source.sources(
        {"journal_unit": "tandem-rank.service", "journal_scope": "invocation", "since": "@100"}
    )
    [line] = source.lines
    assert source.name == "journal:tandem-rank.service"
    assert line.endswith(b"--since @100 _SYSTEMD_INVOCATION_ID=0123abcd + INVOCATION_ID=0123abcd")


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(("unit", "scope"), [("tandem-rank.service", "boot"), ("new.service", "invocation")])
def test_the_journal_of_the_boot(unit: str, scope: str) -> None:
    [source] = _log_source.sources({"journal_unit": unit, "journal_scope": scope})
    [line] = source.lines
    assert line.decode().endswith(f"--boot --unit {unit}")


@pytest.mark.usefixtures("programs")
def test_the_output_of_a_container_and_its_errors() -> None:
    [source] = _log_source.sources({"container": "tandem-rank"})
    assert list(source.lines) == [b"logs -- tandem-rank", b"error"]


@pytest.mark.usefixtures("programs")
def test_a_container_that_is_not_there() -> None:
    [source] = _log_source.sources({"container": "gone"})
    with pytest.raises(LogError, match=r"docker logs -- gone failed with 1: No such container: gone"):
        list(source.lines)


def test_a_program_that_is_missing(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs / "none"))
    with pytest.raises(LogError, match="Cannot run docker: No such file or directory"):
        list(_log_source.from_container("tandem-rank").lines)
