# SPDX-License-Identifier: MIT
"""Which channels of a packed matrix a rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .codec import BLOCK
from .errors import ShardError


def span(size: int, rank: int, world: int) -> tuple[int, int]:
    """Channels [first, last) of `rank`, in whole blocks of 128; the first ranks take one block more.

    2048 channels: 1024 each for 2 ranks, 768, 640 and 640 for 3. ShardError if a rank would hold none."""
    blocks, rest = divmod(size, BLOCK)
    if rest or blocks < world:
        raise ShardError(
            f"{size} channels cannot be cut for {world} ranks: EXL3 is cut in blocks of {BLOCK} channels, at least one "
            "a rank. Use fewer ranks, or expert parallelism for the routed experts."
        )
    each, more = divmod(blocks, world)
    first = rank * each + min(rank, more)
    return BLOCK * first, BLOCK * (first + each + (rank < more))


@dataclass(frozen=True)
class Cut:
    """The part of a matrix [n_in, n_out] that a rank holds: rows are input, columns are output channels."""

    n_in: int
    n_out: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    @classmethod
    def whole(cls, n_in: int, n_out: int) -> Cut:
        return cls(n_in, n_out, (0, n_in), (0, n_out))

    @classmethod
    def by_columns(cls, n_in: int, n_out: int, rank: int, world: int) -> Cut:
        """Column parallel: gate, up, q, k, v. Each rank has all inputs and some of the outputs."""
        return cls(n_in, n_out, (0, n_in), span(n_out, rank, world))

    @classmethod
    def by_rows(cls, n_in: int, n_out: int, rank: int, world: int) -> Cut:
        """Row parallel: down, o. Each rank has some of the inputs; the outputs of the ranks are summed."""
        return cls(n_in, n_out, span(n_in, rank, world), (0, n_out))

    def shapes(self, bits: float) -> dict[str, tuple[int, ...]]:
        """Shape of each whole tensor in the checkpoint."""
        return {
            "trellis": (self.n_in // 16, self.n_out // 16, int(16 * bits)),
            "suh": (self.n_in,),
            "svh": (self.n_out,),
        }

    def apply(self, leaf: str, tensor: Tensor) -> Tensor:
        """This rank's part of a whole tensor; a view. Trellises are cut in tiles of 16 channels."""
        if leaf == "suh":
            return tensor[slice(*self.rows)]
        if leaf == "svh":
            return tensor[slice(*self.columns)]
        (top, bottom), (left, right) = self.rows, self.columns
        return tensor[top // 16 : bottom // 16, left // 16 : right // 16]
