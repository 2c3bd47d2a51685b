# SPDX-License-Identifier: MIT
"""What the kernels compute, in plain PyTorch: the slowest tier, and the judge of all others."""

from __future__ import annotations

from collections.abc import Callable

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


def experts(x: Tensor, ids: Tensor, weights: Tensor, count: int, expert: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Sum of the routed experts, [tokens, hidden] in at least fp32. x [tokens, hidden]; ids and weights [tokens, top k].

    `expert(n, rows)` is expert n for some rows of x. Ids outside 0..count-1 belong to other ranks and add nothing."""
    out = torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    for n in ids.unique().tolist():
        if 0 <= n < count:
            token, slot = torch.where(ids == n)
            out.index_add_(0, token, expert(n, x[token]) * weights[token, slot, None])
    return out
