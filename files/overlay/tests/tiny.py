# SPDX-License-Identifier: MIT
"""A tiny GLM-4 MoE checkpoint in EXL3, beside the same weights dequantised to bf16. No tokenizer: prompts are ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tandem_overlay.codec import BLOCK, codebook, dequantise

CONFIG: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "torch_dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "use_qk_norm": False,
    "attention_bias": False,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def random_matrix(
    n_in: int, n_out: int, bits: float, random: torch.Generator, scale: float | None = None
) -> dict[str, torch.Tensor]:
    """trellis, suh and svh of a matrix with entries of about `scale` (1/sqrt(n_in)). Any bits are a legal trellis."""

    def signs(n: int) -> torch.Tensor:
        return torch.randint(0, 2, (n,), generator=random) * 2.0 - 1

    scale = scale or n_in**-0.5
    return {
        "trellis": torch.randint(
            -(1 << 15), 1 << 15, (n_in // 16, n_out // 16, int(16 * bits)), generator=random, dtype=torch.int16
        ),
        "suh": (signs(n_in) * (0.5 + torch.rand(n_in, generator=random)) * scale).half(),
        "svh": (signs(n_out) * (0.75 + torch.rand(n_out, generator=random) / 2)).half(),
    }


def matrices(config: dict[str, Any]) -> Iterator[tuple[str, int, int, bool]]:
    """Module, inputs, outputs, and whether it is a routed expert."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}"
        yield f"{at}.self_attn.q_proj", hidden, heads, False
        yield f"{at}.self_attn.k_proj", hidden, kv, False
        yield f"{at}.self_attn.v_proj", hidden, kv, False
        yield f"{at}.self_attn.o_proj", heads, hidden, False
        if n < config["first_k_dense_replace"]:
            blocks = [(f"{at}.mlp", config["intermediate_size"], False)]
        else:
            inner = config["moe_intermediate_size"]
            blocks = [(f"{at}.mlp.experts.{e}", inner, True) for e in range(config["n_routed_experts"])]
            blocks.append((f"{at}.mlp.shared_experts", inner * config["n_shared_experts"], False))
        for block, inner, routed in blocks:
            yield f"{block}.gate_proj", hidden, inner, routed
            yield f"{block}.up_proj", hidden, inner, routed
            yield f"{block}.down_proj", inner, hidden, routed
    yield "lm_head", hidden, config["vocab_size"], False


def scale(module: str) -> float:
    """Logits below 2 keep bf16 to steps of 0.008; what a layer adds must not hide what the embeddings say."""
    return 0.2 if module == "lm_head" else 0.3 if module.endswith(("o_proj", "down_proj")) else 1.0


def embeddings(head: torch.Tensor, gates: list[torch.Tensor], top_k: int, random: torch.Generator) -> torch.Tensor:
    """[vocab, hidden], so that rounding decides nothing: each token's says with a clear margin which token is next, and which
    `top_k` experts of each layer take it. head [vocab, hidden] and gates [experts, hidden] are the rows that are asked."""
    vocab, hidden = head.shape
    wanted = torch.full((vocab, sum(map(len, gates))), -3.0)
    first = 0
    for gate in gates:
        chosen = torch.rand(vocab, len(gate), generator=random).argsort(-1)[:, :top_k]
        wanted.scatter_(1, first + chosen, torch.linspace(4, 2, top_k).expand(vocab, -1))
        first += len(gate)
    following = (5 * torch.arange(vocab) + 3) % vocab
    asked = torch.cat([head[following, None], torch.cat(gates).expand(vocab, -1, -1)], 1).float()
    answers = torch.cat([torch.full((vocab, 1), 2.0), wanted], 1)
    noise = torch.randn(vocab, hidden, 1, generator=random)
    return (noise + torch.linalg.pinv(asked) @ (answers[..., None] - asked @ noise)).squeeze(-1)


def make(
    folder: Path, *, bits: int = 4, name: str = "mcg", everything: bool = False, seed: int = 1, **changes: Any
) -> tuple[Path, Path]:
    """Write folder/exl3 and folder/bf16. With `everything`, all matrices are EXL3, otherwise the routed experts."""
    random = torch.Generator().manual_seed(seed)
    config = CONFIG | changes
    packed: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    spread = codebook(name).double().std().item()
    for module, n_in, n_out, routed in matrices(config):
        assert not n_in % BLOCK and not n_out % BLOCK, module
        if routed or everything:
            matrix = random_matrix(n_in, n_out, bits, random, scale(module) * n_in**-0.5 / spread)
            packed |= {f"{module}.{leaf}": tensor for leaf, tensor in matrix.items()}
            if name != "3inst":
                packed[f"{module}.{name}"] = torch.tensor(
                    -877912083 if name == "mcg" else -2082680531, dtype=torch.int32
                )
            plain[f"{module}.weight"] = dequantise(*matrix.values(), name).T.contiguous().bfloat16()
        else:
            weight = (torch.randn(n_out, n_in, generator=random) * scale(module) * n_in**-0.5).bfloat16()
            packed[f"{module}.weight"] = plain[f"{module}.weight"] = weight
    hidden = config["hidden_size"]
    gates: list[torch.Tensor] = []
    both = {"model.norm.weight": torch.ones(hidden).bfloat16()}
    for n in range(config["num_hidden_layers"]):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            both[f"model.layers.{n}.{norm}.weight"] = torch.ones(hidden).bfloat16()
        if n >= config["first_k_dense_replace"]:
            gate = f"model.layers.{n}.mlp.gate"
            gates.append(torch.randn(config["n_routed_experts"], hidden, generator=random).bfloat16() * hidden**-0.5)
            both[f"{gate}.weight"] = gates[-1]
            both[f"{gate}.e_score_correction_bias"] = torch.zeros(config["n_routed_experts"])
    steered = embeddings(plain["lm_head.weight"], gates, config["num_experts_per_tok"], random)
    both["model.embed_tokens.weight"] = steered.bfloat16()
    quantization = {
        "quant_method": "exl3",
        "version": "1.6.5",
        "bits": bits,
        "codebook": name,
        "scope": "all" if everything else "routed experts only",
        "tensor_storage": {"this ledger": "is skipped"},
    }
    for kind, tensors, extra in (("exl3", packed, {"quantization_config": quantization}), ("bf16", plain, {})):
        at = folder / kind
        at.mkdir(parents=True, exist_ok=True)
        save_file(tensors | both, at / "model.safetensors", {"format": "pt"})
        (at / "config.json").write_text(json.dumps(config | extra, indent=1))
    return folder / "exl3", folder / "bf16"


def damage(source: Path, target: Path, tensor: str, new: str = "", shape: int = 0) -> None:
    """A copy of a checkpoint that lacks a tensor, or has it under a new name or cut to a length."""
    tensors = load_file(source / "model.safetensors")
    taken = tensors.pop(tensor)
    if new:
        tensors[new] = taken
    if shape:
        tensors[tensor] = taken[:shape].contiguous()
    target.mkdir()
    (target / "config.json").write_text((source / "config.json").read_text())
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


def main(folder: Path) -> None:
    """All checkpoints that the tests on engines need."""
    exl3 = make(folder / "experts")[0]
    make(folder / "whole", everything=True, name="mul1", bits=5)
    damage(exl3, folder / "missing", "model.layers.1.mlp.experts.2.up_proj.svh")
    down = "model.layers.2.mlp.experts.3.down_proj"
    damage(exl3, folder / "misnamed", f"{down}.trellis", f"{down}.trelis")
    damage(exl3, folder / "unpacked", "model.layers.2.self_attn.o_proj.weight")
    damage(exl3, folder / "misshapen", "model.layers.1.mlp.experts.0.gate_proj.suh", shape=128)
