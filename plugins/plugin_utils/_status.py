# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of all ranks in one table. Pure: what was asked in, text out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils import _kv_pool
from ansible_collections.tandem.serving.plugins.module_utils._canary import speculation_counters
from ansible_collections.tandem.serving.plugins.module_utils._metrics import samples

_COLUMNS = ("rank", "host", "unit", "since", "image", "config", "transport")


def served(metrics: str) -> dict[str, str]:
    """KV pool, requests and acceptance from the text of ``/metrics``, each "unknown" where the engine does not say."""
    found = {"KV pool": "unknown", "requests": "unknown", "acceptance": "no drafts counted"}
    running = [sample.value for sample in samples(metrics, "vllm:num_requests_running", "tensorfold_health:busy")]
    waiting = [sample.value for sample in samples(metrics, "vllm:num_requests_waiting")]
    if running:
        found["requests"] = f"{sum(running):.0f} running, {sum(waiting):.0f} waiting"
    if (tokens := _kv_pool.from_metrics(metrics)["kv_tokens"]) is not None:
        found["KV pool"] = f"{tokens:,} tokens"
    counters = speculation_counters(metrics)
    if counters.get("drafted"):
        rate = counters.get("accepted", 0) / counters["drafted"]
        found["acceptance"] = f"{rate:.0%} of {counters['drafted']:.0f} drafted tokens"
    return found


def open_requests(metrics: str) -> int:
    """Requests that run or wait, by the text of ``/metrics``; 0 when nothing answered."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "tensorfold_health:busy")
    return int(sum(sample.value for sample in samples(metrics, *names)))


def state(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """What rank_ctl told on a host; None when it told nothing."""
    said = str(answer.get("stdout", ""))
    return dict(json.loads(said)) if said.startswith("{") else None


def silence(answer: Mapping[str, Any]) -> str:
    """Why a host told nothing, and what to do."""
    said = str(answer.get("stderr") or answer.get("msg") or "no answer").strip()
    if "rank_ctl.py" in said and "No such file" in said:
        return "nothing is installed here: run site.yml"
    return said.splitlines()[-1]


def transport(planned: str, summary: Mapping[str, Any]) -> str:
    """How a rank talks: what NCCL wrote in this start, as nccl_log_info sums it up. Without RDMA there is only the plan."""
    if planned != "rdma":
        return planned
    return " ".join([summary["transport"], *summary["hcas"]]) if summary else "unknown"


def row(rank: int, host: str, state: Mapping[str, Any] | None, transport: str) -> dict[str, str]:
    """One rank's line. ``state`` is what rank_ctl told, None when it could not be asked."""
    if state is None:
        return dict(zip(_COLUMNS, (str(rank), host, "cannot be asked", "", "", "", ""), strict=True))
    unit = state["active"] if state["active"] == "active" else f"{state['active']} ({state['result']})"
    image = str(state["image"]).rsplit("/", 1)[-1].replace("@sha256:", "@")[:40]
    return dict(
        zip(
            _COLUMNS,
            (str(rank), host, unit, state["since"], image, state["shared_hash"][:12], transport),
            strict=True,
        )
    )


def runs(states: Mapping[str, Any], name: str) -> str:
    """What the containers that run are labelled with, by host where they differ."""
    if not any(states.values()):
        return "unknown"
    found = {host: state[name] for host, state in states.items() if state and state[name]}
    if len(set(found.values())) > 1:
        return ", ".join(f"{value} on {host}" for host, value in found.items())
    return next(iter(found.values()), "nothing runs")


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """The ranks as aligned text."""
    widths = {name: max(len(name), *(len(line[name]) for line in rows)) for name in _COLUMNS}
    lines = [{name: name for name in _COLUMNS}, *rows]
    return "\n".join("  ".join(line[name].ljust(widths[name]) for name in _COLUMNS).rstrip() for line in lines)


def _oddities(states: Mapping[str, Any]) -> list[str]:
    """What a person should know of a rank that may serve all the same."""
    found = []
    for host, state in states.items():
        if state is None:
            continue
        found += [] if state["docker"] else [f"{host}: Docker does not answer"]
        found += [f"{host}: {file} changed since site.yml wrote it" for file in state.get("changed", [])]
        found += [f"{host}: {link}" for link in state.get("down", [])]
        found += [f"{host}: does not run: {state['refused']}"] if state.get("refused") else []
    return found


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="seconds")


def status(
    answers: Mapping[str, Mapping[str, Any]],
    metrics: str,
    supervisor: Mapping[str, Any],
    planned: str,
    nccl: Mapping[str, Mapping[str, Any]],
) -> str:
    """The whole answer. ``answers`` maps the hosts, in rank order, to what came of ``rank_ctl state``; ``supervisor`` is its
    state file with the state of its ``unit``; ``nccl`` maps hosts to summaries of nccl_log_info."""
    states = {host: state(answer) for host, answer in answers.items()}
    rows = [row(rank, host, states[host], transport(planned, nccl.get(host, {}))) for rank, host in enumerate(states)]
    told = {name: runs(states, name) for name in ("recipe", "model")}
    lines = [f"{name}: {value}" for name, value in {**told, **served(metrics)}.items()]
    if not supervisor["unit"]:
        lines.append("supervisor: unknown")
    elif "action" in supervisor:
        said = f"{supervisor['action']}, {supervisor['reason']} ({_time(supervisor['when'])})"
        lines.append(f"supervisor ({supervisor['unit']}): {said}")
        if supervisor.get("fault"):
            times = f"{_time(supervisor['fault_at'])}; {supervisor['heals']} starts since the supervisor began"
            lines.append(f"last failure: {supervisor['fault']} ({times})")
    else:
        lines.append(f"supervisor ({supervisor['unit']}): has decided nothing yet")
    silent = [f"{host}: {silence(answers[host])}" for host in states if states[host] is None]
    return "\n".join([table(rows), "", *lines, *_oddities(states), *silent])
