"""What no NCCL log may do: raise, or be read differently for what stands around its lines."""

from __future__ import annotations

import gzip
import itertools
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tandem.serving.plugins.module_utils import _causes, _log_source, _nccl_log, _nccl_verdict
from ansible_collections.tandem.serving.plugins.modules import nccl_log_info

FIXTURES = Path(__file__).parent.parent / "fixtures/nccl"
TEXTS = {path.stem: path.read_bytes() for path in sorted(FIXTURES.rglob("*.log"))}
samples = st.sampled_from(sorted(TEXTS)).map(lambda name: TEXTS[name])


def read(raw: bytes) -> dict[str, Any]:
    """The summary of a log of a GB10."""
    log = _nccl_log.read(_log_source.from_text("log", raw))
    result = _nccl_verdict.judge([log], "gb10")
    json.dumps(result)
    assert result["summary"]["verdict"] in ("pass", "warn", "fail", "inconclusive")
    assert result["summary"]["cause"] in _causes.CAUSES
    return dict(result["summary"])


@given(samples, st.integers(0, 8000))
def test_any_truncation(raw: bytes, length: int) -> None:
    read(raw[:length])
    read(raw[length:])


@given(samples, st.data())
def test_any_damage(raw: bytes, data: st.DataObject) -> None:
    for _damage in range(5):
        at = data.draw(st.integers(0, len(raw)))
        raw = raw[:at] + data.draw(st.binary(max_size=40)) + raw[at + data.draw(st.integers(0, 40)) :]
    read(raw)


@given(st.binary())
def test_any_garbage(raw: bytes) -> None:
    read(b"a:1:1 [0] NCCL INFO " + raw + b"\na:1:1 [0] x.cc:1 NCCL WARN " + raw)


def lines(raw: bytes) -> list[bytes]:
    return raw.split(b"\n")


PREFIXES = {
    "ray": b"(RayWorkerWrapper pid=411, ip=192.168.100.11) ",
    "ray-colour": b"\x1b[36m(RayWorkerWrapper pid=411, ip=192.168.100.11)\x1b[0m ",
    "vllm": b"(Worker_TP0 pid=330) ",
    "vllm-nested": b"(EngineCore_DP0 pid=330) (Worker_TP0 pid=411) ",
    "journald": b"2026-11-02T10:14:01+0000 spark-a tandem-rank[811]: ",
    "syslog": b"Nov 02 10:14:01 spark-a docker[811]: ",
    "docker": b"2026-11-02T10:14:01.123456789Z ",
    "timestamp": b"[2026-11-02 10:14:01] ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES.keys())
@pytest.mark.parametrize("name", TEXTS)
def test_prefixes_change_nothing(name: str, prefix: bytes) -> None:
    raw = TEXTS[name]
    assert read(b"\n".join(prefix + line for line in lines(raw))) == read(raw)


@pytest.mark.parametrize("name", TEXTS)
def test_line_ends_and_colours_change_nothing(name: str) -> None:
    raw = TEXTS[name]
    expected = read(raw)
    assert read(raw.replace(b"\n", b"\r\n")) == expected
    assert read(b"\n".join(b"\x1b[32m" + line + b"\x1b[0m" for line in lines(raw))) == expected
    assert read(raw.replace(b"\n", b"\nINFO 11-02 10:14:01 [model.py:1] loading \x00\xff\n")) == expected


@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_interleaving_changes_nothing(name: str, data: st.DataObject) -> None:
    """Two ranks read the same from one file, however their lines mix, as from one after the other."""
    one = lines(TEXTS[name].rstrip(b"\n"))
    two = lines(TEXTS[name].rstrip(b"\n").replace(b"spark-a:", b"other:").replace(b"station-a:", b"other:"))
    order = data.draw(st.permutations([0] * len(one) + [1] * len(two)))
    sources = (iter(one), iter(two))
    mixed = read(b"\n".join(next(sources[which]) for which in order))
    straight = read(b"\n".join(itertools.chain(one, two)))
    for field in (
        "net_channels",
        "communicators",
        "hcas",
        "nccl_version",
        "gdr",
        "init_complete",
        "warn_lines",
        "ranks",
    ):
        assert mixed[field] == straight[field]


def test_compressed_and_cut_files(tmp_path: Path) -> None:
    raw = TEXTS["nccl_b01_station_gdr_ok"]
    whole, cut = tmp_path / "whole.log.gz", tmp_path / "cut.log.gz"
    whole.write_bytes(gzip.compress(raw))
    cut.write_bytes(gzip.compress(raw)[:-20])
    found = {
        Path(source.name).name: sum(1 for _line in source.lines)
        for source in _log_source.sources({"paths": [f"{tmp_path}/*.gz"]})
    }
    assert found["whole.log.gz"] == raw.count(b"\n")
    assert 0 < found["cut.log.gz"] <= raw.count(b"\n")


def endless(count: int) -> Iterator[bytes]:
    """A long log that never repeats itself: new timestamps, processes, channels and warnings all the time."""
    for number in range(count):
        stamp = b"2026-11-02T10:14:01.%09dZ spark-%d:%d:1 [0] " % (number, number % 7, number)
        yield stamp + b"NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>"
        yield stamp + b"NCCL INFO comm 0x%x rank %d nranks 9 busId 1 commId 0x%x - Init START" % (
            number,
            number,
            number,
        )
        yield stamp + b"NCCL INFO Channel 00/0 : 1[0] -> %d[0] [send] via NET/IB/0" % number
        yield stamp + b"x.cc:1 NCCL WARN Call to ibv_reg_mr failed with error %d" % number
        yield b"spark-a:1:1 [0] NCCL INFO NCCL_VALUE_%d set by environment to %d" % (number, number)
        yield b"spark-a:1:1 [0] NCCL INFO Word%d" % number
        yield b"spark-a:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> %d[0] [send] via NET/IB/0" % number


def test_memory_stays_flat() -> None:
    """What is kept does not grow with the log: twice the lines need no more memory."""
    peaks = []
    for count in (1_000, 2_000):
        tracemalloc.start()
        _nccl_log.read(_log_source.Source("log", endless(count)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.1
    assert peaks[1] < 10_000_000


def test_a_file_without_newlines_stays_flat(tmp_path: Path) -> None:
    path = tmp_path / "blob.log"
    path.write_bytes(b"x" * 8_000_000)
    tracemalloc.start()
    assert sum(1 for _line in _log_source.from_file(str(path)).lines) == 1
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_return_names_what_is_returned() -> None:
    documented = yaml.safe_load(nccl_log_info.RETURN)
    logs = [_nccl_log.read(_log_source.from_text("log", TEXTS["nccl_b31_ray_two_ranks_one_file"]))]
    result = _nccl_verdict.judge(logs, "gb10")
    assert set(documented) == set(result)
    assert set(documented["summary"]["contains"]) == set(result["summary"])
    for key in ("files", "ranks"):
        text = " ".join(documented[key]["description"])
        assert [name for name in result[key][0] if f"C({name})" not in text and name not in result["summary"]] == []
