"""The overlay's image in real engines on the demo's two machines: tiny EXL3 checkpoints against their bf16 twins.

The base is the image that the demo serves with; where it is not served, it is first. Leaves the machines as they were.
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

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "files/overlay"
HEAD, WORKER = "10.98.0.11", "10.98.0.12"
FABRIC = {HEAD: "10.99.0.11", WORKER: "10.99.0.12"}
IMAGE, FOLDER = "localhost/tandem/overlay-test", "/var/tmp/tandem-overlay-test"
MODELS = "/tmp/models"
# Print the image of the demo's ranks, vLLM for CPUs, and the folder of its byte code, which saves half of every start.
SERVED, CODE = (
    f"grep --only-matching --max-count 1 '{words}' /etc/systemd/system/tandem-rank.service"
    for words in ("localhost/tandem/[^ ]*", "/var/lib/tandem/cache/python[^ :]*")
)
# fp32 leaves only the rounding of the twins' weights between the two.
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "num_gpu_blocks_override": 64,
    "skip_tokenizer_init": True,
    # vLLM then counts the tensors that are not EXL3, as the overlay counts those that are.
    "model_loader_extra_config": {"enable_weights_track": True},
}
TWO = {
    "tensor_parallel_size": 2,
    "nnodes": 2,
    "master_addr": FABRIC[HEAD],
    "distributed_executor_backend": "mp",
}
# What runs on both machines together, each with a port of its own.
PAIRS: dict[str, dict[str, Any]] = {
    "tensors": TWO | {"master_port": 29777},
    "experts": TWO | {"master_port": 29778, "enable_expert_parallel": True},
}
Found = tuple[dict[str, Any], dict[str, str]]


def start(machine: str, script: str) -> subprocess.Popen[bytes]:
    """Run a shell script as root on a machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = os.environ.get("TANDEM_RIG_HOME") or cache / "tandem-rig"
    words = ["ssh", "-F", f"{home}/ssh/config", machine, f"sudo sh -ec {shlex.quote(script)}"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes], given: bytes = b"") -> str:
    """What it printed."""
    try:
        said = process.communicate(given, timeout=300)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        said = process.communicate()[0]
    assert process.returncode == 0, said[-4000:].decode(errors="replace")
    return said.decode(errors="replace")


def answers(said: str) -> list[Any]:
    """What each engine generated, or was stopped by."""
    return [json.loads(line.split(" ", 1)[1]) for line in said.splitlines() if line.startswith(("RESULT ", "FAILED "))]


def generate(machine: str, name: str, jobs: list[dict[str, Any]]) -> subprocess.Popen[bytes]:
    """Greedy tokens of each checkpoint, one engine after another, in a container of the overlay's image on one core."""
    settings = {
        "VLLM_HOST_IP": FABRIC[machine],
        "VLLM_CPU_OMP_THREADS_BIND": int(machine == WORKER),
        "VLLM_CPU_KVCACHE_SPACE": 1,
        "OMP_NUM_THREADS": 1,
        "VLLM_NO_USAGE_STATS": 1,
        # The image has no compiler.
        "TORCH_COMPILE_DISABLE": 1,
        "HF_HUB_OFFLINE": 1,
        "PYTHONPYCACHEPREFIX": "/code",
    }
    given = ["--env", "GLOO_SOCKET_IFNAME", *(f"--env={key}={value}" for key, value in settings.items())]
    interface = f"$(ip -oneline address show to {FABRIC[machine]} | awk '{{print $2}}')"
    words = ["docker", "run", "--rm", "--name", f"tandem-overlay-{name}", "--network", "host", "--shm-size", "1g"]
    words += [*given, "--cap-add", "SYS_NICE", "--entrypoint", "python3", "--volume", f"{FOLDER}:{FOLDER}:ro"]
    command = shlex.join([IMAGE, f"{FOLDER}/tests/generate.py", json.dumps(jobs), MODELS])
    return start(
        machine,
        f"export GLOO_SOCKET_IFNAME={interface}; exec {shlex.join(words)} --volume $({CODE}):/code:ro {command}",
    )


def job(model: str, processes: bool = False, **options: Any) -> dict[str, Any]:
    """What generate.py is told of a checkpoint. With `processes` the engine core has its own, otherwise only the workers have."""
    return {
        "model": f"{MODELS}/{model}",
        "options": ENGINE | options,
        "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes))},
    }


@pytest.fixture(scope="module")
def selftest() -> Iterator[list[str]]:
    """Builds the image on both machines. What that said on each."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(OVERLAY, ".", filter=lambda info: None if "/." in info.name or "__pycache__" in info.name else info)
    build = f"""
        base=$({SERVED})
        rm -rf {FOLDER}; mkdir -p {FOLDER}; tar --extract --directory {FOLDER}
        docker buildx build --no-cache --progress plain --load --tag {IMAGE} --build-arg "BASE=$base" --build-arg KERNELS=none \
            --build-arg CONTENT=0123 {FOLDER}
        docker inspect --format '{{{{json .Config.Labels}}}}' {IMAGE}
    """
    clean = f"""
        docker ps --all --quiet --filter name=tandem-overlay- | xargs --no-run-if-empty docker rm --force
        docker image rm --force {IMAGE}
        docker builder prune --all --force
        rm -rf {FOLDER}
    """
    served = [start(machine, f"docker image inspect --format . $({SERVED})") for machine in (HEAD, WORKER)]
    if any(process.wait() for process in served):
        subprocess.run(["ansible-playbook", "site.yml", "-i", "inventories/local_pair"], cwd=ROOT, check=True)
    try:
        with ThreadPoolExecutor() as pool:
            yield list(pool.map(lambda machine: end(start(machine, build), packed.getvalue()), (HEAD, WORKER)))
    finally:
        for process in [start(machine, clean) for machine in (HEAD, WORKER)]:
            process.communicate()


@pytest.fixture(scope="module")
def found(selftest: list[str]) -> Found:
    """What each checkpoint says or is stopped by, and the logs of each part. Everything runs at once, as starts are slow."""
    alone = {
        HEAD: ["experts/bf16", "experts/exl3", "missing", "unpacked"],
        WORKER: ["whole/bf16", "whole/exl3", "misnamed", "misshapen"],
    }
    following = {
        name: generate(WORKER, name, [job("experts/exl3", node_rank=1, **options)]) for name, options in PAIRS.items()
    }
    leading = [job("experts/exl3", name == "tensors", node_rank=0, **options) for name, options in PAIRS.items()]
    running = {
        "head": generate(HEAD, "head", leading + [job(name) for name in alone[HEAD]]),
        "worker": generate(WORKER, "worker", [job(name) for name in alone[WORKER]]),
    }
    with ThreadPoolExecutor() as pool:
        logs = {name: pool.submit(process.communicate) for name, process in following.items()}
        try:
            said = dict(zip(running, pool.map(end, running.values()), strict=True))
        finally:
            start(WORKER, f"docker rm --force {' '.join(f'tandem-overlay-{name}' for name in PAIRS)}").communicate()
            said_by = {name: log.result()[0].decode(errors="replace") for name, log in logs.items()}
            print(*said_by.values(), sep="\n")
    names = [*PAIRS, *alone[HEAD], *alone[WORKER]]
    return dict(zip(names, [*answers(said["head"]), *answers(said["worker"])], strict=True)), said | said_by


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


def test_packed_experts_answer_as_their_twin(found: Found) -> None:
    answer, logs = found
    agree(answer["experts/exl3"], answer["experts/bf16"])
    assert "EXL3 experts: configured_tier=reference effective_tier=reference" in logs["head"]


def test_a_wholly_packed_model_answers_as_its_twin(found: Found) -> None:
    answer, logs = found
    agree(answer["whole/exl3"], answer["whole/bf16"])
    assert "EXL3 dense: configured_tier=exl3_gemm effective_tier=reference" in logs["worker"]
    assert "EXL3 shared experts: on the stream of the routed experts" in logs["worker"]


def test_two_machines_answer_as_one(found: Found) -> None:
    """Also, each process of both registers the plugin."""
    answer, logs = found
    agree(answer["tensors"], answer["experts/bf16"])
    for kind, log in (("EngineCore", "head"), ("Worker", "head"), ("Worker", "tensors")):
        registered = [line for line in logs[log].splitlines() if "quantization exl3 registered" in line]
        assert [line for line in registered if kind in line], registered
    for log in ("head", "tensors"):
        assert "experts_local=4 hidden=256 intermediate_local=128" in logs[log]


def test_whole_experts_on_each_machine_answer_as_one(found: Found) -> None:
    answer, logs = found
    agree(answer["experts"], answer["experts/bf16"])
    for log in ("head", "experts"):
        assert "experts_local=2 hidden=256 intermediate_local=256" in logs[log]


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
def test_a_damaged_checkpoint_stops_the_start(found: Found, name: str, messages: list[str]) -> None:
    for message in messages:
        assert message in found[0][name]
