# SPDX-License-Identifier: MIT
"""Is every tier right on this GPU? Prints one line a check and ends with status 1 if any failed."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from common import DEVICE, MODEL, expected, experts, relative, routing, stack
from tandem_overlay import codec, dense, nope
from tandem_overlay.kernels import SIGNATURES, kernels, signature

RESULTS: list[dict[str, object]] = []


def record(name: str, value: float, limit: float, note: str = "") -> None:
    RESULTS.append({"name": name, "value": value, "limit": limit, "passed": value <= limit, "note": note})
    print(f"{'ok  ' if value <= limit else 'FAIL'} {name:64} {value:.3g} <= {limit:g} {note}", flush=True)


def probes() -> None:
    for name in SIGNATURES:
        found = signature(getattr(kernels().extension, name).__doc__ or "")
        record(f"signature {name}", float(name in kernels().unusable), 0, found)


def decode() -> None:
    for name in codec.CODEBOOKS:
        halves = (1.5, 2.5, 3.5) if name == "mul1" else ()
        for bits in (1, 2, 3, 4, 5, 6, 7, 8, *halves):
            trellis = stack(1, 384, 512, bits, name).trellis[0]
            found = torch.empty(384, 512, dtype=torch.float16, device=DEVICE)
            kernels().reconstruct(found, trellis, bits, name == "mcg", name == "mul1")
            wrong = (found.view(torch.int16) != codec.decode(trellis, name).view(torch.int16)).sum().item()
            record(f"decode K={bits:g} {name}, differing values", wrong, 0)
    cpu = stack(1, 256, 256, 4, "mcg").trellis[0]
    same = torch.equal(
        codec.decode(cpu, "mcg").cpu().view(torch.int16), codec.decode(cpu.cpu(), "mcg").view(torch.int16)
    )
    record("decode on the CPU is decode on the GPU", float(not same), 0)


def linear() -> None:
    for name in codec.CODEBOOKS:
        for bits in (3, 4, 5, 6):
            packed = stack(1, 1024, 768, bits, name)
            weight = codec.dequantise(*packed.matrix(0), name, torch.float64)
            for rows in (1, 8, 33, 64, 200):
                x = torch.randn(rows, 1024, device=DEVICE, dtype=torch.float16)
                found = dense.multiply(x, packed.matrix(0), name)
                record(f"linear K={bits} {name} rows={rows}", relative(found, x.double() @ weight), 1e-3)


def moe() -> None:
    for name, tokens in (
        ("mcg", (1, 2, 4, 8, 9, 32, 128, 129, 256, 1024)),
        ("mul1", (1, 8, 32, 256)),
        ("3inst", (1, 8, 32, 256)),
    ):
        layer = experts(4, name)
        for count in tokens:
            ids, weights = routing(count)
            x = torch.randn(count, MODEL["hidden"], device=DEVICE, dtype=torch.float16)
            error = relative(layer(x, ids, weights), expected(layer, x, ids, weights.half()))
            record(f"experts K=4 {name} tokens={count}", error, 1e-3, layer.describe() if count == 1 else "")
        del layer
        torch.cuda.empty_cache()
    small = {"count": 8, "hidden": 512, "inner": 384, "top_k": 2}
    for name in codec.CODEBOOKS:
        for bits in (3, 5, 6):
            layer = experts(bits, name, **small)
            for count in (1, 5, 40):
                ids, weights = routing(count, 8, 2)
                x = torch.randn(count, 512, device=DEVICE, dtype=torch.float16)
                error = relative(layer(x, ids, weights), expected(layer, x, ids, weights.half()))
                record(f"experts K={bits} {name} tokens={count} small", error, 1.5e-3)


def overflow() -> None:
    """All tokens choose one expert, so it has more rows than the scratch."""
    layer = experts(4, "mcg", count=16)
    for tokens in (129, 500):
        ids, weights = routing(tokens, 16)
        ids[:, 0] = 3
        ids[:, 1:] = torch.where(ids[:, 1:] == 3, 15, ids[:, 1:])
        x = torch.randn(tokens, MODEL["hidden"], device=DEVICE, dtype=torch.float16)
        record(
            f"overflow: {tokens} rows in one expert, scratch of {layer.settings.rows}",
            relative(layer(x, ids, weights), expected(layer, x, ids, weights.half())), 1e-3,
        )  # fmt: skip
    ids[::3] = -1
    error = relative(layer(x, ids, weights), expected(layer, x, ids, weights.half()))
    record("ids of other ranks add nothing, 500 tokens", error, 1e-3)
    error = relative(layer(x[:6], ids[:6], weights[:6]), expected(layer, x[:6], ids[:6], weights[:6].half()))
    record("ids of other ranks add nothing, 6 tokens", error, 1e-3)


def deterministic() -> None:
    for flag in (False, True):
        layer = experts(4, "mcg", count=16, deterministic=flag)
        ids, weights = routing(300, 16)
        ids[:, 0] = 3
        ids[:, 1:] = torch.where(ids[:, 1:] == 3, 15, ids[:, 1:])
        x = torch.randn(300, MODEL["hidden"], device=DEVICE, dtype=torch.float16)
        runs = [layer(x, ids, weights) for _run in range(8)]
        if flag:
            record("deterministic: runs that differ", sum(not torch.equal(runs[0], run) for run in runs), 0)
        error = relative(runs[0], expected(layer, x, ids, weights.half()))
        record(f"deterministic={int(flag)}: with overflow", error, 1e-3)


def graphs() -> None:
    layer = experts(4, "mcg", count=32)
    for tokens in (1, 4, 8, 32, 128, 300):
        x = torch.randn(tokens, MODEL["hidden"], device=DEVICE, dtype=torch.bfloat16)
        ids, weights = routing(tokens, 32)
        layer(x, ids, weights)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(x, ids, weights)
        worst = 0.0
        for _run in range(3):
            new = routing(tokens, 32)
            x.copy_(torch.randn_like(x))
            ids.copy_(new[0])
            weights.copy_(new[1])
            graph.replay()
            worst = max(worst, relative(out, expected(layer, x, ids, weights.half())))
        record(f"graph: 3 replays with new inputs, bf16, tokens={tokens}", worst, 4e-3)
    packed = stack(1, 1024, 768, 4, "mul1")
    dense.warm_up(packed.matrix(0), "mul1", torch.bfloat16)
    compiled = torch.compile(lambda x: dense.exl3_linear(x, *packed.matrix(0), "mul1") * 2, fullgraph=True)
    x = torch.randn(4, 1024, device=DEVICE, dtype=torch.bfloat16)
    compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    wanted = 2 * x.double() @ codec.dequantise(*packed.matrix(0), "mul1", torch.float64)
    record("graph: compiled exl3_linear, new input", relative(out, wanted), 4e-3)


def padding() -> None:
    """The padded NoPE query on FlashMLA's sparse decode, which reads the same 656-byte rows."""
    torch.ops.load_library(os.environ["FLASHMLA"])
    heads, top_k, pages = 64, 2048, 256
    latent = torch.randn(64 * pages, 512, device=DEVICE)
    latent *= (30 ** torch.rand(len(latent), 4, device=DEVICE)).repeat_interleave(128, 1)
    rows = nope.write_rows(latent)
    indices = torch.rand(4, len(rows), device=DEVICE).argsort(-1)[:, :top_k].int().contiguous()
    indices[1, 700:], indices[2, ::5], indices[3] = -1, -1, -1
    query = torch.randn(4, heads, 512, device=DEVICE, dtype=torch.bfloat16) / 20

    def run(query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        cache = rows.view(pages, 64, 1, nope.ROW)
        out, *_rest = torch.ops._flashmla_C.sparse_decode_fwd(
            query[:, None].contiguous(), cache, indices[:, None].contiguous(), None, None, None, None, None, None, None,
            512, nope.SOFTMAX_SCALE, None,
        )  # fmt: skip
        return nope.without_empty_rows(out[:, 0], indices)

    wanted = nope.attend(query, rows, indices.long())
    padded = run(nope.pad_query(query), rows)
    record("padding: FlashMLA 576 against fp64 of 512", relative(padded, wanted), 6e-3)
    record("padding: a token without valid entries is zero", padded[3].abs().max().item(), 0)
    dirty = rows.clone()
    dirty[:, nope.ROPE_AT :] = (
        torch.randn(len(rows), 64, device=DEVICE).bfloat16().view(torch.uint8).view(len(rows), 128)
    )
    same = torch.equal(run(nope.pad_query(query), dirty), padded)
    record("padding: finite garbage in the rope bytes changes no bit", float(not same), 0)
    dirty[:, nope.ROPE_AT :] = 0xFF
    poisoned = torch.isnan(run(nope.pad_query(query), dirty)).any().item()
    record("padding: NaN in the rope bytes would poison, so they are written", float(not poisoned), 0)
    wide = torch.cat([query, torch.randn(4, heads, 64, device=DEVICE, dtype=torch.bfloat16)], -1)
    record("padding: zero rope bytes alone are enough", float(not torch.equal(run(wide, rows), padded)), 0)


def main() -> int:
    torch.manual_seed(0)
    only = sys.argv[1:]
    checks: list[Callable[[], None]] = [probes, decode, linear, moe, overflow, deterministic, graphs, padding]
    for check in checks:
        if not only or check.__name__ in only:
            try:
                check()
            except Exception:
                traceback.print_exc()
                record(f"{check.__name__} ended", 1, 0, traceback.format_exc(limit=1).splitlines()[-1])
        torch.cuda.empty_cache()
    if out := os.environ.get("OUT"):
        Path(out, "check.json").write_text(json.dumps(RESULTS, indent=1))
    failed = [result["name"] for result in RESULTS if not result["passed"]]
    print(f"{len(RESULTS) - len(failed)} passed, {len(failed)} failed {failed}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
