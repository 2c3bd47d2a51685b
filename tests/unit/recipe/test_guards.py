"""Every guard of every recipe refuses a wrong value, with its reason and its cure, and lets the recipe itself pass."""

from __future__ import annotations

from typing import Any

import pytest
from unit.recipe.recipes import DRAFTER, NAMES, judge, layers, resolve

EXL3, TENSORFOLD, STATION, LOCAL = (
    "glm53_flash_exl3",
    "glm53_flash_tensorfold",
    "glm53_nvfp4_station",
    "smollm2_local",
)


def serve(**flags: Any) -> dict[str, Any]:
    return {"serve": {name.replace("_", "-"): value for name, value in flags.items()}}


def env(**values: Any) -> dict[str, Any]:
    return {"env": values}


def drafting(**values: Any) -> dict[str, Any]:
    return {"serve": {"speculative-config": values}}


# Recipe, guard, what the user changes, how the recipe is chosen, what else is so.
Case = tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]
CASES: list[Case] = [
    # Whatever the recipe
    (LOCAL, "rank_count", {}, {"ranks": 3}, {}),
    (EXL3, "topology", {}, {"ranks": 3, "topology": "pair"}, {}),
    (EXL3, "topology", {}, {"ranks": 4, "topology": "triangle"}, {}),
    (EXL3, "topology", {}, {"ranks": 2, "topology": "ring"}, {}),
    (EXL3, "topology", {}, {"ranks": 2, "topology": "star"}, {}),
    (EXL3, "loopback_alias", {}, {}, {"fabric_subnets": ["10.0.0.1/32", "10.0.0.2/32"]}),
    (LOCAL, "loopback_alias", {}, {}, {"fabric_subnets": ["127.0.0.0/8"]}),
    (EXL3, "licence", {}, {"speculation": "dflash"}, {}),
    (TENSORFOLD, "licence", {}, {"speculation": "dflash"}, {}),
    (EXL3, "licence_waits", {}, {}, {}),
    (EXL3, "unpinned_model", {"model": {"revision": "main"}}, {}, {}),
    (EXL3, "unpinned_drafter", {"drafter": {"revision": "main"}}, {"speculation": "dflash"}, {}),
    (EXL3, "unpinned_image", {}, {}, {}),
    (STATION, "unpinned_image", {}, {}, {}),
    (LOCAL, "unpinned_image", {}, {}, {"image_ref": "registry/engine:latest"}),
    (LOCAL, "port_range", {"ports": {"api": 70000}}, {}, {}),
    (EXL3, "misspelt_flag", serve(max_modle_len=500000), {}, {}),
    (LOCAL, "one_port_for_two", {"ports": {"api": 29521}}, {}, {}),
    (LOCAL, "open_api", {}, {}, {}),
    (LOCAL, "secret_in_the_open", serve(api_key="secret"), {}, {}),
    (LOCAL, "secret_in_the_open", env(HF_TOKEN="secret"), {}, {}),
    (LOCAL, "secret_in_the_open", {}, {}, {"host_env": {"HF_TOKEN": "secret"}}),
    (LOCAL, "launch_owns_it", {"container": {"network": "bridge"}}, {}, {}),
    (LOCAL, "docker_restart", {"container": {"restart": "always"}}, {}, {}),
    (EXL3, "short_stop", {"limits": {"stop_seconds": 10}}, {}, {}),
    # RDMA
    (EXL3, "rdma_device", {"container": {"device": []}}, {}, {}),
    (STATION, "locked_memory", {"container": {"cap-add": []}}, {}, {}),
    (TENSORFOLD, "locked_memory", {"container": {"ulimit": ["memlock=65536"]}}, {}, {}),
    (EXL3, "rdma_off", env(NCCL_IB_DISABLE=1), {}, {}),
    (EXL3, "rdma_off", env(NCCL_NET="Socket"), {}, {}),
    (EXL3, "rdma_off", {}, {}, {"host_env": {"NCCL_NET": "Socket"}}),
    (EXL3, "silent_nccl", {}, {}, {"host_env": {"NCCL_DEBUG": "WARN"}}),
    (EXL3, "silent_nccl", env(NCCL_DEBUG="WARN"), {}, {}),
    (EXL3, "fabric_owns_it", env(NCCL_IB_GID_INDEX=3), {}, {}),
    (TENSORFOLD, "fabric_owns_it", env(TF_ROCE_HCA="rocep1s0f0"), {}, {}),
    (EXL3, "host_nccl", env(LD_PRELOAD="/nccl-2.30.7/libnccl.so.2.30.7"), {}, {}),
    (EXL3, "host_nccl", {"container": {"volume": ["/nccl/libnccl.so.2:/usr/lib/libnccl.so.2:ro"]}}, {}, {}),
    # GB10
    (EXL3, "nvls", env(NCCL_NVLS_ENABLE=1), {}, {}),
    (EXL3, "gpudirect", env(NCCL_NET_GDR_LEVEL=5), {}, {}),
    (EXL3, "foreign_image", {"image": {"source": "pull", "ref": "x/glm53-flash-sm121:v8"}}, {}, {}),
    (EXL3, "foreign_image", {"image": {"base": "vllm/vllm-openai:v0.33.0-x86_64"}}, {}, {}),
    # GB300
    (STATION, "gpu_by_index", {"container": {"gpus": "device=0"}}, {}, {}),
    (STATION, "no_gpudirect", env(NCCL_NET_GDR_LEVEL=0), {}, {}),
    # vLLM
    (EXL3, "parallelism", serve(tensor_parallel_size=1), {}, {}),
    (EXL3, "parallelism", serve(nnodes=1), {}, {}),
    (EXL3, "parallelism", serve(pipeline_parallel_size=2), {}, {}),
    (EXL3, "ray", serve(distributed_executor_backend="ray"), {}, {}),
    (LOCAL, "context_over_model", serve(max_model_len=16384), {}, {}),
    # GLM-5.3-Flash by vLLM
    (EXL3, "moe_backend", serve(moe_backend="marlin"), {}, {}),
    (EXL3, "moe_backend", serve(kernel_config={"moe_backend": "marlin"}), {}, {}),
    (EXL3, "kv_dtype", serve(kv_cache_dtype="bfloat16"), {}, {}),
    (EXL3, "kv_dtype", serve(kv_cache_dtype="nvfp4"), {}, {}),
    (EXL3, "quantization", serve(quantization="modelopt_fp4"), {}, {}),
    (EXL3, "attention_backend", serve(attention_backend="TRITON_MLA"), {}, {}),
    (EXL3, "drafter_attention", drafting(attention_backend="TRITON_ATTN"), {"speculation": "dflash"}, {}),
    (EXL3, "drafter_kv_dtype", drafting(kv_cache_dtype=None), {"speculation": "dflash"}, {}),
    (EXL3, "drafter_kv_dtype", drafting(kv_cache_dtype="fp8"), {"speculation": "dflash"}, {}),
    (EXL3, "drafter_parallel", drafting(draft_tensor_parallel_size=2), {"speculation": "dflash", "ranks": 4}, {}),
    (EXL3, "drafter_heads", drafting(draft_tensor_parallel_size=3), {"speculation": "dflash", "ranks": 3}, {}),
    (EXL3, "draft_tokens", drafting(num_speculative_tokens=8), {"speculation": "dflash"}, {}),
    (
        EXL3,
        "drafter_missing",
        {"drafter": {"repo": None, "revision": None, "licence": None, "size_gib": None}},
        {"speculation": "dflash"},
        {},
    ),
    (EXL3, "drafter_runner", env(VLLM_USE_V2_MODEL_RUNNER=0), {"speculation": "dflash"}, {}),
    (EXL3, "engine_killed", serve(shutdown_timeout=0), {}, {}),
    (EXL3, "async_scheduling", serve(async_scheduling=True), {"speculation": "dflash"}, {}),
    (EXL3, "async_scheduling", serve(async_scheduling=None), {"speculation": "mtp"}, {}),
    (EXL3, "capture_sizes", serve(cudagraph_capture_sizes=[1, 2, 4]), {"speculation": "mtp"}, {}),
    (EXL3, "capture_sizes", serve(max_num_seqs=5), {"speculation": "dflash"}, {}),
    (EXL3, "scratch_rows", env(TANDEM_OVERLAY_ROWS=16), {"speculation": "dflash"}, {}),
    (EXL3, "scratch_rows", serve(max_num_seqs=32), {"speculation": "dflash"}, {}),
    (EXL3, "batch_tokens", serve(max_num_batched_tokens=8192), {}, {}),
    (EXL3, "context_over_tested", serve(max_model_len=1048576), {}, {}),
    (EXL3, "memory_share", serve(gpu_memory_utilization=0.87), {}, {}),
    (EXL3, "memory_share", serve(gpu_memory_utilization=0.88), {"profile": "seed"}, {}),
    (EXL3, "memory_share_four", serve(gpu_memory_utilization=0.85), {"ranks": 4}, {}),
    (EXL3, "multimodal_profiling", serve(skip_mm_profiling=False), {}, {}),
    (EXL3, "picture_tokens", serve(mm_processor_kwargs=None), {}, {}),
    (EXL3, "template_for_pictures", serve(chat_template=None), {}, {}),
    (EXL3, "offload", serve(cpu_offload_gb=10), {}, {}),
    (EXL3, "instanttensor_memory", serve(load_format="instanttensor"), {}, {}),
    (EXL3, "heads", serve(hf_overrides=None), {"ranks": 3}, {}),
    (EXL3, "ring_nccl", {}, {"ranks": 4, "topology": "ring"}, {}),
    (EXL3, "experts_cut", serve(enable_expert_parallel=None), {"ranks": 3}, {}),
    (EXL3, "ablation_direction", {"ablation": {"hidden": 4096}}, {"ablation": "true"}, {}),
    (EXL3, "ablation_hidden", {"ablation": {"direction": "/srv/d", "hidden": 5120}}, {"ablation": "true"}, {}),
    # GLM-5.3-Flash by TensorFold
    (TENSORFOLD, "no_key", {}, {}, {"api_key": True}),
    (TENSORFOLD, "parallelism", serve(tp=2), {}, {}),
    (TENSORFOLD, "streams", serve(parallel=16), {"speculation": "dflash"}, {}),
    (TENSORFOLD, "mtp_streams", serve(parallel=4), {"speculation": "mtp"}, {}),
    (TENSORFOLD, "kv_dtype", env(TF_GLM_KV="nvfp4"), {}, {}),
    (TENSORFOLD, "context", serve(context=2000000), {}, {}),
    (TENSORFOLD, "context", env(TF_GLM_KV="bf16"), {"speculation": "dflash"}, {}),
    (TENSORFOLD, "dense", env(TF_GLM_DENSE="q3"), {}, {}),
    (TENSORFOLD, "comm", env(TF_GLM_COMM="tcp"), {}, {}),
    (TENSORFOLD, "ring_image", {"image": {"source": "pull", "ref": "x@sha256:bc34d7d63f"}}, {"ranks": 4}, {}),
    (TENSORFOLD, "roce_window", env(TF_ROCE_MAX_KB=256), {}, {}),
    (TENSORFOLD, "window", env(TF_GLM_MULTI_WINDOW=33), {}, {}),
    (TENSORFOLD, "roce_wait", env(TF_ROCE_WAIT_S=20), {}, {}),
    (TENSORFOLD, "copy_drafts", env(TF_GLM_COPY_MAX=16), {}, {}),
    (TENSORFOLD, "split", env(TF_GLM_HC_SPLIT=0), {}, {}),
    (TENSORFOLD, "memory_reserve", serve(parallel=8), {"speculation": "dflash"}, {}),
    (TENSORFOLD, "two_tiers", {"serve": {"spill-gib": 64}, "env": {"TF_GLM_KV_TIER_GIB": 64}}, {}, {}),
    (TENSORFOLD, "display_memory", env(TF_GLM_DISPLAY_KV_MIB=2048), {}, {}),
    # GLM-5.3 on two Stations
    (STATION, "sparse_workspace", serve(max_model_len=131072), {}, {}),
    (STATION, "sparse_workspace", serve(gpu_memory_utilization=0.95), {}, {}),
    (STATION, "offload", serve(cpu_offload_gb=32), {}, {}),
    (STATION, "kv_dtype", serve(kv_cache_dtype="auto"), {}, {}),
    (STATION, "capture_sizes", serve(max_num_seqs=32), {}, {}),
    (STATION, "capture_sizes", serve(compilation_config={"cudagraph_capture_sizes": [4, 8, 80]}), {}, {}),
    (STATION, "moe_backend", serve(kernel_config=None), {}, {}),
    (STATION, "custom_all_reduce", serve(disable_custom_all_reduce=False), {}, {}),
]
# Things that are said, not refused.
WARNINGS = {"licence_waits", "unpinned_image", "open_api"}


@pytest.mark.parametrize(
    ("name", "guard", "overrides", "choices", "context"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES]
)
def test_a_wrong_value_is_refused_with_reason_and_cure(
    name: str, guard: str, overrides: dict[str, Any], choices: dict[str, Any], context: dict[str, Any]
) -> None:
    found = {check["name"]: check for check in judge(resolve(name, overrides=overrides, **choices), **context)}
    check = found[f"guard {guard}"]
    assert check["verdict"] == ("warn" if guard in WARNINGS else "fail")
    assert check["cause"] == guard
    assert check["found"] and check["expected"]
    assert check["evidence"][0].endswith(".") and check["remedy"].endswith(".")


@pytest.mark.parametrize(
    ("name", "guard", "overrides", "found"),
    [
        (LOCAL, "launch_owns_it", {"container": {"network": "bridge", "rm": True}}, "rm, network"),
        (EXL3, "fabric_owns_it", env(NCCL_IB_GID_INDEX=3), "NCCL_IB_GID_INDEX"),
        (EXL3, "parallelism", serve(nnodes=1, pipeline_parallel_size=2), "nnodes, pipeline-parallel-size"),
        (EXL3, "parallelism", serve(pipeline_parallel_size=1), "nothing"),
        (TENSORFOLD, "parallelism", serve(tp=2), "tp"),
        (LOCAL, "context_over_model", serve(max_model_len=16384), "16384 with a model.context of 8192"),
        (EXL3, "misspelt_flag", serve(max_modle_len=500000), "max-modle-len for max-model-len"),
        (EXL3, "misspelt_flag", serve(mm_processor_cache_type="lru"), "nothing"),
    ],
)
def test_only_what_is_wrong_is_found(name: str, guard: str, overrides: dict[str, Any], found: str) -> None:
    checks = {check["name"]: check["found"] for check in judge(resolve(name, overrides=overrides))}
    assert checks[f"guard {guard}"] == found


def test_every_guard_has_a_case() -> None:
    guards = {(name, guard["name"]) for name in NAMES for layer in layers(name) for guard in layer.get("guards", [])}
    shared = {guard for _name, guard in guards}
    assert {case[1] for case in CASES} == shared
    own = {(name, guard["name"]) for name in NAMES for guard in layers(name)[-1].get("guards", [])}
    assert own <= {case[:2] for case in CASES}
    assert len(shared) >= 25


SUPPORTED = [
    (EXL3, {}),
    (EXL3, {"profile": "seed"}),
    (EXL3, {"speculation": "none"}),
    (EXL3, {"thinking": "false"}),
    (EXL3, {"ranks": 3}),
    (EXL3, {"ranks": 3, "topology": "switch"}),
    (EXL3, {"ranks": 4, "topology": "switch"}),
    (EXL3, {"ranks": 4, "topology": "switch", "speculation": "mtp"}),
    (TENSORFOLD, {}),
    (TENSORFOLD, {"speculation": "mtp"}),
    (TENSORFOLD, {"ablation": "true"}),
    (TENSORFOLD, {"ranks": 3}),
    (TENSORFOLD, {"ranks": 3, "speculation": "mtp"}),
    (TENSORFOLD, {"ranks": 4}),
    (TENSORFOLD, {"ranks": 4, "topology": "switch"}),
    (STATION, {}),
    (STATION, {"speculation": "none"}),
    (LOCAL, {}),
    (LOCAL, {"speculation": "none"}),
]


@pytest.mark.parametrize(("name", "choices"), SUPPORTED)
@pytest.mark.parametrize("accepted", [[], [DRAFTER]])
def test_the_recipe_itself_passes(name: str, choices: dict[str, Any], accepted: list[str]) -> None:
    checks = judge(resolve(name, licences=tuple(accepted), **choices), accepted_licences=accepted)
    assert [check for check in checks if check["verdict"] == "fail"] == []


def test_an_ablation_with_its_direction_passes() -> None:
    recipe = resolve(EXL3, ablation="true", overrides={"ablation": {"direction": "/srv/d", "hidden": 4096}})
    assert [check for check in judge(recipe) if check["verdict"] == "fail"] == []


def test_the_drafter_waits_for_its_licence() -> None:
    without, with_it = resolve(EXL3), resolve(EXL3, licences=(DRAFTER,))
    assert (without["selected"]["speculation"], without["drafter"]) == ("mtp", {})
    assert with_it["selected"]["speculation"] == "dflash"
    assert with_it["drafter"]["revision"] == "dc77ff1c99eeb2df044ee3d4f0094eb033fee410"
    waits = next(check for check in judge(without) if check["name"] == "guard licence_waits")
    assert waits["found"] == "mtp instead of dflash"


def test_the_seed_profile_is_that_of_the_tutorials() -> None:
    recipe = resolve(EXL3, profile="seed", licences=(DRAFTER,))
    said = {key: recipe["serve"][key] for key in ("max-model-len", "gpu-memory-utilization", "max-num-batched-tokens")}
    assert said == {"max-model-len": 900000, "gpu-memory-utilization": 0.87, "max-num-batched-tokens": 1024}
    assert recipe["serve"]["limit-mm-per-prompt"] == {"image": 4, "video": 1}
    assert recipe["serve"]["max-num-seqs"] == 4
    drafts = recipe["serve"]["speculative-config"]
    assert (drafts["num_speculative_tokens"], drafts["draft_tensor_parallel_size"]) == (7, 1)
