"""How fast logs are read, by what fills them, and how much memory that takes; the first against `grep -c` of the same file.
Figures are bytes by seconds of the processor, so that other work on the machine matters little.

PYTHONPATH=collections python tests/bench/bench_logs.py [MiB of the first] [MiB of each other]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils import (
    _engine_log,
    _engine_verdict,
    _log_source,
    _nccl_log,
    _nccl_verdict,
)

FIXTURES = Path(__file__).parent.parent / "unit/fixtures"
SIGNED = b"spark-a:779:779 [0] NCCL INFO "
WARNED = b"[2026-11-02 10:14:%02d] spark-a:779:779 [0] transport/net_ib.cc:1696 NCCL WARN "
ENGINE = b"(APIServer pid=2412000) INFO 12-11 00:10:%02d "
FAILED = b"ERROR 11-02 10:14:%02d [core.py:1300] "
TRACEBACK = (
    b"Traceback (most recent call last):",
    b'  File "/opt/vllm/v1/engine/core.py", line 1291, in run_engine_core',
    b"    engine_core.run_busy_loop()",
    b"RuntimeError: CUDA error: an illegal memory access was encountered",
)


def numbered(count: int, *forms: bytes) -> bytes:
    """Lines that differ in their numbers. A form has room for a second of the clock and a number, or for the second alone."""
    lines = (form % ((n % 60, n * 7919)[: form.count(b"%")]) for n in range(count) for form in forms)
    return b"\n".join(lines) + b"\n"


def fixture(path: str) -> bytes:
    return (FIXTURES / path).read_bytes()


# What comes first in a log, and what fills it from then on.
NCCL = {
    "collectives and channels": (
        fixture("nccl/real/socket/rank0.log"),
        numbered(400, SIGNED + b"AllReduce: opCount %x sendbuff 0x7f10 count %d datatype 9 op 0 root 0 comm 0x2710")
        + b"".join(SIGNED + b"Channel %02d/0 : 1[1] -> 0[0] [receive] via NET/Socket/0\n" % n for n in range(64)),
    ),
    "starts": (b"", fixture("nccl/real/socket/rank0.log")),
    "warnings": (
        fixture("nccl/real/socket/rank0.log"),
        numbered(400, WARNED + b"NET/IB : Got completion from peer 10.0.0.2<%d> with status=12 opcode=0 len=0")
        + numbered(400, WARNED + b"NET/IB : rocep1s0f0:1 Got non-fatal async event: port error(10)"),
    ),
}
ENGINES = {
    "serving": (
        fixture("vllm/real_pair_rank0.log"),
        numbered(
            60,
            ENGINE + b"[loggers.py:248] Engine 000: Avg prompt throughput: %d.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs",
            *[b'(APIServer pid=2412000) INFO:     10.0.0.%d:%d - "POST /v1/chat/completions HTTP/1.1" 200 OK'] * 12,
            *[ENGINE + b"[serving.py:681] a line about request chatcmpl-%x that nobody needs to look at"] * 4,
        ),
    ),
    "starts": (b"", fixture("vllm/real_pair_rank0.log") + fixture("vllm/real_pair_rank1.log")),
    "refused requests": (
        fixture("vllm/real_pair_rank0.log"),
        numbered(400, FAILED + b"ValueError: This model's maximum length is 4096, you requested %d tokens"),
    ),
    "tracebacks": (
        fixture("vllm/real_pair_rank0.log"),
        numbered(100, *(FAILED + line.replace(b"%", b"%%") for line in TRACEBACK)),
    ),
    "progress bars": (
        fixture("vllm/real_pair_rank0.log"),
        numbered(120, b"(Worker_TP0 pid=9) \rLoading safetensors checkpoint shards:  %d%% Completed | %d/950280 [00:01]"),
    ),
}  # fmt: skip


def judge_nccl(source: _log_source.Source) -> tuple[int, Any]:
    log = _nccl_log.read(source)
    return log.lines, _nccl_verdict.judge([log])["summary"]


def judge_engine(source: _log_source.Source) -> tuple[int, Any]:
    log = _engine_log.read(source)
    _engine_verdict.judge_pool([log])
    return log.lines, _engine_verdict.judge([log]).summary


def chunks(first: bytes, rest: bytes, size: int) -> Iterator[bytes]:
    """Pieces of about a MiB, until there are so many bytes."""
    yield first
    piece = rest * (1 + (1 << 20) // len(rest))
    for _piece in range(max(size // len(piece), 1)):
        yield piece


def measure(
    name: str,
    judge: Callable[[_log_source.Source], tuple[int, Any]],
    filling: tuple[bytes, bytes],
    size: int,
    grep: bool,
) -> None:
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        for chunk in chunks(*filling, size):
            file.write(chunk)
        file.flush()
        size = file.tell()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.process_time()
        lines, summary = judge(_log_source.from_file(file.name))
        took = time.process_time() - begin
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(
            f"{name:34} {size >> 20:5} MiB {lines:9} lines {size / took / 1e6:5.0f} MB/s, memory grown by "
            f"{grown / 1024:4.1f} MiB: {summary['verdict']}, {summary['cause']}",
            flush=True,
        )
        if grep:
            begin = time.perf_counter()
            subprocess.run(["grep", "-c", "NCCL", file.name], capture_output=True, check=True)
            print(f"{'grep -c of it':34} {'':27} {size / (time.perf_counter() - begin) / 1e6:5.0f} MB/s")


def main() -> None:
    sizes = cycle(int(size) << 20 for size in (sys.argv[2:] or ["64"]))
    first = int(sys.argv[1] if len(sys.argv) > 1 else "256") << 20
    for name, filling in NCCL.items():
        measure(f"NCCL: {name}", judge_nccl, filling, first or next(sizes), grep=bool(first))
        first = 0
    for name, filling in ENGINES.items():
        measure(f"engine: {name}", judge_engine, filling, next(sizes), grep=False)


if __name__ == "__main__":
    main()
