# SPDX-License-Identifier: MIT
"""EXL3 as a quantisation method of vLLM. Needs vLLM; everything that can be said without it is elsewhere."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from vllm import envs
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from . import dense
from .codec import BLOCK
from .config import Exl3Spec, tensor_names
from .contract import LEAVES, MARKERS, Names, expert_modules
from .errors import ConfigError, ShardError, TensorError
from .experts import Experts
from .packed import Packed, require_all
from .settings import Settings
from .shard import Cut
from .speculation import Draft

logger = init_logger("vllm.tandem_overlay.exl3")
_PLACEHOLDERS = {
    "trellis": torch.int16,
    "suh": torch.float16,
    "svh": torch.float16,
    **dict.fromkeys(MARKERS, torch.int32),
}
_QKV = {"q": 0, "k": 1, "v": 2}


class Exl3Config(QuantizationConfig):
    """Reads which modules are packed from the list of the checkpoint's tensors, not from the configuration."""

    def __init__(self, spec: Exl3Spec) -> None:
        super().__init__()
        self.spec = spec
        self.settings = Settings.read()
        self.names: Names | None = None
        self._confirmed = False

    @classmethod
    def get_name(cls) -> str:
        return "exl3"

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return ["quantization_config.json"]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Exl3Config:
        return cls(Exl3Spec.parse(config))

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        self.names = Names(tensor_names(model_name, revision))
        if not self.names.packed:
            raise ConfigError(f"{model_name}: quant_method is exl3, but no tensor of the checkpoint is EXL3.")

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        names = self._names()
        mapped = ((module, hf_to_vllm_mapper.apply_list([module])) for module in list(names.modules))
        names.rename({module: new[0] for module, new in mapped if new})

    def _names(self) -> Names:
        if self.names is None:
            raise ConfigError("The engine made the EXL3 configuration without naming the model.")
        return self.names

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        self._confirm_speculation()
        if isinstance(layer, RoutedExperts):
            modules = expert_modules(prefix.removesuffix(".routed_experts"), layer.moe_config.num_experts)
            return self._if_packed(modules, lambda codebook: Exl3ExpertsMethod(layer, modules, codebook, self.settings))
        if isinstance(layer, LinearBase | ParallelLMHead):
            parent, _dot, name = prefix.rpartition(".")
            parts = self.packed_modules_mapping.get(name, [name])
            modules = [f"{parent}.{part}" if parent else part for part in parts]
            method = self._if_packed(modules, lambda codebook: Exl3LinearMethod(modules, codebook))
            if method is not None and "shared_expert" in prefix:
                _keep_to_one_stream()
            if method is None and isinstance(layer, LinearBase):
                return UnquantizedLinearMethod()
            return method
        return None

    def _confirm_speculation(self) -> None:
        """Once, when the first layer is made: everything is configured then, and nothing loaded."""
        if not self._confirmed and (draft := Draft.of(get_current_vllm_config())):
            logger.info_once("%s", draft.check(), scope="process")
        self._confirmed = True

    def _if_packed(self, modules: list[str], make: Any) -> Any:
        names = self._names()
        if not names.all_packed(modules):
            return None
        codebooks = {names.codebook(module): module for module in modules}
        if len(codebooks) > 1:
            found = ", ".join(f"{codebook} at {module}" for codebook, module in sorted(codebooks.items()))
            raise TensorError(f"{modules[0]}: expected one codebook for the whole layer, found {found}.")
        codebook = next(iter(codebooks))
        if self.spec.codebook not in (None, codebook):
            raise TensorError(
                f"{modules[0]}: expected the codebook {self.spec.codebook} of quantization_config, found the tensors of "
                f"{codebook}."
            )
        return make(codebook)


def _keep_to_one_stream() -> None:
    """Stop vLLM from running packed shared experts beside the routed ones: the kernels of exllamav3 share one lock buffer
    on a GPU, so two of them at once wait for each other for ever."""
    os.environ["VLLM_DISABLE_SHARED_EXPERTS_STREAM"] = "1"
    if not envs.VLLM_DISABLE_SHARED_EXPERTS_STREAM:
        raise ConfigError(
            "The shared experts are EXL3: expected VLLM_DISABLE_SHARED_EXPERTS_STREAM=1 in the environment of the server, "
            "as vLLM has read it already."
        )
    logger.info_once("EXL3 shared experts: on the stream of the routed experts", scope="process")


def _placeholder(layer: nn.Module, name: str, leaf: str, loader: Any) -> torch.device:
    """An empty parameter under the name that the model looks for. Its loader keeps the tensor elsewhere, since shape and
    bit width are known only then."""
    parameter = nn.Parameter(torch.empty(0, dtype=_PLACEHOLDERS[leaf]), requires_grad=False)
    parameter.weight_loader = loader
    layer.register_parameter(name, parameter)
    return parameter.device


class Exl3LinearMethod(LinearMethodBase):
    """A dense layer of one or more matrices; each has its own input scales, so they stay apart."""

    def __init__(self, modules: list[str], codebook: str) -> None:
        self.modules, self.codebook = modules, codebook

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        if len(output_partition_sizes) != len(self.modules):
            raise TensorError(
                f"{self.modules[0]}: the engine fuses {len(output_partition_sizes)} matrices here, expected "
                f"{len(self.modules)}: {', '.join(self.modules)}."
            )
        for leaf in (*LEAVES, *MARKERS):
            device = _placeholder(layer, leaf, leaf, self._loader(layer, leaf))
        self.parts = [
            Packed([module], self._cut(layer, part, input_size, size, output_size), self.codebook, device)
            for part, (module, size) in enumerate(zip(self.modules, output_partition_sizes, strict=True))
        ]
        for packed, size in zip(self.parts, output_partition_sizes, strict=True):
            held = (packed.cut.rows[1] - packed.cut.rows[0], packed.cut.columns[1] - packed.cut.columns[0])
            if held != (input_size_per_partition, size):
                raise ShardError(
                    f"{packed.modules[0]}: the engine expects [{input_size_per_partition}, {size}] on this rank, EXL3 can "
                    f"only be cut to {list(held)} (blocks of 128 channels). Use another tensor parallel size."
                )

    @staticmethod
    def _cut(layer: nn.Module, part: int, n_in: int, size: int, output_size: int) -> Cut:
        if isinstance(layer, ParallelLMHead):
            held = layer.shard_indices
            columns = (held.org_vocab_start_index, held.org_vocab_end_index)
            if columns[0] % BLOCK or columns[1] % BLOCK:
                raise ShardError(
                    f"The language model head: the vocabulary is cut at {columns}, EXL3 only at multiples of {BLOCK}."
                )
            return Cut(n_in, layer.org_vocab_size, (0, n_in), columns)
        rank, world = layer.tp_rank, layer.tp_size
        if world == 1:
            return Cut.whole(n_in, size)
        if isinstance(layer, RowParallelLinear):
            return Cut.by_rows(n_in, output_size, rank, world)
        if part and hasattr(layer, "num_kv_head_replicas"):
            rank, world = rank // layer.num_kv_head_replicas, world // layer.num_kv_head_replicas
        return Cut.by_columns(n_in, size * world, rank, world)

    def _loader(self, layer: nn.Module, leaf: str) -> Any:
        def load(parameter: nn.Parameter, tensor: Tensor, shard: int | str | None = None) -> None:
            part = _QKV.get(shard, shard) if isinstance(shard, str) else shard or 0
            self.parts[part].load(0, leaf, tensor)

        return load

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        require_all(self.modules[0], self.parts)
        for part in self.parts:
            dense.warm_up(part.matrix(0), self.codebook, get_current_vllm_config().model_config.dtype)
        said = f"EXL3 dense: configured_tier=exl3_gemm effective_tier={dense.tier()} codebook={self.codebook}"
        logger.info_once(said, scope="process")

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        outs = [dense.exl3_linear(x, *part.matrix(0), self.codebook) for part in self.parts]
        out = outs[0] if len(outs) == 1 else torch.cat(outs, -1)
        return out if bias is None else out + bias


class Exl3ExpertsMethod(FusedMoEMethodBase):
    """The routed experts of a layer; they stay packed."""

    def __init__(self, layer: nn.Module, modules: list[str], codebook: str, settings: Settings) -> None:
        super().__init__(layer.moe_config)
        self.modules, self.codebook, self.settings = modules, codebook, settings

    @property
    def topk_indices_dtype(self) -> torch.dtype:
        return torch.int64

    def create_weights(
        self,
        layer: nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        parallel = self.moe.moe_parallel_config
        rank, world = parallel.tp_rank, parallel.tp_size
        inner = getattr(self.moe, "intermediate_size", None) or intermediate_size_per_partition * world
        if getattr(layer, "apply_router_weight_on_input", False):
            raise ConfigError(f"{layer.layer_name}: routing weights on the input are not supported with EXL3 experts.")
        for group in ("w13", "w2"):
            for leaf in (*LEAVES, *MARKERS):
                device = _placeholder(layer, f"{group}_{leaf}", leaf, self._loader(layer, leaf))
        local = [e for e in range(self.moe.num_experts) if self._local(layer, e) >= 0]
        columns = Cut.by_columns(hidden_size, inner, rank, world)
        rows = Cut.by_rows(inner, hidden_size, rank, world)
        self.stacks = {
            shard: Packed([self.modules[3 * e + place] for e in local], cut, self.codebook, device)
            for shard, place, cut in (("w1", 0, columns), ("w3", 1, columns), ("w2", 2, rows))
        }

    @staticmethod
    def _local(layer: nn.Module, expert: int) -> int:
        return int(layer._map_global_expert_id_to_local_expert_id(expert))

    def _loader(self, layer: nn.Module, leaf: str) -> Any:
        def load(
            param: nn.Parameter,
            loaded_weight: Tensor,
            weight_name: str,
            shard_id: str,
            expert_id: int,
            return_success: bool = False,
        ) -> bool | None:
            index = self._local(layer, expert_id)
            if index >= 0:
                self.stacks[shard_id].load(index, leaf, loaded_weight)
            return index >= 0 if return_success else None

        return load

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        stacks = [self.stacks[shard] for shard in ("w1", "w3", "w2")]
        count = require_all(layer.layer_name, stacks)
        limit = float(getattr(layer, "swiglu_limit", None) or 0.0)
        self.experts = Experts(*stacks, self.moe.experts_per_token, limit, self.settings)
        gate, up, down = stacks
        kernel = self.experts.coop or self.experts.fused
        if gate.trellis.is_cuda and not kernel and not get_current_vllm_config().model_config.enforce_eager:
            raise ConfigError(
                f"{layer.layer_name}: no EXL3 kernel for the routed experts is usable ({'; '.join(self.experts.degraded)}), "
                "and what is left cannot run in CUDA graphs. Install exllamav3_ext, or serve with --enforce-eager."
            )
        effective = "fused" if kernel else "reference"
        logger.info_once(
            f"EXL3 experts: configured_tier={'fused' if gate.trellis.is_cuda else 'reference'} "
            f"effective_tier={effective} {self.experts.describe()} bits={gate.bits:g}/{up.bits:g}/{down.bits:g} "
            f"codebook={self.codebook} experts_local={self.experts.count} hidden={self.experts.hidden} "
            f"intermediate_local={self.experts.inner} limit={limit:g} tensors_per_layer={count}",
            scope="process",
        )
        for reason in self.experts.degraded:
            logger.warning_once("EXL3 experts degraded: %s", reason, scope="process")

    def get_fused_moe_quant_config(self, layer: nn.Module) -> None:
        return None

    def apply(
        self,
        layer: nn.Module,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any = None,
        shared_experts_input: Tensor | None = None,
    ) -> Tensor:
        if layer.expert_map is not None:
            topk_ids = layer.expert_map[topk_ids]
        return self.experts(x, topk_ids, topk_weights)
