"""The chat template of GLM-5.3-Flash: the same prompts as the model was trained on."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import jinja2.sandbox
import pytest
from unit.recipe.recipes import FILES, resolve

IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"
VIDEO = "<|begin_of_video|><|video|><|end_of_video|>"


def render(messages: list[dict[str, Any]], **kwargs: Any) -> str:
    """As transformers renders a template: sandboxed, blocks trimmed, JSON without escapes."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, ensure_ascii=True: json.dumps(value, ensure_ascii=ensure_ascii)
    template = environment.from_string((FILES / "chat_templates" / "glm53_flash.jinja").read_text())
    return template.render(messages=messages, add_generation_prompt=True, **kwargs)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": parts[0] if len(parts) == 1 else list(parts)}


@pytest.mark.parametrize(
    ("messages", "kwargs", "prompt"),
    [
        ([user("Hi")], {}, "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi<|assistant|><think>"),
        (
            [{"role": "system", "content": "System"}, user("Hello")],
            {},
            "[gMASK]<sop><|system|>Reasoning Effort: Max<|system|>System<|user|>Hello<|assistant|><think>",
        ),
        (
            [user("Hi")],
            {"reasoning_effort": "high"},
            "[gMASK]<sop><|system|>Reasoning Effort: High<|user|>Hi<|assistant|><think>",
        ),
        (
            [user("Hi")],
            {"reasoning_effort": "medium"},
            "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi<|assistant|><think>",
        ),
        (
            [user("one"), {"role": "assistant", "content": "a1", "reasoning": "r1"}, user("two")],
            {"reasoning_effort": "low"},
            "[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>one<|assistant|><think>r1</think>a1<|user|>two"
            "<|assistant|><think>",
        ),
        (
            [user("one"), {"role": "assistant", "content": "a1", "reasoning": "r1"}, user("two")],
            {"reasoning_effort": "low", "clear_thinking": True},
            "[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>one<|assistant|><think></think>a1<|user|>two"
            "<|assistant|><think>",
        ),
        ([user("Hi")], {"enable_thinking": False}, "[gMASK]<sop><|user|>Hi<|assistant|><think></think>"),
        (
            [user("Hi"), {"role": "assistant", "content": " Hello "}, user("Again")],
            {"enable_thinking": False},
            "[gMASK]<sop><|user|>Hi<|assistant|><think></think>Hello<|user|>Again<|assistant|><think></think>",
        ),
        (
            [user({"type": "image"}, {"type": "text", "text": "compare"}, {"type": "image"}, {"type": "video"})],
            {"enable_thinking": False},
            f"[gMASK]<sop><|user|>{IMAGE}compare{IMAGE}{VIDEO}<|assistant|><think></think>",
        ),
    ],
)
def test_prompts(messages: list[dict[str, Any]], kwargs: dict[str, Any], prompt: str) -> None:
    assert render(messages, **kwargs) == prompt


def test_tools_are_declared_called_and_answered() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"city": "Hà Nội"}}}
    arguments = {"city": "Hà Nội", "days": 2}
    messages = [
        user("And now?"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "weather", "arguments": arguments}}],
        },
        {"role": "tool", "content": "31"},
        {"role": "tool", "content": [{"type": "text", "text": "32"}]},
    ]
    prompt = render(messages, tools=[tool], enable_thinking=False)
    assert '<tools>\n{"name": "weather", "parameters": {"city": "Hà Nội"}}\n</tools>' in prompt
    assert prompt.endswith(
        "<|user|>And now?<|assistant|><think></think><tool_call>weather<arg_key>city</arg_key><arg_value>Hà Nội</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
        "<|observation|><tool_response>31</tool_response><tool_response>32</tool_response><|assistant|><think></think>"
    )


def test_two_equal_questions_do_not_confuse_what_is_cleared() -> None:
    messages = [user("Go on"), {"role": "assistant", "content": "a", "reasoning": "r"}, user("Go on")]
    prompt = render(messages, clear_thinking=True)
    assert prompt.endswith("<|user|>Go on<|assistant|><think></think>a<|user|>Go on<|assistant|><think>")


def test_the_recipe_brings_the_template_to_the_ranks() -> None:
    recipe = resolve("glm53_flash_exl3")
    assert recipe["serve"]["chat-template"] == "/etc/tandem/files/chat_template.jinja"
    assert recipe["files"]["chat_template.jinja"].startswith("{#-")
