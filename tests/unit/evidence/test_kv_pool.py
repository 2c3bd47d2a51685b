"""The reading of KV pools over all samples, from logs and from metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ansible_collections.tandem.serving.plugins.module_utils import _kv_pool, _metrics
from ansible_collections.tandem.serving.plugins.module_utils._engine_log import read_texts
from ansible_collections.tandem.serving.plugins.module_utils._engine_verdict import judge_pool

FIXTURES = Path(__file__).parent.parent / "fixtures/vllm"
SAMPLES = sorted(FIXTURES.glob("vllm_*.log"))


def pool(*texts: str, **wanted: Any) -> dict[str, Any]:
    """Judge texts as the logs of one engine."""
    summary, checks = judge_pool(read_texts(texts), **wanted)
    return {**summary, "checks": checks}


@pytest.mark.parametrize("log", SAMPLES, ids=lambda path: path.stem)
def test_samples_read_as_expected(log: Path) -> None:
    expected = json.loads(log.with_suffix(".expect.json").read_text())
    del expected["kind"], expected["case"]
    found = pool(log.read_text(), platform=expected["platform"])
    assert {name: found.get(name, "absent") for name in expected} == expected


WORKER = "(Worker_TP{0} pid=9{0}) INFO 11-02 10:24:26 [gpu_worker.py:681] Available KV cache memory: {1} GiB\n"
SIZE = "(EngineCore{0} pid=184) INFO 11-02 10:24:27 [kv_cache_utils.py:2312] GPU KV cache size: {1:,} tokens\n"
RATIO = "(EngineCore{0} pid=184) INFO 11-02 10:24:27 [kv_cache_utils.py:2317] Maximum concurrency for {1:,} tokens per request: {2}x\n"

FORMS = [
    ("INFO 07-09 12:57:45 [executor_base.py:111] # cuda blocks: 307335, # CPU blocks: 18724\n"
     "INFO 07-09 12:57:45 [executor_base.py:116] Maximum concurrency for 3072 tokens per request: 1600.70x\n",
     {"gpu_blocks": 307335, "cpu_blocks": 18724, "max_concurrency": 1600.7, "concurrency_len": 3072, "kv_tokens": None}),
    ("(EngineCore pid=184) INFO 08-23 22:37:34 [gpu_worker.py:491] Initial free memory 111.7 GiB, reserved 37.11 GiB memory for KV Cache "
     "as specified by kv_cache_memory_bytes config and skipped memory profiling. This does not respect\n" + SIZE.format("", 1209295),
     {"kv_gib": 37.11, "kv_gib_source": "kv_cache_memory_bytes", "kv_tokens": 1209295}),
    ("INFO 06-13 20:03:57 [cpu_worker.py:255] Explicitly set (1.0/16.46) GiB for KV cache on node 0.\n"
     "INFO 06-13 20:03:57 [kv_cache_utils.py:1879] CPU KV cache size: 69,888 tokens, Maximum concurrency for 2,048 tokens per request: "
     "34.12x\n", {"kv_gib": 1.0, "kv_gib_source": "cpu", "kv_tokens": 69888, "max_concurrency": 34.12}),
    ("INFO 06-13 20:03:57 [cpu_worker.py:235] Auto set (1.48/18.0) GiB for KV cache on node 0, with 5.4 GiB requested memory\n",
     {"kv_gib": 1.48}),
    (WORKER.format(0, -0.3), {"kv_gib": -0.3}),
    # V0.6, and the first V1, which wrote GB
    ("INFO 12-01 10:00:12 worker.py:232] Memory profiling results: total_gpu_memory=79.11GiB initial_memory_usage=15.38GiB "
     "peak_torch_memory=16.20GiB non_torch_memory=0.37GiB kv_cache_size=54.63GiB gpu_memory_utilization=0.90\n"
     "INFO 12-01 10:00:12 gpu_executor.py:113] # GPU blocks: 27970, # CPU blocks: 2048\n",
     {"kv_gib": 54.63, "total_gib": 79.11, "utilization": 0.9, "gpu_blocks": 27970}),
    ("ERROR 04-05 01:12:55 [core.py:390] ValueError: To serve at least one request with the models's max seq len (32768), (8.00 GB KV "
     "cache is needed, which is larger than the available KV cache memory (5.03 GB). Try increasing `gpu_memory_utilization`\n",
     {"needed_gib": 8.0, "available_gib": 5.03, "max_model_len": 32768, "cause": "kv_pool_smaller_than_max_model_len"}),
    ("(Worker_DP0_PP1_TP1 pid=3) INFO 09-09 20:24:26 [gpu_worker.py:1] Available KV cache memory: 6.5 GiB\n"
     "(Worker_DP0_PP0_TP0 pid=4) INFO 09-09 20:24:26 [gpu_worker.py:1] Available KV cache memory: 7.5 GiB\n",
     {"kv_gib": 6.5, "kv_gib_per_rank": {"Worker_DP0_PP1_TP1": 6.5, "Worker_DP0_PP0_TP0": 7.5}}),
    ("(Worker_TP0 pid=3) INFO 09-09 20:24:26 [gpu_worker.py:1] Free memory on device (cuda:0) (110.34/121.69 GiB) on startup. Desired GPU "
     "memory utilization is (0.87, 105.87 GiB). Actual usage is 86.93 GiB for consumed memory.\n",
     {"free_gib": 110.34, "total_gib": 121.69, "utilization": 0.87, "requested_gib": 105.87, "fitting_utilization": None,
      "platform": "gb10"}),
    ("ValueError: To serve at least one request with the models's max seq len (40960), (10.00 GiB KV cache is needed, which is larger than "
     "the available KV cache memory (1.25 GiB). Based on the available memory,  Try increasing\n",
     {"needed_gib": 10.0, "available_gib": 1.25, "kv_gib": 1.25, "kv_gib_source": "error", "estimated_max_len": None}),
    ("ValueError: To serve at least one request with the models's max seq len (262144), 28.00 GiB KV cache is needed, which is larger than "
     "the available KV cache memory (13.69 GiB). The estimated maximum model length is 128128.\n", {"needed_gib": 28.0}),
    ("[tensorfold] KV pool (patches/0290): 1048576 tokens in 4096 pages of 256, 7.44 GiB on this rank, shared by the 4 slots\n",
     {"kv_tokens": 1048576, "gpu_blocks": 4096, "block_size": 256, "kv_gib": 7.44}),
    ("[core.py:1] Setting attention block size to 3584 tokens to ensure that attention page size is >= mamba page size.\n"
     + SIZE.format("", 1754237), {"hybrid": True, "block_size": 3584}),
]  # fmt: skip


@pytest.mark.parametrize(("log", "expected"), FORMS)
def test_forms_of_lines(log: str, expected: dict[str, Any]) -> None:
    found = pool(log)
    assert {name: found[name] for name in expected} == expected


def test_the_smallest_of_several_engines_counts() -> None:
    log = SIZE.format("_DP0", 500_000) + SIZE.format("_DP1", 400_000)
    log += RATIO.format("_DP0", 100_000, 5.0) + RATIO.format("_DP1", 100_000, 4.0)
    found = pool(log)
    assert (found["kv_tokens"], found["max_concurrency"], found["starts"]) == (400_000, 4.0, 1)


def test_the_smallest_of_several_logs_counts() -> None:
    found = pool(WORKER.format(0, 6.41) + SIZE.format("", 391_748), WORKER.format(1, 5.93))
    assert (found["kv_tokens"], found["kv_gib"]) == (391_748, 5.93)


def test_a_line_printed_once_per_rank_is_one_start() -> None:
    log = "".join(
        SIZE.format("", tokens) + RATIO.format("", 131_072, ratio)
        for tokens, ratio in ((399_419, 3.05), (391_748, 2.99))
    )
    found = pool(log)
    assert (found["kv_tokens"], found["max_concurrency"], found["starts"]) == (391_748, 2.99, 1)


def test_the_last_start_counts() -> None:
    small = (
        "(EngineCore pid=1) ERROR 11-02 10:24:27 [core.py:1] ValueError: No available memory for the cache blocks.\n"
    )
    log = WORKER.format(0, -0.3) + small + WORKER.format(0, 5.0).replace("=90", "=77") + SIZE.format("", 9000)
    found = pool(log)
    assert (found["verdict"], found["cause"], found["kv_gib"], found["starts"]) == ("pass", "ok_after_restart", 5.0, 2)


def test_a_start_without_process_names_begins_anew_after_its_fault() -> None:
    plain = "INFO 04-05 01:12:54 [gpu_worker.py:210] Available KV cache memory: {} GiB\n"
    log = plain.format(-1.5) + "ValueError: No available memory for the cache blocks.\n" + plain.format(8)
    assert pool(log + "INFO 04-05 01:12:54 [kv_cache_utils.py:2] GPU KV cache size: 8,000 tokens\n")["kv_gib"] == 8.0


@pytest.mark.parametrize(
    ("wanted", "verdicts"),
    [
        ({}, ["pass"]),
        ({"min_tokens": 982_612}, ["pass", "pass"]),
        ({"min_tokens": 982_613}, ["pass", "fail"]),
        ({"max_model_len": 900_000}, ["pass", "pass"]),
        # A longer request spreads its fixed blocks further, so the printed size is a length that fits.
        ({"max_model_len": 982_612}, ["pass", "pass"]),
        ({"max_model_len": 1_000_000}, ["pass", "fail"]),
    ],
)
def test_what_is_wanted_is_a_check(wanted: dict[str, int], verdicts: list[str]) -> None:
    found = pool((FIXTURES / "vllm_v11_seed_900k.log").read_text(), **wanted)
    assert [item["verdict"] for item in found["checks"]] == verdicts
    assert found["verdict"] == verdicts[-1]
    assert all(item["evidence"] for item in found["checks"])


def test_too_small_a_pool_says_what_would_fit() -> None:
    found = pool((FIXTURES / "vllm_v07_valueerror_new_form_spark.log").read_text())
    assert found["largest_len"] == 190272
    for words in ("190272", "0.75 GiB", "0.8417"):
        assert words in found["checks"][0]["remedy"]


def test_a_ratio_is_explained() -> None:
    hybrid = "Setting attention block size to 3584 tokens to ensure that attention page size is >= mamba page size.\n"
    holds = pool(hybrid + SIZE.format("", 1_754_237) + RATIO.format("", 1_000_000, 1.75))["holds"]
    assert "1 request of 1000000 tokens" in holds
    assert "fixed blocks" in holds


def test_without_a_pool_nothing_is_proven() -> None:
    assert pool("")["cause"] == "no_kv_pool_line"
    loading = pool("(Worker_TP0 pid=3) INFO 11-02 10:00:00 [x.py:1] Starting to load model /m...\n", min_tokens=5)
    assert (loading["verdict"], loading["cause"]) == ("inconclusive", "still_loading")
    assert [item["verdict"] for item in loading["checks"]] == ["inconclusive", "inconclusive"]


def test_log_and_metrics_of_a_real_engine_agree() -> None:
    log = pool((FIXTURES / "real_pair_rank0.log").read_text(), max_model_len=2048)
    metrics = pool((FIXTURES / "real_pair_metrics.txt").read_text(), max_model_len=2048)
    names = ("kv_tokens", "kv_gib", "concurrency_len", "largest_len", "hybrid", "started", "verdict", "cause")
    assert [log[name] for name in names] == [69888, 1.0, 2048, 69888, False, True, "pass", "ok"]
    assert [metrics[name] for name in names] == [log[name] for name in names]


LABELS = {
    "block_size": "128",
    "_block_size_resolved": "True",
    "user_specified_block_size": "16",
    "mamba_block_size": "None",
    "cache_dtype": "auto",
    "gpu_memory_utilization": "0.92",
    "num_gpu_blocks": "546",
    "kv_cache_size_tokens": "69888",
    "kv_cache_max_concurrency": "34.125",
    "kv_cache_memory_bytes": "1073741824",
    "num_cpu_blocks": "None",
}


def exposition(**engines: dict[str, str]) -> str:
    """What the real client library prints for the gauge."""
    registry = CollectorRegistry()
    names = ["engine", *next(iter(engines.values()))]
    gauge = Gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", names, registry=registry)
    for engine, labels in engines.items():
        gauge.labels(engine, *labels.values()).set(1)
    return str(generate_latest(registry).decode())


def test_metrics_give_the_same_figures() -> None:
    found = pool(exposition(e0=LABELS))
    expected = {
        "kv_tokens": 69888, "gpu_blocks": 546, "block_size": 128, "max_concurrency": 34.125, "concurrency_len": 2048,
        "kv_gib": 1.0, "utilization": 0.92, "started": True, "hybrid": False, "verdict": "pass", "cause": "ok",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_the_smallest_engine_of_the_metrics_counts() -> None:
    smaller = {**LABELS, "kv_cache_size_tokens": "60000", "kv_cache_max_concurrency": "29.3"}
    assert pool(exposition(e0=LABELS, e1=smaller))["kv_tokens"] == 60000


def test_a_size_that_is_not_blocks_times_block_size_is_a_ratio() -> None:
    assert pool(exposition(e0={**LABELS, "kv_cache_size_tokens": "1754237"}))["hybrid"]


def test_metrics_of_older_builds_have_blocks_only() -> None:
    older = {name: LABELS[name] for name in ("block_size", "num_gpu_blocks", "cache_dtype")}
    assert pool(exposition(e0=older))["kv_tokens"] == 546 * 128


def test_metrics_of_tensorfold() -> None:
    assert pool("tensorfold_health:pool_tokens 2922496.0\n")["kv_tokens"] == 2922496


def test_metrics_before_the_engine_knows_its_pool_prove_nothing() -> None:
    unknown = {**LABELS, "num_gpu_blocks": "None", "kv_cache_size_tokens": "None", "kv_cache_max_concurrency": "None"}
    assert pool(exposition(e0=unknown))["cause"] == "no_kv_pool_line"


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=20), min_size=1, max_size=4
    ),
    st.floats(),
)
def test_the_parser_reads_what_the_client_library_reads(labels: dict[str, str], value: float) -> None:
    labels = {f"l{name}": text.encode("utf-8", "replace").decode() for name, text in labels.items()}
    registry = CollectorRegistry()
    Gauge("vllm:gauge", "a gauge", list(labels), registry=registry).labels(*labels.values()).set(value)
    text = generate_latest(registry).decode()
    theirs = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    ours = list(_metrics.samples(text))
    assert [(sample.name, sample.labels) for sample in ours] == [(sample.name, sample.labels) for sample in theirs]
    assert repr(ours[0].value) == repr(theirs[0].value)


@settings(max_examples=60)
@given(st.data())
def test_no_damage_to_a_sample_is_an_error(data: st.DataObject) -> None:
    raw = "".join(path.read_text() for path in SAMPLES) + exposition(e0=LABELS)
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    assert pool(raw[start:end])["verdict"] in ("pass", "fail", "inconclusive")


def test_every_figure_is_in_the_summary() -> None:
    assert set(_kv_pool.FIGURES) <= set(pool(""))
