# SPDX-License-Identifier: MIT
"""The entry point that vLLM calls in every process: command line, engine core, workers of all ranks."""

from __future__ import annotations

from functools import cache

from . import __version__


@cache
def register() -> None:
    """Register everything of this package. What it raises stops the process; an import error of this file would not,
    so what may fail is imported here."""
    from vllm.logger import init_logger
    from vllm.model_executor.layers.quantization import register_quantization_config

    from .quantization import Exl3Config
    from .settings import Settings

    Settings.read()
    register_quantization_config("exl3")(Exl3Config)
    init_logger("vllm.tandem_overlay").info("tandem_overlay %s: quantization exl3 registered", __version__)
