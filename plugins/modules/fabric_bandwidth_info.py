#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure RDMA bandwidth between two hosts with ib_write_bw."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_bandwidth_info
short_description: Measure RDMA bandwidth between two hosts with ib_write_bw
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Runs ib_write_bw of perftest over one or several rails at once. Run it on the receiver first, with C(async), then on the sender.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
options:
  streams:
    description:
      - Each has C(hca), C(gid_index), C(tcp_port) and, on the sender, C(server), the receiver's address, and C(group).
      - The sender runs one C(group) after the other, and the streams of a group at once. The receiver waits for all of them.
    type: list
    elements: dict
    required: true
  seconds:
    description: How long each stream runs.
    type: int
    default: 5
  patience:
    description: Seconds that a sender waits for its receiver to listen, and after which a receiver gives up.
    type: int
    default: 30
"""

EXAMPLES = r"""
- name: Send over one half
  tandem.serving.fabric_bandwidth_info:
    streams:
      - {hca: rocep1s0f0, gid_index: 3, tcp_port: 18515, server: 192.168.100.2, group: 0}
"""

RETURN = r"""
runs:
  description:
    - One for each group, with C(gbps) by device, null where a stream failed, C(sent), the bytes that each device has sent meanwhile by the
      port's own counter, null where it has none, and C(output), what ib_write_bw printed.
  returned: always
  type: list
  elements: dict
"""

import shlex
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _fabric_proof, _nccl_perf, _rdma

# A receiver that is not up yet refuses the connection. Everything else is a result.
_SCRIPT = """
{{ for n in $(seq {patience}); do
  timeout {limit} {command} >{file} 2>&1; grep -q "Couldn't connect" {file} || break; sleep 1
done; }} &
"""


def sent(hca: str) -> int | None:
    """Bytes that a port has sent. The counter is in units of four bytes."""
    words = _rdma.number(Path("/sys/class/infiniband") / hca / "ports/1/counters/port_xmit_data")
    return None if words is None else words * 4


def command(stream: dict[str, Any], seconds: int) -> str:
    """One call of ib_write_bw."""
    words = ["ib_write_bw", "--ib-dev", stream["hca"], "--port", str(stream["tcp_port"]), "--duration", str(seconds)]
    words += ["--report_gbits", "--CPU-freq"]
    if stream.get("gid_index") is not None:
        words += ["--gid-index", str(stream["gid_index"])]
    return shlex.join([*words, *([stream["server"]] if stream.get("server") else [])])


def run(module: AnsibleModule, streams: list[dict[str, Any]], seconds: int, limit: int) -> dict[str, Any]:
    """Run the streams of one group at once."""
    files = [Path(module.tmpdir) / str(stream["tcp_port"]) for stream in streams]
    script = "".join(
        _SCRIPT.format(
            patience=module.params["patience"],
            limit=limit,
            command=command(stream, seconds),
            file=shlex.quote(str(file)),
        )
        for stream, file in zip(streams, files, strict=True)
    )
    names = [stream["hca"] for stream in streams]
    before = {name: sent(name) for name in names}
    module.run_command(["/bin/sh", "-c", f"{script}\nwait"])
    after = {name: sent(name) for name in names}
    said = [file.read_text(errors="replace") if file.exists() else "" for file in files]
    return {
        "gbps": {name: _nccl_perf.read(text)["bw_avg_gbps"] for name, text in zip(names, said, strict=True)},
        "sent": {name: None if (now := after[name]) is None else now - (before[name] or 0) for name in names},
        "output": "\n".join(said),
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "streams": {"type": "list", "elements": "dict", "required": True},
            "seconds": {"type": "int", "default": 5},
            "patience": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    seconds, patience = module.params["seconds"], module.params["patience"]
    groups: dict[int, list[dict[str, Any]]] = {}
    for stream in module.params["streams"]:
        groups.setdefault(int(stream.get("group", 0)), []).append(stream)
    if not module.get_bin_path("ib_write_bw"):
        runs = [
            {"gbps": {one["hca"]: None for one in group}, "sent": {}, "output": _fabric_proof.MISSING}
            for group in groups.values()
        ]
    elif module.params["streams"][0].get("server"):
        runs = [run(module, group, seconds, seconds + patience) for group in groups.values()]
    else:
        everything = module.params["streams"]
        runs = [run(module, everything, seconds, patience + len(everything) * (seconds + 15))]
    module.exit_json(changed=False, runs=runs)


if __name__ == "__main__":
    main()
