"""The reading of engines' logs: causes, phases, starts, and what broken logs do to it."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.tandem.serving.plugins.module_utils import _engine_rules, _log_source
from ansible_collections.tandem.serving.plugins.module_utils._causes import CAUSES
from ansible_collections.tandem.serving.plugins.module_utils._engine_log import read
from ansible_collections.tandem.serving.plugins.module_utils._engine_verdict import judge, judge_pool

FIXTURES = Path(__file__).parent.parent / "fixtures/vllm"
API = "(APIServer pid=1) INFO 11-02 10:00:00 [api_server.py:1] vLLM API server version 0.33.0\n"
INIT = "(EngineCore pid=90) INFO 11-02 10:00:05 [core.py:9] Initializing a V1 LLM engine (v0.33.0) with config: model='m'\n"
SHARDS = "(Worker_TP0 pid=95) Loading safetensors checkpoint shards:  40% Completed | 48/120 [01:10<01:45,  1.46s/it]\n"
POOL = (
    "(EngineCore pid=90) INFO 11-02 10:04:00 [kv_cache_utils.py:2312] GPU KV cache size: 399,419 tokens, "
    "Maximum concurrency for 262,144 tokens per request: 1.52x\n"
)
GRAPHS = "(Worker_TP0 pid=95) INFO 11-02 10:05:00 [gpu_model_runner.py:1] Graph capturing finished in 44 secs, took 0.46 GiB\n"
UP = "(APIServer pid=1) INFO:     Application startup complete.\n"
STALL = (
    "(EngineCore pid=90) INFO 11-02 10:51:02 [shm_broadcast.py:542] No available shared memory broadcast block found in 60 "
    "seconds. This typically happens when some processes are hanging or doing some time-consuming work.\n"
)
STATS = (
    "(APIServer pid=1) INFO 11-02 10:52:00 [loggers.py:248] Engine 000: Avg prompt throughput: 120.5 tokens/s, Avg generation "
    "throughput: 33.1 tokens/s, Running: 2 reqs, Waiting: 1 reqs, GPU KV cache usage: 4.5%, Prefix cache hit rate: 40.0%\n"
)
ROOT = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
)


def engine(*texts: str, exit_status: int | None = None) -> dict[str, Any]:
    """Judge texts as the logs ``log0``, ``log1`` .."""
    logs = [read(_log_source.from_text(f"log{number}", text)) for number, text in enumerate(texts)]
    summary, checks = judge(logs, exit_status)
    return {**summary, "checks": checks, "last_errors": [line for log in logs for line in log.last_errors]}


# One line as the program writes it -> the code it has to be read as, and what the sentence has to say.
ENDS = [
    ("python3: Illegal instruction (core dumped)", "illegal_instruction", "SIGILL"),
    ("systemd[1]: tandem-rank.service: Main process exited, code=exited, status=132/n/a", "illegal_instruction", "CPU"),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 12080).", "driver_too_old", "driver"),
    ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "driver_too_old", "driver"),
    ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0", "driver_too_old", "driver"),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver "
     "combination", "driver_too_old", "driver"),
    ("RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.", "driver_too_old", "driver"),
    ("Failed to initialize NVML: Driver/library version mismatch", "driver_library_mismatch", "updated"),
    ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "gpu_not_available", "no GPU"),
    ("exec /usr/bin/python3: exec format error", "image_wrong_platform", "CPU"),
    ("no matching manifest for linux/arm64/v8 in the manifest list entries", "image_wrong_platform", ""),
    ("docker: Error response from daemon: pull access denied for tandem/x, repository does not exist", "image_missing", "tandem/x"),
    ("Error response from daemon: No such image: tandem/x:1", "image_missing", "tandem/x:1"),
    ("sh: 1: exec: tensorfold: not found", "engine_missing", "tensorfold"),
    ("/bin/sh: line 1: vllm: command not found", "engine_missing", "vllm"),
    (
        'docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: '
        'runc create failed: unable to start container process: exec: "vllm": executable file not found in $PATH: unknown.',
        "engine_missing",
        "vllm",
    ),
    ("Error response from daemon: manifest for tandem/x:2 not found: manifest unknown", "image_missing", "tandem/x:2"),
    ("(APIServer pid=1)   Value error, User-specified max_model_len (2000000) is greater than the derived max_model_len "
     "(max_position_embeddings=1048576 or model_max_length=None in model's config.json). [type=value_error]",
     "configuration_refused", "2000000"),
    ("ValueError: Total number of attention heads (64) must be divisible by tensor parallel size (3).", "configuration_refused", "64"),
    ("ModuleNotFoundError: No module named 'exllamav3_ext'", "module_missing", "exllamav3_ext"),
    ("ImportError: libibverbs.so.1: cannot open shared object file: No such file", "module_missing", "libibverbs.so.1"),
    ("PermissionError: [Errno 13] Permission denied: '/hf/hub/models--x/refs/main'", "permission_denied", "/hf/hub/models--x/refs/main"),
    ("ValueError: Invalid repository ID or local directory specified: '/model'.", "weights_missing", ""),
    ("OSError: Can't load tokenizer for '/model'. If you were trying to load it", "weights_missing", ""),
    ("python3[77]: traps: trap invalid opcode ip:7f00 sp:7ffd error:0 in _C_AVX512.abi3.so", "illegal_instruction", "CPU"),
    ("systemd[1]: tandem-rank.service: Main process exited, code=dumped, status=4/ILL", "illegal_instruction", "CPU"),
    ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "kernel_image_missing", "GPU"),
    ("RuntimeError: unable to write to file </torch_1_2>: No space left on device (28)", "shm_too_small", "/dev/shm"),
    ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "host_out_of_memory", "host"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/psm_1a2b'", "ipc_removed_by_logind", "/psm_1a2b"),
    ("!!!!!!! Segfault encountered !!!!!!!", "segmentation_fault", ""),
    ("RuntimeError: No CUDA GPUs are available", "gpu_not_available", "no GPU"),
    ("docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].", "gpu_not_available", ""),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "kernel_image_missing", ""),
    ("vllm: error: unrecognized arguments: --disable-log-requests", "unrecognized_arguments", "--disable-log-requests"),
    ("api_server.py: error: argument --kv-cache-dtype: invalid choice: 'fp9'", "unrecognized_arguments", "--kv-cache-dtype"),
    ("huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url", "licence_or_token", "token"),
    ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache", "weights_missing", ""),
    ("RuntimeError: Cannot find any model weights with `/models/x`", "weights_missing", ""),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/models/x/model-00007-of-00120.safetensors'", "weights_missing",
     "model-00007-of-00120.safetensors"),
    ("OSError: /models/x does not appear to have a file named config.json. Checkout", "weights_missing", "config.json"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "weights_missing", ""),
    ("ValueError: duplicate checkpoint tensor: model.language_model.layers.45.enorm.weight", "weights_missing", ""),
    ("ValueError: Model architectures ['Glm5NextForConditionalGeneration'] are not supported for now.",
     "architecture_unsupported", "Glm5NextForConditionalGeneration"),
    ("ValueError: Unknown quantization method: exl3. Must be one of ['awq']", "architecture_unsupported", "exl3"),
    ("ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(...)", "no_attention_backend", ""),
    ("ValueError: Selected backend TRITON_MLA is not valid for this configuration. Reason: ['sparse']", "no_attention_backend", ""),
    ("OSError: [Errno 98] Address already in use", "port_in_use", "port"),
    ("ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8888): address already in use", "port_in_use", ""),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "shm_too_small", "/dev/shm"),
    ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", "shm_too_small", ""),
    ("OSError: [Errno 28] No space left on device", "disk_full", "disk"),
    ("Out of memory: Killed process 4711 (VLLM::Worker_TP) total-vm:1kB, anon-rss:1kB", "out_of_memory_killed", "VLLM::Worker_TP"),
    ("systemd[1]: tandem-rank.service: A process of this unit has been killed by the OOM killer.", "out_of_memory_killed", ""),
    ("NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x51)", "gpu_driver_no_memory", "NV_ERR_NO_MEMORY"),
    ("NVRM: Xid (PCI:000f:01:00): 31, pid=4711, name=VLLM::Worker_TP, Ch 00000008", "gpu_xid", "Xid 31"),
    ("NVRM: GPU 000f:01:00.0: GPU has fallen off the bus.", "gpu_xid", "bus"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "gpu_out_of_memory", "memory"),
    ("ValueError: buffer_size (1268776960 B) exceeds device memory budget (693237760 B)", "gpu_out_of_memory", ""),
    ("OSError: [Errno 12] Cannot allocate memory", "host_out_of_memory", "host"),
    ("ValueError: Free memory on device cuda:0 (12.18/23.56 GiB) on startup is less than desired GPU memory utilization (0.92, "
     "21.67 GiB). Decrease GPU memory utilization", "startup_free_memory_below_request", "free"),
    ("ValueError: Available memory on node 0 (3.78/32.72 GiB) on startup is less than desired CPU memory utilization (0.95, "
     "31.08 GiB). On the CPU backend", "startup_free_memory_below_request", "free"),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "no_memory_for_kv", ""),
    ("ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token.", "no_memory_for_kv", ""),
    ("ValueError: To serve at least one request with the model's max seq len (8192), 0.22 GiB KV cache is needed, which is larger "
     "than the available KV cache memory (0.2 GiB). Based on", "kv_pool_smaller_than_max_model_len", ""),
    ("tensorfold: CUDA startup memory budget cannot fit requested context 262144; estimated largest fitting prompt-plus-reply "
     "window: 20480 tokens across the ranks.", "kv_pool_smaller_than_max_model_len", ""),
    ("torch.distributed.DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients joined.",
     "rendezvous_timeout", "1 of 2"),
    ("torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.1, 29501).",
     "rendezvous_timeout", "10.0.0.1"),
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error", "nccl_error", "nccl_log_info"),
    ("[rank1]:[E1102 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)",
     "nccl_error", ""),
    ("RuntimeError: NCCL error 2: unhandled system error", "nccl_error", "NCCL"),
    ("(EngineCore pid=90) ERROR 11-02 10:56:10 [core.py:1300] TimeoutError: RPC call to sample_tokens timed out.",
     "rank_stalled", "sample_tokens"),
    ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "gpu_fault", "illegal memory access"),
    ("(EngineCore pid=90) ERROR 11-02 10:56:10 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -11), shutting "
     "down executor.", "peer_lost", "VllmWorker-1"),
    ("[tensorfold] rank 0 closed the connection; rank 1 stops", "peer_lost", ""),
    ("systemd[1]: tandem-rank.service: Main process exited, code=killed, status=9/KILL", "process_killed", "9"),
    ("python3[77]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch", "segmentation_fault", ""),
    ("KeyError: 'layers.3.mlp.gate'", "engine_exception", "KeyError: 'layers.3.mlp.gate'"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "cause", "words"), ENDS, ids=[f"{end[1]}-{at}" for at, end in enumerate(ENDS)])
def test_every_way_to_end_has_its_cause_sentence_and_line(line: str, cause: str, words: str) -> None:
    found = engine(API + INIT + SHARDS + line + "\n" + ROOT)
    assert (found["verdict"], found["cause"]) == ("fail", cause)
    assert words in found["sentence"]
    assert found["sentence"].endswith((".", "'"))
    assert f"log0:4: {line}" in found["checks"][0]["evidence"]
    assert found["checks"][0]["remedy"]


def test_every_rule_is_met_by_a_line_of_the_table_or_elsewhere() -> None:
    elsewhere = {"engine_exit"}
    assert {rule.code for rule in _engine_rules.RULES} - {end[1] for end in ENDS} == elsewhere
    assert {rule.code for rule in _engine_rules.RULES} <= set(CAUSES)


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        ("Unable to find image 'vllm/vllm-openai:v0.33.0-aarch64' locally\n", "image"),
        (API, "starting"),
        (INIT + "(Worker pid=95) INFO 11-02 10:00:09 [p.py:1] world_size=2 rank=0 local_rank=0 "
         "distributed_init_method=tcp://10.0.0.1:29501 backend=nccl\n", "rendezvous"),
        (API + INIT + SHARDS, "loading"),
        (SHARDS + "(Worker_TP0 pid=95) INFO 11-02 10:00:09 [m.py:1] Dynamo bytecode transform time: 7.51 s\n", "profiling"),
        (SHARDS + POOL, "kv"),
        (POOL + GRAPHS, "graph_capture"),
        (GRAPHS + "(EngineCore pid=90) INFO 11-02 10:06:00 [core.py:3] init engine (profile, create kv cache, warmup model) took 9 s\n",
         "warmup"),
        (GRAPHS + UP, "serving"),
        (UP + "INFO:     Application shutdown complete.\n", "stopped"),
        ("[tensorfold] CUDA rank 0 startup estimate 88.09 GiB within 103.20 GiB; native 1048576, allocated prompt/reply window "
         "1048576, cache slots 4\n", "loading"),
        ("[tensorfold] serving GLM at http://0.0.0.0:8888/v1 on CUDA, rank 0 of 2 (loaded in 83.1s)\n", "serving"),
        ("[tensorfold] rank 1 ready in 83.1s\n", "serving"),
    ],
)  # fmt: skip
def test_phases(lines: str, phase: str) -> None:
    assert engine(lines)["phase"] == phase


def test_a_start_under_way_is_inconclusive_and_shows_its_progress() -> None:
    found = engine(API + INIT + SHARDS + STALL * 4)
    assert (found["verdict"], found["cause"]) == ("inconclusive", "still_loading")
    assert found["progress"] == {"done": 48, "total": 120, "percent": 40}
    assert found["warnings"] == ["shm_broadcast_stall"]
    assert found["sentence"] == "The start is in phase loading, 48 of 120."


def test_progress_of_a_bar_that_overwrites_itself_is_the_last() -> None:
    bars = "".join(f"Loading safetensors checkpoint shards:  {n * 10}% Completed | {n}/10 [00:01]\r" for n in range(8))
    assert engine(API + bars)["progress"] == {"done": 7, "total": 10, "percent": 70}


def test_progress_of_tensorfold() -> None:
    assert engine("[tensorfold] Loaded layer 12/46\n")["progress"] == {"done": 12, "total": 46, "percent": 26}


@pytest.mark.parametrize("log", [POOL + STALL * 3, POOL + GRAPHS + STALL * 6, POOL + UP + STALL])
def test_a_stall_where_nothing_slow_goes_on_is_a_hang(log: str) -> None:
    found = engine(log)
    assert (found["verdict"], found["cause"]) == ("fail", "rank_stalled")
    assert found["checks"][0]["evidence"]


@pytest.mark.parametrize(
    "log", [POOL + UP + STALL + STATS, POOL + STALL * 2 + GRAPHS + UP, SHARDS + STALL * 10 + POOL + UP]
)
def test_a_stall_that_ended_is_none(log: str) -> None:
    assert engine(log)["verdict"] == "pass"


def test_a_lost_semaphore_needs_both_lines() -> None:
    rebuild = "    self._semlock = _multiprocessing.SemLock._rebuild(*state)\n"
    gone = "FileNotFoundError: [Errno 2] No such file or directory\n"
    assert engine(INIT + rebuild + gone)["cause"] == "ipc_removed_by_logind"
    assert engine(INIT + gone)["cause"] == "engine_exception"


@pytest.mark.parametrize(
    ("status", "cause"),
    [(132, "illegal_instruction"), (137, "process_killed"), (139, "segmentation_fault"), (3, "engine_exit")],
)
def test_the_exit_status_explains_a_log_that_says_nothing(status: int, cause: str) -> None:
    assert engine("", exit_status=status)["cause"] == cause
    assert engine(API, exit_status=status)["cause"] == cause


def test_a_line_that_names_the_cause_beats_the_exit_status() -> None:
    assert (
        engine(API + "vllm: error: unrecognized arguments: --x\n", exit_status=2)["cause"] == "unrecognized_arguments"
    )


def test_the_root_beats_its_consequences_wherever_they_stand() -> None:
    lost = "(EngineCore pid=90) ERROR 11-02 10:56:10 [x.py:1] Worker proc VllmWorker-1 died unexpectedly\n"
    killed = "Out of memory: Killed process 4711 (VLLM::Worker_TP) total-vm:1kB\n"
    assert engine(API + lost + killed)["cause"] == "out_of_memory_killed"


def test_the_rank_at_fault_decides() -> None:
    other = (
        API
        + INIT
        + "torch.distributed.DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients joined.\n"
    )
    own = INIT + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    found = engine(other, own)
    assert found["cause"] == "gpu_out_of_memory"
    assert found["checks"][0]["evidence"][0].startswith("log1:")


def test_what_was_reported_before_the_engine_served_did_not_end_it() -> None:
    log = API + "(Worker_TP0 pid=95) ERROR 11-02 10:00:00 [x.py:1] KeyError: 'optional'\n" + POOL + UP
    assert engine(log)["cause"] == "ok"


def test_a_bad_request_is_not_the_end_of_the_engine() -> None:
    log = (
        POOL
        + UP
        + "(APIServer pid=1) ERROR 11-02 10:00:00 [serving.py:1] ValueError: This model's maximum length is 4\n"
    )
    found = engine(log)
    assert found["verdict"] == "pass"
    assert len(found["last_errors"]) == 1


FAILED = API + INIT + "torch.OutOfMemoryError: CUDA out of memory.\n"


@pytest.mark.parametrize(
    ("log", "starts", "cause"),
    [
        (FAILED + API + POOL.replace("=90", "=190") + UP, 2, "ok_after_restart"),
        (POOL + UP + POOL.replace("=90", "=190") + UP, 2, "ok"),
        (POOL + UP + API + INIT.replace("=90", "=190") + SHARDS, 2, "still_loading"),
        # A container gives the same pids to each of its starts.
        (POOL + UP + POOL + UP, 2, "ok"),
        (INIT + POOL + UP + INIT + SHARDS, 2, "still_loading"),
        (POOL + "(EngineCore pid=90) ERROR 11-02 10:00:00 [x.py:1] ValueError: No available memory for the cache blocks.\n" + POOL + UP,
         2, "ok_after_restart"),
        (POOL + UP + "(Worker_TP0 pid=95) ERROR 11-02 10:00:00 [x.py:1] ValueError: Free memory on device (1.0/121.69 GiB) on startup is "
         "less than desired GPU memory utilization (0.87, 105.87 GiB).\n", 2, "startup_free_memory_below_request"),
        # Data parallel: two engines of one start.
        (INIT.replace("EngineCore", "EngineCore_DP0") + INIT.replace("EngineCore", "EngineCore_DP1") + POOL + UP, 1, "ok"),
        # Two workers before they know their ranks.
        ("(Worker pid=5) INFO 11-02 10:00:09 [p.py:1] Starting to load model m...\n"
         "(Worker pid=6) INFO 11-02 10:00:09 [p.py:1] Starting to load model m...\n" + POOL + UP, 1, "ok"),
        # Processes that take turns are no restarts.
        ((INIT + INIT.replace("=90", "=91").replace("Core", "Core_DP1")) + POOL + UP, 1, "ok"),
    ],
)  # fmt: skip
def test_the_last_start_counts(log: str, starts: int, cause: str) -> None:
    found = engine(log)
    assert (found["starts"], found["cause"]) == (starts, cause)


def test_errors_of_an_earlier_start_are_not_the_last_ones() -> None:
    assert engine(FAILED + API + INIT.replace("=90", "=190"))["last_errors"] == []


def test_last_errors_leave_out_the_frames_of_tracebacks() -> None:
    head = "(EngineCore pid=90) ERROR 11-02 10:00:00 [core.py:1] "
    log = API + "".join(
        head + text + "\n"
        for text in ("EngineCore failed to start.", "Traceback (most recent call last):", '  File "x.py", line 1, in f',
                     "    raise ValueError('no')", "           ^^^^^^", "ValueError: no")
    )  # fmt: skip
    found = engine(log)
    assert [line.split("] ")[1] for line in found["last_errors"]] == ["EngineCore failed to start.", "ValueError: no"]
    assert found["cause"] == "engine_exception"


def test_statistics_are_those_of_the_last_line() -> None:
    drafts = (
        "(APIServer pid=1) INFO 11-02 10:52:00 [metrics.py:1] SpecDecoding metrics: Mean acceptance length: 2.22, Accepted "
        "throughput: 7.80 tokens/s, Drafted throughput: 17.27 tokens/s, Accepted: 84 tokens, Drafted: 186 tokens, Per-position "
        "acceptance rate: 0.652, 0.391, 0.174, Avg Draft acceptance rate: 45.2%\n"
    )
    found = engine(UP + STATS.replace("120.5", "1.0") + STATS + drafts)
    assert found["stats"] == {
        "000": {
            "prompt_tokens_per_s": 120.5,
            "generation_tokens_per_s": 33.1,
            "running": 2.0,
            "waiting": 1.0,
            "kv_usage_percent": 4.5,
            "prefix_hit_percent": 40.0,
        }
    }
    assert found["speculation"] == {
        "mean_acceptance_length": 2.22,
        "accepted_tokens": 84.0,
        "drafted_tokens": 186.0,
        "acceptance_percent": 45.2,
        "per_position": [0.652, 0.391, 0.174],
    }


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("exl3 e2 diag schema=1 configured_tier=E3 effective_tier=E2", "warn"),
        ("EXL3 experts degraded: exl3_moe has no 3inst codebook", "warn"),
        ("EXL3 experts: configured_tier=fused effective_tier=fused bits=4/4/4", "pass"),
    ],
)
def test_a_slower_kernel_is_a_warning(line: str, verdict: str) -> None:
    found = engine(f"(Worker_TP0 pid=95) INFO 11-02 10:01:00 [exl3.py:1] {line}\n" + POOL + UP)
    assert found["verdict"] == verdict
    assert found["exl3"] == [line]


def test_prefixes_and_colours_do_not_matter() -> None:
    ray = "\x1b[36m(RayWorkerWrapper pid=7, ip=10.0.0.2)\x1b[0m "
    log = (
        ray
        + "ERROR 11-02 10:00:00 [w.py:1] torch.OutOfMemoryError: CUDA out of memory. [repeated 3x across cluster]\r\n"
    )
    assert engine("Nov 02 10:00:00 spark tandem-rank[9]: " + log)["cause"] == "gpu_out_of_memory"


PREFIXES = {
    "docker": "2026-11-02T10:14:01.123456789Z ",
    "kubernetes": "2026-11-02T10:14:01.123Z stderr F ",
    "compose": "rank0-1  | ",
    "short": "Nov 02 10:14:01 spark-a docker[811]: ",
    "short-iso": "2026-11-02T10:14:01+0000 spark-a tandem-rank[811]: ",
    "short-monotonic": "[ 1234.567890] spark-a tandem-rank[811]: ",
    "torchrun": "[rank0]: ",
    "ray": "(RayWorkerWrapper pid=411, ip=192.168.100.11) ",
    "colour": "\x1b[36m",
}
REAL = sorted(path.name for path in FIXTURES.glob("*.log"))


def reading(text: str) -> list[dict[str, Any]]:
    logs = [read(_log_source.from_text("log", text))]
    return [judge(logs).summary, judge_pool(logs).summary]


@pytest.mark.parametrize("name", REAL)
def test_what_stands_around_the_lines_changes_nothing(name: str) -> None:
    # What systemd says of a unit never has these prefixes.
    lines = [line for line in (FIXTURES / name).read_text().split("\n") if "tandem-rank.service" not in line]
    expected = reading("\n".join(lines))
    for prefix in PREFIXES.values():
        found = reading("\n".join(prefix + line for line in lines))
        for summary in (*expected, *found):
            # Ray hides the workers' names.
            summary.pop("kv_gib_per_rank", None)
        assert found == expected
    assert reading("\r\n".join(lines)) == reading("\n".join(lines))
    assert reading("\n".join(json.dumps({"MESSAGE": line, "_PID": "1"}) for line in lines)) == reading("\n".join(lines))
    coloured = "\n".join(line.replace("(", "\x1b[0;36m(", 1).replace(") ", ")\x1b[0;0m ", 1) for line in lines)
    assert reading(coloured.replace("\x1b", "#033")) == reading(coloured) == reading("\n".join(lines))


def test_workers_of_ray_have_one_name_and_are_several() -> None:
    line = "(EngineCore_DP0 pid=330) (RayWorkerWrapper pid={}) INFO 11-02 10:24:26 [w.py:1] Available KV cache memory: {} GiB\n"
    log = line.format("411", 6.41) + line.format("209, ip=192.168.100.11", 5.0) + line.format("412", 7.0)
    assert reading(log)[1]["kv_gib"] == 5.0


def test_nothing_proves_nothing() -> None:
    found = engine("")
    assert (found["verdict"], found["cause"]) == ("inconclusive", "no_engine_line")


def test_a_real_log_of_a_cpu_engine_with_the_overlay() -> None:
    """It warns with a traceback, serves offline and is stopped: none of that is a fault."""
    raw = (FIXTURES / "real_cpu_overlay.log").read_text()
    found = engine(raw)
    expected = {
        "verdict": "inconclusive",
        "cause": "stopped",
        "phase": "stopped",
        "vllm_version": "0.32.0",
        "progress": {"done": 1, "total": 1, "percent": 100},
        "last_errors": [],
        "starts": 1,
    }
    assert {name: found[name] for name in expected} == expected
    assert [line.split(":")[0] for line in found["exl3"]] == ["EXL3 experts"]
    until_stopped = raw[: raw.index("[shutdown]")]
    assert engine(until_stopped)["phase"] == "warmup"


def test_a_real_log_of_two_gpus_with_the_overlay() -> None:
    """vLLM 0.22.0 on two H200, made by tests/gpu/engine.py: a wholly EXL3 checkpoint, tensor parallel, with graphs."""
    found = engine((FIXTURES / "real_gpu_overlay_tp2.log").read_text())
    assert (found["vllm_version"], found["verdict"], found["last_errors"]) == ("0.22.0", "inconclusive", [])
    assert {line.split(":")[0] for line in found["exl3"]} == {"EXL3 experts", "EXL3 dense", "EXL3 shared experts"}
    assert any("decode=exl3_moe_coop batch=exl3_moe" in line for line in found["exl3"])


def test_real_logs_of_two_ranks() -> None:
    """The journals of a local pair: two starts of the head, the first stopped in order; four of the other rank."""
    head, other = (engine((FIXTURES / f"real_pair_rank{rank}.log").read_text()) for rank in (0, 1))
    names = ("verdict", "cause", "phase", "starts", "headless", "vllm_version", "rendezvous", "last_errors")
    assert [head[name] for name in names] == ["pass", "ok", "serving", 2, False, "0.32.0", "10.99.0.11:29521", []]
    assert [other[name] for name in names] == [
        "inconclusive", "rank_without_api", "kv", 4, True, "0.32.0", "10.99.0.11:29521", [],
    ]  # fmt: skip
    pool = judge_pool([read(_log_source.from_text("log", (FIXTURES / "real_pair_rank1.log").read_text()))]).summary
    assert (pool["verdict"], pool["cause"], pool["kv_gib"]) == ("inconclusive", "rank_without_api", 1.0)


def test_a_real_log_up_to_a_kill() -> None:
    raw = (FIXTURES / "real_pair_rank1.log").read_text()
    found = engine(raw[: raw.index("Failed with result")])
    assert (found["cause"], found["checks"][0]["evidence"][0].split(": ", 1)[1]) == (
        "process_killed",
        "tandem-rank.service: Main process exited, code=exited, status=137/n/a",
    )


def test_how_an_engine_goes_down_when_told_to_is_no_fault() -> None:
    raw = (FIXTURES / "real_pair_rank0.log").read_text()
    found = engine(raw[: raw.index("Stopped tandem-rank.service")])
    assert "EngineDeadError" in raw[: raw.index("Stopped tandem-rank.service")]
    assert (found["verdict"], found["cause"], found["phase"]) == ("inconclusive", "stopped", "stopped")


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING"])
def test_what_the_engine_got_over_is_no_fault(level: str) -> None:
    line = f"(Worker_TP0 pid=95) {level} 11-02 10:00:00 [cpu.py:1] {{}}\n"
    log = line.format("torch.OutOfMemoryError: CUDA out of memory. Retrying.") + line.format("KeyError: 'x'")
    assert engine(API + INIT + log)["cause"] == "still_loading"


def test_memory_stays_flat() -> None:
    """However many processes, engines, errors and starts a log names."""

    def lines(count: int) -> Iterator[bytes]:
        for n in range(count):
            yield f"(Worker_X{n}_TP1 pid={n}) ERROR 11-02 10:00:00 [x.py:1] KeyError: {n} Available KV cache memory: {n} GiB".encode()
            yield f"(EngineCore_DP{n} pid={n}) GPU KV cache size: {n} tokens, # GPU blocks: {n}, # CPU blocks: 1".encode()
            yield f"Engine {n}: Avg prompt throughput: 1 tokens/s, GPU KV cache usage: 0.0%".encode()
            yield f"EXL3 degraded {n}\r(P{n} pid={n}) Initializing a V1 LLM engine (v{n})".encode()

    tracemalloc.start()
    try:
        read(_log_source.Source("log", lines(2000)))
        before = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        read(_log_source.Source("log", lines(8000)))
        assert tracemalloc.get_traced_memory()[1] < 1.5 * before
    finally:
        tracemalloc.stop()


WHOLE = API + INIT + SHARDS + POOL + GRAPHS + UP + STATS + STALL + "".join(end[0] + "\n" for end in ENDS) + ROOT


@settings(max_examples=60)
@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)), st.binary(max_size=60), st.booleans())
def test_no_damage_to_a_log_is_an_error(cut: int, place: int, noise: bytes, dos: bool) -> None:
    raw = WHOLE.encode()
    raw = raw[:place] + noise + raw[place:]
    raw = (raw.replace(b"\n", b"\r\n") if dos else raw)[:cut]
    log = read(_log_source.from_text("log", raw))
    summary, checks = judge([log])
    assert summary["verdict"] in ("pass", "warn", "fail", "inconclusive")
    assert all(item["cause"] in CAUSES for item in checks)


@settings(max_examples=40)
@given(st.permutations(WHOLE.splitlines(keepends=True)))
def test_no_order_of_lines_is_an_error(lines: list[str]) -> None:
    assert engine("".join(lines))["cause"] in CAUSES


NUMBERED = [
    *(line for line in WHOLE.splitlines() if re.search(r"\d", line)),
    "INFO [kv_cache_utils.py:634] GPU KV cache size: 686,320 tokens",
    "INFO [kv_cache_utils.py:637] Maximum concurrency for 100,000 tokens per request: 6.86x",
    "INFO [executor_base.py:111] # cuda blocks: 10748, # CPU blocks: 1638",
    "loader: 42% Loaded layer 3/48",
    "Loading safetensors checkpoint shards:  30% Completed | 3/10 [00:01<00:02,  2.00it/s]",
    "ValueError: Free memory on device cuda:0 (12.18/23.56 GiB) on startup is less than desired GPU memory utilization (0.92, 21.67 GiB).",
    "torch.distributed.DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients joined.",
]


@settings(max_examples=60)
@given(st.data())
def test_no_number_is_an_error(data: st.DataObject) -> None:
    """Lines of one shape with numbers that are too long, missing, or none."""
    odd = st.sampled_from(["9" * 400, "9" * 5000, "0", "-1", "1e999", "0.0", "", ".", "NaN", "+Inf", "1"])
    lines = data.draw(st.lists(st.sampled_from(NUMBERED), min_size=1, max_size=8))
    lines += [re.sub(r"\d+(?:\.\d+)?", lambda _: data.draw(odd), line) for line in lines]
    log = read(_log_source.from_text("log", "\n".join(lines)))
    for summary, checks in (judge([log]), judge_pool([log], min_tokens=1000, max_model_len=5000)):
        json.dumps(summary)
        assert all(item["cause"] in CAUSES for item in checks)
