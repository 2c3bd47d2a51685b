# SPDX-License-Identifier: MIT
"""Sparse MLA without rope (latent 512, rope 0) on kernels that only know 512 + 64.

FlashInfer from about 0.7 has the geometry itself (`glm53_nope`). For older ones the query is widened with zeros, so that
whatever stands in the rope part of a row cannot matter, and the rows' rope part is written as zeros, since a NaN there
would matter. The softmax scale stays that of the model, 256^-0.5.

A row of the fp8_ds_mla cache has 656 bytes: 512 of e4m3 latent, 4 fp32 scales (one per 128), 64 bf16 of rope.
"""

from __future__ import annotations

import torch
from torch import Tensor

LATENT, ROPE, ROW = 512, 64, 656
SCALE_AT, ROPE_AT = 512, 528
SOFTMAX_SCALE = 256**-0.5


def native_reason() -> str:
    """Empty if FlashInfer has the geometry itself, otherwise why the padding is needed."""
    try:
        from flashinfer.mla import supported_sparse_mla_sm120_configs
    except ImportError as error:
        return f"FlashInfer tells no sparse MLA geometries ({error})"
    found = supported_sparse_mla_sm120_configs()
    return "" if "glm53_nope" in found else f"FlashInfer knows only {', '.join(sorted(found))}"


def register() -> str:
    """Put the padding in place of vLLM's SM120 backend where FlashInfer lacks the geometry. What to log."""
    if not (reason := native_reason()):
        return "NoPE sparse MLA: native (glm53_nope of FlashInfer)"
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    backend = getattr(AttentionBackendEnum, "FLASHINFER_MLA_SPARSE_SM120", None)
    if backend is None:
        return f"NoPE sparse MLA: none, as this vLLM has no FLASHINFER_MLA_SPARSE_SM120 and {reason}"
    register_backend(backend, f"{__package__}.nope_backend.PaddedBackend")
    return f"NoPE sparse MLA: padded 512 -> 576, as {reason}"


def pad_query(query: Tensor) -> Tensor:
    """[..., 512] -> [..., 576], zeros in the rope part."""
    return torch.nn.functional.pad(query, (0, ROPE))


def zero_rope(rows: int, like: Tensor) -> Tensor:
    """The rope key of `rows` tokens for the cache write: zeros [rows, 1, 64]."""
    return like.new_zeros((rows, 1, ROPE))


def without_empty_rows(output: Tensor, indices: Tensor) -> Tensor:
    """Zero the output [tokens, heads, 512] of tokens whose indices [tokens, k] are all -1; kernels leave garbage."""
    return output.masked_fill((indices < 0).all(-1)[:, None, None], 0.0)


def write_rows(latent: Tensor) -> Tensor:
    """Latents [n, 512] as rows uint8 [n, 656] of the cache, with the bytes from 528 on zero. Plain PyTorch, for tests."""
    groups = latent.float().view(len(latent), 4, 128)
    scales = groups.abs().amax(-1).clamp_min(1e-12) / 448
    rows = torch.zeros((len(latent), ROW), dtype=torch.uint8, device=latent.device)
    rows[:, :SCALE_AT] = (
        (groups / scales[..., None]).to(torch.float8_e4m3fn).view(len(latent), LATENT).view(torch.uint8)
    )
    rows[:, SCALE_AT:ROPE_AT] = scales.contiguous().view(torch.uint8)
    return rows


def read_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """fp64 latents [n, 512] and rope keys [n, 64] of rows."""
    values = rows[:, :SCALE_AT].contiguous().view(torch.float8_e4m3fn).double().view(len(rows), 4, 128)
    scales = rows[:, SCALE_AT:ROPE_AT].contiguous().view(torch.float32).double()
    rope = rows[:, ROPE_AT:].contiguous().view(torch.bfloat16).double()
    return (values * scales[..., None]).view(len(rows), LATENT), rope


def attend(query: Tensor, rows: Tensor, indices: Tensor, scale: float = SOFTMAX_SCALE) -> Tensor:
    """Reference in fp64: query [tokens, heads, 512 or 576], rows of the cache, indices [tokens, k] (-1 unused)."""
    latent, rope = read_rows(rows)
    keys = latent if query.shape[-1] == LATENT else torch.cat([latent, rope], -1)
    chosen = keys[indices.clamp_min(0)]
    scores = torch.einsum("thd,tkd->thk", query.double(), chosen) * scale
    scores = scores.masked_fill((indices < 0)[:, None], float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("thk,tkd->thd", weights, latent[indices.clamp_min(0)])
