# SPDX-License-Identifier: MIT
"""What is refused or done at start: speculation, ablation, sparse MLA without rope, and the self-test."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tandem_overlay import nope, selftest
from tandem_overlay.ablation import Ablation
from tandem_overlay.errors import ConfigError
from tandem_overlay.speculation import Draft
from torch import nn

DFLASH = Draft(
    method="dflash",
    tokens=7,
    tensor_parallel=1,
    attention_backend=None,
    kv_cache_dtype="auto",
    architecture="DFlash2DraftModel",
    layer_ids=(5, 14, 24, 33, 42),
    target_layers=45,
    target_tensor_parallel=2,
    target_kv_cache_dtype="fp8_ds_mla",
    second_runner=True,
)


def test_speculation_that_works() -> None:
    assert DFLASH.check() == (
        "Speculation: DFlash2DraftModel, 7 drafts, auxiliary layers (6, 15, 25, 34, 43), second model runner"
    )
    assert replace(DFLASH, kv_cache_dtype=None, target_kv_cache_dtype="auto", tensor_parallel=2).check()
    mtp = replace(DFLASH, method="mtp", tokens=2, layer_ids=(), kv_cache_dtype=None, second_runner=False)
    assert mtp.check() == "Speculation: mtp, 2 drafts"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor_parallel": 4}, "draft_tensor_parallel_size: expected 1 or 2, found 4"),
        ({"attention_backend": "TRITON_ATTN"}, "attention_backend: expected none, found TRITON_ATTN"),
        ({"kv_cache_dtype": None}, "expected auto, found nothing; the drafter would take fp8_ds_mla"),
        ({"kv_cache_dtype": "fp8"}, "expected auto, found fp8"),
        ({"second_runner": False}, "Set VLLM_USE_V2_MODEL_RUNNER=1"),
        ({"layer_ids": ()}, r"expected some of 0 to 44, found \[\]"),
        ({"layer_ids": (5, 60)}, r"found \[5, 60\]. It was made for another model"),
    ],
)
def test_speculation_that_would_be_ruined(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(DFLASH, **change).check()


def test_speculation_as_the_engine_tells_it() -> None:
    hf = SimpleNamespace(architectures=["DFlash2DraftModel"], dflash_config={"target_layer_ids": [5, 14, 24, 33, 42]})
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            method="dflash",
            num_speculative_tokens=7,
            draft_tensor_parallel_size=1,
            attention_backend=SimpleNamespace(name="TRITON_ATTN"),
            kv_cache_dtype="auto",
            draft_model_config=SimpleNamespace(hf_config=hf),
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=2),
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(num_hidden_layers=45)),
        cache_config=SimpleNamespace(cache_dtype="fp8_ds_mla"),
        use_v2_model_runner=True,
    )
    assert Draft.of(config) == replace(DFLASH, attention_backend="TRITON_ATTN")
    assert Draft.of(SimpleNamespace(speculative_config=None)) is None


class Layer(nn.Module):
    def __init__(self, hidden: int, inner: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.self_attn = nn.Module()
        self.self_attn.o_proj = nn.Linear(inner, hidden, bias=False, dtype=dtype)


def model(layers: int = 4, hidden: int = 64, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(3)
    made = nn.Module()
    made.model = nn.Module()
    made.model.layers = nn.ModuleList(Layer(hidden, 96, dtype) for _row in range(layers))
    return made


@pytest.mark.parametrize("shape", [(64,), (4, 64)])
@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_ablation(tmp_path: Path, shape: tuple[int, ...], alpha: float) -> None:
    torch.save({"directions": 5 * torch.randn(shape)}, tmp_path / "d.pt")
    ablation = Ablation.parse(f"direction={tmp_path / 'd.pt'},alpha={alpha},layers=1-2")
    directions = ablation.read(64)
    made, before = model(), model()
    lines = ablation.apply(made, directions, 0, 4)
    assert [line.split(" ")[1] for line in lines] == ["layers.1.o_proj", "layers.2.o_proj"]
    assert f"alpha={alpha:g} residual={alpha - 1:.3f}"[:-2] in lines[0]
    for n, (new, old) in enumerate(zip(made.model.layers, before.model.layers, strict=True)):
        new, old = new.self_attn.o_proj.weight.float(), old.self_attn.o_proj.weight.float()
        r = directions if directions.dim() == 1 else directions[n]
        expected = old - alpha * torch.outer(r, r) @ old if n in (1, 2) else old
        assert torch.allclose(new, expected, atol=4e-3)
    assert ablation.apply(made, directions, 4, 1) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alpha=3", "expected direction=FILE"),
        ("direction=d,alpha=-1", "expected direction=FILE"),
        ("direction=d,layers=9", "expected direction=FILE"),
        ("direction=d,method=transplant", "expected direction=FILE"),
        ("direction=d,mtp=yes", "expected direction=FILE"),
        ("direction=d,layers=9-3", r"layers end \(3\) before they begin \(9\)"),
    ],
)
def test_ablation_that_is_malformed(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Ablation.parse(text)
    assert Ablation.parse("") is None
    assert Ablation.parse("direction=d") == Ablation(Path("d"), 3.0, (15, 45), False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not there"),
        ({"direction": torch.ones(64)}, "tensor named directions"),
        ({"directions": torch.ones(64, dtype=torch.int32)}, "floating point tensor"),
        ({"directions": torch.ones(32)}, r"expected directions \[64\].*found \[32\]"),
        ({"directions": torch.ones(2, 64)}, r"for all of layers 1 to 2, found \[2, 64\]"),
        ({"directions": torch.zeros(64)}, "finite length"),
        ({"directions": torch.full((64,), float("nan"))}, "finite length"),
    ],
)
def test_direction_that_is_wrong(tmp_path: Path, content: object, message: str) -> None:
    if content is not None:
        torch.save(content, tmp_path / "d.pt")
    with pytest.raises(ConfigError, match=message):
        Ablation.parse(f"direction={tmp_path / 'd.pt'},layers=1-2").read(64)


def test_weights_that_cannot_be_ablated() -> None:
    ablation = Ablation(Path("d"), layers=(1, 2))
    with pytest.raises(ConfigError, match=r"layer 1: expected bf16 \[64, n\], found torch.float32"):
        ablation.apply(model(dtype=torch.float32), torch.ones(64) / 8, 0, 4)
    lost = model()
    del lost.model.layers[2].self_attn.o_proj
    with pytest.raises(ConfigError, match=r"layers \[2\] have no o_proj"):
        ablation.apply(lost, torch.ones(64) / 8, 0, 4)


def test_padding_is_exact() -> None:
    latent, query = torch.randn(200, 512, dtype=torch.float64), torch.randn(3, 4, 512, dtype=torch.float64)
    rows = nope.write_rows(latent)
    indices = torch.stack([torch.randperm(200)[:64] for _row in range(3)])
    indices[1, 9:], indices[2] = -1, -1
    native = nope.attend(query, rows, indices)
    assert not rows[:, nope.ROPE_AT :].any()
    assert torch.allclose(nope.attend(nope.pad_query(query), rows, indices), native, atol=1e-12)
    assert not native[2].any()
    exact = nope.read_rows(rows)[0]
    assert (exact - latent).norm() / latent.norm() < 0.03
    weights = (query[0] @ exact[indices[0]].T / 16).softmax(-1)
    assert torch.allclose(native[0], weights @ exact[indices[0]])
    dirty = rows.clone()
    dirty[:, nope.ROPE_AT :] = torch.randn(200, 64).bfloat16().view(torch.uint8).view(200, 128)
    assert torch.allclose(nope.attend(nope.pad_query(query), dirty, indices), native, atol=1e-12)
    garbage = torch.randn(3, 4, 512)
    assert not nope.without_empty_rows(garbage, indices)[2].any()
    assert torch.equal(nope.without_empty_rows(garbage, indices)[:2], garbage[:2])
    assert nope.zero_rope(3, latent).shape == (3, 1, 64)


def test_native_geometry_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    def flashinfer(*names: str) -> None:
        mla = SimpleNamespace(supported_sparse_mla_sm120_configs=lambda: dict.fromkeys(names))
        monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(mla=mla))
        monkeypatch.setitem(sys.modules, "flashinfer.mla", mla)

    flashinfer("dsv4", "glm53_nope")
    assert nope.native_reason() == ""
    flashinfer("dsv4", "glm_nsa")
    assert nope.native_reason() == "FlashInfer knows only dsv4, glm_nsa"


def test_selftest_says_what_it_did_not() -> None:
    results = {result["name"]: result for result in selftest.run(skip=["plugin"])}
    assert {name: result["verdict"] for name, result in results.items()} == {
        "versions": "pass",
        "plugin": "skipped",
        "tiers": "not run",
        "decode": "pass",
        "experts": "pass",
        "graph": "not run",
        "sparse_mla": "pass",
    }
    assert results["tiers"]["detail"] == "no CUDA device"


def test_selftest_fails_on_another_codebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(selftest.BOOKS, "mcg", "0123456789abcdef")
    verdicts = {result["name"]: result["verdict"] for result in selftest.run(skip=["plugin", "experts"])}
    assert verdicts["decode"] == "fail"


def test_selftest_as_a_program() -> None:
    command = [sys.executable, "-m", "tandem_overlay.selftest", "--json", "--skip", "plugin", "--skip", "experts"]
    source = str(Path(selftest.__file__).parents[1])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": source, "PATH": ""})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"] is True


def test_imports_need_neither_cuda_nor_vllm() -> None:
    """The pure parts are importable where vLLM is not."""
    pure = (
        "codec config contract dense errors experts kernels nope packed reference selftest settings shard speculation"
    )
    program = f"import sys; sys.modules['vllm'] = None\nfrom tandem_overlay import {', '.join(pure.split())}, ablation, plugin"
    source = str(Path(selftest.__file__).parents[1])
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": source, "PATH": ""})
