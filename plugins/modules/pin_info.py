#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask what tags and branches are now."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pin_info
short_description: Ask what tags of images and branches of models are now
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Asks registries for the digests of tags, and the hub for the commits of branches, without fetching either.
  - Never fails on what they answer. What cannot be pinned is in RV(checks).
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
options:
  images:
    description: Images by tag.
    type: list
    elements: str
    default: []
  revisions:
    description: Branches of model repositories.
    type: list
    elements: dict
    default: []
    suboptions:
      repo:
        description: Name of the repository.
        type: str
        required: true
      revision:
        description: Branch or tag.
        type: str
        default: main
  endpoint:
    description: Address of the hub.
    type: str
    default: https://huggingface.co
  token:
    description: Token for the hub.
    type: str
  timeout:
    description: Seconds that one request may take.
    type: int
    default: 30
"""

EXAMPLES = r"""
- name: Ask for the digest of the engine's image
  tandem.serving.pin_info:
    images: [vllm/vllm-openai:v0.30.0-aarch64]
  register: pins
"""

RETURN = r"""
images:
  description: Name with tag to digest.
  returned: always
  type: dict
  sample: {"vllm/vllm-openai:v0.30.0-aarch64": "sha256:..."}
revisions:
  description: C(repo@branch) to commit.
  returned: always
  type: dict
checks:
  description: One check for each image and branch.
  returned: always
  type: list
  elements: dict
"""

import functools
import urllib.error
from collections.abc import Callable, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ansible_collections.tandem.serving.plugins.module_utils import _pin
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check


def fetch(method: str, url: str, headers: Mapping[str, str], timeout: int) -> _pin.Answer:
    """One HTTP request; a server that does not answer is an answer too."""
    try:
        answer = open_url(url, method=method, headers=dict(headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        answer = error
    except (urllib.error.URLError, OSError) as error:
        return _pin.Answer(0, {}, str(error))
    named = {str(name).lower(): str(value) for name, value in answer.headers.items()}
    return _pin.Answer(int(answer.status), named, answer.read().decode(errors="replace"))


def pin(name: str, find: Callable[[], str], found: dict[str, str]) -> Check:
    """Find one pin and remember it."""
    try:
        found[name] = find()
    except (_pin.PinError, ValueError) as error:
        return check(
            f"pin {name}", "fail", "a pin", str(error), cause="not_pinned", remedy=str(error).rsplit(". ", 1)[-1]
        )
    return check(f"pin {name}", "pass", "a pin", found[name])


def main() -> None:
    """Entry point."""
    revision = {"repo": {"type": "str", "required": True}, "revision": {"type": "str", "default": "main"}}
    module = AnsibleModule(
        argument_spec={
            "images": {"type": "list", "elements": "str", "default": []},
            "revisions": {"type": "list", "elements": "dict", "default": [], "options": revision},
            "endpoint": {"type": "str", "default": "https://huggingface.co"},
            "token": {"type": "str", "no_log": True},
            "timeout": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    asked = module.params

    def get(method: str, url: str, headers: Mapping[str, str]) -> _pin.Answer:
        return fetch(method, url, headers, asked["timeout"])

    images: dict[str, str] = {}
    revisions: dict[str, str] = {}
    checks = [pin(name, functools.partial(_pin.image_digest, name, get), images) for name in asked["images"]]
    for item in asked["revisions"]:
        find = functools.partial(
            _pin.commit, item["repo"], item["revision"], asked["endpoint"], asked["token"] or "", get
        )
        checks.append(pin(f"{item['repo']}@{item['revision']}", find, revisions))
    module.exit_json(changed=False, images=images, revisions=revisions, checks=checks)


if __name__ == "__main__":
    main()
