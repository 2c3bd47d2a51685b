# SPDX-License-Identifier: MIT
"""Tests in a real vLLM: run as `python -m pytest engine.py` with the Python of an environment that has vLLM for CPUs
and this package. Not collected by default, since unit tests need neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
EAGER = {"enforce_eager": True, "dtype": "float32"}


def generate(jobs: list[tuple[Path, dict[str, object]]], **env: str) -> tuple[list[object], str]:
    """What each job printed, and the log of all."""
    # fp32 leaves only the rounding of the twin's weights between the two.
    told = json.dumps([{"model": str(model), "options": EAGER | options} for model, options in jobs])
    defaults = {
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    done = subprocess.run(
        [sys.executable, HERE / "generate.py", told],
        env=os.environ | defaults | env,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    log = done.stdout + done.stderr
    answers = [line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("RESULT ", "FAILED "))]
    assert len(answers) == len(jobs), log[-4000:]
    return [json.loads(text) for _at, text in answers], log


def assert_same(found: object, expected: object) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine["tokens"] == theirs["tokens"]
        assert mine["logprobs"] == pytest.approx(theirs["logprobs"], abs=0.01)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("models")
    experts, twin = tiny.make(at / "experts")
    everything, whole_twin = tiny.make(at / "everything", everything=True, name="mul1", bits=5)
    damaged = {}
    for name, old, new in (
        ("missing", "model.layers.1.mlp.experts.2.up_proj.svh", ""),
        ("misnamed", "model.layers.2.mlp.experts.3.down_proj.trellis", "model.layers.2.mlp.experts.3.down_proj.trelis"),
    ):
        tensors = load_file(experts / "model.safetensors")
        taken = tensors.pop(old)
        damaged[name] = _copy(experts, at / name, tensors | ({new: taken} if new else {}))
    tensors = load_file(experts / "model.safetensors")
    name = "model.layers.1.mlp.experts.0.gate_proj.suh"
    damaged["misshapen"] = _copy(experts, at / "misshapen", tensors | {name: tensors[name][:128].contiguous()})
    return {"experts": experts, "twin": twin, "everything": everything, "whole_twin": whole_twin, **damaged}


def _copy(source: Path, target: Path, tensors: dict[str, object]) -> Path:
    target.mkdir()
    (target / "config.json").write_text((source / "config.json").read_text())
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def test_one_rank(models: dict[str, Path]) -> None:
    """Packed experts and a wholly packed model say what their twins say; damaged checkpoints stop the start."""
    names = ("twin", "experts", "whole_twin", "everything", "missing", "misnamed", "misshapen")
    found, log = generate([(models[name], {}) for name in names])
    answers = dict(zip(names, found, strict=True))
    assert_same(answers["experts"], answers["twin"])
    assert_same(answers["everything"], answers["whole_twin"])
    assert "model.layers.1.mlp.experts.2.up_proj.svh: expected in the checkpoint" in answers["missing"]
    assert "model.layers.2.mlp.experts.3.down_proj.trellis: expected" in answers["misnamed"]
    assert "There is model.layers.2.mlp.experts.3.down_proj.trelis" in answers["misnamed"]
    assert "model.layers.1.mlp.experts.0.gate_proj.suh: expected shape [256], found [128]" in answers["misshapen"]
    assert "EXL3 shared experts: on the stream of the routed experts" in log
    assert "EXL3 experts: configured_tier=reference effective_tier=reference" in log


@pytest.mark.parametrize("options", [{}, {"enable_expert_parallel": True}], ids=["tensor", "expert"])
def test_two_ranks(models: dict[str, Path], options: dict[str, object]) -> None:
    two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"} | options
    (found, twin), _log = generate([(models["experts"], two), (models["twin"], {})], VLLM_CPU_OMP_THREADS_BIND="0|1")
    assert_same(found, twin)
