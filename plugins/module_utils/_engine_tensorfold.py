# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorFold's command line: the same on every rank, and on rank 0 the API's name and address as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What the API does with a request.
CHAT = frozenset({"max-tokens", "thinking"})


def environment(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Nothing beside the recipe's ``env``: the image puts its kernels into /cache by itself."""
    return {}


def _flag(name: str, value: Any) -> list[str]:
    """One option. TensorFold knows --x or nothing, and --no-x only for thinking."""
    if value is True:
        return [f"--{name}"]
    if value is False:
        return ["--no-thinking"] if name == "thinking" else []
    return [f"--{name}", str(value)]


def command(
    recipe: Mapping[str, Any], fabric: Mapping[str, Any], model: str, drafter: str
) -> tuple[list[str], list[str]]:
    """The arguments shared by all ranks, and those of this rank. No drafter means the checkpoint's own MTP head."""
    ports, rank = recipe["ports"], fabric["rank"]
    serve = {"drafter": drafter or "none", **recipe["serve"]}
    shared = ["tensorfold", "serve", model, "--tp", str(fabric["nranks"])]
    shared += ["--master", fabric["master_address"], "--master-port", str(ports["master"])]
    shared += [word for name in sorted(serve) for word in _flag(name, serve[name])]
    own = ["--rank", str(rank)]
    if rank == 0:
        own += ["--name", recipe["model"]["served_name"], "--host", ports["bind"], "--port", str(ports["api"])]
    return shared, own
