#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather what a rank needs of its host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Gather what a rank needs of its host
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads memory, disks, listening ports, page size, swappiness, the IPC setting of logind, processor flags and GPUs.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.attributes.info
options:
  container:
    description: Name of the rank's container, to tell its own sockets from those of others.
    type: str
    default: tandem-rank
  paths:
    description: Paths whose free space is wanted. A path need not exist yet.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Look at the host
  tandem.serving.host_info:
    paths: [/var/lib/tandem, /var/lib/docker]
  register: host
"""

RETURN = r"""
memory:
  description: Bytes of C(total), C(available) and C(free) memory, and C(cma_total) and C(cma_free), of contiguous memory.
  returned: always
  type: dict
disks:
  description: For each of O(paths) its C(path), C(mount) point and C(free) bytes.
  returned: always
  type: list
  elements: dict
listeners:
  description: Listening TCP sockets, each with C(address), C(port), C(process), C(pid) and C(own), whether it is the rank itself.
  returned: always
  type: list
  elements: dict
page_size:
  description: Bytes of a memory page.
  returned: always
  type: int
swappiness:
  description: The value of vm.swappiness.
  returned: always
  type: int
remove_ipc:
  description: Whether logind removes the IPC objects of a user whose last session ends.
  returned: always
  type: bool
cpu_flags:
  description: Flags of the processor.
  returned: always
  type: list
  elements: str
gpus:
  description:
    - GPUs that nvidia-smi lists, each with C(name), C(uuid), C(driver), C(memory) and C(used) of it in bytes, and C(stuck), whether it
      asks for a reset.
  returned: always
  type: list
  elements: dict
gpu_processes:
  description: Processes that compute on GPUs, each with C(gpu), its UUID, C(pid), C(process) and C(own), whether it is the rank itself.
  returned: always
  type: list
  elements: dict
boot_id:
  description: Identifier of this boot.
  returned: always
  type: str
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _host


def disk(path: str) -> _host.Disk:
    """Free space under a path, by its nearest parent that exists."""
    place = Path(path)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    while not place.is_mount():
        place = place.parent
    return _host.Disk(path=path, mount=str(place), free=free)


def removes_ipc() -> bool:
    """The last RemoveIPC of logind's configuration; its built-in value is yes."""
    files = [Path("/etc/systemd/logind.conf"), *sorted(Path("/etc/systemd/logind.conf.d").glob("*.conf"))]
    said = [re.findall(r"^RemoveIPC=(\w+)", file.read_text(), re.MULTILINE) for file in files if file.is_file()]
    values = [value for found in said for value in found]
    return not values or values[-1].lower() in ("yes", "true", "1", "on")


def namespace(pid: int) -> str:
    """The PID namespace of a process, or nothing when there is no such process."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def output(module: AnsibleModule, *words: str) -> str:
    """What a program prints, or nothing where it is missing or fails."""
    path = module.get_bin_path(words[0])
    if not path:
        return ""
    code, text, _error = module.run_command([path, *words[1:]])
    return str(text) if code == 0 else ""


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "default": "tandem-rank"},
            "paths": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    listeners = _host.parse_listeners(output(module, "ss", "-Hltnp"))
    rank = output(module, "docker", "inspect", "--format", "{{.State.Pid}}", module.params["container"]).strip()
    own = namespace(int(rank)) if rank.isdigit() else ""
    apps = ("--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader")
    processes = _host.parse_gpu_processes(output(module, "nvidia-smi", *apps))
    for item in (*listeners, *processes):
        item["own"] = bool(own) and namespace(item["pid"]) == own
    memory = _host.parse_meminfo(Path("/proc/meminfo").read_text())
    cpu = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    query = ("--query-gpu=name,uuid,driver_version,memory.total,memory.used", "--format=csv,noheader")
    result: dict[str, Any] = {
        "memory": {
            "total": memory["MemTotal"],
            "available": memory.get("MemAvailable", memory["MemFree"]),
            "free": memory["MemFree"],
            "cma_total": memory.get("CmaTotal", 0),
            "cma_free": memory.get("CmaFree", 0),
        },
        "disks": [disk(path) for path in module.params["paths"]],
        "listeners": listeners,
        "page_size": os.sysconf("SC_PAGESIZE"),
        "swappiness": int(Path("/proc/sys/vm/swappiness").read_text()),
        "remove_ipc": removes_ipc(),
        "cpu_flags": cpu[1].split() if cpu else [],
        "gpus": _host.parse_gpus(output(module, "nvidia-smi", *query)),
        "gpu_processes": processes,
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
