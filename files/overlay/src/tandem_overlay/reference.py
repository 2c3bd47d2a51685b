# SPDX-License-Identifier: MIT
"""What the kernels compute, in plain PyTorch: the slowest tier, and the judge of all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from .codec import decode, rotate

Matrix = tuple[Tensor, Tensor, Tensor]
"""trellis, suh, svh of one matrix."""


def linear(x: Tensor, matrix: Matrix, codebook: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """x [..., in] -> [..., out] in `dtype`, in the order of the kernels: scale, rotate, multiply, rotate, scale."""
    trellis, suh, svh = matrix
    inner = rotate(x.to(dtype) * suh.to(dtype)) @ decode(trellis, codebook).to(dtype)
    return rotate(inner) * svh.to(dtype)


def activate(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """SwiGLU; with limit > 0 clamped as the fused kernels do it: up on both sides, silu(gate) from above."""
    gate = silu(gate)
    return gate.clamp(max=limit) * up.clamp(-limit, limit) if limit else gate * up


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate: Sequence[Matrix],
    up: Sequence[Matrix],
    down: Sequence[Matrix],
    codebook: str,
    limit: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sum of the routed experts, [tokens, hidden] in `dtype`. x [tokens, hidden]; ids and weights [tokens, top k].

    Ids outside 0..len(gate)-1 belong to other ranks and add nothing."""
    out = torch.zeros(x.shape, dtype=dtype, device=x.device)
    for expert in ids.unique().tolist():
        if not 0 <= expert < len(gate):
            continue
        token, slot = torch.where(ids == expert)
        rows = x[token]
        hidden = activate(linear(rows, gate[expert], codebook, dtype), linear(rows, up[expert], codebook, dtype), limit)
        part = linear(hidden, down[expert], codebook, dtype) * weights[token, slot].to(dtype)[:, None]
        out.index_add_(0, token, part)
    return out
