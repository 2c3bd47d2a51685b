"""How fast NCCL logs are read, against `grep -c` of the same file, and how much memory that takes.

PYTHONPATH=collections python tests/bench/bench_logs.py [MiB]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.tandem.serving.plugins.module_utils import _log_source, _nccl_log, _nccl_verdict

SAMPLE = Path(__file__).parent.parent / "unit/fixtures/nccl/real/socket/rank0.log"


def chunks() -> Iterator[bytes]:
    """One start, then what fills logs: collectives, channels of new communicators, the engine's own lines."""
    start = SAMPLE.read_bytes()
    signed = b"vm:779:779 [0] NCCL INFO "
    collectives = b"".join(
        signed
        + b"AllReduce: opCount %x sendbuff 0x7f10 recvbuff 0x7f10 count 4096 datatype 9 op 0 root 0 comm 0x2710\n"
        % number
        for number in range(400)
    )
    channels = b"".join(
        signed + b"Channel %02d/0 : 1[1] -> 0[0] [receive] via NET/Socket/0\n" % number for number in range(64)
    )
    engine = (
        b"(APIServer pid=1) INFO 11-02 10:14:01 [loggers.py:236] Engine 000: Avg prompt throughput: 0.0 tokens/s\n"
        * 200
    )
    yield start
    while True:
        yield collectives + channels + engine


def main() -> None:
    size = int(sys.argv[1] if len(sys.argv) > 1 else "256") << 20
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        for chunk in chunks():
            file.write(chunk)
            if file.tell() >= size:
                break
        file.flush()
        begin = time.perf_counter()
        subprocess.run(["grep", "-c", "NCCL", file.name], capture_output=True, check=True)
        grep = time.perf_counter() - begin
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        log = _nccl_log.read(_log_source.from_file(file.name))
        result = _nccl_verdict.judge([log])
        took = time.perf_counter() - begin
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{size >> 20} MiB, {log.lines} lines: {result['summary']['verdict']}, {result['summary']['cause']}")
    print(f"nccl_log  {size / took / 1e6:7.0f} MB/s, memory grown by {grown / 1024:.1f} MiB")
    print(f"grep -c   {size / grep / 1e6:7.0f} MB/s, {took / grep:.1f} times as fast")


if __name__ == "__main__":
    main()
