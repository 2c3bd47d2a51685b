# SPDX-License-Identifier: MIT
"""The plugin in a real vLLM on two GPUs: tiny EXL3 checkpoints against their bf16 twins, with CUDA graphs, TP 1 and TP 2.

Needs vLLM on the path, with the entry point of this package, and the compiled kernels. Every engine is a process of its own, and
those of one rank, and then those of two, run side by side. Logs, NCCL's among them, go to $OUT."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "files/overlay/tests"
sys.path[:0] = [str(ROOT / "files/overlay/src"), str(TESTS)]

import tiny
import torch

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 512,
    "head_dim": 64,
    "n_routed_experts": 8,
}
OPTIONS = {
    "dtype": "bfloat16",
    "gpu_memory_utilization": 0.1,
    # A given size, since engines side by side would measure each other's memory.
    "kv_cache_memory_bytes": 1 << 30,
    "attention_backend": "TRITON_ATTN",
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16]},
    "disable_custom_all_reduce": True,
}
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
SAID = ("EXL3", "tandem_overlay", "Graph capturing finished", "degraded", "Error", "ablation:")
LOGS = Path(tempfile.mkdtemp())


@dataclass
class Engine:
    """One checkpoint in one process."""

    name: str
    model: Path
    gpus: str
    options: dict[str, object]
    env: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        job = [{"model": str(self.model), "options": OPTIONS | self.options}]
        nccl = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(LOGS / f"{self.name}.nccl.%p.log")}
        self.began, self.log = time.monotonic(), (LOGS / f"{self.name}.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(TESTS / "generate.py"), json.dumps(job)],
            env=os.environ | ENVIRONMENT | nccl | {"CUDA_VISIBLE_DEVICES": self.gpus} | self.env,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def stop(self) -> None:
        """It says where it stands, and ends."""
        os.killpg(self.process.pid, signal.SIGABRT)
        time.sleep(2)
        os.killpg(self.process.pid, signal.SIGKILL)

    def answer(self, limit: float) -> object:
        """What it generated, or what it failed with. After `limit` seconds from its start it is stopped."""
        try:
            status = self.process.wait(max(1, limit + self.began - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.stop()
            status = f"not done after {limit:g} s"
        text = (LOGS / f"{self.name}.log").read_text(errors="replace")
        print(f"{self.name}: {status}, {time.monotonic() - self.began:.0f} s", flush=True)
        for line in dict.fromkeys(line[:300] for line in text.splitlines() if any(word in line for word in SAID)):
            print("   ", line, flush=True)
        for line in text.splitlines():
            if line.startswith(("RESULT ", "FAILED ")):
                return json.loads(line.split(" ", 1)[1])
        print(text[-3000:], flush=True)
        return f"no answer, {status}"


def compare(name: str, found: object, twin: object) -> dict[str, object]:
    if isinstance(found, str) or isinstance(twin, str):
        return {"name": name, "error": str(found)[:2000], "twin": str(twin)[:500]}
    mine, theirs = (torch.tensor([answer["logprobs"] for answer in answers]) for answers in (found, twin))
    return {
        "name": name,
        "same_tokens": [answer["tokens"] for answer in found] == [answer["tokens"] for answer in twin],
        "chosen_differs": (mine - theirs)[..., 0].abs().max().item(),
        "likeliest_differ": (mine - theirs).abs().max().item(),
        "margin": (theirs[..., 0] - theirs[..., 1]).min().item(),
    }


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    experts, twin = tiny.make(folder / "experts", **SHAPE)
    whole = {
        f"whole{seed}": tiny.make(folder / f"whole{seed}", everything=True, name=name, bits=bits, seed=seed, **SHAPE)
        for seed, name, bits in ((1, "mul1", 5), (2, "mul1", 5), (3, "mul1", 5), (4, "3inst", 6), (5, "mcg", 3))
    }
    torch.save({"directions": torch.randn(SHAPE["hidden_size"])}, folder / "direction.pt")
    ablated = {"TANDEM_OVERLAY_ABLATION": f"direction={folder / 'direction.pt'},layers=0-2"}
    two: dict[str, object] = {"tensor_parallel_size": 2}
    nodes = two | {"nnodes": 2, "master_addr": "127.0.0.1", "master_port": 29777, "distributed_executor_backend": "mp"}
    waves = [
        [
            Engine("experts-twin", twin, "0", {}),
            Engine("experts", experts, "1", {}),
            Engine("ablated-twin", twin, "0", {}, ablated),
            Engine("ablated", experts, "1", {}, ablated),
            *(Engine(f"{name}-twin", pair[1], "0", {}) for name, pair in whole.items()),
            *(Engine(name, pair[0], "1", {}) for name, pair in whole.items()),
        ],
        [
            Engine("experts-tp2", experts, "0,1", two),
            Engine("experts-ep2", experts, "0,1", two | {"enable_expert_parallel": True}),
            Engine("whole1-tp2", whole["whole1"][0], "0,1", two),
            Engine("whole1-nodes", whole["whole1"][0], "0", nodes | {"node_rank": 0}),
            Engine("node1", whole["whole1"][0], "1", nodes | {"node_rank": 1}),
        ],
    ]
    answers: dict[str, object] = {}
    results: list[dict[str, object]] = []
    for wave in waves:
        for engine in wave:
            engine.start()
        for engine in wave:
            if engine.name == "node1":
                engine.stop()
                continue
            answers[engine.name] = engine.answer(180)
            if not engine.name.endswith("twin"):
                twin_name = f"{engine.name.partition('-')[0]}-twin"
                results.append(compare(engine.name, answers[engine.name], answers[twin_name]))
                print(results[-1], flush=True)
        if out := os.environ.get("OUT"):
            Path(out, "engine.json").write_text(json.dumps(results, indent=1))
            with tarfile.open(Path(out, "logs.tgz"), "w:gz") as archive:
                archive.add(LOGS, "logs")


if __name__ == "__main__":
    main()
