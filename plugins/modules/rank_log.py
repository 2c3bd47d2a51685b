#!/usr/bin/python
# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the journal of a rank, or show it while it is written."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_log
short_description: Read the journal of a rank, or show it while it is written
version_added: 0.1.0
author:
  - Tandem contributors (@tandem-serving)
description:
  - Reads what the rank and, on the head, the supervisor wrote.
  - With O(follow) shows every new line within about a second, until it is interrupted.
notes:
  - This is an action plugin. It runs where Ansible runs, and starts nothing but C(journalctl) on the host.
extends_documentation_fragment:
  - tandem.serving.attributes
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: Nothing changes.
options:
  lines:
    description: How many of the newest lines to begin with.
    type: int
    default: 200
  since:
    description: Begin at this time instead, as C(journalctl --since) understands it, such as V(-10min).
    type: str
    default: ""
  rank:
    description: Number of the rank on this host, for the lines that are shown.
    type: int
    default: 0
  follow:
    description: Whether to go on with what is written from now on.
    type: bool
    default: false
  seconds:
    description: How long to follow. V(0) means until it is interrupted.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Read the newest lines
  tandem.serving.rank_log:
    lines: 50
  become: true
  register: journal
"""

RETURN = r"""
stdout:
  description: What C(journalctl --output=json) printed. Empty when the lines were followed.
  returned: always
  type: str
"""
