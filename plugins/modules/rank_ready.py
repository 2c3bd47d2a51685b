#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until all ranks serve together."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_ready
short_description: Wait until all ranks serve together
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Runs on the head. Waits until the API is healthy and lists the model, and meanwhile asks every rank whether it still runs.
  - Fails at once, not at the time limit, when a rank ends.
extends_documentation_fragment:
  - tandem.serving.attributes
  - tandem.serving.progress
attributes:
  check_mode:
    support: full
    description: Looks once and does not wait.
  diff_mode:
    support: none
    description: Nothing changes.
options:
  url:
    description: Where the API listens, without a path.
    type: str
    required: true
  model:
    description: Served name of the model.
    type: str
    required: true
  ranks:
    description: The ranks, each with its C(rank), its C(host) name and the C(address) to ask it under. Rank 0 is this host.
    type: list
    elements: dict
    required: true
  control:
    description: The words of the C(program) that tells a rank's state, and C(user), C(key) and C(known_hosts) to call it over SSH.
    type: dict
    required: true
  unit:
    description: Unit of the head's rank, whose journal tells how far the start is.
    type: str
    default: tandem-rank.service
  timeout:
    description: Seconds to wait.
    type: int
    default: 3600
"""

EXAMPLES = r"""
- name: Wait until the API answers
  tandem.serving.rank_ready:
    url: http://127.0.0.1:8888
    model: smollm2-135m
    ranks:
      - {rank: 0, host: spark-a, address: 192.0.2.11}
      - {rank: 1, host: spark-b, address: 192.0.2.12}
    control:
      program: [/usr/bin/python3, /usr/local/libexec/tandem/rank_ctl.py]
      user: tandem
      key: /var/lib/tandem/control/.ssh/id_ed25519
      known_hosts: /etc/tandem/known_hosts
    timeout: 600
"""

RETURN = r"""
ready:
  description: Whether the API is healthy and lists the model.
  returned: always
  type: bool
seconds:
  description: How long it took.
  returned: always
  type: float
host:
  description: Host of the rank that ended.
  returned: failure because of a rank
  type: str
rank:
  description: The rank that ended.
  returned: failure because of a rank
  type: int
exit_status:
  description: Exit status of the rank that ended.
  returned: failure because of a rank
  type: int
"""

import json
import time
import urllib.error
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ansible_collections.tandem.serving.plugins.module_utils import _engine_log, _log_source
from ansible_collections.tandem.serving.plugins.module_utils._engine_verdict import judge
from ansible_collections.tandem.serving.plugins.module_utils._progress import ARGUMENTS, Progress

# How often in a row a rank may not answer before it counts as gone, and how long one question may take.
_SILENCES = 5
_SECONDS = 10


def ask(module: AnsibleModule, rank: dict[str, Any], control: dict[str, Any]) -> dict[str, Any]:
    """State of a rank as rank_ctl tells it, or the ``error`` of asking."""
    words = [*control["program"], "state"]
    if rank["rank"]:
        options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={control['known_hosts']}",
            f"ConnectTimeout={_SECONDS}",
            f"ServerAliveInterval={_SECONDS}",
        ]
        words = ["ssh", "-i", control["key"], *(word for option in options for word in ("-o", option))]
        words += [f"{control['user']}@{rank['address']}", "state"]
    code, out, error = module.run_command(["timeout", str(3 * _SECONDS), *words])
    try:
        state = json.loads(out)
    except ValueError:
        state = None
    if code or not isinstance(state, dict):
        return {"error": error.strip() or f"exit status {code}"}
    return state


def serves(url: str, model: str) -> bool:
    """Whether the API is healthy and lists the model."""
    try:
        open_url(f"{url}/health", timeout=_SECONDS).close()
        listed = json.load(open_url(f"{url}/v1/models", timeout=_SECONDS))
    except urllib.error.HTTPError as error:
        # An API with a key hides its models; health answered before.
        return error.code in (401, 403)
    except (urllib.error.URLError, OSError, ValueError):
        return False
    return any(item.get("id") == model for item in listed.get("data", []))


def phase(unit: str) -> tuple[str, int, int]:
    """How far the engine's start is: its phase, and how much of the weights is loaded, of how much."""
    try:
        logs = [_engine_log.read(source) for source in _log_source.sources({"journal_unit": unit})]
    except _log_source.LogError:
        return "unknown", 0, 0
    summary = judge(logs).summary
    loaded = summary.get("progress") or {}
    return summary["phase"].replace("_", " "), loaded.get("done") or 0, loaded.get("total") or 0


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "unit": {"type": "str", "default": "tandem-rank.service"},
            "url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "ranks": {"type": "list", "elements": "dict", "required": True},
            "control": {"type": "dict", "required": True},
            "timeout": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    params = module.params
    started = time.monotonic()
    progress = Progress(params["progress_file"], "waiting for the ranks", unit="shards")
    silent: dict[int, int] = {}
    while True:
        seconds = round(time.monotonic() - started, 1)
        if serves(params["url"].rstrip("/"), params["model"]):
            module.exit_json(changed=False, ready=True, seconds=seconds)
        if module.check_mode:
            module.exit_json(changed=False, ready=False, seconds=seconds)
        for rank in params["ranks"]:
            where = {"rank": rank["rank"], "host": rank["host"], "ready": False, "seconds": seconds}
            state = ask(module, rank, params["control"])
            silent[rank["rank"]] = silent.get(rank["rank"], 0) + 1 if "error" in state else 0
            if silent[rank["rank"]] >= _SILENCES:
                module.fail_json(
                    msg=f"rank {rank['rank']} on {rank['host']} does not tell its state: {state['error']}", **where
                )
            if "error" not in state and state["active"] not in ("active", "activating"):
                where["exit_status"] = int(state["exit_status"])
                module.fail_json(
                    msg=f"rank {rank['rank']} on {rank['host']} ended after {seconds:.0f} s: "
                    f"{state['active']}, result {state['result']}, exit status {state['exit_status']}. {state['refused']}".rstrip(),
                    **where,
                )
        if seconds > params["timeout"]:
            module.fail_json(
                msg=f"The API at {params['url']} did not serve {params['model']} within {params['timeout']} s"
            )
        name, done, total = phase(params["unit"])
        progress.set(phase=f"start, {name}", done=done, total=total, current=f"{seconds:.0f} s")
        time.sleep(2)


if __name__ == "__main__":
    main()
