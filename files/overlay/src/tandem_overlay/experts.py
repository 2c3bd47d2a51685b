# SPDX-License-Identifier: MIT
"""The routed experts of one layer, behind one call, whichever kernels there are.

coop       exl3_moe_coop, one launch for up to 8 tokens, no sorting
fused      exl3_moe, tokens sorted by expert; it skips an expert with more rows than its scratch without a word
overflow   such experts, counted on the host and computed one by one by reconstruction; during graph capture, where
           nothing can be counted, the tokens go through `fused` in pieces that cannot overflow
reference  plain PyTorch
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from . import dense, reference
from .errors import TensorError
from .kernels import kernels
from .packed import Packed
from .settings import Settings

COOP_TOKENS = 8
_COOP_SLOTS = 256
_COOP_PIECES = 128
_SILU = 0


@dataclass
class _CoopScratch:
    """Shared by all layers of a shape, as they run one after another. `counters` are zero between calls."""

    rotated: tuple[Tensor, Tensor]
    hidden: tuple[Tensor, Tensor]
    active: Tensor
    down: Tensor
    counters: Tensor
    out: Tensor


@cache
def _coop_scratch(device: torch.device, hidden: int, inner: int, tokens: int, top_k: int) -> _CoopScratch:
    slots = tokens * top_k
    half = {"dtype": torch.float16, "device": device}
    count = slots * (inner // 128) + tokens * (hidden // 128) + 2 * slots + 3
    return _CoopScratch(
        (torch.empty(slots, hidden, **half), torch.empty(slots, hidden, **half)),
        (torch.empty(slots, inner, **half), torch.empty(slots, inner, **half)),
        torch.empty(slots, inner, **half),
        torch.empty(slots, hidden, dtype=torch.float32, device=device),
        torch.zeros(count, dtype=torch.int32, device=device),
        torch.empty(tokens, hidden, dtype=torch.float32, device=device),
    )


@cache
def _fused_scratch(device: torch.device, hidden: int, inner: int, rows: int) -> tuple[Tensor, ...]:
    groups = kernels().exl3_moe_max_concurrency(device.index or 0)
    return tuple(
        torch.empty(groups, rows, width, dtype=torch.float16, device=device) for width in (hidden, hidden, inner, inner)
    )


class Experts:
    """`count` experts of this rank. Call it with x [tokens, hidden], ids and weights [tokens, top k].

    Ids are local: 0..count-1, any other is an expert of another rank. The result [tokens, hidden] has the dtype of x
    and is this rank's part of the sum.
    """

    def __init__(
        self, gate: Packed, up: Packed, down: Packed, top_k: int, limit: float = 0.0, settings: Settings | None = None
    ) -> None:
        self.gate, self.up, self.down, self.top_k, self.limit = gate, up, down, top_k, limit
        self.settings = settings or Settings()
        self.codebook = gate.codebook
        if len({stack.codebook for stack in (gate, up, down)}) > 1:
            raise TensorError(f"{gate.modules[0]}: its gate, up and down projections have different codebooks.")
        self.count, self.hidden, self.inner = len(gate.modules), gate.suh.shape[1], gate.svh.shape[1]
        self.coop_tokens = min(COOP_TOKENS, _COOP_SLOTS // top_k)
        self._choose()
        if self.coop or self.fused:
            self.tables = [self._table(tensor) for s in (gate, up, down) for tensor in (s.trellis, s.suh, s.svh)]
            self.bins = torch.arange(self.count + 2, device=gate.trellis.device)

    def _choose(self) -> None:
        """Which tiers run, and `degraded`: why a faster one does not."""
        usable, self.degraded = kernels(), []
        on_gpu = self.gate.trellis.is_cuda and not self.settings.reference
        if self.settings.reference and self.gate.trellis.is_cuda:
            self.degraded.append("TANDEM_OVERLAY_REFERENCE is set")
        self.coop = on_gpu and usable.has("exl3_moe_coop") and self.gate.bits == self.up.bits
        if on_gpu and not self.coop:
            self.degraded.append(usable.why_not("exl3_moe_coop") or "gate and up have different bit widths")
        wanted = ["exl3_moe", "exl3_moe_max_concurrency"] + ["exl3_moe_gather"] * self.settings.deterministic
        self.fused = on_gpu and usable.has(*wanted) and self.codebook != "3inst"
        if on_gpu and not self.fused:
            self.degraded.append(usable.why_not(*wanted) or "exl3_moe has no 3inst codebook")
        if on_gpu and dense.tier() == "reference":
            self.degraded.append(usable.why_not("reconstruct", "had_r_128"))

    def describe(self) -> str:
        """The tiers, for the log."""
        per_expert = "reference" if self.settings.reference else dense.tier()
        batch = "exl3_moe" if self.fused else "exl3_moe_coop" if self.coop else per_expert
        return (
            f"decode={'exl3_moe_coop' if self.coop else batch} batch={batch} overflow={per_expert} "
            f"rows={self.settings.rows} deterministic={int(self.settings.deterministic)}"
        )

    @staticmethod
    def _table(stack: Tensor) -> Tensor:
        """int64 [count]: device addresses of the matrices of a stack. They pin the stack where it is."""
        step = stack.stride(0) * stack.element_size()
        first = stack.data_ptr()
        return torch.tensor([first + step * i for i in range(len(stack))], dtype=torch.int64, device=stack.device)

    @property
    def _marks(self) -> tuple[bool, bool]:
        return self.codebook == "mcg", self.codebook == "mul1"

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        if not (self.coop or self.fused):
            return reference.experts(x, ids, weights, self.count, self._expert).to(x.dtype)
        tokens, capturing = len(x), torch.cuda.is_current_stream_capturing()
        half, ids, weights = x.half(), ids.long(), weights.half()
        if self.coop and tokens <= self.coop_tokens:
            return self._coop(half, ids, weights).to(x.dtype, copy=True)
        if self.fused and (tokens <= self.settings.rows or not capturing):
            return self._fused(half, ids, weights).to(x.dtype)
        if not self.fused and not capturing and tokens > _COOP_PIECES * self.coop_tokens:
            return reference.experts(half, ids, weights, self.count, self._expert).to(x.dtype)
        piece, run = (self.settings.rows, self._fused) if self.fused else (self.coop_tokens, self._coop)
        pieces = [t.split(piece) for t in (half, ids, weights)]
        return torch.cat([run(*part).to(x.dtype, copy=True) for part in zip(*pieces, strict=True)])

    def _coop(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        # The counters are laid out by the rows of `out`, so every call passes all of them.
        s = _coop_scratch(x.device, self.hidden, self.inner, self.coop_tokens, self.top_k)
        kernels().exl3_moe_coop(
            x.contiguous(), ids.contiguous(), weights.contiguous(), 0, self.count, self.hidden, *self.tables,
            None, None, None, self.gate.bits, self.up.bits, self.down.bits, *self._marks, _SILU, self.limit, True,
            *s.rotated, *s.hidden, s.active, s.down, s.counters, s.out, None, None,
        )  # fmt: skip
        return s.out[: len(x)]

    def _fused(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        rows, tokens = self.settings.rows, len(x)
        flat = torch.where((ids >= 0) & (ids < self.count), ids, self.count).flatten()
        by_expert, order = torch.sort(flat, stable=True)
        bounds = torch.searchsorted(by_expert, self.bins)
        starts, counts = bounds[:-1], bounds.diff()
        token, weight = order // self.top_k, weights.flatten()[order]
        # Without a sync nobody knows the counts; but no expert can have more rows than there are tokens.
        fat = (counts[:-1] > rows).nonzero().flatten().tolist() if tokens > rows else []
        out = torch.zeros((tokens, self.hidden), dtype=torch.float32, device=x.device)
        slots = out.new_empty((len(flat), self.hidden)) if self.settings.deterministic else None
        kernels().exl3_moe(
            x.contiguous(), out, counts, token, weight, *_fused_scratch(x.device, self.hidden, self.inner, rows),
            _SILU, self.gate.bits, self.up.bits, self.down.bits, *self.tables, *self._marks, *self._marks, *self._marks,
            self.limit, -1, slots, None if slots is None else starts, 0, rows, 16,
        )  # fmt: skip
        for expert in fat:
            first, last = bounds[expert : expert + 2].tolist()
            part = self._expert(expert, x[token[first:last]])
            if slots is None:
                out.index_add_(0, token[first:last], part * weight[first:last, None])
            else:
                slots[first:last] = part
        if slots is not None:
            kind = (counts[:-1] > 0).long() + (counts[:-1] > rows).long()
            inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
            kernels().exl3_moe_gather(out, slots, flat, inverse, starts, starts, kind, weight)
        return out

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        """One expert for all rows of x, unweighted; fp32."""
        multiply = reference.linear if self.settings.reference else dense.multiply
        gate, up = (multiply(x, stack.matrix(expert), self.codebook) for stack in (self.gate, self.up))
        return multiply(reference.activate(gate, up, self.limit), self.down.matrix(expert), self.codebook)
