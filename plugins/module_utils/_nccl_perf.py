# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what nccl-tests (all_gather_perf and its like) and perftest (ib_write_bw and its like) print, and judge it.

Bandwidth of nccl-tests is in GB/s, that of perftest in Gb/s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from ansible_collections.tandem.serving.plugins.module_utils._causes import remedy
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, Verdict, check

# What good machines reach. The first two are NVIDIA's own limits for DGX Spark with both halves of a port in use;
# a DGX Station pair with one 400 Gb/s rail reaches 42 with Data Direct and 26 without.
_BUSBW = {
    ("gb10", "pair"): 21.875,
    ("gb10", "switch"): 21.875,
    ("gb10", "triangle"): 10.0,
    ("gb10", "ring"): 10.0,
    ("gb300", "pair"): 38.0,
}
# Gb/s of one RDMA device: one half of a 200 Gb/s port, one 400 Gb/s port.
_BANDWIDTH = {"gb10": 90.0, "gb300": 360.0}

_TYPES = r"(?:float|half|double|bfloat16|u?int\d+|u?char|f8e\w+|fp8\w*|float8\w*)"
_ROW = re.compile(rf"(?<!\S)(\d{{1,18}})\s+\d+\s+{_TYPES}\s+(.*)")
# The bus address is 0x1b in old versions and 000f:01:00 in new ones.
_RANK = re.compile(r"#\s+Rank\s+\d+ .* \[[0-9a-fx:]+\] (.+?)\s*$")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*:\s*(\d{1,9}(?:\.\d+)?)")
_BOUNDS = re.compile(r"# Out of bounds values\s*:\s*(\d{1,18})\s+(OK|FAILED)")
_PROGRAM = re.compile(r"# Collective test starting: (\w+)")
_BW_HEAD = re.compile(r"#bytes\s.*BW average\[(\w+/sec)\]")
# Flags add columns: the service level, each port by itself, the load of the CPU.
_BW_COLUMN = re.compile(r"#\w+|(?:BW|MsgRate) ?\w*(?=\[)|CPU_Util")
_NEEDED = {"#bytes", "#iterations", "BW peak", "BW average", "MsgRate"}
_FAULT = re.compile(
    r"(?:Couldn't |Unable to |Failed to |Failed status |Completion with error|Test (?:NCCL|CUDA) failure).{0,160}"
)
_BW_FIELD = re.compile(r"(Device|Mtu|GID index|Link type|Number of qps)\s*:\s*(\w+)")
_COUNTS = {"Mtu": "mtu", "GID index": "gid_index"}
_GBITS = {"Gb/sec": 1.0, "MiB/sec": 8 * 2**20 / 1e9, "MB/sec": 8 * 2**20 / 1e9}


class Size(TypedDict):
    """One size of nccl-tests. Times in microseconds, bandwidth in GB/s, None where a column is not given."""

    size: int
    time: float | None
    algbw: float | None
    busbw: float | None
    wrong: int | None
    time_in_place: float | None
    algbw_in_place: float | None
    busbw_in_place: float | None
    wrong_in_place: int | None


def read(text: str) -> dict[str, Any]:
    """What a tool printed; the fields are documented with the module nccl_perf_info."""
    found: dict[str, Any] = {
        "tool": None,
        "program": None,
        "ranks": None,
        "gpu": None,
        "avg_busbw": None,
        "busbw": None,
        "wrong": None,
        "sizes": [],
        "device": None,
        "gid_index": None,
        "mtu": None,
        "bw_avg_gbps": None,
        "bw_peak_gbps": None,
        "bidirectional": False,
        "messages": [],
        "fault": None,
        "evidence": [],
    }
    documents = _documents(text)
    if documents:
        _read_json(documents, found)
    else:
        _read_text(text.splitlines(), found)
    # Small messages measure latency, and pull the average down.
    largest: Mapping[str, Any] = max(found["sizes"], key=lambda row: row["size"], default={})
    both = [rate for rate in (largest.get("busbw"), largest.get("busbw_in_place")) if rate is not None]
    if both:
        found["busbw"] = round(sum(both) / len(both), 3)
    elif found["avg_busbw"] is not None:
        found["busbw"] = found["avg_busbw"]
    if found["messages"]:
        best = max(found["messages"], key=lambda row: row["bw_avg_gbps"])
        found["bw_avg_gbps"], found["bw_peak_gbps"] = best["bw_avg_gbps"], best["bw_peak_gbps"]
    return found


def _read_text(lines: Iterable[str], found: dict[str, Any]) -> None:
    unit = 1.0
    gpus: list[str] = []
    columns: list[str] = []
    shown: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        where = f"{number}: {line.strip()[:300]}"
        if row := _ROW.search(line):
            found["tool"] = "nccl-tests"
            if size := _size(int(row[1]), _columns(row[2])):
                found["sizes"].append(size)
                _add_wrong(found, size)
                shown["row"] = where
        elif rank := _RANK.search(line):
            gpus.append(rank[1])
        elif program := _PROGRAM.search(line):
            found["tool"], found["program"] = "nccl-tests", program[1]
        elif bounds := _BOUNDS.search(line):
            found["tool"] = "nccl-tests"
            found["wrong"] = max(found["wrong"] or 0, int(bounds[1]), int(bounds[2] == "FAILED"))
            shown["bounds"] = where
        elif average := _AVERAGE.search(line):
            found["tool"], found["avg_busbw"] = "nccl-tests", float(average[1])
            shown["average"] = where
        elif head := _BW_HEAD.search(line):
            found["tool"], unit = "perftest", _GBITS.get(head[1], 1.0)
            columns = _BW_COLUMN.findall(line)
        elif columns and (values := _values(line, columns)):
            found["messages"].append(_message(values, unit))
            shown["row"] = where
        else:
            found["bidirectional"] = found["bidirectional"] or "Bidirectional BW Test" in line
            if fault := _FAULT.search(line):
                found["fault"] = found["fault"] or fault[0].strip()
                shown.setdefault("fault", where)
            for name, value in _BW_FIELD.findall(line):
                _add_field(found, name, value)
    if gpus:
        found["ranks"], found["gpu"] = len(gpus), gpus[0]
    found["evidence"] = list(shown.values())


def _read_json(documents: list[Mapping[str, Any]], found: dict[str, Any]) -> None:
    for document in documents:
        info, results = _mapping(document.get("test_info")), document.get("results")
        if isinstance(results, Mapping) and "BW_average" in results:
            found["tool"] = "perftest"
            keys = {
                "#bytes": "MsgSize",
                "#iterations": "n_iterations",
                "BW peak": "BW_peak",
                "BW average": "BW_average",
                "MsgRate": "MsgRate",
            }
            values = {name: _number(results.get(key)) or 0.0 for name, key in keys.items()}
            found["messages"].append(_message(values, _unit(values)))
        if info:
            found["bidirectional"] = "Bidirectional" in str(info.get("test"))
            for name in ("Device", "Mtu", "GID_index"):
                if name in info:
                    _add_field(found, name.replace("_", " "), str(info[name]))
        if isinstance(results, list):
            found["tool"] = "nccl-tests"
            _read_json_rows(results, found)
            devices = document.get("devices")
            if isinstance(devices, list) and devices:
                found["ranks"], found["gpu"] = len(devices), str(_mapping(devices[0]).get("device_info") or "") or None
            average = document.get("average_bus_bandwidth")
            found["avg_busbw"] = _number(average.get("bandwidth") if isinstance(average, Mapping) else average)


def _read_json_rows(rows: list[Any], found: dict[str, Any]) -> None:
    for row in map(_mapping, rows):
        flat = []
        for half in (_mapping(row.get("out_of_place")), _mapping(row.get("in_place"))):
            flat += [
                half.get("time", half.get("cpu_time")),
                *(half.get(name) for name in ("alg_bw", "bus_bw", "nwrong")),
            ]
        size = _number(row.get("size"))
        if size is not None and (entry := _size(int(size), flat)):
            found["sizes"].append(entry)
            _add_wrong(found, entry)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _documents(text: str) -> list[Mapping[str, Any]]:
    """JSON objects, one after the other; none when the text is no JSON."""
    decoder = json.JSONDecoder()
    documents = []
    rest = text.lstrip()
    while rest.startswith("{"):
        try:
            document, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            break
        documents.append(document)
        rest = rest[end:].lstrip(" \r\n\t,")
    return documents


def _columns(text: str) -> list[str]:
    """The columns of numbers behind the type: time, algbw, busbw and #wrong, once or twice."""
    columns = [column for column in text.split() if column == "N/A" or _number(column) is not None]
    # Reductions put an operator and a root before them. The root is one too many.
    columns = columns[1:] if len(columns) % 4 == 1 else columns
    # With the time of every iteration, each half has its least, most, 99th percentile and spread behind it.
    return columns[:4] + columns[8:12] if len(columns) == 16 else columns


def _size(size: int, columns: Sequence[object]) -> Size | None:
    values = [_number(column) for column in columns[:8]]
    if len(values) < 4:
        return None
    values += [None] * (8 - len(values))
    wrong = [None if value is None else int(value) for value in (values[3], values[7])]
    return Size(
        size=size,
        time=values[0],
        algbw=values[1],
        busbw=values[2],
        wrong=wrong[0],
        time_in_place=values[4],
        algbw_in_place=values[5],
        busbw_in_place=values[6],
        wrong_in_place=wrong[1],
    )


def _number(column: object) -> float | None:
    try:
        value = float(str(column))
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None


def _add_wrong(found: dict[str, Any], size: Size) -> None:
    counts = [count for count in (size["wrong"], size["wrong_in_place"]) if count is not None]
    if counts:
        found["wrong"] = (found["wrong"] or 0) + sum(counts)


def _add_field(found: dict[str, Any], name: str, value: str) -> None:
    if name == "Device":
        found["device"] = value
    elif name in _COUNTS and value.isdecimal() and len(value) < 19:
        found[_COUNTS[name]] = int(value)


def _values(line: str, columns: list[str]) -> dict[str, float] | None:
    """A row of perftest by the names of its columns; None when it is no such row. A prefix is not a number."""
    cells = line.split()
    before, numbers = cells[: -len(columns)], [_number(cell) for cell in cells[-len(columns) :]]
    if len(numbers) != len(columns) or None in numbers or not _NEEDED.issubset(columns):
        return None
    if before and _number(before[-1]) is not None:
        return None
    return {name: number for name, number in zip(columns, numbers, strict=True) if number is not None}


def _unit(values: Mapping[str, float]) -> float:
    """Gb/s for each unit of a file that does not name it: what messages of this size and rate come to decides."""
    sent = values["#bytes"] * values["MsgRate"] * 8e6 / 1e9
    return min(_GBITS.values(), key=lambda unit: abs(values["BW average"] * unit - sent)) if sent else 1.0


def _message(values: Mapping[str, float], unit: float) -> dict[str, Any]:
    """One size of perftest. A peak of zero was not measured."""
    return {
        "size": int(values["#bytes"]),
        "iterations": int(values["#iterations"]),
        "bw_peak_gbps": round(values["BW peak"] * unit, 3) or None,
        "bw_avg_gbps": round(values["BW average"] * unit, 3),
        "message_rate_mpps": values["MsgRate"],
    }


def guess_platform(found: Mapping[str, Any]) -> str:
    """The platform by the name of the GPU or of the RDMA device; GB10 where the output names neither."""
    gpu, device = found["gpu"] or "", found["device"] or ""
    if "GB10" in gpu or re.fullmatch(r"roce(P2)?p1s0f\d", device) or not (gpu or device):
        return "gb10"
    return "gb300" if "GB300" in gpu else "generic"


def guess_topology(found: Mapping[str, Any]) -> str:
    """Three ranks are taken for a triangle, more for a ring, which is asked less than a switch; otherwise it is a pair."""
    ranks = found["ranks"] or 2
    return "pair" if ranks == 2 else "triangle" if ranks == 3 else "ring"


def judge(
    found: Mapping[str, Any],
    platform: str,
    topology: str,
    min_busbw: float | None = None,
    min_gbps: float | None = None,
    source: str = "output",
) -> list[Check]:
    """Hold a reading against what the machines should reach. ``min_busbw`` in GB/s and ``min_gbps`` in Gb/s override that."""
    if found["tool"] == "nccl-tests":
        wanted = min_busbw if min_busbw is not None else _BUSBW.get((platform, topology))
        name, rate, unit = "nccl-tests bus bandwidth", found["busbw"], "GB/s"
    else:
        wanted = min_gbps if min_gbps is not None else _BANDWIDTH.get(platform)
        name, rate, unit = f"bandwidth of {found['device'] or 'the device'}", found["bw_avg_gbps"], "Gb/s"
    if found["bidirectional"] and rate is not None:
        # The tool adds both directions up.
        name, rate = f"{name}, each direction", rate / 2
    lines = [f"{source}:{line}" for line in found["evidence"]] or [f"{source}: {found['tool'] or 'no table'}"]
    if not found["tool"]:
        said = found["fault"] or "neither"
        return [_check("performance", "inconclusive", "a table of nccl-tests or perftest", said, "no_result", lines)]
    if rate is None and found["fault"]:
        return [_check(name, "fail", "a measurement", found["fault"], "measurement_failed", lines)]
    return [*_judge_wrong(found["wrong"], lines), _judge_rate(name, rate, wanted, unit, lines)]


def _judge_wrong(wrong: int | None, lines: list[str]) -> list[Check]:
    if wrong is None:
        return []
    name, expected, said = "nccl-tests results", "0 wrong values", f"{wrong} wrong values"
    if wrong:
        return [_check(name, "fail", expected, said, "wrong_results", lines)]
    return [_check(name, "pass", expected, said, "ok", lines)]


def _judge_rate(name: str, rate: float | None, wanted: float | None, unit: str, lines: list[str]) -> Check:
    if rate is None:
        return _check(name, "inconclusive", "a measurement", "none: the run did not end", "no_result", lines)
    said = f"{rate:g} {unit}"
    if wanted is None:
        return _check(name, "inconclusive", "a limit to hold it against", said, "no_threshold", lines)
    expected = f"at least {wanted:g} {unit}"
    if rate >= wanted:
        return _check(name, "pass", expected, said, "ok", lines)
    # Some detail makes a path a little slower; another path, or a faulty link, makes it several times so.
    if rate < wanted / 2:
        return _check(name, "fail", expected, said, "wrong_data_path_or_build", lines)
    return _check(name, "warn", expected, said, "bandwidth_below_threshold", lines)


def _check(name: str, verdict: Verdict, expected: str, said: str, cause: str, lines: list[str]) -> Check:
    cure = "" if verdict == "pass" else remedy(cause)
    return check(name, verdict, expected, said, cause=cause, evidence=lines, remedy=cure)
