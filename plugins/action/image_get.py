# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Get an image, with progress."""

from __future__ import annotations

from ansible_collections.tandem.serving.plugins.plugin_utils._long_task import LongTask


class ActionModule(LongTask):
    """See the module of this name."""
