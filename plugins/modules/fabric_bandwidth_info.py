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
      - What runs at once. Each has C(hca), C(gid_index), C(tcp_port) and, on the sender, C(server), the receiver's address.
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
      - {hca: rocep1s0f0, gid_index: 3, tcp_port: 18515, server: 192.168.100.2}
"""

RETURN = r"""
gbps:
  description: Gb/s by device, null where a stream failed.
  returned: always
  type: dict
sent:
  description: Bytes that each device has sent meanwhile, by the port's own counter, null where it has none.
  returned: always
  type: dict
output:
  description: What ib_write_bw printed.
  returned: always
  type: str
"""

import shlex
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _nccl_perf, _rdma

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
    streams, seconds, patience = (module.params[name] for name in ("streams", "seconds", "patience"))
    names = [stream["hca"] for stream in streams]
    if not module.get_bin_path("ib_write_bw"):
        module.exit_json(
            changed=False,
            gbps=dict.fromkeys(names),
            sent=dict.fromkeys(names),
            output="ib_write_bw is not installed: install the package perftest",
        )
    folder = Path(module.tmpdir)
    files = {name: folder / name for name in names}
    script = "".join(
        _SCRIPT.format(
            patience=patience,
            limit=seconds + patience,
            command=command(stream, seconds),
            file=shlex.quote(str(files[stream["hca"]])),
        )
        for stream in streams
    )
    before = {name: sent(name) for name in names}
    module.run_command(["/bin/sh", "-c", f"{script}\nwait"])
    after = {name: sent(name) for name in names}
    said = {name: file.read_text(errors="replace") if file.exists() else "" for name, file in files.items()}
    rates = {name: _nccl_perf.read(text)["bw_avg_gbps"] for name, text in said.items()}
    moved = {name: None if (now := after[name]) is None else now - (before[name] or 0) for name in names}
    module.exit_json(changed=False, gbps=rates, sent=moved, output="\n".join(said.values()))


if __name__ == "__main__":
    main()
