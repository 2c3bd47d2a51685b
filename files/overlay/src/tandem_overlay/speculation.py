# SPDX-License-Identifier: MIT
"""What ruins speculative decoding without a word, refused at start. The settings themselves come from the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import ConfigError

_PLAIN_CACHE = (None, "auto", "bfloat16", "float16")
_DFLASH2 = "DFlash2DraftModel"


@dataclass(frozen=True)
class Draft:
    """What is asked of one server: its --speculative-config, and what that meets."""

    method: str
    tokens: int
    tensor_parallel: int
    attention_backend: str | None
    kv_cache_dtype: str | None
    architecture: str
    layer_ids: tuple[int, ...]
    target_layers: int
    target_tensor_parallel: int
    target_kv_cache_dtype: str
    second_runner: bool

    @classmethod
    def of(cls, config: Any) -> Draft | None:
        """From vLLM's configuration; None without speculation."""
        asked = config.speculative_config
        if asked is None:
            return None
        draft = getattr(asked, "draft_model_config", None)
        hf = getattr(draft, "hf_config", None)
        dflash = getattr(hf, "dflash_config", None) or {}
        backend = asked.attention_backend
        return cls(
            method=asked.method,
            tokens=asked.num_speculative_tokens,
            tensor_parallel=asked.draft_tensor_parallel_size or config.parallel_config.tensor_parallel_size,
            attention_backend=getattr(backend, "name", backend),
            kv_cache_dtype=asked.kv_cache_dtype,
            architecture=(getattr(hf, "architectures", None) or [""])[0],
            layer_ids=tuple(dflash.get("target_layer_ids") or ()),
            target_layers=config.model_config.hf_text_config.num_hidden_layers,
            target_tensor_parallel=config.parallel_config.tensor_parallel_size,
            target_kv_cache_dtype=str(config.cache_config.cache_dtype),
            second_runner=bool(getattr(config, "use_v2_model_runner", False)),
        )

    def check(self) -> str:
        """The line to log. ConfigError says what would ruin the drafts, and what to do."""
        if self.tensor_parallel not in (1, self.target_tensor_parallel):
            raise ConfigError(
                f"speculative-config.draft_tensor_parallel_size: expected 1 or {self.target_tensor_parallel}, found "
                f"{self.tensor_parallel}."
            )
        if self.method != "dflash":
            return f"Speculation: {self.method}, {self.tokens} drafts"
        if self.attention_backend:
            raise ConfigError(
                f"speculative-config.attention_backend: expected none, found {self.attention_backend}. DFlash attends in "
                "both directions within a block; a pinned backend may force a causal mask, and later drafts are lost."
            )
        plain_target = self.target_kv_cache_dtype in _PLAIN_CACHE
        if self.kv_cache_dtype not in _PLAIN_CACHE or (self.kv_cache_dtype is None and not plain_target):
            raise ConfigError(
                f"speculative-config.kv_cache_dtype: expected auto, found {self.kv_cache_dtype or 'nothing'}; the drafter "
                f"would take {self.kv_cache_dtype or self.target_kv_cache_dtype}, in which no draft is accepted."
            )
        if self.architecture == _DFLASH2 and not self.second_runner:
            raise ConfigError(
                "DFlash2 needs vLLM's second model runner; the first drafts like the older DFlash. Set "
                "VLLM_USE_V2_MODEL_RUNNER=1."
            )
        taps = tuple(layer + 1 for layer in self.layer_ids)
        if not taps or max(taps) > self.target_layers:
            raise ConfigError(
                f"The drafter's target_layer_ids: expected some of 0 to {self.target_layers - 1}, found "
                f"{list(self.layer_ids)}. It was made for another model."
            )
        runner = "second" if self.second_runner else "first"
        return f"Speculation: {self.architecture}, {self.tokens} drafts, auxiliary layers {taps}, {runner} model runner"
