# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A digest of all files of a folder."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tree_digest
short_description: A digest of all files of a folder on the controller
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Changes when a file's path, content, or right to be executed changes, and not when only times or owners do.
  - Leaves out what Python compiled.
options:
  _input:
    description: The folder.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Show the tag that the build of a folder gets
  ansible.builtin.debug:
    msg: "{{ 'files/overlay' | tandem.serving.tree_digest }}"
"""

RETURN = r"""
_value:
  description: SHA-256 in hexadecimal.
  type: str
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError


def tree_digest(folder: str) -> str:
    """The digest of a folder's files, in the order of their paths as bytes."""
    root = Path(folder)
    if not root.is_dir():
        raise AnsibleFilterError(f"tree_digest: {root} is not a folder on the controller")
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    digest = hashlib.sha256()
    for path in sorted(files, key=os.fsencode):
        name = os.fsencode(path.relative_to(root))
        executable = b"x" if os.access(path, os.X_OK) else b"-"
        digest.update(b"%b\0%b%b" % (name, executable, hashlib.sha256(path.read_bytes()).digest()))
    return digest.hexdigest()


class FilterModule:
    """Filters of the role image."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Their names."""
        return {"tree_digest": tree_digest}
