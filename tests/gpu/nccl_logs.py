"""Make real NCCL logs on a machine with two GPUs: one folder a setting, one file a rank.

    python tests/gpu/nccl_logs.py FOLDER

The logs are fixtures of the unit tests (tests/unit/fixtures/nccl/real), each with its true reading in the tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

ONLY_NETWORK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
# Setting -> environment beside NCCL_DEBUG=INFO. What the ranks do follows from the name.
SETTINGS = {
    "loopback": {**ONLY_NETWORK, "NCCL_SOCKET_IFNAME": "lo"},
    "no_interface": {"NCCL_SOCKET_IFNAME": "nope0"},
    "no_ipv6_address": {"NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_FAMILY": "AF_INET6"},
    "ib_disabled": {**ONLY_NETWORK, "NCCL_IB_DISABLE": "1"},
    "net_socket": {**ONLY_NETWORK, "NCCL_NET": "Socket"},
    "killed": ONLY_NETWORK,
    "abort": ONLY_NETWORK,
    "watchdog": ONLY_NETWORK,
    "split": {},
    "timestamps": {**ONLY_NETWORK, "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL"},
    "subsys_all": {**ONLY_NETWORK, "NCCL_DEBUG_SUBSYS": "ALL"},
}


def rank(setting: str, number: int) -> None:
    """What one rank does."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(number)
    device = torch.device("cuda", number) if setting == "split" else None
    seconds = 8 if setting == "watchdog" else 60
    dist.init_process_group("nccl", rank=number, world_size=2, device_id=device, timeout=timedelta(seconds=seconds))
    tensor = torch.ones(1024, device=number)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if setting == "killed":
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(2)
    if setting == "watchdog" and number == 1:
        time.sleep(20)
    if setting == "split":
        group = dist.split_group(dist.group.WORLD, [[0, 1]])
        dist.all_reduce(tensor, group=group)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if setting == "abort":
        dist.distributed_c10d._abort_process_group()
        return
    dist.destroy_process_group()


def main() -> None:
    folder = Path(sys.argv[1])
    running = []
    for at, (setting, environment) in enumerate(SETTINGS.items()):
        (folder / setting).mkdir(parents=True)
        for number in range(2):
            path = folder / setting / f"rank{number}.log"
            name = {} if setting in ("watchdog", "timestamps") else {"NCCL_DEBUG_FILE": str(path)}
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29600 + at), "NCCL_DEBUG": "INFO"}
            out = (folder / setting / f"rank{number}.log").open("w") if not name else subprocess.DEVNULL
            command = [sys.executable, __file__, "--rank", setting, str(number)]
            running.append(
                subprocess.Popen(
                    command, env={**os.environ, **meeting, **name, **environment}, stdout=out, stderr=subprocess.STDOUT
                )
            )
    deadline = time.monotonic() + 75
    for process in running:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank(sys.argv[2], int(sys.argv[3]))
    else:
        main()
