# SPDX-License-Identifier: MIT
"""Remove a direction from what the attention of some layers writes: W' = (I - alpha r r^T / |r|^2) W on o_proj.

Off unless TANDEM_OVERLAY_ABLATION is set. Layers are counted as in the checkpoint, the MTP block after the last. The rows
of o_proj are not cut by tensor parallelism, so each rank can work on its own columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .errors import ConfigError

ALPHA, LAYERS = 3.0, (15, 45)
_O_PROJ = re.compile(r"\blayers\.(\d+)\.(?:\w+\.)*o_proj$")


@dataclass(frozen=True)
class Ablation:
    direction: Path
    alpha: float = ALPHA
    layers: tuple[int, int] = LAYERS
    mtp: bool = False

    @classmethod
    def parse(cls, text: str) -> Ablation | None:
        """From `direction=FILE[,alpha=3.0][,layers=15-45][,mtp=1]`; None if empty."""
        if not text:
            return None
        words = dict(word.partition("=")[::2] for word in text.split(","))
        layers = re.fullmatch(r"(\d+)-(\d+)", words.get("layers", "{}-{}".format(*LAYERS)))
        alpha = re.fullmatch(r"\d+(\.\d+)?", words.get("alpha", str(ALPHA)))
        unknown = set(words) - {"direction", "alpha", "layers", "mtp"}
        mtp = words.get("mtp", "0")
        if unknown or not words.get("direction") or not alpha or not layers or mtp not in ("0", "1"):
            raise ConfigError(
                "TANDEM_OVERLAY_ABLATION: expected direction=FILE[,alpha=NUMBER][,layers=FIRST-LAST][,mtp=0|1], found "
                f"{text!r}."
            )
        span = (int(layers[1]), int(layers[2]))
        if span[0] > span[1]:
            raise ConfigError(f"TANDEM_OVERLAY_ABLATION: layers end ({span[1]}) before they begin ({span[0]}).")
        return cls(Path(words["direction"]), float(alpha[0]), span, mtp == "1")

    def read(self, hidden: int) -> Tensor:
        """fp32 unit vector [hidden], or [layers, hidden] with one for each. ConfigError if the file holds anything else."""
        if not self.direction.is_file():
            raise ConfigError(f"{self.direction}: the ablation's direction is not there.")
        if self.direction.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(self.direction)
        else:
            found = torch.load(self.direction, map_location="cpu", weights_only=True)
        tensor = found.get("directions") if isinstance(found, dict) else None
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise ConfigError(f"{self.direction}: expected a floating point tensor named directions.")
        too_few = tensor.dim() == 2 and len(tensor) <= self.layers[1]
        if tensor.dim() not in (1, 2) or tensor.shape[-1] != hidden or too_few:
            raise ConfigError(
                f"{self.direction}: expected directions [{hidden}], or [layers, {hidden}] for all of layers "
                f"{self.layers[0]} to {self.layers[1]}, found {list(tensor.shape)}."
            )
        tensor = tensor.float()
        norm = tensor.norm(dim=-1, keepdim=True)
        if not torch.isfinite(norm).all() or (norm < 1e-6).any():
            raise ConfigError(
                f"{self.direction}: expected directions of finite length above 1e-6, found {norm.min():.2g}."
            )
        return tensor / norm

    def apply(self, model: nn.Module, directions: Tensor, first: int, count: int) -> list[str]:
        """Ablate layers `first` to `first + count - 1` of a model in place, as far as they are chosen. Lines to log."""
        wanted = set(range(self.layers[0], self.layers[1] + 1)) & set(range(first, first + count))
        found = {int(match[1]): module for name, module in model.named_modules() if (match := _O_PROJ.search(name))}
        if missing := wanted - set(found):
            raise ConfigError(f"Ablation: layers {sorted(missing)} have no o_proj in {type(model).__name__}.")
        return [self._ablate(layer, found[layer], directions) for layer in sorted(wanted)]

    def _ablate(self, layer: int, module: nn.Module, directions: Tensor) -> str:
        weight = getattr(module, "weight", None)
        if weight is None or weight.dtype != torch.bfloat16 or weight.shape[0] != directions.shape[-1]:
            found = "no plain weight" if weight is None else f"{weight.dtype} {list(weight.shape)}"
            raise ConfigError(
                f"Ablation: o_proj of layer {layer}: expected bf16 [{directions.shape[-1]}, n], found {found}."
            )
        unit = (directions if directions.dim() == 1 else directions[layer]).to(weight.device)
        with torch.no_grad():
            before = unit @ weight.float()
            weight.copy_((weight.float() - self.alpha * torch.outer(unit, before)).to(weight.dtype))
            residual = (unit @ weight.float()).norm() / before.norm().clamp_min(1e-30)
        return (
            f"ablation: layers.{layer}.o_proj shape={tuple(weight.shape)} alpha={self.alpha:g} residual={residual:.3f}"
        )
