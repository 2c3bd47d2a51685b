# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the modules that read logs."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  paths:
    description:
      - Log files on the host, names or glob patterns (C(**) descends into folders). Names that end in C(.gz) are unpacked.
      - A pattern that matches nothing is no error; without any line there is no proof, and the verdict is V(inconclusive).
      - Exactly one of O(paths), O(content), O(journal_unit) and O(container) names the log.
    type: list
    elements: path
  content:
    description: The text of a log.
    type: str
  journal_unit:
    description: A systemd unit whose journal is the log.
    type: str
  journal_scope:
    description: Read the journal of the unit's last invocation only, or of the whole boot.
    type: str
    choices: [invocation, boot]
    default: invocation
  container:
    description: A Docker container whose output is the log.
    type: str
  since:
    description:
      - When what is being judged was started, as seconds since the epoch or ISO 8601. Older content is stale and proves nothing.
      - Of a file its time of modification counts, of a journal or container the time of each line.
    type: str
"""
