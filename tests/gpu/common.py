# SPDX-License-Identifier: MIT
"""Layers of random EXL3 weights on the GPU, and errors against fp32 of the dequantised weights."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "files/overlay/src"), str(ROOT / "files/overlay/tests")]

from tandem_overlay import reference
from tandem_overlay.codec import codebook, dequantise
from tandem_overlay.experts import Experts
from tandem_overlay.packed import Packed
from tandem_overlay.settings import Settings
from tandem_overlay.shard import Cut

torch.backends.cuda.matmul.allow_tf32 = False
DEVICE = torch.device("cuda:0")
MODEL = {"count": 288, "hidden": 4096, "inner": 1024, "top_k": 8}
"""GLM-5.3-Flash at tensor parallel 2."""


def stack(count: int, n_in: int, n_out: int, bits: float, name: str) -> Packed:
    """Random matrices; entries of about 1/sqrt(n_in), as in a trained layer."""
    packed = Packed([f"m.{n}" for n in range(count)], Cut.whole(n_in, n_out), name, DEVICE)
    packed.bits = bits
    shape = (count, n_in // 16, n_out // 16, int(16 * bits))
    packed.trellis = torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16, device=DEVICE)
    spread = codebook(name).double().std().item() * n_in**0.5

    def signs(n: int) -> Tensor:
        return torch.randint(0, 2, (count, n), device=DEVICE) * 2.0 - 1

    packed.suh = (signs(n_in) * (0.5 + torch.rand(count, n_in, device=DEVICE)) / spread).half()
    packed.svh = (signs(n_out) * (0.5 + torch.rand(count, n_out, device=DEVICE))).half()
    return packed


def experts(
    bits: float, name: str, limit: float = 10.0, count: int = 288, hidden: int = 4096, inner: int = 1024, top_k: int = 8,
    **settings: object,
) -> Experts:  # fmt: skip
    gate, up, down = (stack(count, *shape, bits, name) for shape in ((hidden, inner), (hidden, inner), (inner, hidden)))
    return Experts(gate, up, down, top_k, limit, Settings(**settings))


def routing(tokens: int, count: int = 288, top_k: int = 8) -> tuple[Tensor, Tensor]:
    """Distinct random experts a token, and weights that sum to 2.5 as in the model."""
    ids = torch.rand(tokens, count, device=DEVICE).argsort(-1)[:, :top_k].contiguous()
    weights = torch.rand(tokens, top_k, device=DEVICE) + 0.1
    return ids, 2.5 * weights / weights.sum(-1, keepdim=True)


def expected(layer: Experts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """fp32 with the dequantised weights, one expert after another."""

    def expert(n: int, rows: Tensor) -> Tensor:
        gate, up, down = (dequantise(*s.matrix(n), layer.codebook) for s in (layer.gate, layer.up, layer.down))
        return reference.activate(rows.float() @ gate, rows.float() @ up, layer.limit) @ down

    return reference.experts(x, ids, weights, layer.count, expert)


def relative(found: Tensor, wanted: Tensor) -> float:
    """||found - wanted|| / ||wanted||, infinite if anything is not finite."""
    if not torch.isfinite(found).all():
        return float("inf")
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()
