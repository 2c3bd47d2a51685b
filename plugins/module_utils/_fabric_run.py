# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the few tools that the fabric's modules need."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule


def output(module: AnsibleModule, *words: str, errors: bool = False) -> str:
    """What a program prints, or nothing where it is missing or fails; with ``errors`` whatever it prints at all."""
    path = module.get_bin_path(words[0], opt_dirs=["/sbin", "/usr/sbin"])
    if not path:
        return f"{words[0]} is not installed" if errors else ""
    code, text, error = module.run_command([path, *words[1:]])
    if errors:
        return f"{text}\n{error}"
    return str(text) if code == 0 else ""
