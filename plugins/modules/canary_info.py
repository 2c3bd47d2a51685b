#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a served model something known."""

from __future__ import annotations

DOCUMENTATION = r"""
module: canary_info
short_description: Ask a served model something known, and judge text and counters
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Sends each probe as a chat completion and judges the answer's text, what it repeats, its tool calls, and how many drafted
    tokens the engine accepted meanwhile.
  - Never fails on what the server answers, or on a server that does not answer. The verdicts are in RV(checks).
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
options:
  url:
    description: Where the server listens, without a path.
    type: str
    required: true
  model:
    description: Served name of the model.
    type: str
    required: true
  probes:
    description:
      - Name of a probe to what it asks and expects.
      - A probe has C(prompt) or C(messages), C(max_tokens), and any of C(request) (merged into the request), C(expect) (a regular
        expression), C(expect_tool), C(expect_reasoning), C(tokens_min), C(accepted_min), C(repeats) (the text may repeat itself),
        C(timeout) (seconds, instead of O(timeout)).
    type: dict
    required: true
  api_key:
    description: Key that the API asks for.
    type: str
  timeout:
    description: Seconds that one request may take.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Ask for a capital
  tandem.serving.canary_info:
    url: http://127.0.0.1:8888
    model: smollm2-135m
    probes:
      answer:
        prompt: What is the capital of France?
        max_tokens: 24
        expect: Paris
  register: canary
"""

RETURN = r"""
checks:
  description: One check for each thing that a probe expects.
  returned: always
  type: list
  elements: dict
answers:
  description: Name of a probe to its C(text), C(tokens), C(seconds) and C(status).
  returned: always
  type: dict
"""

import json
import time
import urllib.error
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ansible_collections.tandem.serving.plugins.module_utils import _canary


class Server:
    """The HTTP side of the module."""

    def __init__(self, url: str, api_key: str | None, timeout: int) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def get(self, path: str) -> str:
        """A body, or an empty string when the server does not answer."""
        try:
            return str(open_url(f"{self.url}{path}", timeout=self.timeout).read().decode(errors="replace"))
        except (urllib.error.URLError, OSError):
            return ""

    def post(self, path: str, body: dict[str, Any], timeout: int) -> tuple[int, dict[str, Any]]:
        """Status and decoded body; status 0 when the server does not answer."""
        data = json.dumps(body).encode()
        try:
            answer = open_url(f"{self.url}{path}", data, self.headers, method="POST", timeout=timeout)
            status, raw = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, raw = error.code, error.read()
        except (urllib.error.URLError, OSError) as error:
            return 0, {"error": f"{self.url}{path}: {error}"}
        try:
            decoded = json.loads(raw)
        except ValueError:
            decoded = None
        return status, decoded if isinstance(decoded, dict) else {"error": raw.decode(errors="replace")}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "probes": {"type": "dict", "required": True},
            "api_key": {"type": "str", "no_log": True},
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    server = Server(module.params["url"], module.params["api_key"], module.params["timeout"])
    checks, answers = [], {}
    for name, probe in module.params["probes"].items():
        before = _canary.speculation_counters(server.get("/metrics"))
        started = time.monotonic()
        body = _canary.request_body(probe, module.params["model"])
        status, answer = server.post("/v1/chat/completions", body, probe.get("timeout", module.params["timeout"]))
        seconds = time.monotonic() - started
        after = _canary.speculation_counters(server.get("/metrics"))
        grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
        checks += _canary.judge(name, probe, status, answer, seconds, grown)
        content, reasoning = _canary.answer_text(answer)
        answers[name] = {
            "text": content or reasoning,
            "tokens": (answer.get("usage") or {}).get("completion_tokens", 0),
            "seconds": round(seconds, 2),
            "status": status,
        }
    module.exit_json(changed=False, checks=checks, answers=answers)


if __name__ == "__main__":
    main()
