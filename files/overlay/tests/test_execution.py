# SPDX-License-Identifier: MIT
"""The layer and its tiers, as far as a machine without a GPU can tell; tests/gpu has the rest."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny
import torch
from tandem_overlay import dense, reference
from tandem_overlay.codec import dequantise
from tandem_overlay.experts import Experts
from tandem_overlay.kernels import SIGNATURES, Kernels, signature
from tandem_overlay.packed import Packed
from tandem_overlay.shard import Cut

COOP = (
    "exl3_moe_coop(arg0: torch.Tensor, arg1: typing.SupportsInt, arg2: Optional[torch.Tensor], "
    "arg3: torch.Tensor | None, arg4: typing.SupportsFloat | typing.SupportsIndex, arg5: bool, arg6: str) -> None\n\nx"
)


@pytest.mark.parametrize(
    ("docstring", "kinds"),
    [
        (COOP, "tioofb?"),
        ("exl3_moe_max_concurrency(arg0: int) -> int\n", "i"),
        ("had_r_128(arg0: torch.Tensor, arg1: float) -> None", "tf"),
        ("none() -> Tuple[int, int]", ""),
        ("", ""),
    ],
)
def test_signature(docstring: str, kinds: str) -> None:
    assert signature(docstring) == kinds


def test_arity_of_the_pinned_release() -> None:
    assert {name: len(kinds) for name, kinds in SIGNATURES.items()} == {
        "exl3_moe": 35,
        "exl3_moe_coop": 36,
        "exl3_moe_gather": 8,
        "exl3_moe_max_concurrency": 1,
        "exl3_gemm": 10,
        "reconstruct": 5,
        "had_r_128": 5,
    }


def test_probe_tells_what_does_not_fit() -> None:
    def old() -> None:
        """exl3_moe_max_concurrency(arg0: int, arg1: int) -> int"""

    found = Kernels(SimpleNamespace(exl3_moe_max_concurrency=old))
    assert not found.has("exl3_moe_max_concurrency")
    assert found.why_not("exl3_moe_max_concurrency") == (
        "exl3_moe_max_concurrency takes (ii), expected (i) as in exllamav3 1.6.5"
    )
    assert found.why_not("exl3_gemm") == "exllamav3_ext has no exl3_gemm"
    assert Kernels(None, "no CUDA device").why_not("exl3_gemm", "exl3_moe") == "no CUDA device"


def layer(codebook: str, count: int = 4) -> tuple[list[Packed], list[list[tuple[torch.Tensor, ...]]]]:
    random = torch.Generator().manual_seed(5)
    stacks, matrices = [], []
    for part, n_in, n_out in (("gate", 256, 384), ("up", 256, 384), ("down", 384, 256)):
        stack = Packed([f"{part}.{n}" for n in range(count)], Cut.whole(n_in, n_out), codebook, "cpu")
        made = [tiny.random_matrix(n_in, n_out, 4, random) for _expert in range(count)]
        for n, matrix in enumerate(made):
            for leaf, tensor in matrix.items():
                stack.load(n, leaf, tensor)
        stacks.append(stack)
        matrices.append([tuple(matrix.values()) for matrix in made])
    return stacks, matrices


@pytest.mark.parametrize("codebook", ["3inst", "mcg", "mul1"])
@pytest.mark.parametrize("limit", [0.0, 0.3])
def test_experts_are_the_dequantised_experts(codebook: str, limit: float) -> None:
    stacks, matrices = layer(codebook)
    experts = Experts(*stacks, top_k=2, limit=limit)
    x = torch.randn(7, 256)
    ids = torch.tensor([[0, 1], [3, 2], [1, 3], [0, 3], [2, -1], [-1, -1], [1, 0]])
    weights = torch.rand(7, 2)
    gate, up, down = ([dequantise(*matrix, codebook) for matrix in stack] for stack in matrices)
    expected = torch.zeros(7, 256)
    for token in range(7):
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            if expert >= 0:
                inner = reference.activate(x[token] @ gate[expert], x[token] @ up[expert], limit)
                expected[token] += weight * (inner @ down[expert])
    assert torch.allclose(experts(x, ids, weights), expected, atol=1e-4)
    assert experts(x.bfloat16(), ids, weights).dtype == torch.bfloat16
    assert experts.describe().startswith("decode=reference batch=reference overflow=reference")


def test_clamp_is_that_of_the_kernels() -> None:
    gate, up = torch.tensor([20.0, -20.0, 1.0]), torch.tensor([-15.0, 3.0, 15.0])
    assert reference.activate(gate, up, 10.0).tolist() == pytest.approx([-100.0, -1.2366e-07, 7.3106], rel=1e-4)


def test_custom_op_is_whole_for_the_compiler() -> None:
    matrix = tuple(tiny.random_matrix(256, 128, 4, torch.Generator().manual_seed(5)).values())
    x = torch.randn(2, 3, 256)
    torch.library.opcheck(dense.exl3_linear, (x, *matrix, "mcg"), test_utils=("test_schema", "test_faketensor"))
    compiled = torch.compile(lambda x: 2 * dense.exl3_linear(x, *matrix, "mcg"), fullgraph=True, backend="eager")
    assert torch.allclose(compiled(x), 2 * x @ dequantise(*matrix, "mcg"), atol=1e-4)
