# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the memory of a rank before anything is started. Pure: constants of a recipe and two figures of a host in, a plan out.

The KV cache is a pool of pages, all of one size in bytes, from which every group of layers of a request takes its own:

* layers that keep every token: one page for each ``page_tokens`` of the length;
* layers that keep a state (linear attention): a few pages, and one more for each drafted token, in each group;
* layers that look back over a window (a drafter): pages for the window and for what may be in flight, a batch or, with
  asynchronous scheduling, two;
* one page that is never used.

What vLLM prints as the size is pages of the pool, by pages of a request of the maximum length, times that length.
docs/memory.md holds this against pools that people published.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._causes import remedy
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check

GIB = 1 << 30


class Demand(NamedTuple):
    """What a recipe asks of the memory. Lengths in tokens, ``kv_gib`` the pinned size of the cache or None."""

    max_model_len: int
    sequences: int
    batch: int
    drafts: int
    in_flight: int
    utilization: float | None
    kv_gib: float | None


def demand(recipe: Mapping[str, Any]) -> Demand:
    """Read the demand from a resolved recipe."""
    serve, memory = recipe["serve"], recipe["memory"]
    drafting = serve.get("speculative-config") or {}
    if isinstance(drafting, str):
        drafting = json.loads(drafting)
    batch = int(serve.get("max-num-batched-tokens", 2048))
    pinned = serve.get("kv-cache-memory-bytes")
    kv_gib = float(pinned) / GIB if pinned else memory.get("pool_gib")
    if memory.get("kind") == "cpu":
        kv_gib = recipe.get("env", {}).get("VLLM_CPU_KVCACHE_SPACE", kv_gib)
    return Demand(
        max_model_len=int(serve.get("max-model-len") or serve.get("context") or recipe["model"]["context"]),
        sequences=int(serve.get("max-num-seqs") or serve.get("parallel") or 1),
        batch=batch,
        drafts=int(drafting.get("num_speculative_tokens", 0)),
        in_flight=batch * (2 if serve.get("async-scheduling", True) else 1),
        utilization=None if kv_gib else float(serve.get("gpu-memory-utilization", 0.92)),
        kv_gib=float(kv_gib) if kv_gib else None,
    )


def request_pages(memory: Mapping[str, Any], length: int, *, drafts: int, in_flight: int) -> int:
    """Pages that one request of a length takes, in tokens."""
    pages = math.ceil(length / memory["page_tokens"]) + int(memory.get("fixed_pages", 0))
    if state := memory.get("state"):
        pages += state["groups"] * (state["pages"] + drafts)
    if window := memory.get("window"):
        tokens = min(window["tokens"] - 1 + in_flight, length)
        pages += math.ceil(tokens / window["page_tokens"]) + 1
    return int(pages)


def longest(memory: Mapping[str, Any], pages: int, *, drafts: int, in_flight: int, limit: int) -> int:
    """The longest request that fits into so many pages, in tokens; 0 when none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if request_pages(memory, middle, drafts=drafts, in_flight=in_flight) <= pages:
            low = middle
        else:
            high = middle - 1
    return low


def _longest_of_all(memory: Mapping[str, Any], asked: Demand, pages: int, limit: int) -> int:
    """The length of each when all sequences run: what is in flight they share."""
    window = memory.get("window")
    shared = math.ceil(asked.in_flight / window["page_tokens"]) if window else 0
    each = max(pages - shared, 0) // max(asked.sequences, 1)
    return longest(memory, each, drafts=asked.drafts, in_flight=0, limit=limit)


def plan(recipe: Mapping[str, Any], total_gib: float, free_gib: float | None = None) -> dict[str, Any]:
    """Plan the memory of a rank.

    ``recipe`` is resolved for the number of ranks. ``total_gib`` is what the engine sees, ``free_gib`` what is available
    before the start; without it only the size is judged. All results are per rank, in GiB and tokens. A recipe whose
    ``memory`` has no constants gives a plan without figures, and an inconclusive check.
    """
    memory = recipe["memory"]
    if not memory.get("page_bytes"):
        code = "no_memory_constants"
        missing = check(
            "memory plan",
            "inconclusive",
            "constants in the recipe's memory section",
            "none",
            cause=code,
            remedy=remedy(code),
        )
        return {"known": False, "fits": None, "checks": [missing], "advice": []}
    asked = demand(recipe)
    taken = _taken(memory, asked)
    budget = None if asked.utilization is None else asked.utilization * total_gib
    kv_gib = asked.kv_gib if asked.kv_gib is not None else (budget or 0) - taken
    needed = taken + kv_gib if budget is None else budget
    init_gib = float(memory.get("init_gib", 0))
    host_gib = float(memory.get("host_gib", 0))
    pool = _pool(recipe, asked, kv_gib)
    start_short = None if free_gib is None else max(needed + init_gib + host_gib - free_gib, 0.0)
    kv_short = max(pool["kv_needed_gib"] - kv_gib, 0.0)
    result: dict[str, Any] = {
        "known": True,
        "fits": kv_short == 0 and not start_short,
        "weights_gib": float(memory["weights_gib"]),
        "runtime_gib": taken - float(memory["weights_gib"]),
        "init_gib": init_gib,
        "host_gib": host_gib,
        "kv_gib": kv_gib,
        "needed_gib": needed + init_gib + host_gib,
        "total_gib": float(total_gib),
        "free_gib": free_gib,
        "shortfall_gib": max(kv_short, start_short or 0.0),
        **pool,
    }
    result = {name: round(value, 2) if isinstance(value, float) else value for name, value in result.items()}
    advice = _advice(recipe, asked, result, start_short or 0.0, kv_short)
    checks = _checks(asked, result, start_short, kv_short, advice, float(memory.get("advised_gib", 0)))
    return {**result, "advice": advice, "checks": checks}


def _taken(memory: Mapping[str, Any], asked: Demand) -> float:
    """GiB that weights and activations take."""
    activations = float(memory.get("runtime_gib_per_1k_batch", 0)) * asked.batch / 1000
    return float(memory["weights_gib"]) + float(memory.get("runtime_gib", 0)) + activations


def _pool(recipe: Mapping[str, Any], asked: Demand, kv_gib: float) -> dict[str, Any]:
    """The pool that a cache of so many GiB makes."""
    memory = recipe["memory"]
    page_gib = memory["page_bytes"] / GIB
    limit = int(recipe.get("model", {}).get("context") or asked.max_model_len)
    pages = max(math.floor(kv_gib / page_gib + 1e-9), 0)
    sizes = {"drafts": asked.drafts, "in_flight": asked.in_flight}
    per_request = request_pages(memory, asked.max_model_len, **sizes)
    usable = max(pages - 1, 0)
    ratio = pages / per_request
    tokens = int(ratio * asked.max_model_len)
    if recipe.get("engine") == "tensorfold":
        # It prints what fits into the pages that can be used.
        tokens = usable * memory["page_tokens"]
        ratio = tokens / asked.max_model_len
    return {
        "pages": pages,
        "page_tokens": memory["page_tokens"],
        "request_pages": per_request,
        "kv_needed_gib": (per_request + 1) * page_gib,
        "kv_tokens": tokens,
        "max_concurrency": ratio,
        "max_model_len": asked.max_model_len,
        "largest_max_model_len": longest(memory, usable, limit=limit, **sizes),
        # What each of max-num-seqs requests may hold when all of them run.
        "largest_len_of_all": _longest_of_all(memory, asked, usable, limit),
    }


def _advice(
    recipe: Mapping[str, Any], asked: Demand, found: Mapping[str, Any], start_short: float, kv_short: float
) -> list[str]:
    """What to change, the least loss first."""
    memory, advice = recipe["memory"], []
    if start_short:
        advice.append(
            f"Free {start_short:.2f} GiB on the host: stop the desktop session, remove old containers, drop the page cache."
        )
        room = found["free_gib"] - found["init_gib"] - found["host_gib"]
        if asked.utilization is not None:
            share = math.floor(room / found["total_gib"] * 100) / 100
            smaller = _pool(recipe, asked, share * found["total_gib"] - _taken(memory, asked))
            advice.append(
                f"Set gpu-memory-utilization to {share:.2f}, which leaves requests of up to {smaller['largest_max_model_len']} tokens."
            )
        else:
            left = room - _taken(memory, asked)
            smaller = _pool(recipe, asked, left)
            advice.append(
                f"Give the KV cache {max(left, 0):.2f} GiB, which leaves requests of up to {smaller['largest_max_model_len']} tokens."
            )
    if kv_short:
        if found["largest_max_model_len"]:
            advice.append(f"Set max-model-len to at most {found['largest_max_model_len']}.")
        if memory.get("window") and asked.in_flight > asked.batch:
            advice.append("Set async-scheduling to false: the drafter's window then counts one batch and not two.")
        if asked.batch > 2048:
            advice.append(
                f"Lower max-num-batched-tokens from {asked.batch}: activations and the drafter's window shrink."
            )
        if asked.utilization is not None:
            share = math.ceil((asked.utilization + kv_short / found["total_gib"]) * 100) / 100
            if share < 1:
                advice.append(
                    f"Raise gpu-memory-utilization to {share:.2f}, if the host can spare {kv_short:.2f} GiB more."
                )
        else:
            advice.append(f"Give the KV cache {kv_short:.2f} GiB more.")
        advice.append("Spread the model over more ranks.")
    return advice


def _checks(
    asked: Demand,
    found: Mapping[str, Any],
    start_short: float | None,
    kv_short: float,
    advice: list[str],
    advised_gib: float,
) -> list[Check]:
    cure = " Or: ".join(advice)
    parts = (
        f"weights {found['weights_gib']:.2f}, runtime {found['runtime_gib']:.2f}, KV cache {found['kv_gib']:.2f}, before that "
        f"{found['init_gib']:.2f}, left to the host {found['host_gib']:.2f} GiB"
    )
    size = (
        f"{found['pages']} pages of {found['page_tokens']} tokens, {found['request_pages']} for a request of {asked.max_model_len} "
        f"tokens: {found['kv_tokens']} tokens as the engine prints it, {found['max_concurrency']:.2f} requests"
    )
    pool_code = "kv_pool_smaller_than_max_model_len"
    checks = [
        check(
            "memory pool",
            "fail" if kv_short else "pass",
            f"{found['kv_needed_gib']:.2f} GiB for one request of {asked.max_model_len} tokens",
            f"{found['kv_gib']:.2f} GiB",
            cause=pool_code if kv_short else "ok",
            evidence=[size],
            remedy=cure if kv_short else "",
        )
    ]
    if start_short is not None:
        little, wanted = not start_short and found["free_gib"] < advised_gib, found["needed_gib"]
        code = "startup_free_memory_below_request" if start_short else "little_memory_free" if little else "ok"
        checks.insert(
            0,
            check(
                "memory free",
                "fail" if start_short else "warn" if little else "pass",
                f"{advised_gib if little else wanted:.2f} GiB available before the start",
                f"{found['free_gib']:.2f} GiB",
                cause=code,
                evidence=[parts],
                remedy=cure if start_short else remedy(code) if little else "",
            ),
        )
    return checks
