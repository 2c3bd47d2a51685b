"""The recipes' probes: what they ask and expect."""

from __future__ import annotations

import re
from typing import Any

import pytest
from unit.recipe.recipes import NAMES, layers, resolve

from ansible_collections.tandem.serving.plugins.module_utils._canary import judge

PROBES = [
    (name, probe, asked)
    for name in NAMES
    for ranks in layers(name)[-1]["supported_ranks"]
    for probe, asked in resolve(name, ranks)["canary"].items()
]


@pytest.mark.parametrize(("name", "probe", "asked"), PROBES)
def test_no_question_holds_its_answer(name: str, probe: str, asked: dict[str, Any]) -> None:
    content = asked.get("prompt") or asked["messages"][0]["content"]
    question = content if isinstance(content, str) else content[-1]["text"]
    if probe != "answer" or "Reply with" not in question:
        assert not re.search(asked.get("expect", "^$"), question, re.IGNORECASE)


@pytest.mark.parametrize(
    ("name", "probe", "content", "reasoning", "right"),
    [
        ("glm53_flash_exl3", "answer", "OK.", "", True),
        ("glm53_flash_exl3", "answer", "zxq look blorp token", "", False),
        ("glm53_flash_tensorfold", "image", "Red", "", True),
        ("glm53_flash_tensorfold", "image", "Blue.", "a solid colored square", False),
        ("glm53_flash_tensorfold", "thinking", "It is 391.", "17 * 20 = 340", True),
        ("glm53_flash_exl3", "thinking", "17 * 23 is 3910.", "hm", False),
        ("glm53_nvfp4_station", "answer", r"An increase of **50\%**.", "so", True),
        ("glm53_nvfp4_station", "answer", "Q3 was 150%.", "50 %", False),
        ("smollm2_local", "answer", "a comparison", "", False),
    ],
)
def test_only_the_right_answer_passes(name: str, probe: str, content: str, reasoning: str, right: bool) -> None:
    body = {"choices": [{"message": {"content": content, "reasoning": reasoning}}]}
    verdict = judge(probe, resolve(name)["canary"][probe], 200, body, 1.0, {})[0]["verdict"]
    assert (verdict == "pass") is right


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("glm53")])
def test_the_first_probe_is_short_and_waits_for_kernels_to_compile(name: str) -> None:
    canary = resolve(name)["canary"]
    assert next(iter(canary)) == "answer"
    assert canary["answer"]["timeout"] >= 1800
    assert canary["long"]["request"]["temperature"] == 1.0
    assert canary["long"]["request"]["seed"]


@pytest.mark.parametrize("name", ["glm53_flash_exl3", "glm53_flash_tensorfold"])
@pytest.mark.parametrize("speculation", ["dflash", "mtp"])
def test_whoever_serves_flash_is_asked_to_think_and_not_to_and_counted(name: str, speculation: str) -> None:
    canary = resolve(name, speculation=speculation)["canary"]
    assert canary["silent"]["expect_reasoning"] is False
    assert canary["thinking"]["expect_reasoning"] is True
    assert canary["drafts"]["accepted_min"] == 1


def test_without_speculation_steps_are_timed_and_not_counted() -> None:
    probe = resolve("glm53_flash_exl3", speculation="none")["canary"]["drafts"]
    assert "accepted_min" not in probe and "Count" in probe["prompt"]
