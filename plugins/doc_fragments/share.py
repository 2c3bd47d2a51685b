# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the modules that fetch from a daemon of the role share."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  sources:
    description: Addresses of the daemon, one for each rail. Transfers take turns. A path is a folder of this host, such as a disk.
    type: list
    elements: str
    default: []
  port:
    description: Port of the daemon.
    type: int
    default: 18730
  share:
    description: Name under which the daemon offers the folder, followed by the folder's path, as in V(weights/srv/hub).
    type: str
  password:
    description: Password of the daemon's user C(tandem).
    type: str
  streams:
    description: Files to fetch at once.
    type: int
    default: 4
requirements:
  - rsync >= 3.2 on both hosts
"""
