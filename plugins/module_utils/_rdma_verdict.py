# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the RDMA devices of one host: what is odd, by itself and between the two halves of a port."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.tandem.serving.plugins.module_utils._check import Check
from ansible_collections.tandem.serving.plugins.module_utils._fabric_causes import fault
from ansible_collections.tandem.serving.plugins.module_utils._rdma import Device, Netdev


def judge(devices: Sequence[Device], netdevs: Sequence[Netdev]) -> list[Check]:
    """The checks of one host."""
    if not devices:
        return [
            fault("rdma devices", "no_rdma_device", "an RDMA device", "none", verdict="inconclusive"),
        ]
    return []
