# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The canary: a real request whose text and counters have to be right.

A health endpoint only says that the API's process lives; it stays 200 with a dead rank and with a model that answers
``!!!!``. A probe asks for something known and looks at the words, at what repeats, and at the engine's own counters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils._causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check
from ansible_collections.tandem.serving.plugins.module_utils._metrics import samples

# A text that ends in this many copies of one piece, over this many characters or more, is that of a model that is stuck.
_COPIES = 6
_CHARACTERS = 24
# So is one with such a run of a character anywhere, unless a ruler is drawn with it.
_RUN = re.compile(r"([^\s\-=_*#.~+|\u2014\u2500-\u257f])\1{%d,}" % (_CHARACTERS - 1))
# The engines' counters of speculative decoding. vLLM has none where it does not speculate.
_COUNTERS = {
    "tensorfold_health:rounds_total": "drafts",
    "tensorfold:mtp_drafted_total": "drafted",
    "tensorfold:mtp_accepted_total": "accepted",
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
}


def request_body(probe: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The chat completion request of a probe: greedy, not streamed, with what the probe's ``request`` adds on top."""
    messages = probe.get("messages") or [{"role": "user", "content": probe["prompt"]}]
    return {
        "model": model,
        "messages": messages,
        "max_tokens": probe["max_tokens"],
        "temperature": 0,
        **probe.get("request", {}),
    }


def speculation_counters(metrics: str) -> dict[str, float]:
    """``drafts``, ``drafted`` and ``accepted`` tokens in the text of ``/metrics``, summed over engines."""
    totals: dict[str, float] = {}
    for sample in samples(metrics, *_COUNTERS):
        name = _COUNTERS[sample.name]
        totals[name] = totals.get(name, 0.0) + sample.value
    return totals


def repetition(text: str) -> str:
    """What the text repeats without end, or an empty string."""
    if run := _RUN.search(text):
        return run.group(1)
    tail = " ".join(text.split())
    for size in range(1, len(tail) // _COPIES + 1):
        piece = tail[-size:]
        if tail.endswith(piece * max(_COPIES, -(-_CHARACTERS // size))):
            return piece.strip()
    return ""


def answer_text(answer: Mapping[str, Any]) -> tuple[str, str]:
    """Content and reasoning of a chat completion. Engines differ in the name of the second field."""
    message = (answer.get("choices") or [{}])[0].get("message") or {}
    return message.get("content") or "", message.get("reasoning") or message.get("reasoning_content") or ""


def _tool_names(answer: Mapping[str, Any]) -> list[str]:
    message = (answer.get("choices") or [{}])[0].get("message") or {}
    return [call["function"]["name"] for call in message.get("tool_calls") or []]


def judge(
    name: str,
    probe: Mapping[str, Any],
    status: int,
    answer: Mapping[str, Any],
    seconds: float,
    counters: Mapping[str, float],
) -> list[Check]:
    """Judge the answer to one probe.

    ``status`` is the HTTP status (0 when no answer came), ``answer`` the decoded body, ``counters`` what the engine's
    speculation counters grew by while the probe ran (``drafts``, ``drafted``, ``accepted``; empty when there are none).
    """
    tokens = (answer.get("usage") or {}).get("completion_tokens", 0)
    evidence = [f"POST /v1/chat/completions: HTTP {status} in {seconds:.1f} s"]
    if tokens:
        evidence[0] += f", {tokens} tokens of {seconds * 1000 / tokens:.0f} ms"
    if status != 200:
        detail = str(answer.get("error", answer) or "no answer")
        found = f"HTTP {status}: {detail[:300]}" if status else detail[:300]
        return [fault(f"canary {name}", "canary_request_failed", "HTTP 200", found, evidence=evidence)]
    content, reasoning = answer_text(answer)
    said = " ".join((content or reasoning).split())
    evidence.append(f"answer: {said[:300]}")
    checks = [_judge_text(name, probe, content, reasoning, _tool_names(answer), tokens, evidence)]
    if "accepted_min" in probe:
        checks.append(_judge_drafts(name, probe, counters, seconds, evidence))
    return checks


def _judge_text(
    name: str,
    probe: Mapping[str, Any],
    content: str,
    reasoning: str,
    tools: list[str],
    tokens: int,
    evidence: list[str],
) -> Check:
    expected = [f"text matching '{probe['expect']}'"] if "expect" in probe else []
    expected += [f"a call of {probe['expect_tool']}"] if "expect_tool" in probe else []
    expected += [f"at least {probe['tokens_min']} tokens"] if "tokens_min" in probe else []
    expected += ["reasoning" if probe["expect_reasoning"] else "no reasoning"] if "expect_reasoning" in probe else []
    wanted = ", ".join(expected) or "an answer"

    def wrong(cause: str, found: str) -> Check:
        return fault(f"canary {name}", cause, wanted, found, evidence=evidence)

    # What it thought may name the answer and still not be it.
    text = (content or reasoning).strip()
    if not text and not tools:
        return wrong("canary_empty", "an empty answer")
    stuck = "" if probe.get("repeats") else repetition(content) or repetition(reasoning)
    if stuck:
        return wrong("canary_repeats", f"'{stuck}' over and over")
    if "expect" in probe and not re.search(probe["expect"], text, re.IGNORECASE):
        return wrong("canary_wrong_text", f"'{text[:120]}'")
    if "expect_tool" in probe and probe["expect_tool"] not in tools:
        return wrong("canary_no_tool_call", f"calls of {tools or 'nothing'}")
    if "tokens_min" in probe and tokens < probe["tokens_min"]:
        return wrong("canary_too_short", f"{tokens} tokens")
    if "expect_reasoning" in probe and bool(reasoning) != probe["expect_reasoning"]:
        return wrong("canary_thinking_switch", "reasoning" if reasoning else "no reasoning")
    return check(
        f"canary {name}", "pass", wanted, f"{tokens} tokens: '{' '.join(text.split())[:80]}'", evidence=evidence
    )


def _judge_drafts(
    name: str, probe: Mapping[str, Any], counters: Mapping[str, float], seconds: float, evidence: list[str]
) -> Check:
    wanted = f"at least {probe['accepted_min']} drafted tokens accepted"
    if not counters:
        found = "the engine counts no drafts"
        return fault(
            f"canary {name} drafts", "canary_no_drafts", wanted, found, verdict="inconclusive", evidence=evidence
        )
    drafted, accepted = int(counters.get("drafted", 0)), int(counters.get("accepted", 0))
    lines = [*evidence, f"/metrics: {drafted} tokens drafted, {accepted} accepted"]
    if counters.get("drafts"):
        lines.append(f"{seconds * 1000 / counters['drafts']:.0f} ms a step over {int(counters['drafts'])} steps")
    if accepted >= probe["accepted_min"]:
        return check(f"canary {name} drafts", "pass", wanted, f"{accepted} of {drafted}", evidence=lines)
    cause = "canary_no_drafts_accepted" if drafted else "canary_no_drafts"
    return fault(f"canary {name} drafts", cause, wanted, f"{accepted} of {drafted}", evidence=lines)
