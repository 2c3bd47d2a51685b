# SPDX-License-Identifier: MIT
"""The names that an EXL3 checkpoint must have, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from .errors import TensorError

LEAVES = ("trellis", "suh", "svh")
MARKERS = ("mcg", "mul1")
_OLD = ("su", "sv")
_ALL = {*LEAVES, *MARKERS, *_OLD}


class Names:
    """The EXL3 modules of a checkpoint: module name -> its leaves."""

    def __init__(self, tensors: Iterable[str]) -> None:
        self.modules: dict[str, set[str]] = {}
        for name in tensors:
            module, _dot, leaf = name.rpartition(".")
            self.modules.setdefault(module, set()).add(leaf)
        # A module that lost its trellis is still meant to be EXL3, and one that only has a `.su` may be anything.
        self.packed = {module for module, leaves in self.modules.items() if leaves & {*LEAVES, *MARKERS}}

    def rename(self, new: dict[str, str]) -> None:
        """Take the engine's names of modules instead of the checkpoint's."""
        self.modules = {new.get(module, module): leaves for module, leaves in self.modules.items()}
        self.packed = {new.get(module, module) for module in self.packed}

    def codebook(self, module: str) -> str:
        """The codebook of a module, from the marker that it has. TensorError names a leaf that is missing."""
        leaves = self.modules.get(module, set())
        for leaf in LEAVES:
            if leaf not in leaves:
                if leaf[0] == "s" and leaf[:2] in leaves:
                    raise TensorError(
                        f"{module}.{leaf[:2]}: sign bits of an old EXL3 version; expected {module}.{leaf} in fp16. "
                        "Convert the checkpoint again with a current exllamav3."
                    )
                raise TensorError(self._missing(f"{module}.{leaf}"))
        markers = sorted(leaves & set(MARKERS))
        if len(markers) > 1:
            raise TensorError(f"{module}: expected one codebook marker, found {' and '.join(markers)}.")
        return markers[0] if markers else "3inst"

    def all_packed(self, modules: Collection[str]) -> bool:
        """Whether these modules, which the engine fuses into one layer, are EXL3. TensorError if only some are."""
        missing = [module for module in modules if module not in self.packed]
        if len(missing) == len(modules):
            return False
        if missing:
            raise TensorError(
                f"{self._missing(f'{missing[0]}.trellis', modules)} {len(missing)} of the {len(modules)} matrices of "
                "this layer are not EXL3."
            )
        return True

    def _missing(self, tensor: str, wanted: Collection[str] = ()) -> str:
        """What to say of a missing tensor, with the nearest name that nobody asks for."""
        module = tensor.rpartition(".")[0]
        parent = module.rpartition(".")[0]
        if module in self.modules:
            odd = [f"{module}.{leaf}" for leaf in self.modules[module] - _ALL]
        else:
            siblings = [m for m in self.modules if m.rpartition(".")[0] == parent and m not in wanted]
            odd = [f"{sibling}.{leaf}" for sibling in siblings for leaf in self.modules[sibling]]
        hint = "".join(f" There is {name}: is that it?" for name in get_close_matches(tensor, odd, 1, 0.8))
        return f"{tensor}: expected in the checkpoint, not found.{hint} Download the snapshot again and verify it."


def expert_modules(prefix: str, count: int) -> list[str]:
    """The modules of routed experts in the checkpoint: `prefix`.<expert>.<projection>, expert by expert."""
    return [f"{prefix}.{expert}.{part}" for expert in range(count) for part in ("gate_proj", "up_proj", "down_proj")]
