# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that name a snapshot in a hub cache."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  repo:
    description: The repository, as C(organisation/name).
    type: str
    required: true
  revision:
    description: Commit of 40 hexadecimal digits.
    type: str
    required: true
  cache_dir:
    description: Folder of the hub cache, usually C($HF_HOME/hub).
    type: path
    required: true
"""
