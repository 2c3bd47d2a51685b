"""The canary's verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.module_utils._canary import (
    judge,
    repetition,
    request_body,
    speculation_counters,
)

PROBE: dict[str, Any] = {"prompt": "Capital of France?", "max_tokens": 24, "expect": "paris"}


def answer(content: str | None, **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content, **message}}], "usage": {"completion_tokens": 7}}


CALL = [{"function": {"name": "get_weather"}}]


@pytest.mark.parametrize(
    ("probe", "status", "body", "verdict", "cause"),
    [
        (PROBE, 200, answer("It is Paris."), "pass", "ok"),
        (PROBE, 200, answer(None, reasoning="Paris, surely."), "pass", "ok"),
        (PROBE, 200, answer("It is Rome."), "fail", "canary_wrong_text"),
        (PROBE, 200, answer("Rome.", reasoning="Paris, surely."), "fail", "canary_wrong_text"),
        (PROBE, 200, answer("Paris", reasoning="hm " * 40), "fail", "canary_repeats"),
        (PROBE, 200, answer(""), "fail", "canary_empty"),
        (PROBE, 200, answer("Paris " + "!" * 40), "fail", "canary_repeats"),
        (PROBE, 200, {}, "fail", "canary_empty"),
        (PROBE, 500, {"error": "EngineCore encountered an issue"}, "fail", "canary_request_failed"),
        (PROBE, 0, {"error": "connection refused"}, "fail", "canary_request_failed"),
        ({**PROBE, "tokens_min": 8}, 200, answer("Paris"), "fail", "canary_too_short"),
        ({**PROBE, "tokens_min": 7}, 200, answer("Paris"), "pass", "ok"),
        ({"expect_tool": "get_weather"}, 200, answer(None, tool_calls=CALL), "pass", "ok"),
        ({"expect_tool": "get_time"}, 200, answer(None, tool_calls=CALL), "fail", "canary_no_tool_call"),
        ({**PROBE, "expect_reasoning": False}, 200, answer("Paris", reasoning="hm"), "fail", "canary_thinking_switch"),
        ({**PROBE, "expect_reasoning": True}, 200, answer("Paris", reasoning="hm"), "pass", "ok"),
        ({"repeats": True}, 200, answer("1, 2, 1, 2, " * 20), "pass", "ok"),
    ],
)
def test_the_text(probe: dict[str, Any], status: int, body: dict[str, Any], verdict: str, cause: str) -> None:
    (found,) = judge("x", probe, status, body, 1.0, {})
    assert (found["verdict"], found["cause"]) == (verdict, cause)
    assert bool(found["remedy"]) == (verdict == "fail")
    assert found["evidence"]


@pytest.mark.parametrize(
    ("counters", "verdict", "cause"),
    [
        ({"drafts": 10, "drafted": 40, "accepted": 36}, "pass", "ok"),
        ({"drafts": 10, "drafted": 40, "accepted": 0}, "fail", "canary_no_drafts_accepted"),
        ({"drafts": 0, "drafted": 0, "accepted": 0}, "fail", "canary_no_drafts"),
        ({}, "inconclusive", "canary_no_drafts"),
    ],
)
def test_the_drafts(counters: dict[str, float], verdict: str, cause: str) -> None:
    found = judge("x", {**PROBE, "accepted_min": 1}, 200, answer("Paris"), 2.0, counters)[1]
    assert (found["verdict"], found["cause"]) == (verdict, cause)


def test_milliseconds_of_a_step_are_in_the_evidence() -> None:
    found = judge("x", {**PROBE, "accepted_min": 1}, 200, answer("Paris"), 2.0, {"drafts": 10, "accepted": 5})[1]
    assert "200 ms a step over 10 steps" in found["evidence"]


@pytest.mark.parametrize(
    ("text", "stuck"),
    [
        ("a fine sentence about a fine day", ""),
        ("!" * 30, "!"),
        ("!" * 30 + " Paris", "!"),
        ("so " + "over and over " * 8, "over and over"),
        (
            "This is a sentence of thirteen words that ends and then begins again. " * 20,
            "This is a sentence of thirteen",
        ),
        ("这是一个测试。" * 20, "这是一个测试。"),
        ("ab" * 50, "ab"),
        ("no no no", ""),
        ("1, " * 5, ""),
        ("| a | b |\n|" + "-" * 60 + "|\n| 1 | 2 |", ""),
        ("─" * 60 + "\nParis", ""),
        (", ".join(str(number) for number in range(1, 61)), ""),
        ("", ""),
    ],
)
def test_repetition(text: str, stuck: str) -> None:
    assert repetition(text).startswith(stuck) and bool(repetition(text)) == bool(stuck)


def test_milliseconds_of_a_token_are_told_where_nothing_is_drafted() -> None:
    (found,) = judge("x", PROBE, 200, answer("Paris"), 0.7, {})
    assert "7 tokens of 100 ms" in found["evidence"][0]


def test_a_probe_may_replace_what_the_request_says() -> None:
    body = request_body(
        {**PROBE, "request": {"temperature": 1, "chat_template_kwargs": {"enable_thinking": False}}}, "m"
    )
    assert body["temperature"] == 1
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["messages"] == [{"role": "user", "content": "Capital of France?"}]


def test_counters_are_summed_over_engines_and_absent_without_speculation() -> None:
    line = 'vllm:spec_decode_num_accepted_tokens_total{{engine="{0}",model_name="m"}} {1}\n'
    assert speculation_counters(line.format(0, 36.0) + line.format(1, 4.0)) == {"accepted": 40.0}
    rounds = "tensorfold:mtp_drafted_total 40\ntensorfold:mtp_accepted_total 36\ntensorfold_health:rounds_total 10\n"
    assert speculation_counters(rounds) == {"drafts": 10, "drafted": 40, "accepted": 36}
    assert speculation_counters("vllm:num_requests_running 1\n") == {}
