"""Results of nccl-tests and perftest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tandem.serving.plugins.module_utils import _nccl_perf
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, worst
from ansible_collections.tandem.serving.plugins.modules import nccl_perf_info

FIXTURES = Path(__file__).parent.parent / "fixtures/nccl_perf"


def judge(text: str, **options: Any) -> list[Check]:
    found = _nccl_perf.read(text)
    return _nccl_perf.judge(found, _nccl_perf.guess_platform(found), _nccl_perf.guess_topology(found), **options)


@pytest.mark.parametrize(
    ("name", "fields", "verdict", "cause"),
    [
        (
            "all_gather_perf_ok",
            {"avg_busbw": 23.73, "busbw": 23.73, "wrong": 0, "ranks": 2, "program": "all_gather_perf"},
            "pass",
            "ok",
        ),
        (
            # What roles/fabric/files/all_gather.py printed on two H200s that talked over sockets.
            "all_gather_h200_socket",
            {"busbw": 3.49, "wrong": 0, "ranks": 2, "gpu": "NVIDIA H200", "program": "all_gather_perf"},
            "inconclusive",
            "no_threshold",
        ),
        (
            "ib_write_bw_ok",
            {"device": "rocep1s0f0", "gid_index": 3, "mtu": 1024, "bw_avg_gbps": 92.57, "bw_peak_gbps": None},
            "pass",
            "ok",
        ),
    ],
)
def test_samples(name: str, fields: dict[str, Any], verdict: str, cause: str) -> None:
    text = (FIXTURES / f"{name}.txt").read_text()
    found = _nccl_perf.read(text)
    assert {field: found[field] for field in fields} == fields
    checks = judge(text)
    assert worst(check["verdict"] for check in checks) == verdict
    assert checks[-1]["cause"] == cause


def test_a_slow_sample() -> None:
    text = (FIXTURES / "all_gather_perf_low.txt").read_text()
    found = _nccl_perf.read(text)
    assert (found["avg_busbw"], found["ranks"]) == (3.04, None)
    checks = judge(text)
    assert [(check["verdict"], check["cause"]) for check in checks] == [
        ("pass", "ok"),
        ("fail", "wrong_data_path_or_build"),
    ]


TABLE = """# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 193508 on    spark-a device  0 [000f:01:00] NVIDIA GB10
#  Rank  1 Group  0 Pid 127813 on    spark-b device  0 [000f:01:00] NVIDIA GB10
#  Rank  2 Group  0 Pid 127813 on    spark-c device  0 [000f:01:00] NVIDIA GB10
           8             2     float     sum      -1    22.10    0.00    0.00      0    21.90    0.00    0.00      0
  1073741824     268435456     float     sum      -1  82000   13.09   17.46    N/A   1.8e+07   13.09   17.50      2
# Out of bounds values : 2 FAILED
# Avg bus bandwidth    : 8.73
"""


def test_a_reduction_over_sizes() -> None:
    found = _nccl_perf.read(TABLE)
    assert [size["size"] for size in found["sizes"]] == [8, 1073741824]
    assert found["sizes"][1] == {
        "size": 1073741824,
        "time": 82000.0,
        "algbw": 13.09,
        "busbw": 17.46,
        "wrong": None,
        "time_in_place": 1.8e7,
        "algbw_in_place": 13.09,
        "busbw_in_place": 17.5,
        "wrong_in_place": 2,
    }
    assert (found["busbw"], found["avg_busbw"], found["wrong"]) == (17.48, 8.73, 2)


def test_each_verdict_names_its_lines() -> None:
    for item in judge(TABLE, source="run.txt"):
        assert [line.split(": ")[0] for line in item["evidence"]] == ["run.txt:6", "run.txt:7", "run.txt:8"]


def test_wrong_values_fail_whatever_the_speed() -> None:
    wrong, rate = judge(TABLE)
    assert (wrong["verdict"], wrong["cause"]) == ("fail", "wrong_results")
    assert rate["verdict"] == "pass"  # a triangle, of which 10 GB/s are asked


def test_limits_follow_topology_and_options() -> None:
    found = _nccl_perf.read(TABLE)
    assert _nccl_perf.judge(found, "gb10", "pair")[1]["cause"] == "bandwidth_below_threshold"
    assert _nccl_perf.judge(found, "gb10", "pair", min_busbw=17.0)[1]["verdict"] == "pass"
    assert _nccl_perf.judge(found, "generic", "pair")[1]["cause"] == "no_threshold"
    assert _nccl_perf.judge(found, "generic", "pair", min_busbw=40.0)[1]["verdict"] == "fail"


def test_forms_of_rows() -> None:
    row = "1048576 262144 float 40.1 26.15 24.51 0e+00"  # old versions: no operator, no root, one half
    assert _nccl_perf.read(row)["sizes"][0]["busbw"] == 24.51
    stamped = "1048576 262144 float none -1 40.1 26.15 24.51 0 40.2 26.1 24.4 0 2026-11-02 10:14:01"
    assert _nccl_perf.read(stamped)["sizes"][0]["busbw_in_place"] == 24.4
    prefixed = "[1,0]<stdout>: 1048576 262144 bfloat16 none -1 40.1 26.15 24.51 0 40.2 26.1 24.4 0"
    assert _nccl_perf.read(prefixed)["sizes"][0]["time"] == 40.1


def test_old_and_per_iteration_forms() -> None:
    old = "#  Rank  0 Group  0 Pid  16253 on     node1 device  0 [0x07] NVIDIA A100-SXM4-40GB\n"
    assert _nccl_perf.read(old * 2)["gpu"] == "NVIDIA A100-SXM4-40GB"
    half = "40.1 26.15 24.51 0 39.0 44.2 43.9 1.25"
    row = f"1048576 262144 float sum -1 {half} {half.replace('24.51', '24.40')} 2026-11-02 10:14:01"
    found = _nccl_perf.read(row)["sizes"][0]
    assert (found["busbw"], found["wrong"], found["time_in_place"], found["busbw_in_place"]) == (24.51, 0, 40.1, 24.4)


HEAD = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"


@pytest.mark.parametrize(
    ("head", "row"),
    [
        (HEAD, " 65536      5000             97.10              92.57              0.176554"),
        (f"{HEAD}    CPU_Util[%]", " 65536      5000             97.10              92.57              0.176554     12.50"),
        (" #bytes    #sl      #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]",
         " 65536    3           5000           97.10            92.57                  0.176554"),
        (f"{HEAD}   BW Port1[Gb/sec]   MsgRate Port1[Mpps]   BW Port2[Gb/sec]   MsgRate Port2[Mpps]",
         " 65536    5000     97.10   92.57   0.176554   46.28   0.088   46.29   0.088"),
    ],
)  # fmt: skip
def test_flags_of_perftest_add_columns(head: str, row: str) -> None:
    [message] = _nccl_perf.read(f"{head}\n{row}\n")["messages"]
    assert (message["size"], message["iterations"], message["bw_peak_gbps"], message["bw_avg_gbps"]) == (
        65536,
        5000,
        97.1,
        92.57,
    )


def test_both_directions_at_once_are_judged_each() -> None:
    text = (
        (FIXTURES / "ib_write_bw_ok.txt").read_text().replace("RDMA_Write BW Test", "RDMA_Write Bidirectional BW Test")
    )
    assert judge(text)[0]["verdict"] == "warn"
    [rate] = judge(text.replace("92.57", "185.2"))
    assert (rate["verdict"], rate["found"]) == ("pass", "92.6 Gb/s")


@pytest.mark.parametrize(
    ("text", "verdict", "cause"),
    [
        (" Device         : rocep1s0f0\nCouldn't connect to 10.0.0.2:18515\nUnable to open file descriptor for socket connection",
         "inconclusive", "no_result"),
        (f"{HEAD}\nCompletion with error at client\nFailed status 12: wr_id 0 syndrom 0x81", "fail", "measurement_failed"),
        ("# Collective test starting: all_gather_perf\nspark-a: Test NCCL failure common.cu:1005 'unhandled system error'",
         "fail", "measurement_failed"),
    ],
)  # fmt: skip
def test_what_a_tool_could_not_do(text: str, verdict: str, cause: str) -> None:
    [rate] = judge(text)
    assert (rate["verdict"], rate["cause"]) == (verdict, cause)
    assert rate["found"].startswith(("Couldn't", "Completion", "Test NCCL"))


@pytest.mark.parametrize(
    "prefix", ["2026-11-02T10:14:01.123Z ", "Nov 02 10:14:01 spark-a docker[811]: ", "[1,0]<stdout>:", "(pid=12) "]
)
def test_prefixes(prefix: str) -> None:
    for path in sorted(FIXTURES.glob("*.txt")):
        text = path.read_text()
        found = _nccl_perf.read("".join(prefix + line for line in text.splitlines(keepends=True)))
        assert {**found, "evidence": []} == {**_nccl_perf.read(text), "evidence": []}


def test_units_of_perftest() -> None:
    text = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n 65536  5000  11035.1  11030.2  0.176\n"
    found = _nccl_perf.read(text)
    assert found["bw_avg_gbps"] == pytest.approx(92.53, abs=0.01)


HALF = {"time": 361800.0, "alg_bw": 47.48, "bus_bw": 23.74, "nwrong": 0.0}
DOCUMENT_OF_PERFTEST = {
    "test_info": {"test": "RDMA_Write_BW_Test", "Device": "rocep1s0f0", "Mtu": 4096, "GID_index": 3},
    "results": {"MsgSize": 65536, "n_iterations": 5000, "BW_peak": 0.0, "BW_average": 108.9, "MsgRate": 0.2077},
}
DOCUMENT_OF_NCCL_TESTS = {
    "version": 2,
    "devices": [{"rank": rank, "hostname": "spark", "device_info": "NVIDIA GB10"} for rank in (0, 1)],
    "results": [{"size": 17179869184, "type": "float", "out_of_place": HALF, "in_place": None}],
    "out_of_bounds": {"count": 0, "okay": True},
    "average_bus_bandwidth": {"bandwidth": 23.74, "okay": "unchecked"},
}


def test_json_of_perftest() -> None:
    document = DOCUMENT_OF_PERFTEST
    found = _nccl_perf.read(json.dumps(document) + "\n" + json.dumps(document))
    assert (found["device"], found["mtu"], found["gid_index"], found["bw_avg_gbps"]) == ("rocep1s0f0", 4096, 3, 108.9)
    assert len(found["messages"]) == 2
    # Without --report_gbits the file does not say that it counts MiB.
    mib = {
        **document,
        "results": {"MsgSize": 65536, "n_iterations": 5000, "BW_peak": 0.0, "BW_average": 11030.2, "MsgRate": 0.176483},
    }
    assert _nccl_perf.read(json.dumps(mib))["bw_avg_gbps"] == pytest.approx(92.53, abs=0.01)
    assert judge(json.dumps(document))[0]["verdict"] == "pass"


def test_json_of_nccl_tests() -> None:
    document = DOCUMENT_OF_NCCL_TESTS
    found = _nccl_perf.read(json.dumps(document))
    assert (found["ranks"], found["gpu"], found["busbw"], found["avg_busbw"], found["wrong"]) == (
        2,
        "NVIDIA GB10",
        23.74,
        23.74,
        0,
    )
    assert [check["verdict"] for check in judge(json.dumps(document))] == ["pass", "pass"]


def test_a_slow_link() -> None:
    text = (FIXTURES / "ib_write_bw_ok.txt").read_text().replace("92.57", "13.02")
    [rate] = judge(text)
    assert (rate["verdict"], rate["cause"]) == ("fail", "wrong_data_path_or_build")


def test_no_result_is_inconclusive() -> None:
    assert [check["cause"] for check in judge("bash: all_reduce_perf: command not found")] == ["no_result"]
    assert [check["cause"] for check in judge("# Collective test starting: all_reduce_perf\n")] == ["no_result"]


@given(st.sampled_from(sorted(FIXTURES.glob("*.txt"))), st.integers(0, 2000), st.text())
def test_any_damage(path: Path, at: int, garbage: str) -> None:
    text = path.read_text()
    json.dumps(judge(text[:at]))
    json.dumps(judge(text[:at] + garbage + text[at:]))
    judge(garbage)
    judge("{" + garbage)
    judge('{"a":[' * 100_000)
    judge(
        f"# Avg bus bandwidth : {garbage}1.2.3\n {'9' * 5000} 1 float {garbage} 1 2 3\n GID index : \u00b2 Mtu : {'9' * 5000}"
    )


ODD = st.sampled_from([None, "", "N/A", "x", -1, 0, True, 1e30, float("nan"), [], [1], {}, {"a": 1}])


def damaged(value: object) -> st.SearchStrategy[object]:
    """The same document with any part of it replaced by something odd."""
    if isinstance(value, dict):
        return st.one_of(st.fixed_dictionaries({key: damaged(part) for key, part in value.items()}), ODD)
    if isinstance(value, list):
        return st.one_of(st.tuples(*map(damaged, value)), ODD)
    return st.one_of(st.just(value), ODD)


@given(st.one_of(damaged(DOCUMENT_OF_PERFTEST), damaged(DOCUMENT_OF_NCCL_TESTS)))
def test_any_json(document: object) -> None:
    json.dumps(judge(json.dumps(document)))


def test_return_names_what_is_returned() -> None:
    documented = yaml.safe_load(nccl_perf_info.RETURN)
    assert set(documented["summary"]["contains"]) == {*_nccl_perf.read(""), "verdict", "cause"}
