#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read NCCL logs and judge the transport between ranks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_log_info
short_description: Read NCCL logs and judge the transport between ranks
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads what NCCL wrote with E(NCCL_DEBUG=INFO) and says which transport the ranks really use, with the lines that prove it.
  - Knows the line forms of NCCL 2.18 to 2.30, with any prefix (Ray, vLLM, journald, docker, timestamps, colours), several
    ranks in one log and several starts in one log, of which the last one counts.
  - Never fails on what a log holds. A log that proves nothing gives the verdict V(inconclusive).
  - Logs are streamed, so that their size costs time and no memory.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
  - tandem.serving.log_source
options:
  platform:
    description:
      - The kind of machine that wrote the log. GPUDirect RDMA is expected on V(gb300), and not expected on V(gb10).
      - Found out by default, from the GPU or the product name of the host, and for O(content) from device names in the log.
    type: str
    choices: [gb10, gb300, generic]
seealso:
  - plugin: tandem.serving.nccl_log
    plugin_type: filter
    description: The same for logs on the controller.
"""

EXAMPLES = r"""
- name: Read the logs of this start
  tandem.serving.nccl_log_info:
    paths: [/var/lib/tandem/nccl/*.log]
    since: "{{ unit_start }}"
  register: nccl

- name: Stop when the ranks do not talk over RDMA
  ansible.builtin.assert:
    that: nccl.summary.verdict == 'pass'
    fail_msg: "{{ nccl.summary.cause }}: {{ nccl.checks[0].remedy }}"

- name: Read the journal of the rank
  tandem.serving.nccl_log_info:
    journal_unit: tandem-rank.service
"""

RETURN = r"""
platform:
  description: The platform that the verdict takes into account.
  returned: always
  type: str
summary:
  description: All logs read as one.
  returned: always
  type: dict
  contains:
    verdict:
      description: V(pass), V(warn), V(fail) or V(inconclusive).
      type: str
    cause:
      description: Short code of the reason. docs/checks.md explains each.
      type: str
    pair_verdict:
      description: The same verdict when several logs were read together, else null.
      type: str
    platform:
      description: As above.
      type: str
    nccl_version:
      description: Version of the library, of the last start.
      type: str
    network:
      description: Networks that NCCL chose, in order, for example V(IB), V(Socket) or the name of a plugin.
      type: list
      elements: str
    transport:
      description: V(ib), V(socket), V(mixed) or V(unknown). Every network that is not V(Socket) counts as V(ib).
      type: str
    transport_from:
      description: V(channels) or V(network_line), by which C(transport) is known; null when it is not known.
      type: str
    gdr:
      description: Whether every network channel uses GPUDirect RDMA. Null without network channels.
      type: bool
    gdr_partial:
      description: Whether some network channels use it and some do not.
      type: bool
    net_channels:
      description: Numbers of channel lines C(ib), C(socket) and C(gdr).
      type: dict
    hcas:
      description: RDMA devices in use.
      type: list
      elements: str
    data_direct:
      description: RDMA devices with a Data Direct interface.
      type: list
      elements: str
    oob:
      description: Interface and address for traffic out of band.
      type: str
    bootstrap:
      description: Interface and address where the ranks meet.
      type: str
    ranks:
      description: Ranks that wrote the logs.
      type: list
      elements: int
    nranks:
      description: Ranks of the largest communicator.
      type: int
    peers:
      description: Ranks at the other end of network channels.
      type: list
      elements: int
    communicators:
      description: Numbers of communicators C(started), C(completed) and C(aborted).
      type: dict
    init_complete:
      description: Whether every communicator that was started came up, and none was aborted.
      type: bool
    rings_connected:
      description: Whether a ring was connected.
      type: bool
    processes:
      description: The C(pid) and C(transport) of each process, in order of appearance.
      type: list
      elements: dict
    warn_lines:
      description: Number of lines of level WARN.
      type: int
    warnings:
      description: Short codes of the lines that matter, in order, each once.
      type: list
      elements: str
    gid_index:
      description: GID index of the last failed connection.
      type: int
    local_gid:
      description: Local GID of the last failed connection.
      type: str
    remote_gid:
      description: Remote GID of the last failed connection.
      type: str
files:
  description:
    - Each log by itself. The fields of RV(summary), and C(file), its number of C(lines), C(stale) and C(pair_verdict).
    - C(pair_verdict) is the verdict that the other logs make of it; null when there are no others.
  returned: always
  type: list
  elements: dict
ranks:
  description:
    - Each process that wrote, with C(rank), C(nranks), C(host), C(pid), C(file), C(nccl_version), C(network), C(transport),
      C(gdr), C(hcas), C(bootstrap), C(peers), C(communicators) and the C(settings) that NCCL took from its environment.
    - C(current) is false when a later start of the same rank takes its place.
  returned: always
  type: list
  elements: dict
warning_lines:
  description: The first line of each code, with C(code), C(file), C(line), C(text) and how often it came as C(count).
  returned: always
  type: list
  elements: dict
checks:
  description: All findings as checks, the decisive one first. Evidence has the form C(file:line) and text.
  returned: always
  type: list
  elements: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _log_source, _nccl_log, _nccl_verdict


def host_platform(module: AnsibleModule) -> str | None:
    """The platform of this host; None when neither its GPU nor its product name gives it away."""
    names = ""
    if program := module.get_bin_path("nvidia-smi"):
        names = str(module.run_command([program, "--query-gpu=name", "--format=csv,noheader"])[1])
    product = Path("/sys/class/dmi/id/product_name")
    if product.is_file():
        names += product.read_text(errors="replace")
    if "GB10" in names or "DGX_Spark" in names:
        return "gb10"
    return "gb300" if "GB300" in names else None


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={**_log_source.ARGUMENTS, "platform": {"type": "str", "choices": list(_nccl_verdict.PLATFORMS)}},
        required_one_of=_log_source.ONE_SOURCE,
        mutually_exclusive=_log_source.ONE_SOURCE,
        supports_check_mode=True,
    )
    params = module.params
    platform = params["platform"] or (host_platform(module) if params["content"] is None else None)
    try:
        logs = [_nccl_log.read(source) for source in _log_source.sources(params)]
        since = _log_source.parse_time(params["since"]) if params["since"] else None
    except _log_source.LogError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **_nccl_verdict.judge(logs, platform, since))


if __name__ == "__main__":
    main()
