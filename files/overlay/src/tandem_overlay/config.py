# SPDX-License-Identifier: MIT
"""The quantization_config of an EXL3 checkpoint, and the list of its tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .codec import CODEBOOKS
from .errors import ConfigError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Exl3Spec:
    """What config.json says. Which modules are packed, and with how many bits, only the tensors themselves tell."""

    bits: float
    codebook: str | None
    routed_experts_only: bool

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Exl3Spec:
        """From `quantization_config`; its per-tensor ledger (tens of MB of `tensor_storage`) is never looked at."""
        method = config.get("quant_method")
        if method != "exl3":
            raise ConfigError(f"quantization_config.quant_method: expected 'exl3', found {method!r}.")
        bits = config.get("bits")
        if isinstance(bits, bool) or not isinstance(bits, int | float) or not 1 <= bits <= 8:
            raise ConfigError(f"quantization_config.bits: expected a number from 1 to 8, found {bits!r}.")
        codebook = config.get("codebook")
        if codebook is not None and codebook not in CODEBOOKS:
            raise ConfigError(
                f"quantization_config.codebook: expected one of {', '.join(CODEBOOKS)}, found {codebook!r}."
            )
        return cls(float(bits), codebook, "experts" in str(config.get("scope", "")).lower())


def tensor_names(model: str, revision: str | None) -> list[str]:
    """Names of all tensors of a checkpoint: a folder, or a repository in the hub cache."""
    if path := _file(model, revision, INDEX):
        return list(json.loads(path.read_text("utf-8"))["weight_map"])
    if path := _file(model, revision, SINGLE):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return [name for name in json.loads(file.read(size)) if name != "__metadata__"]
    raise ConfigError(
        f"{model}: expected {INDEX} or {SINGLE}, found neither. EXL3 needs the list of the checkpoint's tensors: serve "
        "it from a folder or from the hub cache."
    )


def _file(model: str, revision: str | None, name: str) -> Path | None:
    if Path(model).is_dir():
        path = Path(model, name)
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, name, revision=revision))
    except (EntryNotFoundError, LocalEntryNotFoundError):
        return None
