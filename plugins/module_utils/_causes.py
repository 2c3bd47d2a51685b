# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every cause code that a check can carry: what it means, what it looks like, how to cure it.

One table: the modules take their remedies from it, and docs/checks.md is made of it.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """``looks`` is what a person sees in the log or the tool. ``remedy`` is an imperative sentence, empty when all is right."""

    meaning: str
    looks: str
    remedy: str = ""


NCCL = {
    "ok": Cause("Right.", "RDMA channels only, every communicator complete"),
}

ENGINE = {
    "ok_after_restart": Cause(
        "Right now; an earlier start in the same log failed.", "a fault, then a start that got through"
    ),
    "no_engine_line": Cause(
        "The log holds no line of an engine.",
        "an empty log, or another program's",
        "Read the engine's own log: the journal of tandem-rank.service, or the container's output.",
    ),
    "no_kv_pool_line": Cause(
        "The log does not say how large the KV pool is.",
        "no KV cache size line, no vllm:cache_config_info",
        "Read the log of rank 0 from its start, or /metrics of the head.",
    ),
    "still_loading": Cause(
        "The start is under way and nothing is wrong with it so far.",
        "weights loading, compiling, capturing; a broadcast stall of some minutes is normal here",
        "Wait, and look again; role rank prints the progress.",
    ),
    "stopped": Cause(
        "The engine was stopped in order.", "Application shutdown complete", "Start it again if it should run."
    ),
    "kv_pool_smaller_than_max_model_len": Cause(
        "The KV cache cannot hold a single request of the maximum length.",
        "max seq len (...) ... GiB KV cache is needed, which is larger than the available",
        "Lower max-model-len to the estimated maximum, or give the KV cache more memory.",
    ),
    "kv_pool_below_wanted": Cause(
        "The KV pool holds fewer tokens than asked for.",
        "a KV cache size below min_tokens",
        "Give the KV cache more memory (gpu-memory-utilization or kv-cache-memory-bytes), or lower what you ask for.",
    ),
    "no_memory_for_kv": Cause(
        "Weights and activations leave nothing for the KV cache.",
        "No available memory for the cache blocks; Available KV cache memory: -0.3 GiB",
        "Raise gpu-memory-utilization, lower max-num-batched-tokens, or spread the model over more ranks.",
    ),
    "startup_free_memory_below_request": Cause(
        "Less memory is free at the start than gpu-memory-utilization asks for.",
        "Free memory on device (102.03/121.69 GiB) on startup is less than desired",
        "Free memory on the host (desktop session, page cache, an old container), or lower gpu-memory-utilization.",
    ),
    "rank_stalled": Cause(
        "One rank waits for another that no longer answers.",
        "No available shared memory broadcast block found, RPC call to sample_tokens timed out",
        "Look at the other ranks' logs and at the fabric's counters, then restart all ranks together.",
    ),
    "rendezvous_timeout": Cause(
        "The ranks did not find each other.",
        "1/2 clients joined; the client socket has timed out",
        "Start every rank, check that the master address answers from each host, and that no firewall stands between.",
    ),
    "ipc_removed_by_logind": Cause(
        "logind removed the engine's semaphores when a user logged out.",
        "SemLock._rebuild, then FileNotFoundError: [Errno 2] No such file or directory",
        "Run the engine as a system service, or set RemoveIPC=no in logind.conf (or let the user linger).",
    ),
    "nccl_error": Cause(
        "NCCL failed.",
        "NCCL error, ncclSystemError, NCCL WARN",
        "Read the ranks' NCCL logs with tandem.serving.nccl_log_info, which names the fault.",
    ),
    "weights_missing": Cause(
        "A file of the model is missing or broken.",
        "Cannot find any model weights, LocalEntryNotFoundError, a .safetensors that is not there",
        "Run the tag sync, which compares every file with the manifest.",
    ),
    "licence_or_token": Cause(
        "The hub does not give the model to this token.",
        "GatedRepoError, 401 or 403 of the hub",
        "Accept the licence on the repository's page and set the token of that account.",
    ),
    "unrecognized_arguments": Cause(
        "The engine of this image does not know an argument.",
        "error: unrecognized arguments: --x",
        "Take the argument out of the recipe's serve section, or use an image whose version knows it.",
    ),
    "architecture_unsupported": Cause(
        "The engine of this image does not know the model's architecture or quantisation.",
        "Model architectures [...] are not supported for now",
        "Use an image that knows it: build the overlay, or take the recipe's own image.",
    ),
    "no_attention_backend": Cause(
        "No attention backend of the image fits the model on this GPU.",
        "No valid attention backend; Selected backend ... is not valid",
        "Keep kv-cache-dtype as the recipe has it, name no attention backend, and check that FlashInfer is whole in the image.",
    ),
    "port_in_use": Cause(
        "A port that the engine wants is taken.",
        "[Errno 98] Address already in use",
        "Stop what listens there (ss -ltnp), or change the recipe's ports.",
    ),
    "shm_too_small": Cause(
        "The container's shared memory is full.",
        "Bus error, No space left on device: /dev/shm",
        "Raise shm-size in the recipe's container section, or use ipc: host.",
    ),
    "disk_full": Cause(
        "A disk is full.", "No space left on device", "Free space in the cache folder and where docker keeps its data."
    ),
    "out_of_memory_killed": Cause(
        "The kernel killed a process because the host had no memory left.",
        "Out of memory: Killed process; exit 137 with OOMKilled",
        "Lower gpu-memory-utilization or max-num-batched-tokens, and leave the host some GiB: GPU and host share their memory on a DGX Spark.",
    ),
    "process_killed": Cause(
        "A process was killed from outside.",
        "exit 137, status=9/KILL",
        "Look for the kernel's memory killer in the journal (journalctl -k), or for who stopped the container.",
    ),
    "gpu_out_of_memory": Cause(
        "The GPU's memory ran out.",
        "CUDA out of memory, torch.OutOfMemoryError",
        "Lower gpu-memory-utilization, max-num-batched-tokens or max-num-seqs; drop the page cache before the start on a DGX Spark.",
    ),
    "host_out_of_memory": Cause(
        "The host's memory ran out.",
        "MemoryError, Cannot allocate memory, std::bad_alloc",
        "Free memory on the host, or lower what the engine asks for.",
    ),
    "gpu_driver_no_memory": Cause(
        "The GPU driver found no memory.",
        "NVRM ... NV_ERR_NO_MEMORY",
        "Wait until the old rank has let go of its memory before the next start; restart the host if memory stays missing.",
    ),
    "gpu_xid": Cause(
        "The GPU driver reports a fault.",
        "NVRM: Xid (PCI:...): 31",
        "Look the number up in NVIDIA's Xid catalogue; restart the host if it comes again.",
    ),
    "gpu_fault": Cause(
        "A GPU kernel failed.",
        "CUDA error: an illegal memory access was encountered",
        "Run once with CUDA_LAUNCH_BLOCKING=1 to find the kernel; try without the overlay's fast tiers.",
    ),
    "gpu_not_available": Cause(
        "The engine sees no GPU.",
        "No CUDA GPUs are available, could not select device driver",
        "Run the tag runtime, which sets up the NVIDIA container toolkit.",
    ),
    "kernel_image_missing": Cause(
        "The image has no kernel for this GPU.",
        "no kernel image is available for execution on the device",
        "Use an image built for this GPU (sm_121 on DGX Spark, sm_103 on GB300).",
    ),
    "driver_too_old": Cause(
        "The NVIDIA driver is too old for the image.",
        "The NVIDIA driver on your system is too old",
        "Update the host's driver, or use an image of an older CUDA.",
    ),
    "illegal_instruction": Cause(
        "The CPU lacks an instruction that the program uses.", "exit 132, no output", "Use an image built for this CPU."
    ),
    "segmentation_fault": Cause(
        "A process crashed.",
        "exit 139, Segmentation fault",
        "Look for the last lines before it; report it to the engine's project with the core's backtrace.",
    ),
    "peer_lost": Cause(
        "A process of the engine, or another rank, went away.",
        "Worker proc died unexpectedly, EngineDeadError",
        "Look at the log of the rank that went first.",
    ),
    "engine_exception": Cause(
        "The engine ended with an exception that has no name here.",
        "a traceback",
        "Read the evidence; the last line of the first traceback is the root.",
    ),
    "engine_exit": Cause(
        "The engine ended without saying why.", "an exit status other than 0", "Read the last lines of its log."
    ),
    "exl3_tier_degraded": Cause(
        "The EXL3 kernels run on a slower path than configured.",
        "effective_tier differs from configured_tier, or a degraded mark",
        "Check the overlay's build log for the extension, and that max-num-seqs x (drafted + 1) fits the temp rows.",
    ),
}

# Heading on the page of checks -> its causes. A code means the same wherever it stands.
TOPICS: dict[str, dict[str, Cause]] = {
    "NCCL logs (`nccl_log_info`)": NCCL,
    "Engine logs and KV pool (`engine_log_info`, `kv_pool_info`)": ENGINE,
}

CAUSES: dict[str, Cause] = {code: cause for causes in TOPICS.values() for code, cause in causes.items()}


def remedy(code: str) -> str:
    """How to cure a cause."""
    return CAUSES[code].remedy
