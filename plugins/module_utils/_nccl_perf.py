# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what nccl-tests (all_gather_perf and its like) and perftest (ib_write_bw and its like) print, and judge it.

Bandwidth of nccl-tests is in GB/s, that of perftest in Gb/s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
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
_ROW = re.compile(rf"(?<!\S)(\d+)\s+\d+\s+{_TYPES}\s+(.*)")
_RANK = re.compile(r"#\s+Rank\s+\d+ .* \[[0-9a-f:]+\] (.+?)\s*$")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*:\s*([\d.]+)")
_BOUNDS = re.compile(r"# Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)")
_PROGRAM = re.compile(r"# Collective test starting: (\w+)")
_BW_HEAD = re.compile(r"#bytes\s.*BW average\[(\w+/sec)\]")
_BW_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*$")
_BW_FIELD = re.compile(r"(Device|Mtu|GID index|Link type|Number of qps)\s*:\s*(\w+)")
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
        "messages": [],
    }
    documents = _documents(text)
    if documents:
        _read_json(documents, found)
    else:
        _read_text(text.splitlines(), found)
    rates = [row["busbw"] or row["busbw_in_place"] for row in found["sizes"]]
    if found["sizes"] and rates[-1] is not None:
        last = found["sizes"][-1]
        both = [rate for rate in (last["busbw"], last["busbw_in_place"]) if rate is not None]
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
    for line in lines:
        if row := _ROW.search(line):
            found["tool"] = "nccl-tests"
            if size := _size(int(row[1]), _columns(row[2])):
                found["sizes"].append(size)
                _add_wrong(found, size)
        elif rank := _RANK.search(line):
            gpus.append(rank[1])
        elif program := _PROGRAM.search(line):
            found["tool"], found["program"] = "nccl-tests", program[1]
        elif bounds := _BOUNDS.search(line):
            found["tool"] = "nccl-tests"
            found["wrong"] = max(found["wrong"] or 0, int(bounds[1]), int(bounds[2] == "FAILED"))
        elif average := _AVERAGE.search(line):
            found["tool"], found["avg_busbw"] = "nccl-tests", float(average[1])
        elif head := _BW_HEAD.search(line):
            found["tool"], unit = "perftest", _GBITS.get(head[1], 1.0)
        elif found["tool"] == "perftest" and (row := _BW_ROW.match(line)):
            found["messages"].append(
                _message(int(row[1]), int(row[2]), float(row[3]), float(row[4]), float(row[5]), unit)
            )
        else:
            for name, value in _BW_FIELD.findall(line):
                _add_field(found, name, value)
    if gpus:
        found["ranks"], found["gpu"] = len(gpus), gpus[0]


def _read_json(documents: list[Mapping[str, Any]], found: dict[str, Any]) -> None:
    for document in documents:
        info, results = document.get("test_info"), document.get("results")
        if isinstance(results, Mapping) and "BW_average" in results:
            found["tool"] = "perftest"
            length, times = int(results.get("MsgSize", 0)), int(results.get("n_iterations", 0))
            peak, mean, rate = (float(results.get(name, 0)) for name in ("BW_peak", "BW_average", "MsgRate"))
            # The file does not name its unit: it is that of --report_gbits.
            found["messages"].append(_message(length, times, peak, mean, rate, 1.0))
        if isinstance(info, Mapping):
            for name in ("Device", "Mtu", "GID_index"):
                if name in info:
                    _add_field(found, name.replace("_", " "), str(info[name]))
        if isinstance(results, list):
            found["tool"] = "nccl-tests"
            for row in results:
                both = [row.get("out_of_place") or {}, row.get("in_place") or {}]
                flat = [half.get(name) for half in both for name in ("time", "alg_bw", "bus_bw", "nwrong")]
                size = _size(int(row.get("size", 0)), ["N/A" if value is None else str(value) for value in flat])
                if size:
                    found["sizes"].append(size)
                    _add_wrong(found, size)
            average = document.get("average_bus_bandwidth")
            found["avg_busbw"] = average.get("bandwidth") if isinstance(average, Mapping) else average


def _documents(text: str) -> list[Mapping[str, Any]]:
    """JSON objects, one after the other; none when the text is no JSON."""
    decoder = json.JSONDecoder()
    documents = []
    rest = text.lstrip()
    while rest.startswith("{"):
        try:
            document, end = decoder.raw_decode(rest)
        except ValueError:
            break
        documents.append(document)
        rest = rest[end:].lstrip(" \r\n\t,")
    return documents


def _columns(text: str) -> list[str]:
    """The columns of numbers behind the type: time, algbw, busbw and #wrong, once or twice."""
    columns = [column for column in text.split() if column == "N/A" or _number(column) is not None]
    # Reductions put an operator and a root before them. The root is one too many.
    return columns[1:] if len(columns) % 4 == 1 else columns


def _size(size: int, columns: list[str]) -> Size | None:
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


def _number(column: str) -> float | None:
    try:
        value = float(column)
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
    elif name == "Mtu" and value.isdigit():
        found["mtu"] = int(value)
    elif name == "GID index" and value.isdigit():
        found["gid_index"] = int(value)


def _message(size: int, iterations: int, peak: float, average: float, rate: float, unit: float) -> dict[str, Any]:
    """One size of perftest. A peak of zero was not measured."""
    return {
        "size": size,
        "iterations": iterations,
        "bw_peak_gbps": round(peak * unit, 3) or None,
        "bw_avg_gbps": round(average * unit, 3),
        "message_rate_mpps": rate,
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
        return [
            *_judge_wrong(found, source),
            _judge_rate("nccl-tests bus bandwidth", found["busbw"], wanted, "GB/s", source),
        ]
    if found["tool"] == "perftest":
        wanted = min_gbps if min_gbps is not None else _BANDWIDTH.get(platform)
        return [
            _judge_rate(f"bandwidth of {found['device'] or 'the device'}", found["bw_avg_gbps"], wanted, "Gb/s", source)
        ]
    return [_check("performance", "inconclusive", "a table of nccl-tests or perftest", "neither", "no_result", source)]


def _judge_wrong(found: Mapping[str, Any], source: str) -> list[Check]:
    wrong = found["wrong"]
    if wrong is None:
        return []
    cause = "wrong_results" if wrong else "ok"
    return [
        _check(
            "nccl-tests results", "fail" if wrong else "pass", "0 wrong values", f"{wrong} wrong values", cause, source
        )
    ]


def _judge_rate(name: str, rate: float | None, wanted: float | None, unit: str, source: str) -> Check:
    if rate is None:
        return _check(name, "inconclusive", "a measurement", "none: the run did not end", "no_result", source)
    said = f"{rate:g} {unit}"
    if wanted is None:
        return _check(name, "inconclusive", "a limit to hold it against", said, "no_threshold", source)
    expected = f"at least {wanted:g} {unit}"
    if rate >= wanted:
        return _check(name, "pass", expected, said, "ok", source)
    # Some detail makes a path a little slower; another path, or a faulty link, makes it several times so.
    if rate < wanted / 2:
        return _check(name, "fail", expected, said, "wrong_data_path_or_build", source)
    return _check(name, "warn", expected, said, "bandwidth_below_threshold", source)


def _check(name: str, verdict: Verdict, expected: str, found: str, cause: str, source: str) -> Check:
    return check(
        name,
        verdict,
        expected,
        found,
        cause=cause,
        evidence=[f"{source}: {found}"],
        remedy="" if verdict == "pass" else remedy(cause),
    )
