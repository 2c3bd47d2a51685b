# SPDX-License-Identifier: MIT
"""Switches of this package, from the environment of the server. All ranks must have the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigError

PREFIX = "TANDEM_OVERLAY_"


@dataclass(frozen=True)
class Settings:
    rows: int = 128
    """Rows of one expert that the fused kernel takes; at least the largest decode step (max_num_seqs * (k + 1))."""
    deterministic: bool = False
    """Sum the experts in a fixed order: the same bits in every run, for some memory and time."""
    reference: bool = False
    """Use only the plain PyTorch tier, to find out whether a kernel is at fault."""
    ablation: str = ""
    """Ablation of o_proj as `direction=FILE[,alpha=3.0][,layers=15-45][,mtp=1]`; empty is off."""

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None) -> Settings:
        """ConfigError names a switch that is unknown or malformed."""
        env = os.environ if env is None else env
        known = {f"{PREFIX}{name.upper()}": name for name in cls.__dataclass_fields__}
        values: dict[str, object] = {}
        for variable in (name for name in env if name.startswith(PREFIX)):
            if variable not in known:
                raise ConfigError(f"{variable}: unknown switch, expected one of {', '.join(known)}.")
            text, name = env[variable].strip(), known[variable]
            if name == "rows":
                if not text.isdecimal() or not 16 <= int(text) <= 4096:
                    raise ConfigError(f"{variable}: expected a number from 16 to 4096, found {text!r}.")
                values[name] = int(text)
            elif name == "ablation":
                values[name] = text
            elif text in ("0", "1", ""):
                values[name] = text == "1"
            else:
                raise ConfigError(f"{variable}: expected 0 or 1, found {text!r}.")
        return cls(**values)  # type: ignore[arg-type]
