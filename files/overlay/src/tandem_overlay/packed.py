# SPDX-License-Identifier: MIT
"""Tensors of like-shaped EXL3 matrices on this rank, filled one by one and counted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .codec import CODEBOOKS, bits_of
from .contract import LEAVES, MARKERS
from .errors import ConfigError, TensorError
from .shard import Cut

_DTYPES = {"trellis": torch.int16, "suh": torch.float16, "svh": torch.float16}


class Packed:
    """A stack of matrices with one cut and one bit width: an expert projection, or a single dense matrix.

    trellis int16 [n, rows/16, columns/16, 16 K], suh fp16 [n, rows], svh fp16 [n, columns]. The bit width is that of the
    first trellis to arrive, as a checkpoint's configuration only tells the average.
    """

    trellis: Tensor
    suh: Tensor
    svh: Tensor

    def __init__(self, modules: Sequence[str], cut: Cut, codebook: str, device: torch.device | str) -> None:
        if codebook not in CODEBOOKS:
            raise ConfigError(f"{modules[0]}: unknown codebook {codebook!r}, expected one of {', '.join(CODEBOOKS)}.")
        self.modules, self.cut, self.codebook, self.device = list(modules), cut, codebook, device
        self.bits = 0.0
        self.expected = {(index, leaf) for index in range(len(modules)) for leaf in LEAVES}
        if codebook in MARKERS:
            self.expected |= {(index, codebook) for index in range(len(modules))}
        self.loaded: set[tuple[int, str]] = set()

    def load(self, index: int, leaf: str, tensor: Tensor) -> None:
        """Check a whole tensor of matrix `index`, and keep this rank's part of it."""
        name = f"{self.modules[index]}.{leaf}"
        if (index, leaf) not in self.expected:
            raise TensorError(f"{name}: not expected; the module's codebook is {self.codebook}.")
        if leaf not in MARKERS:
            if tensor.dtype != _DTYPES[leaf]:
                raise TensorError(f"{name}: expected {_DTYPES[leaf]}, found {tensor.dtype}.")
            if leaf == "trellis" and not self.bits:
                self._set_bits(name, tensor)
            shape = self.cut.shapes(self.bits)[leaf]
            if tuple(tensor.shape) != shape:
                raise TensorError(f"{name}: expected shape {list(shape)}, found {list(tensor.shape)}.")
            part = self.cut.apply(leaf, tensor)
            stack = getattr(self, leaf, None)
            if stack is None:
                stack = torch.empty((len(self.modules), *part.shape), dtype=part.dtype, device=self.device)
                setattr(self, leaf, stack)
            stack[index].copy_(part)
        self.loaded.add((index, leaf))

    def _set_bits(self, name: str, trellis: Tensor) -> None:
        bits = bits_of(trellis)
        if bits not in range(1, 9) and not (self.codebook == "mul1" and bits in (1.5, 2.5, 3.5)):
            raise TensorError(
                f"{name}: its tiles of {trellis.shape[-1]} values mean {bits:g} bits; expected 1 to 8 whole bits, or "
                "1.5, 2.5 and 3.5 with the mul1 codebook."
            )
        self.bits = bits

    def missing(self) -> list[str]:
        """Names of the tensors that never arrived."""
        return [f"{self.modules[index]}.{leaf}" for index, leaf in sorted(self.expected - self.loaded)]

    def matrix(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.trellis[index], self.suh[index], self.svh[index]


def require_all(layer: str, stacks: Sequence[Packed]) -> int:
    """Count of the layer's tensors; TensorError names those that never arrived."""
    missing = [name for stack in stacks for name in stack.missing()]
    expected = sum(len(stack.expected) for stack in stacks)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise TensorError(
            f"{layer}: {len(missing)} of {expected} EXL3 tensors were never loaded: {', '.join(missing[:5])}{more}. "
            "Verify the snapshot; if it is whole, its names differ from those that the engine asks for."
        )
    return expected
