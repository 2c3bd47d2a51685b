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
    from vllm.platforms import current_platform

    from . import ablated
    from .quantization import Exl3Config

    register_quantization_config("exl3")(Exl3Config)
    ablated.register()
    logger = init_logger("vllm.tandem_overlay")
    logger.info("tandem_overlay %s: quantization exl3 registered", __version__)
    if current_platform.is_cuda() and current_platform.is_device_capability_family(120):
        from . import nope

        logger.info("%s", nope.register())
