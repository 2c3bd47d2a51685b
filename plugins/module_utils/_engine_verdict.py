# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what `_engine_log` has read: of the start, and of the KV pool.

Several logs are those of the ranks of one engine. The worst start decides; where none is at fault, the one that came
furthest. Of pools the smallest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ansible_collections.tandem.serving.plugins.module_utils import _kv_pool
from ansible_collections.tandem.serving.plugins.module_utils._causes import remedy
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check, worst
from ansible_collections.tandem.serving.plugins.module_utils._engine_log import Fault, Log, Start
from ansible_collections.tandem.serving.plugins.module_utils._engine_rules import EXIT_STATUS, ORDER, PHASES, says


class Reading(NamedTuple):
    """What the logs say: ``summary`` has the fields that the modules document, ``checks`` prove them."""

    summary: dict[str, Any]
    checks: list[Check]


# Stalls are reported once a minute. They are a hang where nothing slow can be going on, and anywhere after half an hour:
# loading and compiling keep the other ranks waiting for minutes.
_HANG_MINUTES = {"kv": 3, "graph_capture": 5, "warmup": 3, "serving": 1}
_HANG_MINUTES_ANYWHERE = 30
_MOST_EVIDENCE = 16
# The order in which a summary lists warnings.
_WARNINGS = ("shm_broadcast_stall", "rpc_timeout", "semlock_missing", "rendezvous_timeout")


def fault_of(start: Start, exit_status: int | None = None) -> Fault | None:
    """What ended the start: a line that names it, a hang, the exit status, the last exception; in this order."""
    if fault := start.fault():
        return fault
    if start.stalls >= _HANG_MINUTES.get(start.phase, _HANG_MINUTES_ANYWHERE):
        sentence = f"A rank has not answered for {start.stalls} minutes, in phase {start.phase}."
        return Fault("rank_stalled", sentence, start.stall_lines)
    if exit_status in EXIT_STATUS:
        code = EXIT_STATUS[exit_status]
        return Fault(code, says(code), [f"exit status {exit_status}"])
    if start.exception:
        return start.exception
    if exit_status:
        return Fault("engine_exit", says("engine_exit", what=exit_status), [f"exit status {exit_status}"])
    return None


def judge(logs: Sequence[Log], exit_status: int | None = None) -> Reading:
    """Summary and checks of a start. ``exit_status`` is the process's, as docker or systemd tells it."""
    read = [log for log in logs if log.start.lines] or [Log("", Start(), 0, False, [], 0)]
    faults = [(log, fault) for log in read if (fault := fault_of(log.start, exit_status))]
    checks: list[Check]
    if faults:
        log, fault = min(faults, key=lambda pair: ORDER[pair[1].code])
        figures = log.start.pool.summary()
        sentence = _kv_pool.sentence(fault.code, figures) or fault.says
        cure = _kv_pool.cure(fault.code, figures)
        checks = [_failed("engine start", "a start without a fault", sentence, fault, cure)]
    else:
        log = max(read, key=lambda log: PHASES.index(log.start.phase))
        checks = [_unfailed(log)]
        sentence = "" if checks[0]["verdict"] == "pass" else checks[0]["found"]
    degraded = [line for log in read for line in log.start.degraded]
    if degraded:
        code = "exl3_tier_degraded"
        checks.append(
            check(
                "exl3 kernels",
                "warn",
                "the configured tier",
                "a slower tier",
                cause=code,
                evidence=degraded[:8],
                remedy=remedy(code),
            )
        )
    start = log.start
    summary = {
        "phase": "stopped" if start.stopped and not faults else start.phase,
        "progress": start.progress,
        "headless": start.headless,
        "sentence": sentence,
        "stats": {engine: values for log in read for engine, values in log.start.stats().items()},
        "speculation": next((found for log in read if (found := log.start.speculation())), None),
        "exl3": list(dict.fromkeys(line for log in read for line in log.start.exl3)),
        **_common(read),
        **_conclusion(checks),
    }
    return Reading(summary, checks)


def _failed(name: str, expected: str, found: str, fault: Fault, cure: str) -> Check:
    return check(name, "fail", expected, found, cause=fault.code, evidence=fault.evidence, remedy=cure)


def _unfailed(log: Log) -> Check:
    start, expected = log.start, "an engine that serves"
    if not start.lines:
        code, found = "no_engine_line", "no line of an engine"
    elif start.stopped:
        code, found = "stopped", "The engine was stopped in order."
    elif _is_quiet(start):
        code, found = (
            "rank_without_api",
            f"This rank has come to phase {start.phase}; the head says whether they serve.",
        )
    elif start.served:
        cause = "ok_after_restart" if log.failed_before else "ok"
        return check("engine start", "pass", expected, "serving", cause=cause)
    else:
        code, found = "still_loading", f"The start is in phase {start.phase}"
        found += f", {start.progress['done']} of {start.progress['total']}." if start.progress else "."
    return check(
        "engine start",
        "inconclusive",
        expected,
        found,
        cause=code,
        evidence=start.stall_lines,
        remedy=remedy(code),
    )


def _is_quiet(start: Start) -> bool:
    """Whether a rank without an API has said all that it says."""
    return start.headless and PHASES.index(start.phase) >= PHASES.index("kv")


def _common(logs: Sequence[Log]) -> dict[str, Any]:
    """What both summaries say of the logs."""
    return {
        "started": any(log.start.served for log in logs),
        "starts": max((log.starts for log in logs), default=0),
        "vllm_version": next((log.start.version for log in logs if log.start.version), None),
        "rendezvous": next((log.start.rendezvous for log in logs if log.start.rendezvous), None),
        "warnings": [code for code in _WARNINGS if any(code in log.start.warnings for log in logs)],
    }


def _conclusion(checks: Sequence[Check]) -> dict[str, str]:
    verdict = worst(item["verdict"] for item in checks)
    return {"verdict": verdict, "cause": next(item["cause"] for item in checks if item["verdict"] == verdict)}


def judge_pool(
    logs: Sequence[Log], *, platform: str | None = None, min_tokens: int | None = None, max_model_len: int | None = None
) -> Reading:
    """Summary and checks of the KV pool, from logs or from what ``/metrics`` said.

    ``platform`` is gb10, gb300 or generic, found out when None. ``min_tokens`` and ``max_model_len`` are what the user wants
    the pool to hold.
    """
    read = [log for log in logs if log.start.lines]
    metrics = [_kv_pool.from_metrics("\n".join(log.start.metrics)) for log in read if log.start.metrics]
    figures = _kv_pool.smallest([*(log.start.pool.summary() for log in read), *metrics])
    evidence = [line for log in read for line in (*log.start.pool.evidence, *log.start.metrics)][:_MOST_EVIDENCE]
    faults = [fault for log in read if (fault := fault_of(log.start))]
    known = (
        figures["kv_tokens"] is not None or figures["max_concurrency"] is not None or figures["gpu_blocks"] is not None
    )
    if faults:
        fault = min(faults, key=lambda fault: ORDER[fault.code])
        found = _kv_pool.sentence(fault.code, figures) or fault.says
        main = _failed("kv pool", "a pool that holds max-model-len", found, fault, _kv_pool.cure(fault.code, figures))
    elif known:
        cause = "ok_after_restart" if any(log.failed_before for log in read) else "ok"
        main = _kv_pool.told(figures, evidence, cause)
    else:
        running = [
            log.start
            for log in read
            if (log.start.phase != "unknown" or log.start.stall_lines) and not (log.start.served or log.start.stopped)
        ]
        quiet = bool(running) and all(map(_is_quiet, running))
        cause = "rank_without_api" if quiet else "still_loading" if running else "no_kv_pool_line"
        main = _kv_pool.untold(evidence, cause)
    checks = [main, *_kv_pool.wanted(figures, evidence, min_tokens=min_tokens, max_model_len=max_model_len)]
    summary = {
        **figures,
        "largest_len": _kv_pool.largest_len(figures),
        "holds": _kv_pool.describe(figures),
        "platform": platform or _platform(figures["total_gib"]),
        **_common(read),
        **_conclusion(checks),
    }
    return Reading(summary, checks)


def _platform(total_gib: float | None) -> str:
    """What the engine's own figure of the memory says."""
    if total_gib is None:
        return "generic"
    return "gb10" if 118 <= total_gib <= 122 else "gb300" if total_gib >= 240 else "generic"
