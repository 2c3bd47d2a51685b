#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure the interfaces of the fabric, with a way back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_network
short_description: Configure the interfaces of the fabric, with a way back
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Writes the files of the network configuration and makes the system follow them.
  - Before it does, it arms the timer C(tandem-fabric-rollback.timer). Unless somebody stops the timer in time, the files become what they
    were, the system follows those, and the interfaces have the addresses and the MTU that they had.
extends_documentation_fragment:
  - tandem.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  files:
    description: Files, each with C(path) and C(content), as the filter P(tandem.serving.fabric_files#filter) makes them.
    type: list
    elements: dict
    required: true
  backend:
    description: What configures the network of the host.
    type: str
    choices: [netplan, networkmanager, networkd]
    required: true
  netdevs:
    description: Interfaces that change.
    type: list
    elements: str
    required: true
  protected:
    description: Interfaces that must not change. If one of them is in O(netdevs), the module fails.
    type: list
    elements: str
    required: true
  settled:
    description: Whether the running system has what the files say. If not, it is made to follow even when no file changes.
    type: bool
    required: true
  rollback_seconds:
    description: How long the timer waits.
    type: int
    default: 180
"""

EXAMPLES = r"""
- name: Configure the rails
  tandem.serving.fabric_network:
    files: "{{ tandem_fabric | tandem.serving.fabric_files('netplan') }}"
    backend: netplan
    netdevs: [enp1s0f0np0, enP2p1s0f0np0]
    protected: [enP7s7]
    settled: false

- name: Keep it
  ansible.builtin.systemd_service:
    name: tandem-fabric-rollback.timer
    state: stopped
"""

RETURN = r"""
files:
  description: Paths of the files that changed.
  returned: always
  type: list
  elements: str
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.tandem.serving.plugins.module_utils import _fabric_files, _netlink
from ansible_collections.tandem.serving.plugins.module_utils._fabric_run import output

_KEPT = Path("/run/tandem/fabric-rollback")
_UNIT = "tandem-fabric-rollback"


def read(path: str) -> str:
    """What a file holds, nothing where there is none."""
    file = Path(path)
    return file.read_text() if file.exists() else ""


def running(module: AnsibleModule) -> Iterator[list[str]]:
    """Commands that give the interfaces what they have now, also what no file says."""
    addresses = _netlink.parse_addresses(output(module, "ip", "-j", "addr"))
    for name in module.params["netdevs"]:
        yield ["ip", "link", "set", name, "mtu", (Path("/sys/class/net") / name / "mtu").read_text().strip()]
        for item in addresses.get(name, []):
            if item["scope"] == "global":
                yield ["ip", "addr", "replace", f"{item['address']}/{item['prefixlen']}", "dev", name]


def arm(module: AnsibleModule, changed: dict[str, str], apply: list[list[str]]) -> None:
    """Keep what the files held, and arm the timer that brings it back. A timer that runs keeps what it has."""
    systemctl = module.get_bin_path("systemctl", required=True)
    if module.run_command([systemctl, "is-active", f"{_UNIT}.timer"])[0] == 0:
        return
    _KEPT.mkdir(parents=True, exist_ok=True, mode=0o700)
    script = []
    for number, (path, before) in enumerate(changed.items()):
        kept = _KEPT / str(number)
        kept.write_text(before)
        kept.chmod(0o600)
        # Into the file that is there: it keeps its mode.
        script.append(f"cat {kept} >{shlex.quote(path)}" if before else shlex.join(["rm", "-f", path]))
    # What nobody configures any more keeps its addresses: flush first.
    flush = [["ip", "addr", "flush", "dev", name, "scope", "global"] for name in module.params["netdevs"]]
    script += [shlex.join(words) for words in (*flush, *apply, *running(module))]
    (_KEPT / "script").write_text("\n".join([*script, ""]))
    # systemd may otherwise be a minute late.
    words = [f"--unit={_UNIT}", f"--on-active={module.params['rollback_seconds']}", "--timer-property=AccuracySec=1s"]
    words += ["/bin/sh", str(_KEPT / "script")]
    module.run_command([module.get_bin_path("systemd-run", required=True), *words], check_rc=True)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "required": True},
            "backend": {"type": "str", "choices": ["netplan", "networkmanager", "networkd"], "required": True},
            "netdevs": {"type": "list", "elements": "str", "required": True},
            "protected": {"type": "list", "elements": "str", "required": True},
            "settled": {"type": "bool", "required": True},
            "rollback_seconds": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    touched = sorted(set(module.params["netdevs"]) & set(module.params["protected"]))
    if touched:
        module.fail_json(
            msg=f"Expected interfaces that carry neither the SSH connection nor the default route, found {', '.join(touched)}. "
            "Cable the fabric to another port, or take the interface's address out of fabric_subnets."
        )
    before = {file["path"]: read(file["path"]) for file in module.params["files"]}
    wanted = {file["path"]: file["content"] for file in module.params["files"]}
    changed = {path: text for path, text in before.items() if text != wanted[path]}
    diff = [
        {"before_header": path, "after_header": path, "before": text, "after": wanted[path]}
        for path, text in changed.items()
    ]
    result = {"changed": bool(changed) or not module.params["settled"], "files": sorted(changed), "diff": diff}
    if module.check_mode or not result["changed"]:
        module.exit_json(**result)
    apply = _fabric_files.apply_commands(module.params["backend"], module.params["netdevs"])
    arm(module, changed, apply)
    for path in changed:
        file = Path(path)
        file.touch(mode=0o600)
        file.write_text(wanted[path])
        if module.params["backend"] == "networkd":
            # systemd-networkd reads as a user of its own.
            file.chmod(0o644)
    for words in apply:
        code, text, error = module.run_command([module.get_bin_path(words[0], required=True), *words[1:]])
        if code:
            module.fail_json(
                msg=f"Expected '{' '.join(words)}' to succeed, found code {code}: {(error or text).strip()}. "
                f"{_UNIT}.timer brings the old configuration back within {module.params['rollback_seconds']} seconds.",
                **result,
            )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
