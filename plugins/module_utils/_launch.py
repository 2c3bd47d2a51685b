# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one place where a rank's command line, environment and container are made.

``launch`` is pure. Every rank gets the same but for its rank, its addresses and what a worker must not do;
``shared_hash`` covers all that has to be the same, and is compared between the hosts before a start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

# A value of the recipe's serve arguments that stands for the drafter's snapshot folder.
DRAFTER = "@drafter"
KEY_FILE = "/run/tandem/api_key"
# Compiled kernels and bytecode outlive the container. The names are those of the programs that read them.
CACHE_ENV = {
    "PYTHONPYCACHEPREFIX": "/cache/python",
    "TILELANG_CACHE_DIR": "/cache/tilelang",
    "TRITON_CACHE_DIR": "/cache/triton",
    "VLLM_CACHE_ROOT": "/cache/vllm",
}
# Exports the key from its file, so that no command line, unit or inspected container shows it.
_WITH_KEY = f'export VLLM_API_KEY="$(cat {KEY_FILE})"; exec "$@"'


class Host(TypedDict):
    """Where things are on a rank's host. ``env`` is what this host alone adds, ``api_key`` whether the API has a key."""

    name: str
    hf_home: str
    etc: str
    cache: str
    env: dict[str, Any]
    api_key: bool


class Launch(TypedDict):
    """What one rank runs.

    ``engine`` is the engine's command line, ``docker`` the arguments of ``docker run`` up to its end, ``env`` the
    environment (no secrets), ``cache_key`` names the folder of compiled kernels. ``shared_hash`` is the SHA-256 over what
    all ranks share, ``rank_hash`` over all that this rank runs; the container carries both as labels.
    """

    engine: list[str]
    docker: list[str]
    env: dict[str, str]
    cache_key: str
    shared_hash: str
    rank_hash: str


def snapshot_path(hf_home: str, repo: str, revision: str) -> str:
    """Folder of a snapshot in the hub cache layout."""
    return f"{hf_home}/hub/models--{repo.replace('/', '--')}/snapshots/{revision}"


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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


def _with_drafter(value: Any, drafter: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_drafter(item, drafter) for key, item in value.items()}
    return drafter if value == DRAFTER else value


def _vllm(
    recipe: Mapping[str, Any], fabric: Mapping[str, Any], model: str, drafter: str
) -> tuple[list[str], list[str]]:
    """The arguments shared by all ranks, and those of this rank, for vLLM's multi-node mp executor."""
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


ENGINES: dict[str, Callable[..., tuple[list[str], list[str]]]] = {"vllm": _vllm}


def _docker(recipe: Mapping[str, Any], image: str, host: Host, cache_key: str, keyed: bool) -> list[str]:
    """Arguments of ``docker run``, the image and the way into the engine included."""
    container = recipe["container"]
    words = ["--rm", "--name", host["name"], "--network", "host", "--log-driver", "none"]
    words += ["--env-file", f"{host['etc']}/rank.env"]
    words += ["--volume", f"{host['hf_home']}:{host['hf_home']}:ro"]
    words += ["--volume", f"{host['cache']}/{cache_key}:/cache"]
    for option in sorted(container):
        values = container[option] if isinstance(container[option], list) else [container[option]]
        words += [word for value in values for word in (f"--{option}", str(value))]
    if keyed:
        words += ["--volume", f"{host['etc']}/api_key:{KEY_FILE}:ro"]
        return [*words, "--entrypoint", "/bin/sh", image, "-c", _WITH_KEY, "sh"]
    return [*words, "--entrypoint", "", image]


def launch(recipe: Mapping[str, Any], fabric: Mapping[str, Any], image: Mapping[str, str], host: Host) -> Launch:
    """Make what one rank runs.

    ``recipe``, ``fabric`` and ``image`` (its ``ref`` and ``identity``) are the facts of the roles of these names.
    Raises ValueError for an engine that is not known.
    """
    if recipe["engine"] not in ENGINES:
        raise ValueError(f"engine is '{recipe['engine']}', expected one of {', '.join(sorted(ENGINES))}")
    model = snapshot_path(host["hf_home"], recipe["model"]["repo"], recipe["model"]["revision"])
    drafter = recipe.get("drafter") or {}
    draft = snapshot_path(host["hf_home"], drafter["repo"], drafter["revision"]) if drafter else ""
    shared, own = ENGINES[recipe["engine"]](recipe, fabric, model, draft)
    offline = {"HF_HOME": host["hf_home"], "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    common = {str(key): str(value) for key, value in {**CACHE_ENV, **offline, **recipe["env"]}.items()}
    per_rank = {str(key): str(value) for key, value in {**fabric["env"], **host["env"]}.items()}
    cache_key = _digest(image["identity"], shared)[:16]
    docker = _docker(recipe, image["ref"], host, cache_key, host["api_key"] and fabric["rank"] == 0)
    env = dict(sorted({**common, **per_rank}.items()))
    shared_hash = _digest(image["identity"], shared, common, recipe["container"])
    rank_hash = _digest(image["identity"], shared, own, env, docker)
    labels = ["--label", f"tandem.shared={shared_hash}", "--label", f"tandem.rank={rank_hash}"]
    return Launch(
        engine=shared + own,
        docker=labels + docker,
        env=env,
        cache_key=cache_key,
        shared_hash=shared_hash,
        rank_hash=rank_hash,
    )


def systemd_quote(word: str) -> str:
    """Quote one word for a unit's Exec line: no specifier, no variable, no splitting. Source: systemd.service(5)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$").replace("\n", "\\n")
    plain = escaped == word and word and not set(word) & set(" \t'{}[];#")
    return escaped if plain else f'"{escaped}"'
