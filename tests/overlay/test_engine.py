"""The overlay's image in real engines on the demo's two machines: tiny EXL3 checkpoints against their bf16 twins.

Needs the demo (`make demo`), whose image of vLLM for CPUs is the base. Leaves the machines as they were.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

OVERLAY = Path(__file__).resolve().parents[2] / "files/overlay"
HEAD, WORKER = "10.98.0.11", "10.98.0.12"
FABRIC = {HEAD: "10.99.0.11", WORKER: "10.99.0.12"}
IMAGE, FOLDER = "localhost/tandem/overlay-test", "/var/tmp/tandem-overlay-test"
# fp32 leaves only the rounding of the twins' weights between the two.
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "skip_tokenizer_init": True,
    # vLLM then counts the tensors that are not EXL3, as the overlay counts those that are.
    "model_loader_extra_config": {"enable_weights_track": True},
}
TWO = {
    "tensor_parallel_size": 2,
    "nnodes": 2,
    "master_addr": FABRIC[HEAD],
    "master_port": 29777,
    "distributed_executor_backend": "mp",
}


def start(machine: str, script: str) -> subprocess.Popen[bytes]:
    """Run a shell script as root on a machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = os.environ.get("TANDEM_RIG_HOME") or cache / "tandem-rig"
    words = ["ssh", "-F", f"{home}/ssh/config", machine, f"sudo sh -ec {shlex.quote(script)}"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes], given: bytes = b"") -> str:
    """What it printed."""
    said = process.communicate(given, timeout=300)[0].decode(errors="replace")
    assert process.returncode == 0, said[-4000:]
    return said


def container(machine: str, name: str, command: list[str], **env: object) -> subprocess.Popen[bytes]:
    """Run a command in a container of the overlay's image, on one core."""
    settings = {
        "VLLM_HOST_IP": FABRIC[machine],
        "VLLM_CPU_OMP_THREADS_BIND": int(machine == WORKER),
        "VLLM_CPU_KVCACHE_SPACE": 1,
        "VLLM_NO_USAGE_STATS": 1,
        # The image has no compiler.
        "TORCH_COMPILE_DISABLE": 1,
        "HF_HUB_OFFLINE": 1,
        **env,
    }
    given = [
        "--env",
        "GLOO_SOCKET_IFNAME",
        *(w for key, value in settings.items() for w in ("--env", f"{key}={value}")),
    ]
    interface = f"$(ip -oneline address show to {FABRIC[machine]} | awk '{{print $2}}')"
    words = ["docker", "run", "--rm", "--name", f"tandem-overlay-{name}", "--network", "host", "--shm-size", "1g"]
    words += [*given, "--cap-add", "SYS_NICE", "--entrypoint", "", "--volume", f"{FOLDER}:{FOLDER}", IMAGE, *command]
    return start(machine, f"export GLOO_SOCKET_IFNAME={interface}; exec {shlex.join(words)}")


def generate(machine: str, name: str, jobs: list[tuple[str, dict[str, Any]]], **env: object) -> subprocess.Popen[bytes]:
    """Greedy tokens of each checkpoint, one engine after another."""
    told = [{"model": f"{FOLDER}/models/{model}", "options": ENGINE | options} for model, options in jobs]
    return container(machine, name, ["python3", f"{FOLDER}/tests/generate.py", json.dumps(told)], **env)


def answers(said: str) -> list[Any]:
    """What each engine generated, or was stopped by."""
    return [json.loads(line.split(" ", 1)[1]) for line in said.splitlines() if line.startswith(("RESULT ", "FAILED "))]


@pytest.fixture(scope="module")
def selftest() -> Iterator[list[str]]:
    """Builds the image on both machines and makes the checkpoints. What the build said on each."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(OVERLAY, ".", filter=lambda info: None if "/." in info.name or "__pycache__" in info.name else info)
    build = f"""
        base=$(docker images --format '{{{{.Repository}}}}:{{{{.Tag}}}}' localhost/tandem/smollm2_local | head -1)
        test -n "$base" || {{ echo 'no engine image here: run `make demo`'; exit 3; }}
        rm -rf {FOLDER}; mkdir -p {FOLDER}; tar --extract --directory {FOLDER}
        docker buildx build --no-cache --progress plain --load --tag {IMAGE} --build-arg "BASE=$base" --build-arg KERNELS=none \
            --build-arg CONTENT=0123 {FOLDER}
        docker inspect --format '{{{{json .Config.Labels}}}}' {IMAGE}
        docker run --rm --network none --entrypoint python3 --volume {FOLDER}:{FOLDER} {IMAGE} {FOLDER}/tests/tiny.py {FOLDER}/models
    """
    clean = f"""
        docker ps --all --quiet --filter name=tandem-overlay- | xargs --no-run-if-empty docker rm --force
        docker image rm --force {IMAGE}
        rm -rf {FOLDER}
    """
    try:
        with ThreadPoolExecutor() as pool:
            yield list(pool.map(lambda machine: end(start(machine, build), packed.getvalue()), (HEAD, WORKER)))
    finally:
        for process in [start(machine, clean) for machine in (HEAD, WORKER)]:
            process.communicate()


@pytest.fixture(scope="module")
def one(selftest: list[str]) -> tuple[dict[str, Any], str]:
    """What each checkpoint says on one rank, and the logs."""
    names = {
        HEAD: ["experts/bf16", "experts/exl3", "missing", "unpacked"],
        WORKER: ["whole/bf16", "whole/exl3", "misnamed", "misshapen"],
    }
    running = [
        generate(machine, "one", [(name, {}) for name in models], VLLM_ENABLE_V1_MULTIPROCESSING=0)
        for machine, models in names.items()
    ]
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(end, running))
    found = [answer for text in said for answer in answers(text)]
    return dict(zip([name for models in names.values() for name in models], found, strict=True)), "".join(said)


def agree(found: Any, twin: Any) -> None:
    """The same tokens, each chosen by the twin with a clear margin, and the five highest logprobs as far as bf16 weights tell."""
    assert [answer["tokens"] for answer in found] == [answer["tokens"] for answer in twin]
    ours, theirs = ([top for answer in answers for top in answer["logprobs"]] for answers in (found, twin))
    assert min(top[0] - top[1] for top in theirs) > 0.1
    difference = max(
        abs(a - b) for our, their in zip(ours, theirs, strict=True) for a, b in zip(our, their, strict=True)
    )
    print(f"logprobs within {difference:.2g}")
    assert difference < 0.01


def test_the_image_builds_and_tests_itself(selftest: list[str]) -> None:
    for said in selftest:
        assert '"org.tandem.overlay.content":"0123"' in said
        for verdict, check in (("pass", "versions"), ("not run", "tiers"), ("pass", "decode"), ("pass", "experts")):
            assert f"{verdict:8} {check}" in said


def test_packed_experts_answer_as_their_twin(one: tuple[dict[str, Any], str]) -> None:
    found, log = one
    agree(found["experts/exl3"], found["experts/bf16"])
    assert "EXL3 experts: configured_tier=reference effective_tier=reference" in log


def test_a_wholly_packed_model_answers_as_its_twin(one: tuple[dict[str, Any], str]) -> None:
    found, log = one
    agree(found["whole/exl3"], found["whole/bf16"])
    assert "EXL3 dense: configured_tier=exl3_gemm effective_tier=reference" in log
    assert "EXL3 shared experts: on the stream of the routed experts" in log


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("missing", ["model.layers.1.mlp.experts.2.up_proj.svh: expected in the checkpoint, not found"]),
        (
            "misnamed",
            [
                "model.layers.2.mlp.experts.3.down_proj.trellis: expected in the checkpoint",
                "There is model.layers.2.mlp.experts.3.down_proj.trelis",
            ],
        ),
        ("unpacked", ["not initialized from checkpoint: {'model.layers.2.self_attn.o_proj.weight'}"]),
        ("misshapen", ["model.layers.1.mlp.experts.0.gate_proj.suh: expected shape [256], found [128]"]),
    ],
)
def test_a_damaged_checkpoint_stops_the_start(one: tuple[dict[str, Any], str], name: str, messages: list[str]) -> None:
    for message in messages:
        assert message in one[0][name]


def pair(options: dict[str, Any], **env: object) -> tuple[Any, str, str]:
    """What a checkpoint with packed experts says on both machines together, and the log of each."""
    worker, head = (
        generate(machine, f"rank{rank}", [("experts/exl3", TWO | options | {"node_rank": rank})], **env)
        for rank, machine in ((1, WORKER), (0, HEAD))
    )
    with ThreadPoolExecutor() as pool:
        log = pool.submit(lambda: worker.communicate()[0].decode(errors="replace"))
        try:
            said = end(head)
        finally:
            start(WORKER, "docker rm --force tandem-overlay-rank1").communicate()
            print(log.result())
    (found,) = answers(said)
    return found, said, log.result()


def test_two_machines_answer_as_one(one: tuple[dict[str, Any], str]) -> None:
    """Also, each process of both registers the plugin."""
    found, head, worker = pair({}, VLLM_WORKER_MULTIPROC_METHOD="spawn")
    agree(found, one[0]["experts/bf16"])
    registered = [line for line in (head + worker).splitlines() if "quantization exl3 registered" in line]
    assert [line for line in registered if "EngineCore" in line], head[-4000:]
    assert len([line for line in registered if "Worker" in line]) == 2, registered


def test_whole_experts_on_each_machine_answer_as_one(one: tuple[dict[str, Any], str]) -> None:
    found, head, worker = pair({"enable_expert_parallel": True}, VLLM_ENABLE_V1_MULTIPROCESSING=0)
    agree(found, one[0]["experts/bf16"])
    assert "experts_local=2 hidden=256 intermediate_local=256" in head
    assert "experts_local=2 hidden=256 intermediate_local=256" in worker
