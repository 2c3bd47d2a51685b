# SPDX-License-Identifier: MIT
"""Does this image do what it is for?  python -m tandem_overlay.selftest [--json] [--skip NAME ...]

Without a GPU it checks what it can and says what it did not. Status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import metadata
from importlib.util import find_spec

import torch
from torch import Tensor

from . import __version__, codec, dense, nope, reference
from .experts import Experts
from .kernels import PINNED, SIGNATURES, kernels
from .packed import Packed
from .shard import Cut

# The start of the sha256 of each codebook's 65536 fp16 values, the same as the CUDA kernels hold.
BOOKS = {"3inst": "ad88de2dcff5bb05", "mcg": "95383563929baa9d", "mul1": "bc48d02cb1c14939"}


class WrongError(Exception):
    """The check found what must not be."""


class AbsentError(Exception):
    """The check needs what is not here."""


def _gpu() -> torch.device:
    if not torch.cuda.is_available():
        raise AbsentError("no CUDA device")
    return torch.device("cuda")


def versions() -> str:
    """What is installed; changes nothing else."""
    found = {"tandem-overlay": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in ("vllm", "torch", "flashinfer-python", "transformers", "nvidia-nccl-cu13"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    found["exllamav3 kernels"] = f"{PINNED} bits {getattr(kernels().extension, 'bits', 'none')}"
    if torch.cuda.is_available():
        found["gpu"] = f"{torch.cuda.get_device_name()} {'.'.join(map(str, torch.cuda.get_device_capability()))}"
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _registered() -> None:
    """What the new process of `plugin` does."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.plugins import load_general_plugins
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    load_general_plugins()
    load_general_plugins()
    found = get_quantization_config("exl3").__module__
    if found != "tandem_overlay.quantization":
        raise WrongError(f"exl3 is registered by {found}, expected tandem_overlay.quantization")
    for start in (EngineArgs.__post_init__, EngineCore.__init__, WorkerWrapperBase.init_worker):
        if "load_general_plugins()" not in inspect.getsource(start):
            raise WrongError(f"{start.__qualname__} of this vLLM loads no plugins")


def plugin() -> str:
    """vLLM finds the entry point in a new process, and looks for it in the API server, the engine core and the workers."""
    if not find_spec("vllm"):
        raise AbsentError("vLLM is not installed")
    command = [sys.executable, "-c", "from tandem_overlay.selftest import _registered; _registered()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        raise WrongError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return "registered in a new process, twice without harm; API server, engine core and workers load it"


def tiers() -> str:
    """All kernels are there, with the arguments of the pinned release."""
    _gpu()
    if kernels().unusable:
        raise WrongError(kernels().why_not(*SIGNATURES))
    return f"{', '.join(SIGNATURES)} as in exllamav3 {PINNED}"


def decode() -> str:
    """Bit-exact: the codebooks by their checksums, the tiles on the GPU against the CPU."""
    for name, expected in BOOKS.items():
        found = hashlib.sha256(codec.codebook(name).view(torch.int16).numpy().tobytes()).hexdigest()[: len(expected)]
        if found != expected:
            raise WrongError(f"codebook {name}: expected {expected}, found {found}")
    if not torch.cuda.is_available() or not kernels().has("reconstruct"):
        return "codebooks; not on a GPU"
    for name in codec.CODEBOOKS:
        for bits in (1, 2, 3, 4, 5, 6, 7, 8, *((1.5, 2.5, 3.5) if name == "mul1" else ())):
            packed = _stack(1, 256, 384, bits, name, torch.device("cuda"))
            found = torch.empty((256, 384), dtype=torch.float16, device="cuda")
            kernels().reconstruct(found, packed.trellis[0], bits, name == "mcg", name == "mul1")
            if not torch.equal(
                found.cpu().view(torch.int16), codec.decode(packed.trellis[0].cpu(), name).view(torch.int16)
            ):
                raise WrongError(f"{bits:g} bits, codebook {name}: the GPU decodes other values than the CPU")
    return "codebooks, and all bit widths on the GPU"


def _stack(count: int, n_in: int, n_out: int, bits: float, name: str, device: torch.device) -> Packed:
    """Random matrices with entries of about 1/sqrt(n_in)."""
    packed = Packed([f"m.{n}" for n in range(count)], Cut.whole(n_in, n_out), name, device)
    packed.bits = bits
    shape = (count, n_in // 16, n_out // 16, int(16 * bits))
    packed.trellis = torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16).to(device)
    packed.suh = ((torch.rand(count, n_in) + 0.5) * n_in**-0.5).half().to(device)
    packed.svh = (torch.rand(count, n_out) + 0.5).half().to(device)
    return packed


def _experts(device: torch.device, name: str = "mcg") -> tuple[Experts, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """A layer, and the same with the weights in the basis of the model."""
    stacks = [_stack(8, *shape, 4, name, device) for shape in ((512, 256), (512, 256), (256, 512))]

    weights = cache(lambda n: [codec.dequantise(*stack.matrix(n), name) for stack in stacks])

    def expert(n: int, rows: Tensor) -> Tensor:
        gate, up, down = weights(n)
        return reference.activate(rows.float() @ gate, rows.float() @ up, 10.0) @ down

    def expected(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return reference.experts(x, ids, weights.half(), 8, expert)

    return Experts(*stacks, top_k=2, limit=10.0), expected


def _input(tokens: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.stack([torch.randperm(8)[:2] for _row in range(tokens)])
    return torch.randn(tokens, 512).half().to(device), ids.to(device), torch.rand(tokens, 2).to(device) + 0.1


def _difference(found: Tensor, expected: Tensor) -> float:
    return ((found.float() - expected.float()).norm() / expected.float().norm()).nan_to_num(1e9).item()


def experts() -> str:
    """Routed experts and a dense matrix against plain PyTorch, with the tiers of this machine."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    worst, layer = 0.0, None
    for name in ("mcg", "mul1"):
        layer, expected = _experts(device, name)
        for tokens in (1, 8, 40, 300) if layer.coop or layer.fused else (5,):
            found, wanted = layer(*(case := _input(tokens, device))), expected(*case)
            worst = max(worst, _difference(found, wanted))
        matrix = layer.down.matrix(0)
        x = torch.randn(3, 256, device=device)
        worst = max(worst, _difference(dense.multiply(x, matrix, name), reference.linear(x, matrix, name)))
    if worst > 2e-3:
        raise WrongError(f"relative error {worst:.2g}, expected at most 0.002; {layer.describe()}")
    return f"relative error {worst:.2g}; {layer.describe()}"


def graph() -> str:
    """A captured layer gives what an uncaptured one gives, for new input."""
    device = _gpu()
    layer, expected = _experts(device)
    for tokens in (1, 8, 64):
        case = _input(tokens, device)
        layer(*case)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            found = layer(*case)
        for buffer, new in zip(case, _input(tokens, device), strict=True):
            buffer.copy_(new)
        captured.replay()
        if (error := _difference(found, expected(*case))) > 2e-3:
            raise WrongError(f"{tokens} tokens: relative error {error:.2g} after replay")
    return "captured and replayed for 1, 8 and 64 tokens"


def sparse_mla() -> str:
    """The padded query and cache rows give what the native geometry gives."""
    latent, query = torch.randn(256, 512), torch.randn(4, 8, 512)
    indices = torch.stack([torch.randperm(256)[:64] for _row in range(4)])
    indices[1, 20:], indices[2] = -1, -1
    rows = nope.write_rows(latent)
    native, padded = nope.attend(query, rows, indices), nope.attend(nope.pad_query(query), rows, indices)
    if not torch.allclose(native, padded, atol=1e-12) or rows[:, nope.ROPE_AT :].any() or padded[2].any():
        raise WrongError("padding changes the result")
    reason = nope.native_reason()
    return f"padding is exact; this image is {'padded, as ' + reason if reason else 'native'}"


CHECKS = (versions, plugin, tiers, decode, experts, graph, sparse_mla)


def run(skip: list[str]) -> list[dict[str, str]]:
    torch.manual_seed(0)
    results = []
    for check in CHECKS:
        if check.__name__ in skip:
            verdict, detail = "skipped", "by --skip"
        else:
            try:
                verdict, detail = "pass", check()
            except AbsentError as error:
                verdict, detail = "not run", str(error)
            except WrongError as error:
                verdict, detail = "fail", str(error)
            except Exception as error:
                verdict, detail = "fail", f"{type(error).__name__}: {error}"
        results.append({"name": check.__name__, "verdict": verdict, "detail": detail})
    return results


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="one JSON object, for programs")
    arguments.add_argument("--skip", action="append", default=[], choices=[check.__name__ for check in CHECKS])
    chosen = arguments.parse_args()
    results = run(chosen.skip)
    failed = any(result["verdict"] == "fail" for result in results)
    if chosen.json:
        print(json.dumps({"passed": not failed, "checks": results}))
    else:
        for result in results:
            print(f"{result['verdict']:8} {result['name']:11} {result['detail']}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
