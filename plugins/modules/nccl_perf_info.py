#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read results of nccl-tests and perftest and judge them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_perf_info
short_description: Read results of nccl-tests and perftest and judge them
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads what C(all_reduce_perf), C(all_gather_perf) and their like print, and C(ib_write_bw) and its like, as text or as JSON.
  - Holds bandwidth and wrong values against what the machines should reach.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
options:
  content:
    description: What the tool printed. Exactly one of O(content) and O(path) is needed.
    type: str
  path:
    description: A file on the host with it.
    type: path
  platform:
    description:
      - The kind of machine. By default found out from the name of the GPU or of the RDMA device, and V(gb10) where the output
        names neither.
    type: str
    choices: [gb10, gb300, generic]
  topology:
    description: How the ranks are connected. By default two ranks are a pair, three a triangle, more a ring.
    type: str
    choices: [pair, triangle, ring, switch]
  min_busbw:
    description:
      - The least bus bandwidth in GB/s that nccl-tests should reach with its largest size.
      - The default is V(21.875) for GB10 in pairs or on a switch and V(10) in triangles and rings, which are NVIDIA's limits, and
        V(38) for a pair of GB300. For other machines there is none, and the verdict is V(inconclusive).
    type: float
  min_gbps:
    description:
      - The least average bandwidth in Gb/s that perftest should reach over one RDMA device.
      - The default is V(90) for GB10, where a device is one half of a port, and V(360) for GB300.
      - JSON of perftest does not name its unit and is read as Gb/s, so run it with C(--report_gbits).
    type: float
"""

EXAMPLES = r"""
- name: Measure
  ansible.builtin.command: ib_write_bw --report_gbits -d rocep1s0f0 -x 3 -D 10 10.0.0.2
  register: measured
  changed_when: false

- name: Judge
  tandem.serving.nccl_perf_info:
    content: "{{ measured.stdout }}"
"""

RETURN = r"""
platform:
  description: The platform whose limits apply.
  returned: always
  type: str
topology:
  description: The topology whose limits apply.
  returned: always
  type: str
summary:
  description: What was measured. Fields of the other tool are null or empty.
  returned: always
  type: dict
  contains:
    verdict:
      description: V(pass), V(warn), V(fail) or V(inconclusive).
      type: str
    cause:
      description: Short code of the reason.
      type: str
    tool:
      description: V(nccl-tests) or V(perftest); null when it is neither.
      type: str
    program:
      description: Name of the test of nccl-tests.
      type: str
    ranks:
      description: Number of ranks of nccl-tests.
      type: int
    gpu:
      description: Name of the first GPU of nccl-tests.
      type: str
    avg_busbw:
      description: Average bus bandwidth in GB/s over all sizes, as nccl-tests prints it.
      type: float
    busbw:
      description: Bus bandwidth in GB/s of the largest size, which is what counts.
      type: float
    wrong:
      description: Number of wrong values; null when they were not checked.
      type: int
    sizes:
      description:
        - Each size of nccl-tests in bytes, with C(time) in microseconds, C(algbw) and C(busbw) in GB/s and C(wrong), and the same
          again in place.
      type: list
      elements: dict
    device:
      description: RDMA device of perftest.
      type: str
    gid_index:
      description: GID index of perftest.
      type: int
    mtu:
      description: Path MTU of perftest in bytes.
      type: int
    bw_avg_gbps:
      description: Best average bandwidth in Gb/s over all sizes of perftest.
      type: float
    bw_peak_gbps:
      description: Peak bandwidth in Gb/s of that size; null when it was not measured.
      type: float
    bidirectional:
      description: Whether perftest measured both directions at once. Its bandwidth is then their sum.
      type: bool
    fault:
      description: The first line in which a tool says what it could not do; null when there is none.
      type: str
    evidence:
      description: The lines that the figures are from, each with its number. Empty for JSON.
      type: list
      elements: str
    messages:
      description: Each size of perftest in bytes, with C(iterations), C(bw_avg_gbps), C(bw_peak_gbps) and C(message_rate_mpps).
      type: list
      elements: dict
checks:
  description: Bandwidth and wrong values as checks.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _log_source, _nccl_perf
from ansible_collections.tandem.serving.plugins.module_utils._check import worst


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "content": {"type": "str"},
            "path": {"type": "path"},
            "platform": {"type": "str", "choices": ["gb10", "gb300", "generic"]},
            "topology": {"type": "str", "choices": ["pair", "triangle", "ring", "switch"]},
            "min_busbw": {"type": "float"},
            "min_gbps": {"type": "float"},
        },
        required_one_of=[("content", "path")],
        mutually_exclusive=[("content", "path")],
        supports_check_mode=True,
    )
    params = module.params
    text = params["content"]
    if text is None:
        try:
            text = _log_source.text(_log_source.from_file(params["path"]))
        except _log_source.LogError as error:
            module.fail_json(msg=str(error))
    found = _nccl_perf.read(text)
    platform = params["platform"] or _nccl_perf.guess_platform(found)
    topology = params["topology"] or _nccl_perf.guess_topology(found)
    source = params["path"] or "content"
    checks = _nccl_perf.judge(found, platform, topology, params["min_busbw"], params["min_gbps"], source)
    verdict = worst(check["verdict"] for check in checks)
    cause = next(check["cause"] for check in checks if check["verdict"] == verdict)
    summary = {**found, "verdict": verdict, "cause": cause}
    module.exit_json(changed=False, platform=platform, topology=topology, summary=summary, checks=checks)


if __name__ == "__main__":
    main()
