# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lines of an engine's log mean: phases of a start, and ways to end.

Every entry names literals (``marks``) of which one has to be in the line, because that is cheap to find, and where the
literal alone says too little a pattern that has to match as well.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# In the order of a start.
PHASES = (
    "unknown",
    "image",
    "starting",
    "rendezvous",
    "loading",
    "profiling",
    "kv",
    "graph_capture",
    "warmup",
    "serving",
    "stopped",
)

# Phase -> what its lines hold. The first phase that fits counts, so the later ones stand first.
PHASE_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "serving",
        (
            "Application startup complete",
            "Uvicorn running on",
            "is now LIVE!",
            "[tensorfold] serving ",
            *(f"rank {rank} ready in " for rank in range(1, 8)),
        ),
    ),
    (
        "warmup",
        (
            "init engine (",
            "Starting vLLM",
            "Started server process",
            "Waiting for application startup",
            "; following rank 0 at ",
        ),
    ),
    (
        "graph_capture",
        ("Capturing CUDA graph", "Capturing cudagraph", "Graph capturing finished", "graphs captured in"),
    ),
    (
        "kv",
        (
            "KV cache memory: ",
            "KV cache size: ",
            "# CPU blocks: ",
            "num_gpu_blocks is: ",
            "GiB for KV cache",
            "memory for KV Cache",
            "[tensorfold] KV pool",
        ),
    ),
    (
        "profiling",
        (
            "torch.compile",
            "Compiling a graph",
            "Dynamo bytecode",
            "emory profiling takes",
            "Initial profiling",
            "Profiling CUDA graph",
            "Warming up model for the compilation",
            "model weights take",
            "building CUDA extension",
        ),
    ),
    (
        "loading",
        (
            "Starting to load model",
            "checkpoint shards",
            "Loading weights",
            "InstantTensor loader",
            "Loading model weights",
            "Model loading took",
            "startup estimate",
            "Loaded layer ",
            ": layers 0..",
        ),
    ),
    (
        "rendezvous",
        (
            "distributed_init_method=",
            "DP group leader",
            "vLLM is using nccl",
            " in world size ",
            "NCCL INFO",
            "[c10d]",
            "[Gloo]",
        ),
    ),
    (
        "starting",
        (
            "vLLM API server version",
            "LLM engine",
            "Launching vLLM",
            "Resolved architecture",
            "non-default args",
            "detected platform",
            "Using max model len",
            "launching: vllm",
            "tensorfold serve",
            "Starting ",
        ),
    ),
    ("image", ("Unable to find image", ": Pulling from", "Pulling fs layer", "Pull complete")),
)


class Rule(NamedTuple):
    """One way to end. ``says`` is the sentence, with the pattern's groups in it.

    A ``serving`` rule counts after the start as well; the others are then somebody's request, not the engine's end.
    """

    code: str
    says: str
    marks: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    serving: bool = False


# From root to consequence: of all rules that a start meets, the first is its cause. A code may stand more than once, and
# a rule without marks is met elsewhere: in _kv_pool, by the exit status, or by several lines together.
RULES = (
    Rule(
        "illegal_instruction",
        "A process met an instruction that this CPU does not have (SIGILL).",
        (
            "Illegal instruction",
            "SIGILL",
            "status=132",
            "code 132",
            "signal=ILL",
            "status=4/ILL",
            "trap invalid opcode",
            "undefined instruction",
        ),
        serving=True,
    ),
    Rule(
        "driver_too_old",
        "The host's NVIDIA driver is too old for the CUDA of the image.",
        (
            "driver on your system is too old",
            "driver version is insufficient",
            "forward compatibility was attempted",
            "unsatisfied condition: cuda",
            "unsatisfied condition: driver",
            "unsupported display driver / cuda driver combination",
            "PTX was compiled with an unsupported toolchain",
        ),
    ),
    Rule(
        "driver_library_mismatch",
        "The host's NVIDIA driver was updated, and the kernel still runs the old one.",
        ("Driver/library version mismatch",),
    ),
    Rule(
        "gpu_not_available",
        "The engine finds no GPU.",
        (
            "No CUDA GPUs are available",
            "Failed to infer device type",
            "could not select device driver",
            "no CUDA-capable device is detected",
            "ailed to initialize NVML",
            "libcuda.so.1: cannot open",
            "libnvidia-ml.so.1: cannot open",
        ),
    ),
    Rule(
        "kernel_image_missing",
        "A kernel of the image was not built for this GPU.",
        (
            "no kernel image is available",
            "is not compatible with the current PyTorch installation",
            "is not defined for option 'gpu-name'",
        ),
    ),
    Rule(
        "image_wrong_platform",
        "The image is for another kind of CPU.",
        ("exec format error", "Exec format error", "no matching manifest for"),
    ),
    Rule(
        "image_missing",
        "The image is not there: {what}.",
        ("manifest unknown", "pull access denied", "o such image", "manifest for "),
        re.compile(
            r"pull access denied for (?P<what>\S+?),|manifest for (?P<appear>\S+) not found|o such image: (?P<image>\S+)"
            r"|manifest unknown"
        ),
    ),
    Rule(
        "engine_missing",
        "The image has no program {what}.",
        ("exec: ", ": not found", "command not found"),
        re.compile(
            r"exec: \"?(?P<what>[^\s\":]+)\"?: (?:executable file not found|not found|stat .{1,200}no such file)"
            r"|\bsh: (?:line )?\d+: (?P<appear>\S+): (?:command )?not found"
        ),
    ),
    Rule(
        "unrecognized_arguments",
        "The engine refuses its command line: {what}.",
        ("error: unrecognized argument", "error: argument ", "error: the following arguments", "error: invalid choice"),
        re.compile(r"error: (?P<what>(?:unrecognized|argument|the following|invalid choice).{1,200})"),
    ),
    Rule(
        "licence_or_token",
        "The hub refuses the model to this token.",
        ("gated repo", "GatedRepoError", "401 Client Error", "403 Client Error"),
    ),
    Rule(
        "licence_or_token",
        "The hub refuses the model to this token.",
        ("Access to model ",),
        re.compile(r"Access to model .{1,200} is restricted"),
    ),
    Rule(
        "weights_missing",
        "A file of the model is missing or broken: {what}.",
        ("rror: ", "does not appear to have a file named"),
        re.compile(
            r"does not appear to have a file named (?P<appear>\S+?)\.?(?: |$)"
            r"|(?:OSError|ValueError|FileNotFoundError|SafetensorError|JSONDecodeError)\b.*?"
            r"(?P<what>[^\s'\"(<]+\.(?:safetensors|json|jinja|bin|model|gguf))\b"
        ),
    ),
    Rule(
        "weights_missing",
        "The model's files are not all there.",
        (
            "RepositoryNotFoundError",
            "LocalEntryNotFoundError",
            "RevisionNotFoundError",
            "Cannot find any model weights",
            "Can't load the configuration of",
            "Can't load tokenizer for",
            "Invalid repository ID or local directory",
            "We couldn't connect to",
            "SafetensorError",
            "is not a local folder and is not a valid model",
            "duplicate checkpoint tensor",
            "not initialized from checkpoint",
        ),
    ),
    Rule(
        "architecture_unsupported",
        "The engine of this image does not know the model: {what}.",
        ("Model architecture",),
        re.compile(r"Model architectures? (?P<what>\[.{1,200}?\]|\S+) (?:are|is) not supported"),
    ),
    Rule(
        "architecture_unsupported",
        "The engine of this image does not know the model's quantisation: {what}.",
        ("nknown quantization method", "quantization method"),
        re.compile(
            r"(?:Unknown quantization method: (?P<what>\S+)|quantization method .{1,80}(?:not supported|not found))"
        ),
    ),
    Rule(
        "architecture_unsupported",
        "The engine of this image does not know the model.",
        ("does not recognize this architecture", "has no vLLM implementation", "no family can run"),
    ),
    Rule(
        "no_attention_backend",
        "No attention backend of this image fits the model on this GPU.",
        ("No valid attention backend", "Sparse Attention is not supported"),
    ),
    Rule(
        "no_attention_backend",
        "No attention backend of this image fits the model on this GPU.",
        ("Selected backend",),
        re.compile(r"Selected backend .{1,80} is not valid"),
    ),
    Rule(
        "configuration_refused",
        "The engine refuses its configuration: {what}.",
        ("Value error, ",),
        re.compile(r"Value error, (?P<what>[^\[]{1,200})"),
    ),
    Rule(
        "configuration_refused",
        "The engine refuses its configuration: {what}.",
        ("must be divisible by", "is greater than the derived max_model_len"),
        re.compile(r"Error: (?P<what>.{1,200}(?:must be divisible by|is greater than the derived).{1,80}?)\.?(?: |$)"),
    ),
    Rule(
        "module_missing",
        "The image lacks a module or library: {what}.",
        ("ModuleNotFoundError: ", "ImportError: "),
        re.compile(
            r"(?:ModuleNotFoundError: No module named '(?P<what>[^']+)"
            r"|ImportError: (?P<appear>\S+): cannot open shared object file)"
        ),
    ),
    Rule(
        "permission_denied",
        "The engine may not use {what}.",
        ("PermissionError: ",),
        re.compile(r"PermissionError: \[Errno 13\] Permission denied: '(?P<what>[^']+)"),
    ),
    Rule("port_in_use", "A port that the engine wants is taken.", ("Errno 98", "ddress already in use", "EADDRINUSE")),
    Rule(
        "shm_too_small",
        "The container's /dev/shm is full.",
        ("Bus error", "bus error", "SIGBUS", "insufficient shared memory"),
        serving=True,
    ),
    Rule(
        "shm_too_small",
        "The container's /dev/shm is full.",
        ("/dev/shm", "shm_open", "shared memory", "to file </torch_"),
        re.compile(r"No space left|too small|unable to (?:mmap|allocate)"),
        serving=True,
    ),
    Rule("disk_full", "A disk is full.", ("No space left on device",), serving=True),
    Rule(
        "out_of_memory_killed",
        "The kernel killed {what} because the host had no memory left.",
        ("illed process ",),
        re.compile(r"[Oo]ut of memory: Killed process \d+ \((?P<what>[^)]*)\)"),
        serving=True,
    ),
    Rule(
        "out_of_memory_killed",
        "The kernel killed a process because the host had no memory left.",
        (
            "oom-kill:",
            "oom_reaper: reaped",
            "killed by the OOM killer",
            "status=OOMKilled",
            '"OOMKilled": true',
            "result 'oom-kill'",
        ),
        serving=True,
    ),
    Rule(
        "gpu_driver_no_memory",
        "The GPU driver found no memory (NV_ERR_NO_MEMORY).",
        ("NV_ERR_NO_MEMORY",),
        serving=True,
    ),
    Rule(
        "gpu_xid",
        "The GPU driver reports Xid {what} on {where}.",
        ("Xid (",),
        re.compile(r"Xid \((?P<where>[^)]*)\): (?P<what>\d+)"),
        serving=True,
    ),
    Rule(
        "gpu_xid",
        "The GPU is no longer on its bus.",
        ("fallen off the bus", "GPU is lost"),
        serving=True,
    ),
    Rule(
        "gpu_out_of_memory",
        "The GPU's memory ran out.",
        (
            "CUDA out of memory",
            "torch.OutOfMemoryError",
            "cuda.OutOfMemoryError",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cudaErrorMemoryAllocation",
            "exceeds device memory budget",
            "CUDA error: out of memory",
        ),
        serving=True,
    ),
    Rule(
        "host_out_of_memory",
        "The host's memory ran out.",
        ("Cannot allocate memory", "std::bad_alloc", "can't allocate memory", "node running low on memory"),
        serving=True,
    ),
    Rule(
        "host_out_of_memory",
        "The host's memory ran out.",
        ("MemoryError",),
        re.compile(r"\bMemoryError\b"),
        serving=True,
    ),
    Rule(
        "startup_free_memory_below_request",
        "Less memory was free at the start than gpu-memory-utilization asks for.",
    ),
    Rule("no_memory_for_kv", "Nothing was left for the KV cache after the weights."),
    Rule("kv_pool_smaller_than_max_model_len", "The KV cache cannot hold one request of max-model-len."),
    Rule(
        "ipc_removed_by_logind",
        "A semaphore of the engine vanished: logind removes the IPC objects of a user who logs out (RemoveIPC).",
        serving=True,
    ),
    Rule(
        "ipc_removed_by_logind",
        "Shared memory of the engine vanished ({what}): logind removes the IPC objects of a user who logs out (RemoveIPC).",
        ("FileNotFoundError: ",),
        re.compile(r"No such file or directory: '(?P<what>/(?:psm_|sem\.|torch_)[^']*)"),
        serving=True,
    ),
    Rule(
        "rendezvous_timeout",
        "The ranks did not meet: {joined} of {wanted} joined.",
        ("clients joined",),
        re.compile(r"waiting for clients\. (?P<joined>\d+)/(?P<wanted>\d+) clients joined"),
    ),
    Rule(
        "rendezvous_timeout",
        "The ranks did not meet: {what} did not answer at port {port}.",
        ("client socket has timed out", "client socket has failed to connect"),
        re.compile(r"connect to \(?(?P<what>[^),\s]+), ?(?P<port>\d+)"),
    ),
    Rule(
        "rendezvous_timeout",
        "The ranks did not meet.",
        (
            "DistStoreError",
            "DistNetworkError",
            "RendezvousTimeoutError",
            "connectFullMesh failed",
            "wait timeout after",
        ),
    ),
    Rule(
        "nccl_error",
        "NCCL failed: {what}. nccl_log_info says why.",
        ("NCCL WARN ", "NCCL error"),
        re.compile(r"NCCL (?:WARN|error)(?: in)?:? (?P<what>.{1,160}?)[.\s]*$"),
        serving=True,
    ),
    Rule(
        "nccl_error",
        "NCCL failed. nccl_log_info says why.",
        (
            "ncclUnhandledCudaError",
            "ncclSystemError",
            "ncclRemoteError",
            "ncclInternalError",
            "ncclInvalid",
            "collective operation timeout",
        ),
        serving=True,
    ),
    Rule(
        "rank_stalled",
        "A rank stopped answering (the call to {what} timed out).",
        ("RPC call to ",),
        re.compile(r"RPC call to (?P<what>\w+) timed out"),
        serving=True,
    ),
    Rule(
        "rank_stalled",
        "A rank stopped answering: {what}.",
        (" but rank ",),
        re.compile(r"(?P<what>rank \d+ finished .{1,80} but rank \S+ has not after [\d.]+ min)"),
        serving=True,
    ),
    Rule(
        "gpu_fault",
        "A GPU kernel failed: {what}.",
        ("CUDA error: ",),
        re.compile(r"CUDA error: (?P<what>.{1,120}?)[.\s]*$"),
        serving=True,
    ),
    Rule(
        "gpu_fault",
        "A GPU kernel failed.",
        ("illegal memory access", "unspecified launch failure", "device-side assert", "too many resources requested"),
        serving=True,
    ),
    Rule(
        "peer_lost",
        "A process of the engine died: {what}.",
        ("died unexpectedly",),
        re.compile(r"[Ww]orker proc(?:ess)? (?P<what>\S+).* died unexpectedly"),
        serving=True,
    ),
    Rule(
        "peer_lost",
        "A process of the engine, or another rank, went away.",
        (
            "died unexpectedly",
            "EngineDeadError",
            "EngineCore encountered",
            "Engine core proc",
            "onnection closed by peer",
            "onnection reset by peer",
            "rank 0 closed the connection",
        ),
        re.compile(r"died|DeadError|encountered|onnection (?:closed|reset)|rank 0 closed"),
        serving=True,
    ),
    Rule(
        "process_killed",
        "A process was killed from outside (signal 9).",
        ("status=9/KILL", "exit code: -9", "status=137", "code 137", "exit status 137"),
        serving=True,
    ),
    Rule(
        "segmentation_fault",
        "A process crashed (segmentation fault).",
        (
            "Segmentation fault",
            "SIGSEGV",
            "segfault at",
            "Segfault encountered",
            "status=139",
            "status=11/SEGV",
            "exit code: -11",
        ),
        serving=True,
    ),
    Rule("engine_exception", "The engine ended with {what}."),
    Rule("engine_exit", "The engine ended with exit status {what}."),
)
# Code -> its place, the root first.
ORDER = {code: place for place, code in enumerate(dict.fromkeys(rule.code for rule in RULES))}

# Exit status, as a shell or docker tells it and as systemd does -> code.
EXIT_STATUS = {
    132: "illegal_instruction",
    -4: "illegal_instruction",
    137: "process_killed",
    -9: "process_killed",
    139: "segmentation_fault",
    -11: "segmentation_fault",
}


def any_of(*marks: str) -> re.Pattern[bytes]:
    """A pattern that finds any of the literals. Branching by first character makes it a few times as fast as a plain list."""
    rests: dict[str, list[str]] = {}
    for mark in marks:
        rests.setdefault(mark[0], []).append(re.escape(mark[1:]))
    branches = (f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in rests.items())
    return re.compile("|".join(branches).encode())


def says(code: str, **details: object) -> str:
    """The sentence of a code that no line told."""
    rule = next(rule for rule in reversed(RULES) if rule.code == code)
    return rule.says.format_map({"what": "?", **details})
