"""How fast engines' logs are read, and how much memory that takes.

PYTHONPATH=collections python tests/bench/bench_engine_logs.py [MiB]
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

from ansible_collections.tandem.serving.plugins.module_utils import _engine_log, _engine_verdict, _log_source

SAMPLE = Path(__file__).parent.parent / "unit/fixtures/vllm/vllm_v01_two_line_form.log"
STATISTICS = (
    b"(APIServer pid=2412000) INFO 12-11 00:10:01 [loggers.py:248] Engine 000: Avg prompt throughput: 120.0 tokens/s, Avg generation "
    b"throughput: 33.1 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 40.0%"
)
ACCESS = b'(APIServer pid=2412000) INFO:     10.0.0.7:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
OTHER = (
    b"(Worker_TP0 pid=2412213) INFO 12-11 00:10:02 [serving.py:681] a line about a request that nobody needs to look at"
)
HOUR = [STATISTICS, *repeat(ACCESS, 12), *repeat(OTHER, 4)]


def lines(size: int) -> Iterator[bytes]:
    """A start, and then what a serving engine writes, until there are so many bytes."""
    hours = size // sum(len(line) + 1 for line in HOUR)
    return chain(SAMPLE.read_bytes().split(b"\n"), chain.from_iterable(repeat(HOUR, hours)))


def main() -> None:
    size = int(sys.argv[1] if len(sys.argv) > 1 else "256") << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    log = _engine_log.read(_log_source.Source("log", lines(size)))
    summary = _engine_verdict.judge_pool([log]).summary
    took = time.perf_counter() - begin
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        f"{size >> 20} MiB, {log.lines} lines: {summary['verdict']}, {summary['cause']}, {summary['kv_tokens']} tokens"
    )
    print(f"engine_log {size / took / 1e6:7.0f} MB/s, memory grown by {grown / 1024:.1f} MiB")


if __name__ == "__main__":
    main()
