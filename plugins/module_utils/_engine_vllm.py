# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's command line for its multi-node mp executor: one process a host, the workers headless."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# A value of the recipe's serve arguments that stands for the drafter's snapshot folder.
DRAFTER = "@drafter"
# Compiled kernels and bytecode outlive the container. The names are those of the programs that read them.
_CACHE = {
    "PYTHONPYCACHEPREFIX": "/cache/python",
    "TILELANG_CACHE_DIR": "/cache/tilelang",
    "TRITON_CACHE_DIR": "/cache/triton",
    "VLLM_CACHE_ROOT": "/cache/vllm",
}
KEY_VARIABLE = "VLLM_API_KEY"
# What the API does with a request and an answer.
CHAT = frozenset(
    {
        "chat-template",
        "chat-template-content-format",
        "default-chat-template-kwargs",
        "distributed-timeout-seconds",
        "enable-auto-tool-choice",
        "generation-config",
        "override-generation-config",
        "reasoning-parser",
        "shutdown-timeout",
        "tool-call-parser",
    }
)


def _flag(name: str, value: Any) -> list[str]:
    """One option in the spelling of vLLM's parser: true and false as --x and --no-x, mappings as JSON, lists spread."""
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value, sort_keys=True, separators=(",", ":"))]
    if isinstance(value, list):
        return [f"--{name}", *(str(item) for item in value)]
    return [f"--{name}", str(value)]


def environment(recipe: Mapping[str, Any]) -> dict[str, str]:
    """What the engine reads beside the recipe's ``env``: where caches go, and the overlay's ablation."""
    ablation = recipe.get("ablation")
    if not ablation:
        return _CACHE
    words = {key: ablation[key] for key in ("direction", "alpha", "layers")} | {"mtp": int(ablation["mtp"])}
    return _CACHE | {"TANDEM_OVERLAY_ABLATION": ",".join(f"{key}={value}" for key, value in words.items())}


def _with_drafter(value: Any, drafter: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_drafter(item, drafter) for key, item in value.items()}
    return drafter if value == DRAFTER else value


def command(
    recipe: Mapping[str, Any], fabric: Mapping[str, Any], model: str, drafter: str
) -> tuple[list[str], list[str]]:
    """The arguments shared by all ranks, and those of this rank. ``model`` and ``drafter`` are snapshot folders."""
    ports, nranks = recipe["ports"], fabric["nranks"]
    serve = {
        "tensor-parallel-size": nranks,
        "nnodes": nranks,
        "distributed-executor-backend": "mp",
        "master-addr": fabric["master_address"],
        "master-port": ports["master"],
        "host": ports["bind"],
        "port": ports["api"],
        "served-model-name": recipe["model"]["served_name"],
        **_with_drafter(recipe["serve"], drafter),
    }
    shared = ["vllm", "serve", model, *(word for name in sorted(serve) for word in _flag(name, serve[name]))]
    own = _flag("node-rank", fabric["rank"]) + ([] if fabric["rank"] == 0 else ["--headless"])
    return shared, own
