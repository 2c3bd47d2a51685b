#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read how far an engine's last start came, and what ended it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_log_info
short_description: Read how far an engine's last start came, and what ended it
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads the log of vLLM or TensorFold, with what systemd, docker and the kernel write beside it, and says in one sentence why the
    last start failed.
  - What was reported before the engine came to serve did not end it, and what a request causes afterwards does not count either.
  - Never fails on content. While the start is under way, the verdict is C(inconclusive).
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
  - tandem.serving.log_source
options:
  exit_status:
    description:
      - The exit status of the engine's process, as docker or systemd tells it, if it has ended.
      - It explains logs that say nothing, such as 132 (an instruction that the CPU lacks) and 137 (killed).
    type: int
  kernel:
    description: Read the kernel's messages of this boot as well, for killed processes and faults of the GPU.
    type: bool
    default: false
  error_lines:
    description: How many of the engine's own last error lines to return.
    type: int
    default: 20
seealso:
  - module: tandem.serving.kv_pool_info
  - module: tandem.serving.nccl_log_info
"""

EXAMPLES = r"""
- name: Find out why the rank that runs here does not serve
  tandem.serving.engine_log_info:
    journal_unit: tandem-rank.service
    kernel: true
  register: engine

- name: Say it
  ansible.builtin.fail:
    msg: "{{ engine.summary.sentence }}"
  when: engine.summary.verdict == 'fail'
"""

RETURN = r"""
summary:
  description: The last start and the verdict.
  returned: always
  type: dict
  contains:
    verdict:
      description: C(pass), C(warn), C(fail) or C(inconclusive).
      type: str
    cause:
      description: Code of the reason, as docs/checks.md lists it.
      type: str
    sentence:
      description: What ended the start, or how far it is. Empty when the engine serves.
      type: str
    phase:
      description:
        - C(unknown), C(image), C(starting), C(rendezvous), C(loading), C(profiling), C(kv), C(graph_capture), C(warmup), C(serving) or
          C(stopped).
      type: str
    progress:
      description: How much of the weights is loaded, as C(done), C(total) and C(percent).
      type: dict
    started:
      description: Whether the engine came to serve.
      type: bool
    starts:
      description: How many starts the log holds. The last one counts.
      type: int
    headless:
      description: Whether this is a rank without an API.
      type: bool
    vllm_version:
      description: Version of vLLM.
      type: str
    rendezvous:
      description: Address and port where the ranks meet.
      type: str
    stats:
      description: The last statistics line of each engine, by its number.
      type: dict
    speculation:
      description: The last line about drafts, with acceptance length and rates.
      type: dict
    exl3:
      description: What the EXL3 kernels said of themselves.
      type: list
      elements: str
    warnings:
      description: Codes of lines that point to a hang or a lost peer.
      type: list
      elements: str
checks:
  description: A check of the start, with the lines that prove it, and one of the EXL3 kernels where they are degraded.
  returned: always
  type: list
  elements: dict
last_errors:
  description: The engine's own last error lines.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _engine_log, _log_source
from ansible_collections.tandem.serving.plugins.module_utils._engine_verdict import judge


def kernel_messages(module: AnsibleModule) -> _log_source.Source:
    """What the kernel has said since it booted."""
    command = ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output", "cat"]
    if module.params["since"]:
        command += ["--since", f"@{_log_source.parse_time(module.params['since']):.0f}"]
    code, output, error = module.run_command(command)
    if code:
        raise _log_source.LogError(
            f"Cannot read the kernel's messages: {error.strip()}. Become root, or set kernel to false."
        )
    return _log_source.from_text("kernel", output)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **_log_source.ARGUMENTS,
            "exit_status": {"type": "int"},
            "kernel": {"type": "bool", "default": False},
            "error_lines": {"type": "int", "default": 20},
        },
        mutually_exclusive=_log_source.ONE_SOURCE,
        required_one_of=_log_source.ONE_SOURCE,
        supports_check_mode=True,
    )
    params = module.params
    try:
        logs = [_engine_log.read(source, params["error_lines"]) for source in _log_source.sources(params)]
        if params["kernel"]:
            logs.append(_engine_log.read(kernel_messages(module), params["error_lines"]))
    except _log_source.LogError as error:
        module.fail_json(msg=str(error))
    summary, checks = judge(logs, params["exit_status"])
    last_errors = [line for log in logs for line in log.last_errors]
    module.exit_json(changed=False, summary=summary, checks=checks, last_errors=last_errors)


if __name__ == "__main__":
    main()
