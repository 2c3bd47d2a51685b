# SPDX-License-Identifier: MIT
"""The plugin in a real vLLM on GPUs: a tiny EXL3 checkpoint against its bf16 twin, with CUDA graphs, TP 1 and TP 2.

Needs vLLM on the path, with the entry point of this package, and the compiled kernels. The NCCL logs of TP 2, and of an
all-reduce over each transport of this machine, go to $OUT."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "files/overlay/tests"
sys.path[:0] = [str(ROOT / "files/overlay/src"), str(TESTS)]

import tiny

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 512,
    "head_dim": 64,
    "n_routed_experts": 8,
}
OPTIONS = {
    "dtype": "bfloat16",
    "gpu_memory_utilization": 0.15,
    "attention_backend": "TRITON_ATTN",
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16]},
    "disable_custom_all_reduce": True,
}
LOGS = Path(tempfile.mkdtemp())
ALL_REDUCE = """
import os, sys, torch, torch.multiprocessing as mp, torch.distributed as dist
def work(rank):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29777", rank=rank, world_size=2)
    x = torch.ones(1 << 20, device="cuda"); dist.all_reduce(x); print("sum", x[0].item()); dist.destroy_process_group()
if __name__ == "__main__": mp.spawn(work, nprocs=2)
"""


def run(name: str, command: list[str], env: dict[str, str], limit: int) -> str:
    """Its output; the whole goes to a log."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            env=os.environ | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        text, status = (error.stdout or b"").decode(errors="replace"), 124
    (LOGS / f"{name}.log").write_text(text)
    if out := os.environ.get("OUT"):
        with tarfile.open(Path(out, "logs.tgz"), "w:gz") as archive:
            archive.add(LOGS, "logs")
    print(f"{name}: status {status}, {time.monotonic() - began:.0f} s", flush=True)
    return text


def generate(
    name: str, models: list[Path], options: dict[str, object], env: dict[str, str], limit: int
) -> list[object]:
    jobs = json.dumps([{"model": str(model), "options": OPTIONS | options} for model in models])
    defaults = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1"}
    defaults["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    text = run(name, [sys.executable, str(TESTS / "generate.py"), jobs], defaults | env, limit)
    answers = [line.split(" ", 1)[1] for line in text.splitlines() if line.startswith(("RESULT ", "FAILED "))]
    for line in text.splitlines():
        if "EXL3" in line or "tandem_overlay" in line or "Graph capturing finished" in line or "degraded" in line:
            print("   ", line[:400], flush=True)
    if len(answers) < len(models):
        print(text[-3500:], flush=True)
    for line in text.splitlines():
        if "Error" in line:
            print("   !", line[:300], flush=True)
    return [json.loads(answer) for answer in answers]


def compare(name: str, found: object, twin: object) -> dict[str, object]:
    if isinstance(found, str) or isinstance(twin, str):
        result: dict[str, object] = {"name": name, "error": str(found)[:2000], "twin": str(twin)[:500]}
    else:
        pairs = [
            (a, b)
            for mine, theirs in zip(found, twin, strict=True)
            for a, b in zip(mine["logprobs"], theirs["logprobs"], strict=True)
        ]
        same = all(mine["tokens"] == theirs["tokens"] for mine, theirs in zip(found, twin, strict=True))
        result = {"name": name, "same_tokens": same, "logprob_difference": max(abs(a - b) for a, b in pairs)}
    print(result, flush=True)
    return result


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    exl3, bf16 = tiny.make(folder / "experts", **SHAPE)
    everything, whole = tiny.make(folder / "everything", everything=True, name="mul1", bits=5, **SHAPE)
    results: list[dict[str, object]] = []
    in_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    answers = generate("tp1", [bf16, exl3, whole, everything], {}, in_process, 260)
    for name, mine, theirs in (("experts, TP 1", 1, 0), ("all layers, TP 1", 3, 2)):
        if len(answers) > mine:
            results.append(compare(name, answers[mine], answers[theirs]))
    if not answers or isinstance(answers[0], str):
        raise SystemExit("the bf16 twin does not run here")
    nccl = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
        "NCCL_DEBUG_FILE": str(LOGS / "nccl-tp2.%h.%p.log"),
    }
    two = generate("tp2", [exl3], {"tensor_parallel_size": 2}, nccl, 150)
    if two:
        results.append(compare("experts, TP 2", two[0], answers[0]))
    script = folder / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    for name, env in (
        ("p2p", {}),
        ("shm", {"NCCL_P2P_DISABLE": "1"}),
        ("socket", {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}),
    ):
        files = nccl | {"NCCL_DEBUG_FILE": str(LOGS / f"nccl-{name}.%h.%p.log")}
        print(run(name, [sys.executable, str(script)], files | env, 40)[-300:])
    if out := os.environ.get("OUT"):
        Path(out, "engine.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
