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
from typing import Any, NamedTuple, TypedDict

from ansible_collections.tandem.serving.plugins.module_utils import _engine_tensorfold, _engine_vllm

KEY_FILE = "/run/tandem/api_key"
# Written by roles/rank/files/rank_host.py before each start.
START_ENV = "/run/tandem/start.env"
# Beginnings of variables that say how ranks talk, what they log, and where on a host they run.
_UNREAD = (
    "DO_NOT_TRACK",
    "GLOO_",
    "HF_",
    "NCCL_",
    "TP_",
    "TRANSFORMERS_",
    "UCX_",
    "VLLM_CPU_",
    "VLLM_HOST_IP",
    "VLLM_LOGGING",
    "VLLM_NO_USAGE",
)


class Engine(NamedTuple):
    """What differs between the engines.

    ``command`` makes the arguments shared by all ranks and those of one rank, ``environment`` what the recipe need not say.
    ``entrypoint`` is whether the image's own one has to run first, ``key_variable`` where the engine reads the API's
    key; empty means that it has none. ``chat`` names the arguments that no kernel is made for.
    """

    command: Callable[[Mapping[str, Any], Mapping[str, Any], str, str], tuple[list[str], list[str]]]
    environment: Callable[[Mapping[str, Any]], dict[str, str]]
    entrypoint: bool
    key_variable: str
    chat: frozenset[str]


ENGINES = {
    "vllm": Engine(_engine_vllm.command, _engine_vllm.environment, False, _engine_vllm.KEY_VARIABLE, _engine_vllm.CHAT),
    # The image's entrypoint prepares the CUDA libraries.
    "tensorfold": Engine(_engine_tensorfold.command, _engine_tensorfold.environment, True, "", _engine_tensorfold.CHAT),
}


class Host(TypedDict):
    """Where things are on a rank's host.

    ``env`` is what this host alone adds, ``api_key`` whether the API has a key, ``gpu`` the UUID of the GPU to use where
    the recipe names one.
    """

    name: str
    hf_home: str
    etc: str
    cache: str
    env: dict[str, Any]
    api_key: bool
    gpu: str


class Launch(TypedDict):
    """What one rank runs.

    ``engine`` is the engine's command line, ``docker`` the arguments of ``docker run`` up to its end, ``env`` the
    environment (no secrets), ``cache_key`` names the folder of compiled kernels. ``shared_hash`` is the SHA-256 over what
    all ranks share, ``rank_hash`` over all that this rank runs; the container carries both as labels, and what it serves.
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


def _option(name: str, value: Any) -> list[str]:
    """One option of ``docker run``. A switch takes no word of its own."""
    if isinstance(value, bool):
        return [f"--{name}={str(value).lower()}"]
    return [f"--{name}", str(value)]


def _cache_key(
    recipe: Mapping[str, Any], nranks: int, identity: str, env: Mapping[str, str], chat: frozenset[str]
) -> str:
    """Name of what compiled kernels belong to: the image, the model, its shape, and the environment that compilers read."""
    parts = [recipe["model"], recipe.get("drafter") or {}]
    models = [[part["repo"], part["revision"]] for part in parts if part]
    shape = {name: value for name, value in recipe["serve"].items() if name not in chat}
    read = {name: value for name, value in env.items() if not name.startswith(_UNREAD)}
    return _digest(identity, models, nranks, shape, read)[:16]


def _docker(
    recipe: Mapping[str, Any],
    fabric: Mapping[str, Any],
    image: Mapping[str, str],
    host: Host,
    cache_key: str,
    keyed: bool,
) -> list[str]:
    """Arguments of ``docker run``, the image and the way into the engine included."""
    engine = ENGINES[recipe["engine"]]
    container = dict(recipe["container"])
    if "gpu" in recipe:
        if not host["gpu"]:
            raise ValueError(f"recipe {recipe['name']} wants the UUID of a GPU named {recipe['gpu']}: set rank_gpu")
        container["gpus"] = f"device={host['gpu']}"
    words = ["--rm", "--name", host["name"], "--network", "host", "--log-driver", "none"]
    words += ["--env-file", f"{host['etc']}/rank.env"]
    if fabric.get("transport") == "rdma":
        # GID indexes as they are at this start: the last file counts.
        words += ["--env-file", START_ENV]
    words += ["--volume", f"{host['hf_home']}:{host['hf_home']}:ro"]
    words += ["--volume", f"{host['cache']}/{cache_key}:/cache"]
    if prefix := engine.environment(recipe).get("PYTHONPYCACHEPREFIX"):
        # Byte code is the image's alone: other arguments need no new one.
        words += ["--volume", f"{host['cache']}/python-{_digest(image['identity'])[:16]}:{prefix}"]
    if recipe.get("files") or fabric.get("graph"):
        words += ["--volume", f"{host['etc']}/files:{host['etc']}/files:ro"]
    if recipe.get("ablation"):
        direction = recipe["ablation"]["direction"]
        # Unlike a volume, it does not make a folder where there is no file.
        words += ["--mount", f"type=bind,source={direction},target={direction},readonly"]
    for option in sorted(container):
        values = container[option] if isinstance(container[option], list) else [container[option]]
        words += [word for value in values for word in _option(option, value)]
    if keyed:
        # A file, so that no command line, unit or inspected container shows the key.
        export = f'export {engine.key_variable}="$(cat {KEY_FILE})"; exec "$@"'
        words += ["--volume", f"{host['etc']}/api_key:{KEY_FILE}:ro"]
        return [*words, "--entrypoint", "/bin/sh", image["ref"], "-c", export, "sh"]
    return [*words, *([] if engine.entrypoint else ["--entrypoint", ""]), image["ref"]]


def launch(recipe: Mapping[str, Any], fabric: Mapping[str, Any], image: Mapping[str, str], host: Host) -> Launch:
    """Make what one rank runs.

    ``recipe``, ``fabric`` and ``image`` (its ``ref`` and ``identity``) are the facts of the roles of these names.
    Raises ValueError for an engine that is not known, a key that the engine cannot ask for, a GPU that was not named.
    """
    if recipe["engine"] not in ENGINES:
        raise ValueError(f"engine is '{recipe['engine']}', expected one of {', '.join(sorted(ENGINES))}")
    engine = ENGINES[recipe["engine"]]
    if host["api_key"] and not engine.key_variable:
        raise ValueError(f"engine {recipe['engine']} asks for no key: empty rank_api_key, put the key into a gateway")
    model = snapshot_path(host["hf_home"], recipe["model"]["repo"], recipe["model"]["revision"])
    drafter = recipe.get("drafter") or {}
    draft = snapshot_path(host["hf_home"], drafter["repo"], drafter["revision"]) if drafter else ""
    shared, own = engine.command(recipe, fabric, model, draft)
    offline = {"HF_HOME": host["hf_home"], "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    common = {str(key): str(value) for key, value in {**engine.environment(recipe), **offline, **recipe["env"]}.items()}
    per_rank = {str(key): str(value) for key, value in {**fabric["env"], **host["env"]}.items()}
    compiling = {**common, **{str(key): str(value) for key, value in host["env"].items()}}
    cache_key = _cache_key(recipe, fabric["nranks"], image["identity"], compiling, engine.chat)
    docker = _docker(recipe, fabric, image, host, cache_key, host["api_key"] and fabric["rank"] == 0)
    env = dict(sorted({**common, **per_rank}.items()))
    files = dict(recipe.get("files", {}))
    if ablation := recipe.get("ablation"):
        files[ablation["direction"]] = ablation.get("sha256", "")
    shared_hash = _digest(image["identity"], shared, common, recipe["container"], files)
    rank_hash = _digest(image["identity"], shared, own, env, docker, files, fabric.get("graph", ""))
    told = {
        "shared": shared_hash,
        "rank": rank_hash,
        "model": f"{recipe['model']['repo']}@{recipe['model']['revision']}",
        "recipe": recipe["name"],
    }
    labels = [word for name, value in told.items() for word in ("--label", f"tandem.{name}={value}")]
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
