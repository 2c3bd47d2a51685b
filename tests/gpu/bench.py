# SPDX-License-Identifier: MIT
"""Times of each tier at the model's shapes, by graph replay with cold weights: each call of a graph routes anew."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from common import DEVICE, MODEL, experts, routing, stack
from tandem_overlay import dense, reference
from tandem_overlay.experts import Experts, _coop_scratch, _fused_scratch
from tandem_overlay.kernels import kernels
from tandem_overlay.settings import Settings
from torch import Tensor

TOKENS = (1, 2, 4, 8, 32, 256, 1024)
HIDDEN, INNER, TOP_K, COUNT = MODEL["hidden"], MODEL["inner"], MODEL["top_k"], MODEL["count"]


def microseconds(calls: list[Callable[[], object]], graph: bool = True, repeats: int = 15) -> float:
    """Median over `repeats` of the time of one call, all calls in a row."""
    for call in calls[:3]:
        call()
    torch.cuda.synchronize()
    run = lambda: [call() for call in calls]  # noqa: E731
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        run = captured.replay
    times = []
    for _run in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _run in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / len(calls))
    return sorted(times)[repeats // 2]


def inputs(tokens: int, calls: int, dtype: torch.dtype = torch.bfloat16) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(tokens, HIDDEN, device=DEVICE, dtype=dtype), *routing(tokens)) for _run in range(calls)]


def coop_directly(layer: Experts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """The call that exllamav3 itself would make for few tokens: fp16 in, fp32 out."""
    s = _coop_scratch(DEVICE, HIDDEN, INNER, layer.coop_tokens, TOP_K)
    kernels().exl3_moe_coop(
        x, ids, weights, -1, -1, HIDDEN, *layer.tables, None, None, None, 4, 4, 4, *layer._marks, 0, layer.limit, True,
        *s.rotated, *s.hidden, s.active, s.down, s.counters, s.out, None, None,
    )  # fmt: skip
    return s.out[: len(x)]


def fused_directly(layer: Experts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """The call that exllamav3 itself would make for more tokens, with the sorting that it needs; nothing for overflow."""
    rows, flat = layer.settings.rows, ids.flatten()
    by_expert, order = torch.sort(flat, stable=True)
    counts = torch.searchsorted(by_expert, layer.bins).diff()
    out = torch.zeros((len(x), HIDDEN), dtype=torch.float32, device=DEVICE)
    kernels().exl3_moe(
        x, out, counts, order // TOP_K, weights.flatten()[order], *_fused_scratch(DEVICE, HIDDEN, INNER, rows), 0, 4, 4, 4,
        *layer.tables, *layer._marks, *layer._marks, *layer._marks, layer.limit, -1, None, None, 0, rows, 16,
    )  # fmt: skip
    return out


def cast(direct: Callable[..., Tensor], layer: Experts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """A direct call from an engine that computes in bf16."""
    return direct(layer, x.half(), ids, weights.half()).bfloat16()


def bf16(weights13: Tensor, weights2: Tensor, x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    """Grouped matrix products over tokens sorted by expert: what a bf16 checkpoint would cost."""
    flat, order = torch.sort(ids.flatten(), stable=True)
    ends = torch.searchsorted(flat, torch.arange(COUNT, device=DEVICE), right=True).int()
    token = order // TOP_K
    gate, up = torch._grouped_mm(x[token], weights13, offs=ends).chunk(2, -1)
    part = torch._grouped_mm(torch.nn.functional.silu(gate) * up, weights2, offs=ends)
    out = torch.zeros_like(x, dtype=torch.float32)
    return out.index_add_(0, token, part * w.flatten()[order, None]).bfloat16()


def moe(name: str) -> list[dict[str, object]]:
    """The layer, and exllamav3 called directly: with its own types, and with the casts that an engine in bf16 needs."""
    before = torch.cuda.memory_allocated()
    layer = experts(4, name)
    memory = torch.cuda.memory_allocated() - before
    plain = Experts(layer.gate, layer.up, layer.down, TOP_K, layer.limit, Settings(reference=True))
    rows = []
    for tokens in TOKENS:
        data = inputs(tokens, 24 if tokens <= 32 else 6)
        half = [(x.half(), ids, w.half()) for x, ids, w in data]
        few, graph = tokens <= layer.coop_tokens, tokens <= layer.settings.rows
        direct = coop_directly if few else fused_directly
        kinds: dict[str, list[Callable[[], object]]] = {
            "layer": [lambda d=d: layer(*d) for d in data],
            "direct": [partial(direct, layer, *d) for d in half],
            "direct_casts": [partial(cast, direct, layer, *d) for d in data],
        }
        if few:
            kinds["fused"] = [lambda d=d: fused_directly(layer, *d) for d in half]
        row: dict[str, object] = {"codebook": name, "tokens": tokens}
        for kind in [*kinds, "layer"]:
            row["layer_again" if kind in row else kind] = microseconds(kinds[kind], graph)
        apart = [partial(reference.experts, *d, layer.count, layer._expert) for d in half[:2]]
        row["one_by_one"] = microseconds(apart, graph=False, repeats=3)
        row["reference"] = microseconds([lambda d=d: plain(*d) for d in data[:1]], graph=False, repeats=3)
        row["overhead_percent"] = 100 * (row["layer"] / row["direct_casts"] - 1)
        rows.append(row)
        print({key: round(v, 1) if isinstance(v, float) else v for key, v in row.items()}, flush=True)
    coop = _coop_scratch(DEVICE, HIDDEN, INNER, layer.coop_tokens, TOP_K)
    scratch = [*_fused_scratch(DEVICE, HIDDEN, INNER, layer.settings.rows), *coop.rotated, *coop.hidden]
    scratch += [coop.active, coop.down, coop.counters, coop.out]
    shared = sum(tensor.nbytes for tensor in scratch)
    mib = {"layer": memory, "scratch of all layers": shared, "layer in bf16": COUNT * 3 * HIDDEN * INNER * 2}
    rows.append({"codebook": name, "mib": {what: size / 2**20 for what, size in mib.items()}})
    print(rows[-1], flush=True)
    return rows


def grouped() -> list[dict[str, object]]:
    w13 = torch.randn(COUNT, HIDDEN, 2 * INNER, device=DEVICE, dtype=torch.bfloat16) / HIDDEN**0.5
    w2 = torch.randn(COUNT, INNER, HIDDEN, device=DEVICE, dtype=torch.bfloat16) / INNER**0.5
    rows = []
    for tokens in TOKENS:
        data = inputs(tokens, 24 if tokens <= 32 else 6)
        rows.append({"bf16": microseconds([lambda d=d: bf16(w13, w2, *d) for d in data]), "tokens": tokens})
        print(rows[-1], flush=True)
    return rows


def linear() -> list[dict[str, object]]:
    """The packed kernel against reconstruction, to place GEMM_ROWS."""
    found = []
    for n_in, n_out in ((4096, 2048), (8192, 4096)):
        packed = stack(12, n_in, n_out, 4, "mcg")
        for rows in (1, 8, 16, 32, 64, 96, 128, 256):
            x = torch.randn(rows, n_in, device=DEVICE, dtype=torch.bfloat16)
            row: dict[str, object] = {"shape": f"{n_in}x{n_out}", "rows": rows}
            for kind, limit in (("gemm", 10**9), ("reconstruct", 0)):
                dense.GEMM_ROWS = limit
                row[kind] = microseconds([partial(dense.exl3_linear, x, *packed.matrix(m), "mcg") for m in range(12)])
            found.append(row)
            print(row, flush=True)
    return found


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    only = sys.argv[1:]
    for name, run in (
        ("mcg", lambda: moe("mcg")),
        ("mul1", lambda: moe("mul1")),
        ("bf16", grouped),
        ("linear", linear),
    ):
        if only and name not in only:
            continue
        try:
            results[name] = run()
        except Exception as error:
            results[name] = repr(error)
            print(name, repr(error), flush=True)
        torch.cuda.empty_cache()
        if out := os.environ.get("OUT"):
            Path(out, "bench.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
