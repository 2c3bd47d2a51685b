# SPDX-License-Identifier: MIT
"""Errors that must stop the server. Each says what was expected, what was found, where, and what to do."""

from __future__ import annotations


class OverlayError(ValueError):
    """Base of all errors of this package."""


class ConfigError(OverlayError):
    """The quantization_config, or the environment, asks for what cannot be done."""


class TensorError(OverlayError):
    """A tensor of the checkpoint is missing, misnamed, of another dtype, or of another shape."""


class ShardError(OverlayError):
    """A layer cannot be cut for this number of ranks."""
