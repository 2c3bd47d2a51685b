"""Slow work with progress."""

from __future__ import annotations

from ansible_collections.tandem.serving.plugins.plugin_utils._long_task import LongTask


class ActionModule(LongTask):
    """See the module."""
