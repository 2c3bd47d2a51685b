#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the size of an engine's KV pool."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_pool_info
short_description: Read the size of an engine's KV pool
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads how many tokens the engine's KV cache holds, from its log or from its metrics, and judges whether that is enough.
  - Knows the lines of vLLM since V0 and of TensorFold. When a log holds several starts, the last one counts. Of several ranks
    or engines the smallest counts, because every rank holds every request.
  - The size that vLLM prints is a ratio, blocks of the pool by blocks of one request of the maximum length, times that length.
    For a hybrid model it is no count of tokens, because every request takes fixed blocks too. C(summary.holds) says what fits.
  - Never fails on content. Where the log does not tell, the verdict is C(inconclusive).
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
  - tandem.serving.log_source
options:
  metrics_url:
    description:
      - The engine's C(/metrics) page to read instead of a log.
      - The text of such a page can also be given in O(content), or in files of O(paths).
    type: str
  platform:
    description: The machine the log is from. Found out from the log when not given.
    type: str
    choices: [gb10, gb300, generic]
  min_tokens:
    description: How many tokens the pool is wanted to hold.
    type: int
  max_model_len:
    description: How long a request the pool is wanted to hold, in tokens.
    type: int
seealso:
  - module: tandem.serving.engine_log_info
"""

EXAMPLES = r"""
- name: Read the pool of the rank that runs here
  tandem.serving.kv_pool_info:
    journal_unit: tandem-rank.service
    max_model_len: 850000
  register: pool

- name: Read it from the engine's metrics
  tandem.serving.kv_pool_info:
    metrics_url: http://127.0.0.1:8888/metrics

- name: Show the longest request that fits
  ansible.builtin.debug:
    var: pool.summary.largest_len
"""

RETURN = r"""
summary:
  description: The pool and the verdict. A figure that the log does not give is null.
  returned: always
  type: dict
  contains:
    verdict:
      description: C(pass), C(warn), C(fail) or C(inconclusive).
      type: str
    cause:
      description: Code of the reason, as docs/checks.md lists it.
      type: str
    kv_tokens:
      description: The printed size, in tokens.
      type: int
    max_concurrency:
      description: How many requests of C(concurrency_len) fit at a time.
      type: float
    concurrency_len:
      description: The length that C(max_concurrency) is for, in tokens.
      type: int
    holds:
      description: What fits, in a sentence.
      type: str
    largest_len:
      description: The longest request that is known to fit, in tokens.
      type: int
    hybrid:
      description: Whether requests take fixed blocks too, so that the printed size is a ratio only.
      type: bool
    kv_gib:
      description: GiB of the KV cache, the smallest over the ranks.
      type: float
    kv_gib_source:
      description: Where C(kv_gib) comes from, C(profiling), C(kv_cache_memory_bytes), C(cpu), C(pool) or C(error).
      type: str
    kv_gib_per_rank:
      description: GiB of each rank, where the log has several.
      type: dict
    gpu_blocks:
      description: Blocks of the pool.
      type: int
    cpu_blocks:
      description: Blocks of the swap space on the CPU.
      type: int
    block_size:
      description: Tokens of a block.
      type: int
    max_model_len:
      description: The maximum length that the engine was started with, in tokens.
      type: int
    needed_gib:
      description: GiB that one request of the maximum length needs, from the error that says so.
      type: float
    available_gib:
      description: GiB that the same error says there are.
      type: float
    estimated_max_len:
      description: The length that would fit, from the same error.
      type: int
    free_gib:
      description: GiB that were free at the start.
      type: float
    total_gib:
      description: GiB of memory that the engine sees.
      type: float
    utilization:
      description: The share of C(total_gib) that the engine was given.
      type: float
    requested_gib:
      description: The product of the two.
      type: float
    fitting_utilization:
      description: The share that would have been free, where too little was.
      type: float
    graph_profiling:
      description: The share that was C(set), what it is C(equivalent) to, and what is C(suggested), where graph profiling takes memory.
      type: dict
    weights_gib:
      description: GiB of the weights, the largest over the ranks.
      type: float
    platform:
      description: C(gb10), C(gb300) or C(generic).
      type: str
    vllm_version:
      description: Version of vLLM.
      type: str
    started:
      description: Whether the engine came to serve.
      type: bool
    starts:
      description: How many starts the log holds. The last one counts.
      type: int
    rendezvous:
      description: Address and port where the ranks meet.
      type: str
    warnings:
      description: Codes of lines that point to a hang or a lost peer.
      type: list
      elements: str
checks:
  description: One check for the pool and one for each of O(min_tokens) and O(max_model_len), with the lines that prove it.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import fetch_url

from ansible_collections.tandem.serving.plugins.module_utils import _engine_log, _log_source
from ansible_collections.tandem.serving.plugins.module_utils._engine_verdict import judge_pool


def metrics(module: AnsibleModule, url: str) -> str:
    """The page's text."""
    response, info = fetch_url(module, url, timeout=30)
    if info["status"] != 200:
        module.fail_json(
            msg=f"Cannot read {url}: {info['msg']}. Check that the engine serves there, or read its log instead."
        )
    text: str = response.read().decode("utf-8", "replace")
    return text


def main() -> None:
    """Run the module."""
    sources = [(*_log_source.ONE_SOURCE[0], "metrics_url")]
    module = AnsibleModule(
        argument_spec={
            **_log_source.ARGUMENTS,
            "metrics_url": {"type": "str"},
            "platform": {"type": "str", "choices": ["gb10", "gb300", "generic"]},
            "min_tokens": {"type": "int", "no_log": False},
            "max_model_len": {"type": "int"},
        },
        mutually_exclusive=sources,
        required_one_of=sources,
        supports_check_mode=True,
    )
    params = module.params
    if params["metrics_url"]:
        params["content"] = metrics(module, params["metrics_url"])
    try:
        logs = [_engine_log.read(source) for source in _log_source.sources(params)]
    except _log_source.LogError as error:
        module.fail_json(msg=str(error))
    summary, checks = judge_pool(
        logs,
        platform=params["platform"],
        min_tokens=params["min_tokens"],
        max_model_len=params["max_model_len"],
    )
    module.exit_json(changed=False, summary=summary, checks=checks)


if __name__ == "__main__":
    main()
