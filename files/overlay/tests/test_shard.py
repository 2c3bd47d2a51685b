# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tandem_overlay import reference
from tandem_overlay.errors import ShardError
from tandem_overlay.shard import Cut, span
from tiny import random_matrix


@pytest.mark.parametrize(
    ("size", "world", "widths"),
    [(2048, 1, [2048]), (2048, 2, [1024] * 2), (2048, 4, [512] * 4), (2048, 3, [768, 640, 640]), (128, 1, [128])],
)
def test_span(size: int, world: int, widths: list[int]) -> None:
    spans = [span(size, rank, world) for rank in range(world)]
    assert [last - first for first, last in spans] == widths
    assert [span[0] for span in spans[1:]] == [span[1] for span in spans[:-1]]
    assert spans[-1][1] == size


@pytest.mark.parametrize(("size", "world"), [(192, 1), (2000, 2), (256, 3)])
def test_what_cannot_be_cut(size: int, world: int) -> None:
    with pytest.raises(ShardError, match=rf"{size} channels cannot be cut for {world} ranks"):
        span(size, 0, world)


@settings(max_examples=25, deadline=None, database=None)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, 2.5, 3, 4, 6]),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_ranks_together_are_the_whole(blocks_in: int, blocks_out: int, bits: float, world: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    n_in, n_out = 128 * blocks_in, 128 * blocks_out
    matrix = random_matrix(n_in, n_out, bits, random)
    x = torch.randn(3, n_in, generator=random, dtype=torch.float64)
    whole = reference.linear(x, tuple(matrix.values()), "mul1", torch.float64)

    def part(cut: Cut) -> torch.Tensor:
        mine = tuple(cut.apply(leaf, tensor) for leaf, tensor in matrix.items())
        return reference.linear(x[:, slice(*cut.rows)], mine, "mul1", torch.float64)

    if blocks_out >= world:
        columns = [part(Cut.by_columns(n_in, n_out, rank, world)) for rank in range(world)]
        assert torch.allclose(torch.cat(columns, 1), whole, atol=1e-9)
    if blocks_in >= world:
        rows = [part(Cut.by_rows(n_in, n_out, rank, world)) for rank in range(world)]
        assert torch.allclose(sum(rows), whole, atol=1e-9)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_experts_of_all_ranks_together(world: int) -> None:
    """Tensor parallel with uneven widths, and expert parallel, both give what one rank gives."""
    random = torch.Generator().manual_seed(7)
    hidden, inner, count, top_k = 256, 512, 5, 2
    stacks = [
        [random_matrix(n_in, n_out, 4, random) for _row in range(count)]
        for n_in, n_out in ((hidden, inner), (hidden, inner), (inner, hidden))
    ]
    x = torch.randn(6, hidden, generator=random, dtype=torch.float64)
    ids = torch.stack([torch.randperm(count, generator=random)[:top_k] for _row in range(6)])
    weights = torch.rand(6, top_k, generator=random)

    def run(ids: torch.Tensor, stacks: list[list[tuple[torch.Tensor, ...]]]) -> torch.Tensor:
        def expert(n: int, rows: torch.Tensor) -> torch.Tensor:
            gate, up = (reference.linear(rows, stack[n], "mcg", torch.float64) for stack in stacks[:2])
            return reference.linear(reference.activate(gate, up, 10.0), stacks[2][n], "mcg", torch.float64)

        return reference.experts(x, ids, weights, len(stacks[0]), expert)

    whole = run(ids, [[tuple(matrix.values()) for matrix in stack] for stack in stacks])
    tensor = torch.zeros_like(whole)
    expert = torch.zeros_like(whole)
    for rank in range(world):
        columns, rows = Cut.by_columns(hidden, inner, rank, world), Cut.by_rows(inner, hidden, rank, world)
        cuts = (columns, columns, rows)
        tensor += run(
            ids,
            [[tuple(c.apply(k, t) for k, t in m.items()) for m in s] for c, s in zip(cuts, stacks, strict=True)],
        )
        mine = list(range(count))[rank::world]
        local = torch.full((count,), -1)
        local[mine] = torch.arange(len(mine))
        expert += run(local[ids], [[tuple(stack[e].values()) for e in mine] for stack in stacks])
    assert torch.allclose(tensor, whole, atol=1e-9)
    assert torch.allclose(expert, whole, atol=1e-9)
