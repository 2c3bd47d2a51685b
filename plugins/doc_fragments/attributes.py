# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation shared by every module of the collection."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return what would be changed without changing it.
  diff_mode:
    description: Returns what has changed, or would change in C(check_mode), in diff mode.
"""

    INFO = r"""
options: {}
attributes:
  check_mode:
    support: full
    description: Reads only, so that check mode runs it as it is.
  diff_mode:
    support: none
    description: Nothing changes.
"""
