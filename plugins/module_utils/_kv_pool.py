# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The KV pool that an engine says it has: from the lines of its start, or from ``/metrics``.

Several lines of one start are several ranks or several engines; what counts is the smallest, because every rank holds
every request. The size that vLLM prints is a ratio: blocks of the pool, by blocks of one request of the maximum length,
times that length. For a model whose layers all keep every token this is the number of tokens that fit. A hybrid model
(linear attention, sliding windows, a drafter) pays a fixed number of blocks per request, so that short requests fit
less often than the figure suggests, and longer ones still fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils._causes import remedy
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check
from ansible_collections.tandem.serving.plugins.module_utils._metrics import samples

GIB = 1 << 30
# Bounds that keep memory flat on logs that are not what they seem.
_MOST_NAMES = 1024
_EVIDENCE = 8

METRICS = ("vllm:cache_config_info", "tensorfold_health:pool_tokens")

_G = r"(-?\d+(?:\.\d+)?)\s*Gi?B"
_INT = r"(\d[\d,]*)"

# Every form since V0. Where a build prints two figures in one line both patterns match it.
_TOKENS = re.compile(rf"KV cache size: {_INT} tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_INT} tokens per request: (\d+(?:\.\d+)?)x")
_BLOCKS = re.compile(r"# \w+ blocks: (\d+), # CPU blocks: (\d+)|num_gpu_blocks is: (\d+)")
_GIB = (
    ("profiling", re.compile(rf"Available KV cache memory: {_G}")),
    ("profiling", re.compile(rf"(?:memory reserved for KV Cache is |\bkv_cache_size=){_G}", re.IGNORECASE)),
    ("kv_cache_memory_bytes", re.compile(rf"reserved {_G} memory for KV Cache as specified by", re.IGNORECASE)),
    ("cpu", re.compile(r"(?:Explicitly|Auto) set \((\d+(?:\.\d+)?)/\d+(?:\.\d+)?\) GiB for KV cache")),
)
_TOO_SMALL = re.compile(
    rf"max seq len \({_INT}\),? \(?{_G} KV cache is needed, which is larger than the available KV cache memory \({_G}\)"
)
_TOO_SMALL_TOKENS = re.compile(
    rf"max seq len \({_INT}\) is larger than the maximum number of tokens that can be stored in KV cache \({_INT}\)"
)
_ESTIMATE = re.compile(
    r"estimated maximum model length is (\d+)|largest fitting prompt-plus-reply window: (\d+) tokens"
)
_TOO_LONG = re.compile(r"cannot fit requested context (\d+)")
_NO_MEMORY = (
    "No available memory for the cache blocks",
    "Cannot auto-fit max_model_len: not enough",
    "on kv cache allocation is less than requested memory for kv",
)
_STARTUP = re.compile(
    r"(?:Free memory on device|Available memory on node)\s*(?:\(?[\w:]+\)?\s+)?\((\d+(?:\.\d+)?)/(\d+(?:\.\d+)?) GiB\) on startup"
    rf"(?P<short> is less than)?.*?utilization (?:is )?\((\d+(?:\.\d+)?), {_G}\)"
)
_INITIAL = re.compile(rf"Initial free memory:? {_G}")
_V0_BUDGET = re.compile(
    r"total_gpu_memory \((\d+(?:\.\d+)?)GiB\) x gpu_memory_utilization \((\d+(?:\.\d+)?)\) = (\d+(?:\.\d+)?)GiB"
)
_V0_PROFILE = re.compile(r"total_gpu_memory=(\d+(?:\.\d+)?)GiB .*?gpu_memory_utilization=(\d+(?:\.\d+)?)")
_WEIGHTS = re.compile(r"(?:Model loading took|model weights take|Loading model weights took) (\d+(?:\.\d+)?)\s?Gi?B")
_GRAPHS = re.compile(
    r"gpu-memory-utilization=(\d\.\d+) is equivalent to --gpu-memory-utilization=(\d\.\d+)"
    r".*?increase --gpu-memory-utilization to (\d\.\d+)"
)
_MAX_LEN = re.compile(r"Using max model len (\d+)|max_seq_len=(\d+)|Auto-fit max_model_len: reduced from \d+ to (\d+)")
_PAGE = re.compile(r"Setting attention block size to (\d+) tokens")
_HYBRID = ("mamba page size", "Setting attention block size", "padding layers, may waste", "blocks/request@")
_WINDOW = re.compile(r"allocated prompt/reply window (\d+)")
_TENSORFOLD = re.compile(r"KV pool[^:]*: (\d+) tokens in (\d+) pages of (\d+), (\d+(?:\.\d+)?) GiB on this rank")
_RANK = re.compile(r"(?:^|_)TP(\d+)|Worker-(\d+)$|rank[ =_]?(\d+)$", re.IGNORECASE)

FIGURES = (
    "kv_tokens",
    "kv_gib",
    "kv_gib_source",
    "kv_gib_per_rank",
    "max_concurrency",
    "concurrency_len",
    "gpu_blocks",
    "cpu_blocks",
    "block_size",
    "hybrid",
    "max_model_len",
    "needed_gib",
    "available_gib",
    "estimated_max_len",
    "free_gib",
    "total_gib",
    "utilization",
    "requested_gib",
    "fitting_utilization",
    "graph_profiling",
    "weights_gib",
)


class _Size(NamedTuple):
    """One printed pool size. Either half may be missing: V0 prints no tokens, a cut log no ratio."""

    tokens: int | None
    concurrency: float | None = None
    length: int | None = None

    def order(self) -> tuple[float, float]:
        return (
            math.inf if self.tokens is None else self.tokens,
            math.inf if self.concurrency is None else self.concurrency,
        )


def _number(text: str) -> int:
    return int(text.replace(",", "")[:18])


def _real(text: str) -> float:
    return float(text[:15])


def _first(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group)


# A line that holds none of these says nothing of the pool.
_WORTH = (
    "GiB", "GB", "KV cache size", "Maximum concurrency", "blocks", "KV pool", "maximum model length", "window", "max seq len (",
    *_NO_MEMORY, "utilization", "max model len", "max_seq_len=", "max_model_len:", "block size", *_HYBRID,
)  # fmt: skip


def worth_reading(text: str) -> bool:
    """Whether a line may say something of the pool."""
    return any(mark in text for mark in _WORTH)


class Pool:
    """The figures of one start of an engine. ``read`` takes its lines one by one."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {**dict.fromkeys(FIGURES), "hybrid": False}
        self.evidence: list[str] = []
        self._gib: dict[str, tuple[float, str]] = {}
        self._sizes: dict[str, _Size] = {}
        self._smallest: _Size | None = None

    @property
    def known(self) -> bool:
        """Whether the engine said how large its pool is."""
        return self._smallest is not None or self.figures["gpu_blocks"] is not None

    def read(self, process: str, text: str, where: str) -> str:
        """Take one line. Returns the cause code of a fault that the line reports, or an empty string."""
        fault = self._read_fault(text)
        found = self._read_gib(process, text) | self._read_size(process, text) | self._read_blocks(text)
        if (found or fault) and len(self.evidence) < _EVIDENCE:
            self.evidence.append(f"{where}{text.strip()[:300]}")
        self._read_rest(text, fault)
        return fault

    def _read_gib(self, process: str, text: str) -> bool:
        if "GiB" not in text and "GB" not in text:
            return False
        for source, pattern in _GIB:
            if match := pattern.search(text):
                if process in self._gib or len(self._gib) < _MOST_NAMES:
                    self._gib[process] = (_real(match[1]), source)
                return True
        return False

    def _read_size(self, process: str, text: str) -> bool:
        tokens = _TOKENS.search(text) if "KV cache size" in text else None
        ratio = _CONCURRENCY.search(text) if "Maximum concurrency" in text else None
        if not tokens and not ratio:
            return False
        size = _Size(
            _number(tokens[1]) if tokens else None,
            _real(ratio[2]) if ratio else None,
            _number(ratio[1]) if ratio else None,
        )
        last = self._sizes.get(process)
        if last and not tokens and last.concurrency is None:
            # The second line of the form that has two.
            size = size._replace(tokens=last.tokens)
            if self._smallest is last:
                self._smallest = size
        if process in self._sizes or len(self._sizes) < _MOST_NAMES:
            self._sizes[process] = size
        self._take(size)
        return True

    def _take(self, size: _Size) -> None:
        if self._smallest is None or size.order() < self._smallest.order():
            self._smallest = size

    def _read_blocks(self, text: str) -> bool:
        if "blocks" not in text and "KV pool" not in text:
            return False
        if match := _TENSORFOLD.search(text):
            tokens, blocks, block_size = (int(group[:18]) for group in match.groups()[:3])
            self._take(_Size(tokens))
            self._gib[""] = (_real(match[4]), "pool")
            self.figures.update(block_size=block_size)
            self._take_blocks(blocks)
            return True
        if match := _BLOCKS.search(text):
            self._take_blocks(int((match[1] or match[3])[:18]))
            self.figures["cpu_blocks"] = int(match[2][:18]) if match[2] else self.figures["cpu_blocks"]
            return True
        return False

    def _take_blocks(self, blocks: int) -> None:
        before = self.figures["gpu_blocks"]
        self.figures["gpu_blocks"] = blocks if before is None else min(blocks, before)

    def _read_fault(self, text: str) -> str:
        figures = self.figures
        if match := _ESTIMATE.search(text) if " maximum model length " in text or "window: " in text else None:
            figures["estimated_max_len"] = int(_first(match)[:18])
        if "max seq len (" in text:
            if match := _TOO_SMALL.search(text):
                needed, available = _real(match[2]), _real(match[3])
                before = figures["available_gib"]
                figures["max_model_len"] = _number(match[1])
                figures["needed_gib"] = max(needed, figures["needed_gib"] or 0)
                figures["available_gib"] = available if before is None else min(available, before)
                return "kv_pool_smaller_than_max_model_len"
            if match := _TOO_SMALL_TOKENS.search(text):
                figures["max_model_len"] = _number(match[1])
                self._take(_Size(_number(match[2])))
                return "kv_pool_smaller_than_max_model_len"
        if match := _TOO_LONG.search(text) if "startup memory budget cannot fit" in text else None:
            figures["max_model_len"] = int(match[1][:18])
            return "kv_pool_smaller_than_max_model_len"
        if any(mark in text for mark in _NO_MEMORY):
            return "no_memory_for_kv"
        if match := _STARTUP.search(text) if " on startup" in text else None:
            free, total, utilization, requested = (_real(match[group]) for group in (1, 2, 4, 5))
            figures.update(free_gib=free, total_gib=total, utilization=utilization, requested_gib=requested)
            if match["short"]:
                figures["fitting_utilization"] = math.floor(free / total * 100) / 100 if total else None
                return "startup_free_memory_below_request"
        return ""

    def _read_rest(self, text: str, fault: str) -> None:
        figures = self.figures
        if match := _INITIAL.search(text) if "Initial free" in text else None:
            figures["free_gib"] = _real(match[1])
        if "utilization" in text:
            if match := _V0_BUDGET.search(text):
                names = ("total_gib", "utilization", "requested_gib")
                figures.update(zip(names, map(float, match.groups()), strict=True))
            if match := _V0_PROFILE.search(text):
                figures.update(total_gib=_real(match[1]), utilization=_real(match[2]))
            if match := _GRAPHS.search(text):
                names = ("set", "equivalent", "suggested")
                figures["graph_profiling"] = dict(zip(names, map(float, match.groups()), strict=True))
        if match := _WEIGHTS.search(text) if " weights t" in text or "loading took" in text else None:
            figures["weights_gib"] = max(_real(match[1]), figures["weights_gib"] or 0)
        if match := _MAX_LEN.search(text) if not fault and ("len" in text) else None:
            figures["max_model_len"] = int(_first(match)[:18])
        if match := _PAGE.search(text) if "block size" in text else None:
            figures["block_size"] = int(match[1][:18])
        if match := _WINDOW.search(text) if "prompt/reply window" in text else None:
            figures["concurrency_len"] = int(match[1][:18])
        if any(mark in text for mark in _HYBRID):
            figures["hybrid"] = True

    def summary(self) -> dict[str, Any]:
        """The figures, under the names of `FIGURES`. Memory in GiB per rank, lengths in tokens."""
        figures = dict(self.figures)
        if self._gib:
            figures["kv_gib"], figures["kv_gib_source"] = min(self._gib.values())
            if len(self._gib) > 1:
                figures["kv_gib_per_rank"] = {_rank(name): gib for name, (gib, _source) in self._gib.items()}
        elif figures["available_gib"] is not None:
            figures["kv_gib"], figures["kv_gib_source"] = figures["available_gib"], "error"
        if size := self._smallest:
            figures["kv_tokens"], figures["max_concurrency"] = size.tokens, size.concurrency
            figures["concurrency_len"] = figures["concurrency_len"] if size.length is None else size.length
        return figures


def _rank(process: str) -> str:
    """``Worker_TP1`` is rank 1. Where other kinds of parallelism name a process, its name stays."""
    match = _RANK.search(process)
    return _first(match) if match and "DP" not in process and "PP" not in process else process


def smallest(pools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One set of figures out of several: those of the smallest pool, and what only another one says."""

    def size(pool: Mapping[str, Any]) -> tuple[float, ...]:
        values = (pool[name] for name in ("kv_tokens", "max_concurrency", "gpu_blocks"))
        return tuple(math.inf if value is None else value for value in values)

    merged: dict[str, Any] = dict.fromkeys(FIGURES)
    for pool in sorted(pools, key=size):
        merged = {name: pool[name] if merged[name] is None else merged[name] for name in FIGURES}
    merged["hybrid"] = any(pool["hybrid"] for pool in pools)
    with_gib = [(pool["kv_gib"], pool["kv_gib_source"]) for pool in pools if pool["kv_gib"] is not None]
    if with_gib:
        merged["kv_gib"], merged["kv_gib_source"] = min(with_gib)
    per_rank = {rank: gib for pool in pools for rank, gib in (pool["kv_gib_per_rank"] or {}).items()}
    merged["kv_gib_per_rank"] = per_rank or None
    return merged


def from_metrics(text: str) -> dict[str, Any]:
    """The figures that ``/metrics`` gives, of the smallest engine when there are several."""
    pools = []
    for sample in samples(text, *METRICS):
        pool: dict[str, Any] = {**dict.fromkeys(FIGURES), "hybrid": False}
        labels = {name: _plain(value) for name, value in sample.labels.items()}
        blocks, block_size = labels.get("num_gpu_blocks"), labels.get("block_size")
        tokens, memory = labels.get("kv_cache_size_tokens"), labels.get("kv_cache_memory_bytes")
        if sample.name == "tensorfold_health:pool_tokens":
            tokens = sample.value if math.isfinite(sample.value) else None
        # Builds without the label have no other figure. Blocks times block size is right for models of one kind of layer.
        counted = blocks * block_size if blocks is not None and block_size is not None else None
        pool.update(
            kv_tokens=_whole(counted if tokens is None else tokens),
            max_concurrency=labels.get("kv_cache_max_concurrency"),
            gpu_blocks=_whole(blocks),
            cpu_blocks=_whole(labels.get("num_cpu_blocks")),
            block_size=_whole(block_size),
            utilization=labels.get("gpu_memory_utilization"),
            kv_gib=round(memory / GIB, 2) if memory else None,
            kv_gib_source="kv_cache_memory_bytes" if memory else None,
            hybrid=tokens is not None and counted is not None and abs(tokens - counted) > counted / 100,
        )
        if tokens and pool["max_concurrency"]:
            pool["concurrency_len"] = round(tokens / pool["max_concurrency"])
        pools.append(pool)
    return smallest(pools)


def _plain(value: str) -> float | None:
    """The number in a label, or None for ``None``, ``auto`` and the like."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def largest_len(figures: Mapping[str, Any]) -> int | None:
    """The longest request that is known to fit, in tokens.

    With a pool that holds its own maximum length this is the printed size also for hybrid models: the fixed blocks of a
    request weigh less the longer it is.
    """
    if figures["estimated_max_len"] is not None:
        return int(figures["estimated_max_len"])
    if figures["kv_tokens"] is not None:
        return int(figures["kv_tokens"])
    if figures["max_concurrency"] is not None and figures["concurrency_len"] is not None:
        return int(figures["max_concurrency"] * figures["concurrency_len"])
    return None


def describe(figures: Mapping[str, Any]) -> str:
    """What the pool really holds, in a sentence."""
    tokens, ratio, length = figures["kv_tokens"], figures["max_concurrency"], figures["concurrency_len"]
    if ratio is not None and length is not None:
        whole = int(ratio)
        words = f"{whole} request{'' if whole == 1 else 's'} of {length} tokens at a time (ratio {ratio:g})"
        if tokens is not None:
            words = f"{tokens} tokens as printed, which means {words}"
        if figures["hybrid"]:
            words += (
                "; every request of this hybrid model takes fixed blocks too, so fewer short ones fit than tokens say"
            )
        return words
    if tokens is not None:
        return f"{tokens} tokens"
    return "no pool size" if figures["gpu_blocks"] is None else f"{figures['gpu_blocks']} blocks"


def told(figures: Mapping[str, Any], evidence: list[str], cause: str) -> Check:
    """The engine named its pool. It starts only with one that holds a request of its maximum length."""
    return check(
        "kv pool", "pass", "a pool that holds max-model-len", describe(figures), cause=cause, evidence=evidence
    )


def untold(evidence: list[str], cause: str) -> Check:
    """Nothing named the pool."""
    return check(
        "kv pool",
        "inconclusive",
        "a line with the pool's size",
        "none",
        cause=cause,
        evidence=evidence,
        remedy=remedy(cause),
    )


def wanted(
    figures: Mapping[str, Any], evidence: list[str], *, min_tokens: int | None, max_model_len: int | None
) -> list[Check]:
    """Checks of what the user wants the pool to hold: a number of tokens, and one request of a length."""
    asked = (
        ("kv pool min_tokens", min_tokens, "at least {} tokens", "kv_pool_below_wanted"),
        ("kv pool max_model_len", max_model_len, "one request of {} tokens", "kv_pool_smaller_than_max_model_len"),
    )
    fits = largest_len(figures)
    checks = []
    for name, tokens, expected, code in asked:
        if tokens is None:
            continue
        expected = expected.format(tokens)
        found = describe(figures)
        if fits is None:
            code = "no_kv_pool_line"
            checks.append(
                check(name, "inconclusive", expected, found, cause=code, evidence=evidence, remedy=remedy(code))
            )
        elif fits < tokens:
            found += f"; the longest that fits is {fits}"
            checks.append(
                check(name, "fail", expected, found, cause=code, evidence=evidence, remedy=cure(code, figures))
            )
        else:
            checks.append(check(name, "pass", expected, found, evidence=evidence))
    return checks


def sentence(code: str, figures: Mapping[str, Any]) -> str:
    """A fault of the pool in a sentence, with its figures; empty where there are none."""
    if code == "startup_free_memory_below_request" and figures["free_gib"] is not None:
        return (
            f"At the start {figures['free_gib']} of {figures['total_gib']} GiB were free, and gpu-memory-utilization "
            f"{figures['utilization']} asks for {figures['requested_gib']}."
        )
    if code == "kv_pool_smaller_than_max_model_len" and figures["needed_gib"] is not None:
        fits = largest_len(figures)
        words = (
            f"One request of max-model-len {figures['max_model_len']} needs {figures['needed_gib']} GiB of KV cache, and there are "
            f"{figures['available_gib']}."
        )
        return f"{words} The longest that fits is {fits} tokens." if fits else words
    return ""


def cure(code: str, figures: Mapping[str, Any]) -> str:
    """The remedy, with this pool's own figures where it has them."""
    if code == "startup_free_memory_below_request" and figures["free_gib"] is not None:
        short = figures["requested_gib"] - figures["free_gib"]
        return (
            f"Free {short:.2f} GiB on the host before the start (desktop session, page cache, an old container), or set "
            f"gpu-memory-utilization to at most {figures['fitting_utilization']}, or pin kv-cache-memory-bytes."
        )
    ways = []
    if code == "kv_pool_smaller_than_max_model_len":
        fits = largest_len(figures)
        if fits:
            ways.append(f"set max-model-len to at most {fits}")
        if figures["needed_gib"] is not None and figures["available_gib"] is not None:
            ways.append(
                f"give the KV cache {figures['needed_gib'] - figures['available_gib']:.2f} GiB more on each rank"
            )
        if figures["graph_profiling"]:
            suggested = figures["graph_profiling"]["suggested"]
            ways.append(f"set gpu-memory-utilization to {suggested}, which gives back what graph profiling took")
    sentence = ", or ".join(ways)
    return f"{sentence[0].upper()}{sentence[1:]}." if ways else remedy(code)
