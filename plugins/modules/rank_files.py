#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the files of a rank in one step."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_files
short_description: Write the files of a rank in one step
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Writes several small files at once, where M(ansible.builtin.copy) needs a task for each.
  - All of them are made and validated before the first replaces what is there, so that a refused file changes nothing.
  - They belong to the user who runs the module. Missing folders are made with mode V(0755).
extends_documentation_fragment:
  - tandem.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  files:
    description: The files.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Where the file is.
        type: str
        required: true
      content:
        description: What is in it.
        type: str
      secret:
        description: What is in it, when nobody may see that in a diff or a log.
        type: str
      mode:
        description: Its permissions.
        type: str
        default: "0644"
      validate:
        description: A command that must succeed before the file is used. V(%s) stands for the new file.
        type: str
"""

EXAMPLES = r"""
- name: Write the unit, the key and what root may do
  tandem.serving.rank_files:
    files:
      - path: /etc/systemd/system/tandem-rank.service
        content: "{{ lookup('ansible.builtin.template', 'tandem-rank.service.j2') }}"
      - path: /etc/tandem/api_key
        secret: "{{ rank_api_key }}"
        mode: "0600"
      - path: /etc/sudoers.d/tandem
        content: "tandem ALL=(root) NOPASSWD: /usr/bin/true\n"
        mode: "0440"
        validate: visudo -cf %s
  become: true
"""

RETURN = r"""
written:
  description: Paths of the files that changed, or would change in check mode, in their mode too.
  returned: always
  type: list
  elements: str
"""

import os
import pwd
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule


def text(file: dict[str, Any]) -> str:
    """What is to be in a file."""
    return str(file["content"] if file["secret"] is None else file["secret"])


def found(module: AnsibleModule, path: Path) -> str | None:
    """What is in a file, nothing where there is none."""
    try:
        return path.read_text(errors="replace") if path.exists() else None
    except OSError as error:
        module.fail_json(
            msg=f"Expected a file at {path}, found something that cannot be read as one: {error.strerror}."
        )
        raise


def prepare(module: AnsibleModule, number: int, file: dict[str, Any]) -> Path:
    """The new file, beside nothing yet. Ends the module when its command refuses it."""
    new = Path(module.tmpdir) / f"file{number}"
    new.write_text(text(file))
    if file["validate"]:
        command = file["validate"].replace("%s", str(new))
        code, out, error = module.run_command(command)
        if code:
            module.fail_json(
                msg=f"Expected '{command}' to accept the new {file['path']}, found code {code}: {(error or out).strip()}. "
                "No file was changed."
            )
    return new


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "str", "required": True},
                    "content": {"type": "str"},
                    "secret": {"type": "str", "no_log": True},
                    "mode": {"type": "str", "default": "0644"},
                    "validate": {"type": "str"},
                },
                "mutually_exclusive": [("content", "secret")],
                "required_one_of": [("content", "secret")],
            },
        },
        supports_check_mode=True,
        # The journal need not hold what the files do.
        no_log=True,
    )
    # A new file is nobody else's before it has its mode.
    os.umask(0o077)
    before = {file["path"]: found(module, Path(file["path"])) for file in module.params["files"]}
    new = {
        file["path"]: prepare(module, number, file)
        for number, file in enumerate(module.params["files"])
        if before[file["path"]] != text(file)
    }
    written, diff = [], []
    owner = pwd.getpwuid(os.geteuid()).pw_name
    for file in module.params["files"]:
        path = Path(file["path"])
        if file["path"] in new:
            change = {"before_header": file["path"], "after_header": file["path"]}
            change |= {"before": before[file["path"]] or "", "after": text(file)}
            diff.append(change if file["secret"] is None else {"prepared": f"{path}: a secret that changes\n"})
            if not module.check_mode:
                for folder in (parent for parent in reversed(path.parents) if not parent.exists()):
                    folder.mkdir()
                    folder.chmod(0o755)
                module.atomic_move(str(new[file["path"]]), str(path))
        attributes: dict[str, Any] = {}
        wanted = module.load_file_common_arguments({"path": str(path), "mode": file["mode"], "owner": owner})
        differs = path.exists() and module.set_fs_attributes_if_different(wanted, False, diff=attributes)
        if differs and file["path"] not in new:
            diff.append({"before_header": file["path"], "after_header": file["path"], **attributes})
        if differs or file["path"] in new:
            written.append(file["path"])
    module.exit_json(changed=bool(written), written=written, diff=diff)


if __name__ == "__main__":
    main()
