# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The option of the modules that work long."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  progress_file:
    description:
      - File on the host that the module keeps its progress in.
      - The action plugin of this module chooses one by itself, lets the module work in the background, and prints a line every
        C(tandem_progress_interval) seconds (5). Work that does not advance for C(tandem_progress_stall) seconds (900) is ended.
      - A run that was cut does not end the work. The next run finds it and goes on watching.
    type: path
"""
