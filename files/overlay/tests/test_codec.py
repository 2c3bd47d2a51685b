# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest
import torch
from tandem_overlay import codec, reference
from tiny import random_matrix

BITS = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8)


def pack(states: torch.Tensor, bits: int) -> torch.Tensor:
    """Inverse of unpack for whole K: int64 [..., 256] -> int16 [..., 16 K], the low K bits of each state."""
    stream = ((states.unsqueeze(-1) >> torch.arange(bits - 1, -1, -1)) & 1).flatten(-2).unflatten(-1, (-1, 32))
    words = (stream << torch.arange(31, -1, -1)).sum(-1)
    return (((words + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)).to(torch.int32).view(torch.int16)


def slow_states(tile: list[int], bits: float) -> list[int]:
    """Bit by bit, as the format is told: each uint32 from its highest bit down, 16 bits ending with each code."""
    stream = [
        (tile[i] & 0xFFFF | (tile[i + 1] & 0xFFFF) << 16) >> place & 1
        for i in range(0, len(tile), 2)
        for place in range(31, -1, -1)
    ]
    states, end = [], 0
    for code in range(256):
        end += int(bits) + (code % 2 if bits != int(bits) else 0)
        states.append(int("".join(str(stream[i % len(stream)]) for i in range(end - 16, end)), 2))
    return states


@pytest.mark.parametrize("bits", BITS)
def test_unpack_is_the_stream(bits: float) -> None:
    trellis = random_matrix(128, 128, bits, torch.Generator().manual_seed(int(10 * bits)))["trellis"]
    states = codec.unpack(trellis)
    for tile in ((0, 0), (3, 5), (7, 7)):
        assert states[tile].tolist() == slow_states(trellis[tile].tolist(), bits)
    if bits == int(bits):
        assert torch.equal(pack(states, int(bits)), trellis)


@pytest.mark.parametrize(("name", "spread"), [("3inst", 1.2437), ("mcg", 1.2441), ("mul1", 1.0003)])
def test_codebook_spread(name: str, spread: float) -> None:
    book = codec.codebook(name).double()
    assert len(book) == 1 << 16
    assert abs(book.mean()) < 0.02
    assert book.std().item() == pytest.approx(spread, abs=5e-4)


def test_each_place_of_a_tile_is_filled_once() -> None:
    assert sorted(codec._tile_order().tolist()) == list(range(256))


def test_rotation_is_its_own_inverse() -> None:
    x = torch.randn(3, 384, dtype=torch.float64)
    assert torch.allclose(codec.rotate(codec.rotate(x)), x)
    assert torch.allclose(codec.rotate(x).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("name", codec.CODEBOOKS)
def test_linear_is_the_dequantised_weight(name: str) -> None:
    matrix = tuple(random_matrix(384, 256, 4, torch.Generator().manual_seed(2)).values())
    x = torch.randn(5, 384, dtype=torch.float64)
    expected = x @ codec.dequantise(*matrix, name, torch.float64)
    assert torch.allclose(reference.linear(x, matrix, name, torch.float64), expected, atol=1e-9)
