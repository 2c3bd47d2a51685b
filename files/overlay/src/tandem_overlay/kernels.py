# SPDX-License-Identifier: MIT
"""The compiled kernels of exllamav3, and whether they are called as this package calls them."""

from __future__ import annotations

import importlib
import os
import re
from functools import cache
from types import ModuleType

PINNED = "1.6.5"
"""The release of exllamav3 whose signatures these are; they change between releases."""

# t tensor, o optional tensor, i int, f float, b bool
SIGNATURES = {
    "exl3_moe": "tttttttttiffftttttttttbbbbbbfiooiii",
    "exl3_moe_coop": "tttiiitttttttttooofffbbifbttttttttoo",
    "exl3_moe_gather": "tttttttt",
    "exl3_moe_max_concurrency": "i",
    "exl3_gemm": "tttoooibbi",
    "reconstruct": "ttfbb",
    "had_r_128": "ttoof",
}
_KINDS = (("o", r"Optional|None"), ("t", "Tensor"), ("b", "bool"), ("f", "[Ff]loat"), ("i", "[Ii]nt"))


def signature(docstring: str) -> str:
    """Kinds of the arguments of a pybind11 function, from the first line of its docstring; `?` for others."""
    head = docstring.strip().split("\n")[0].split(") -> ")[0]
    annotations = re.split(r"(?:^|, )\w+: ", head.partition("(")[2])[1:]
    return "".join(next((kind for kind, text in _KINDS if re.search(text, a)), "?") for a in annotations)


class Kernels:
    """The functions that can be used; `unusable` says why the others cannot."""

    def __init__(self, extension: ModuleType | None, reason: str = "") -> None:
        self.extension = extension
        self.unusable: dict[str, str] = {}
        for name, expected in SIGNATURES.items():
            if extension is None:
                self.unusable[name] = reason
            elif not (function := getattr(extension, name, None)):
                self.unusable[name] = f"exllamav3_ext has no {name}"
            elif (found := signature(function.__doc__ or "")) != expected:
                self.unusable[name] = f"{name} takes ({found}), expected ({expected}) as in exllamav3 {PINNED}"

    def has(self, *names: str) -> bool:
        return not any(name in self.unusable for name in names)

    def why_not(self, *names: str) -> str:
        """Reasons, each once."""
        return "; ".join(dict.fromkeys(self.unusable[name] for name in names if name in self.unusable))

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self.extension, name)


@cache
def kernels() -> Kernels:
    """The kernels of this process. The compiled extension only: importing exllamav3 itself pulls in a whole engine."""
    try:
        import torch

        if not torch.cuda.is_available():
            return Kernels(None, "no CUDA device")
        # With the mul1 codebook it multiplies one row in int8 by default, at 0.7% error.
        os.environ.setdefault("EXL3_INT8_GEMV", "0")
        return Kernels(importlib.import_module("exllamav3_ext"))
    except ImportError as error:
        return Kernels(None, f"exllamav3_ext cannot be imported: {error}")
