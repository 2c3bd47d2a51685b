# SPDX-License-Identifier: MIT
"""The SM120 sparse MLA backend of vLLM with the query and the cache padded; see nope.py. Needs vLLM."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.attention.backends.mla.flashinfer_mla_sparse import FlashInferMLASparseSM120Backend
from vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm120 import FlashInferMLASparseSM120Impl

from . import nope


class PaddedImpl(FlashInferMLASparseSM120Impl):
    def do_kv_cache_update(self, kv_c_normed: Tensor, k_pe: Tensor, *rest: Any, **named: Any) -> None:
        if not k_pe.shape[-1]:
            k_pe = nope.zero_rope(len(kv_c_normed), kv_c_normed)
        super().do_kv_cache_update(kv_c_normed, k_pe, *rest, **named)

    def _run_mqa_kernel(self, q: Tensor, kv_cache: Tensor, topk_indices_physical: Tensor) -> Tensor:
        if q.shape[-1] != nope.LATENT:
            return super()._run_mqa_kernel(q, kv_cache, topk_indices_physical)
        rope, self.qk_rope_head_dim = self.qk_rope_head_dim, nope.ROPE
        try:
            out = super()._run_mqa_kernel(nope.pad_query(q), kv_cache, topk_indices_physical)
        finally:
            self.qk_rope_head_dim = rope
        return nope.without_empty_rows(out, topk_indices_physical)


class PaddedBackend(FlashInferMLASparseSM120Backend):
    @staticmethod
    def get_impl_cls() -> type[PaddedImpl]:
        return PaddedImpl
