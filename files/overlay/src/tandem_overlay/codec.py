# SPDX-License-Identifier: MIT
"""The EXL3 weight format in plain PyTorch: from packed 16x16 tiles to a weight matrix, on any device.

A matrix W [in, out] (y = x @ W, the transpose of torch.nn.Linear) is stored as
    trellis  int16 [in/16, out/16, 16 K]   256 codes of K bits a tile, as 8 K little-endian uint32
    suh      fp16  [in]                    sign times scale of each input channel
    svh      fp16  [out]                   sign times scale of each output channel
and means W = diag(suh) H D H diag(svh), where D are the decoded tiles and H is block-diagonal of 128-wide orthonormal
Hadamard matrices. K is 1..8, or 1.5, 2.5 and 3.5 with the mul1 codebook.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

BLOCK = 128
"""Width of a Hadamard block: the smallest piece into which a matrix can be cut."""

CODEBOOKS = ("3inst", "mcg", "mul1")
_MASK = 0xFFFFFFFF
# name -> multiplier, addend of the generator that spreads a 16-bit state over 32 bits
_GENERATOR = {"3inst": (89226354, 64248484), "mcg": (0xCBAC1FED, 0), "mul1": (0x83DCD12D, 0)}


def _half(bits: Tensor) -> Tensor:
    """fp16 values of 16-bit patterns held in an int64 tensor."""
    return (((bits + 0x8000) & 0xFFFF) - 0x8000).to(torch.int16).view(torch.float16)


@cache
def codebook(name: str) -> Tensor:
    """fp16 [65536]: the value of each trellis state."""
    multiplier, addend = _GENERATOR[name]
    word = (torch.arange(1 << 16, dtype=torch.int64) * multiplier + addend) & _MASK
    if name == "mul1":
        total = sum(((word >> shift) & 0xFF for shift in (0, 8, 16, 24)), torch.zeros_like(word))
        scale, offset = (_half(torch.tensor([pattern])).double() for pattern in (0x1EEE, 0xC931))
        # 0x6400 is 1024 in fp16, whose last bit is worth 1: adding the sum to the pattern adds it to the value.
        return (_half(total + 0x6400).double() * scale + offset).half()
    word = (word & 0x8FFF8FFF) ^ 0x3B603B60
    return (_half(word & 0xFFFF).float() + _half(word >> 16).float()).half()


def bits_of(trellis: Tensor) -> float:
    """K of a packed tensor, from the width of its tiles."""
    return int(trellis.shape[-1]) / 16


@cache
def _code_ends(bits: float) -> Tensor:
    """int64 [256]: the first bit of the stream after each code. With half bits the odd codes are one bit longer."""
    whole, count = int(bits), torch.arange(1, 257)
    return count * whole + (count // 2 if bits != whole else 0)


def unpack(trellis: Tensor) -> Tensor:
    """int16 [..., 16 K] -> int64 [..., 256]: the state of each code, the 16 bits that end with it in the ring."""
    words = trellis.contiguous().view(torch.int32).to(torch.int64) & _MASK
    end = _code_ends(bits_of(trellis)).to(words.device)
    size = 32 * words.shape[-1]
    first = (end - 16) % size
    index, shift = first // 32, first % 32
    pair = (words[..., index] << 16) | (words[..., (index + 1) % words.shape[-1]] >> 16)
    # 48 bits are enough: 16 bits that begin at most 31 bits into the first word
    return (pair >> (32 - shift)) & 0xFFFF


@cache
def _tile_order() -> Tensor:
    """int64 [256]: which code stands at each place (row-major) of a tile; rows are input channels.

    Codes are laid out as the B fragments of two m16n8k16 tensor-core multiplications: 8 a lane."""
    code = torch.arange(256)
    lane, register = code // 8, code % 8
    row = 2 * (lane % 4) + (register & 1) + 4 * (register & 2)
    column = lane // 4 + 2 * (register & 4)
    return torch.argsort(16 * row + column)


def decode(trellis: Tensor, name: str) -> Tensor:
    """Packed tiles [in/16, out/16, 16 K] -> D, fp16 [in, out], in the rotated basis. Bit-exact."""
    rows, columns = trellis.shape[:2]
    values = codebook(name).to(trellis.device)[unpack(trellis)[..., _tile_order().to(trellis.device)]]
    return values.view(rows, columns, 16, 16).transpose(1, 2).reshape(16 * rows, 16 * columns)


@cache
def _hadamard() -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < BLOCK:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    return matrix / BLOCK**0.5


def rotate(x: Tensor) -> Tensor:
    """The 128-wide orthonormal Hadamard transform of each block of the last dimension; its own inverse."""
    blocks = x.unflatten(-1, (-1, BLOCK))
    return (blocks @ _hadamard().to(device=x.device, dtype=x.dtype)).flatten(-2)


def dequantise(trellis: Tensor, suh: Tensor, svh: Tensor, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight [in, out] in the basis of the model."""
    inner = rotate(decode(trellis, name).to(dtype).T).T * suh.to(dtype)[:, None]
    return rotate(inner) * svh.to(dtype)
