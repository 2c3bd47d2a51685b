# SPDX-License-Identifier: MIT
"""Models of vLLM that ablate themselves at the end of loading. Registered only where an ablation is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from vllm.logger import init_logger

from .ablation import Ablation
from .settings import Settings

TARGETS = ("Glm5NextForConditionalGeneration", "Glm5NextForCausalLM", "Glm4MoeForCausalLM")
DRAFTS = ("Glm5NextMTPModel", "Glm4MoeMTPModel")
STOCK: dict[str, tuple[str, str]] = {}
logger = init_logger("vllm.tandem_overlay.ablation")


def register() -> None:
    from vllm import ModelRegistry

    ablation = Ablation.parse(Settings.read().ablation)
    if not ablation:
        return
    for name in TARGETS + (DRAFTS if ablation.mtp else ()):
        stock = ModelRegistry.models.get(name)
        if stock is not None and hasattr(stock, "module_name"):
            STOCK[name] = (stock.module_name, stock.class_name)
            ModelRegistry.register_model(name, f"{__name__}:{name}")


def __getattr__(name: str) -> type:
    """The subclass of a stock model; made when vLLM asks for it, since importing a model initialises the GPU."""
    if name not in STOCK:
        raise AttributeError(name)
    module, stock_name = STOCK[name]
    stock = getattr(importlib.import_module(module), stock_name)

    def init(self: Any, *, vllm_config: Any, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_text_config
        self.__dict__["tandem_ablation"] = Ablation.parse(Settings.read().ablation)
        self.__dict__["tandem_directions"] = self.tandem_ablation.read(config.hidden_size)
        drafts = name in DRAFTS
        layers = config.num_hidden_layers
        self.__dict__["tandem_layers"] = (
            (layers, getattr(config, "num_nextn_predict_layers", 1)) if drafts else (0, layers)
        )
        stock.__init__(self, vllm_config=vllm_config, prefix=prefix)

    def load_weights(self: Any, weights: Any) -> Any:
        loaded = stock.load_weights(self, weights)
        for line in self.tandem_ablation.apply(self, self.tandem_directions, *self.tandem_layers):
            logger.info("%s", line)
        return loaded

    made = type(stock_name, (stock,), {"__init__": init, "load_weights": load_weights, "__module__": __name__})
    globals()[name] = made
    return made
