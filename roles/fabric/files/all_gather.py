"""Measure all_gather between the ranks with the NCCL of the image, and print it as nccl-tests does.

Runs on every rank at once. Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without a GPU it takes Gloo.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist

# Buffers in MiB. nccl-tests' usual 16 GiB take twice that of a machine's memory, and can freeze it.
GPU, CPU = (16, 128, 1024, 2048), (1, 16)
WARM_UP, TIMES = 3, 10


def wait() -> None:
    """Until the GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(into: torch.Tensor, own: torch.Tensor) -> float:
    """Of one all_gather."""
    for _run in range(WARM_UP):
        dist.all_gather_into_tensor(into, own)
    wait()
    dist.barrier()
    begin = time.perf_counter()
    for _run in range(TIMES):
        dist.all_gather_into_tensor(into, own)
    wait()
    return (time.perf_counter() - begin) / TIMES


def device() -> str:
    """The GPU as nccl-tests names it, empty without one."""
    if not torch.cuda.is_available():
        return ""
    found = torch.cuda.get_device_properties(0)
    return f"device  0 [{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:00] {found.name}"


def main() -> None:
    """Entry point."""
    gpu = torch.cuda.is_available()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=120))
    where = "cuda" if gpu else "cpu"
    named: list[str] = [""] * ranks
    dist.all_gather_object(named, f"Pid {os.getpid()} on {socket.gethostname()} {device()}")
    if rank == 0:
        version = ".".join(map(str, torch.cuda.nccl.version())) if gpu else "none, Gloo"
        print(f"# Collective test starting: all_gather_perf\n# NCCL {version}")
        for number, text in enumerate(named):
            print(f"#  Rank {number:2} Group  0 {text}")
        print("#       size         count      type   redop    root     time   algbw   busbw #wrong")
        print("#        (B)    (elements)                               (us)  (GB/s)  (GB/s)")
    for size in GPU if gpu else CPU:
        count = size * 2**20 // 4 // ranks
        own = torch.full((count,), rank + 1.0, device=where)
        into = torch.zeros(count * ranks, device=where)
        took = torch.tensor([seconds(into, own)], device=where)
        # The slowest rank counts, and every wrong value.
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        wrong = torch.stack([(into[at * count : (at + 1) * count] != at + 1).sum() for at in range(ranks)]).sum()
        dist.all_reduce(wrong)
        rate = count * ranks * 4 / took.item() / 1e9
        if rank == 0:
            print(
                f"{count * ranks * 4:12} {count:12}     float    none      -1 {took.item() * 1e6:8.0f} {rate:7.2f} "
                f"{rate * (ranks - 1) / ranks:7.2f} {wrong.item():6}"
            )
        del own, into
    dist.destroy_process_group()


main()
