# SPDX-License-Identifier: MIT
"""One EXL3 matrix times a batch: the packed kernel for few rows, reconstruction for many, plain PyTorch without either.

Also the custom op through which torch.compile sees it: `tandem::exl3_linear`."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .codec import bits_of
from .kernels import kernels

GEMM_ROWS = 32
"""Rows up to which the packed kernel is used; above, decoding the matrix once and multiplying is cheaper."""
_DECODED = ("reconstruct", "had_r_128")


def multiply(x: Tensor, matrix: reference.Matrix, codebook: str) -> Tensor:
    """x [rows, in], any float dtype -> [rows, out] in fp32."""
    trellis, suh, svh = matrix
    usable = kernels() if x.is_cuda else None
    mcg, mul1 = codebook == "mcg", codebook == "mul1"
    if usable and len(x) <= GEMM_ROWS and usable.has("exl3_gemm"):
        half = x.half().contiguous()
        out = torch.empty((len(x), len(svh)), dtype=torch.float32, device=x.device)
        usable.exl3_gemm(half, trellis, out, suh, torch.empty_like(half), svh, -1, mcg, mul1, 0)
        return out
    if usable and usable.has(*_DECODED):
        # The decoded tiles are exact in fp16; with the scales and rotations folded in they would be rounded once more.
        half, inner = x.half().contiguous(), x.new_empty((len(suh), len(svh)), dtype=torch.float16)
        rotated = torch.empty_like(half)
        usable.had_r_128(half, rotated, suh, None, 1.0)
        usable.reconstruct(inner, trellis, bits_of(trellis), mcg, mul1)
        out = torch.mm(rotated, inner, out_dtype=torch.float32)
        usable.had_r_128(out, out, None, svh, 1.0)
        return out
    return reference.linear(x, matrix, codebook)


def tier() -> str:
    """The path that `multiply` takes on this machine."""
    if kernels().has("exl3_gemm", *_DECODED):
        return "exl3_gemm"
    return "reconstruct" if kernels().has(*_DECODED) else "reference"


def _exl3_linear(x: Tensor, trellis: Tensor, suh: Tensor, svh: Tensor, codebook: str) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return multiply(rows, (trellis, suh, svh), codebook).to(x.dtype).view(*x.shape[:-1], len(svh))


def _fake(x: Tensor, trellis: Tensor, suh: Tensor, svh: Tensor, codebook: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], svh.shape[0]))


_library = torch.library.Library("tandem", "DEF")
_library.define("exl3_linear(Tensor x, Tensor trellis, Tensor suh, Tensor svh, str codebook) -> Tensor")
_library.impl("exl3_linear", _exl3_linear, "CompositeExplicitAutograd")
torch.library.register_fake("tandem::exl3_linear", _fake, lib=_library)
exl3_linear = torch.ops.tandem.exl3_linear


def warm_up(matrix: reference.Matrix, codebook: str, dtype: torch.dtype) -> None:
    """Let the kernel choose its shapes now: it times candidates at its first calls, which a graph capture forbids."""
    if matrix[0].is_cuda:
        for rows in (1, 2, 4, 8, 16, 32, GEMM_ROWS):
            exl3_linear(torch.zeros((rows, len(matrix[1])), dtype=dtype, device=matrix[0].device), *matrix, codebook)
