# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role verify concludes from what the modules found. Pure: facts in, checks out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils._causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check


def judge_api(pages: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[Check]:
    """Health and models. ``pages`` has ``health`` (status) and ``models`` (the decoded answer of /v1/models)."""
    wanted = recipe["model"]["served_name"]
    names = [str(model.get("id")) for model in (pages.get("models") or {}).get("data", [])]
    listed = ", ".join(names) or "no model"
    health, status = "HTTP 200 of /health", f"HTTP {pages['health']}"
    of_health, of_models = [f"GET /health: {status}"], [f"GET /v1/models: {listed}"]
    return [
        check("api health", "pass", health, status, evidence=of_health)
        if pages["health"] == 200
        else fault("api health", "api_not_healthy", health, status, evidence=of_health),
        check("api model", "pass", f"/v1/models lists {wanted}", listed, evidence=of_models)
        if wanted in names
        else fault("api model", "model_not_served", f"/v1/models lists {wanted}", listed, evidence=of_models),
    ]


def judge_pools(log: Mapping[str, Any], metrics: Mapping[str, Any]) -> Check:
    """Whether the engine's log and its metrics name the same KV pool."""
    said, counted = log.get("kv_tokens"), metrics.get("kv_tokens")
    evidence = [f"log: {said} tokens", f"/metrics: {counted} tokens"]
    name, wanted = "kv pool agrees", "the same pool in log and metrics"
    if said is None or counted is None:
        found = "no pool in the log" if said is None else "no pool in the metrics"
        return fault(name, "kv_pool_not_told", wanted, found, verdict="inconclusive", evidence=evidence)
    if said == counted:
        return check(name, "pass", wanted, f"{said} tokens", evidence=evidence)
    return fault(name, "kv_pool_disagrees", wanted, f"{said} in the log, {counted} in the metrics", evidence=evidence)


def judge_connections(
    connections: Iterable[Mapping[str, Any]], fabric: Mapping[str, Any], others: Iterable[str], ssh_port: int = 22
) -> Check:
    """Whether this rank talks to its peers over the fabric and over nothing else.

    ``connections`` are established TCP connections (``local_address``, ``local_port``, ``peer_address``, ``peer_port``),
    ``others`` the addresses of the peers outside the fabric. Without NCCL, sockets are all the evidence there is.
    """
    peers = {peer["address"] for peer in fabric["peers"]}
    off = set(others) - peers
    lines = {True: [], False: []}  # type: dict[bool, list[str]]
    for item in connections:
        if ssh_port in (item["local_port"], item["peer_port"]):
            continue
        text = f"{item['local_address']}:{item['local_port']} - {item['peer_address']}:{item['peer_port']}"
        if item["peer_address"] in peers and item["local_address"] == fabric["address"]:
            lines[True].append(text)
        elif item["peer_address"] in off | peers:
            lines[False].append(text)
    wanted = f"connections of {fabric['address']} to {', '.join(sorted(peers))} and to no other address of a rank"
    found = f"{len(lines[True])} on the fabric, {len(lines[False])} beside it"
    if lines[False] or not lines[True]:
        cause = "ranks_talk_beside_the_fabric" if lines[False] else "ranks_do_not_talk"
        shown = lines[False] or [f"/proc/net/tcp: none of {fabric['address']}"]
        return fault("transport", cause, wanted, found, evidence=shown[:8])
    return check("transport", "pass", wanted, f"sockets: {found}", evidence=lines[True][:8])


def judge_same(name: str, values: Mapping[str, str]) -> Check:
    """Whether every host has the same value of ``configuration``, ``image`` or ``weights``. ``values`` maps a host to its value."""
    evidence = [f"{host}: {value[:16] or 'nothing'}" for host, value in values.items()]
    wanted = f"one {name} on every rank"
    if len(set(values.values())) == 1 and all(values.values()):
        return check(f"same {name}", "pass", wanted, evidence[0].split(": ")[1], evidence=evidence)
    return fault(f"same {name}", f"different_{name}", wanted, "; ".join(evidence), evidence=evidence)


def judge(found: Mapping[str, Any], recipe: Mapping[str, Any], fabric: Mapping[str, Any]) -> list[Check]:
    """All conclusions that the sections of ``found`` allow: ``pages``, ``pools``, ``connections``, ``same``."""
    checks: list[Check] = []
    if "pages" in found:
        checks += judge_api(found["pages"], recipe)
    if "pools" in found:
        checks.append(judge_pools(found["pools"]["log"], found["pools"]["metrics"]))
    if "connections" in found:
        checks.append(judge_connections(found["connections"], fabric, found["others"]))
    checks += [judge_same(item["name"], item["values"]) for item in found.get("same", [])]
    return checks
