# SPDX-License-Identifier: MIT
"""What a checkpoint says of itself: configuration, names, and tensors one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from tandem_overlay.config import Exl3Spec, tensor_names
from tandem_overlay.contract import Names, expert_modules
from tandem_overlay.errors import ConfigError, TensorError
from tandem_overlay.packed import Packed, require_all
from tandem_overlay.settings import Settings
from tandem_overlay.shard import Cut

GOOD = {"quant_method": "exl3", "bits": 4, "codebook": "mcg", "scope": "routed experts only"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Exl3Spec(4.0, "mcg", True)),
        ({"bits": 4.05, "scope": "all"}, Exl3Spec(4.05, "mcg", False)),
        ({"codebook": None}, Exl3Spec(4.0, None, True)),
        ({"tensor_storage": {"x" * 1000: object()}, "head_bits": 6}, Exl3Spec(4.0, "mcg", True)),
    ],
)
def test_configuration(change: dict[str, object], expected: Exl3Spec) -> None:
    assert Exl3Spec.parse(GOOD | change) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "awq"}, "expected 'exl3', found 'awq'"),
        ({"bits": "4"}, "bits: expected a number from 1 to 8, found '4'"),
        ({"bits": 9}, "found 9"),
        ({"bits": None}, "found None"),
        ({"codebook": "tr3"}, "expected one of 3inst, mcg, mul1, found 'tr3'"),
    ],
)
def test_bad_configuration(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Exl3Spec.parse(GOOD | change)


def test_names_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found neither"):
        tensor_names(str(tmp_path), None)
    exl3 = tiny.make(tmp_path)[0]
    single = tensor_names(str(exl3), None)
    assert "model.layers.1.mlp.experts.3.up_proj.mcg" in single
    (exl3 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(single, "x")}))
    assert tensor_names(str(exl3), None) == single


def names(*without: str, add: tuple[str, ...] = (), marker: str = "mcg") -> Names:
    leaves = ("trellis", "suh", "svh", marker)
    whole = [f"{module}.{leaf}" for module in expert_modules("m.experts", 3) for leaf in leaves]
    return Names([*(name for name in whole if name not in without), *add, "m.gate.weight"])


def test_whole_layer() -> None:
    for marker in ("mcg", "mul1"):
        assert {names(marker=marker).codebook(module) for module in expert_modules("m.experts", 3)} == {marker}
    assert names().all_packed(expert_modules("m.experts", 3))
    assert not names().all_packed(["m.gate"])
    unmarked = Names(["a.trellis", "a.suh", "a.svh"])
    assert unmarked.codebook("a") == "3inst"


@pytest.mark.parametrize("leaf", ["trellis", "suh", "svh"])
def test_missing_leaf_is_named(leaf: str) -> None:
    lost = f"m.experts.1.up_proj.{leaf}"
    with pytest.raises(TensorError, match=rf"^{lost}: expected in the checkpoint, not found\. Download"):
        names(lost).codebook("m.experts.1.up_proj")


def test_misnamed_leaf_is_named_with_its_neighbour() -> None:
    broken = names("m.experts.1.up_proj.svh", add=("m.experts.1.up_proj.svn",))
    with pytest.raises(TensorError, match=r"up_proj\.svh: expected.*There is m\.experts\.1\.up_proj\.svn: is that it"):
        broken.codebook("m.experts.1.up_proj")


def test_misnamed_module_is_named_with_its_neighbour() -> None:
    lost = tuple(f"m.experts.2.down_proj.{leaf}" for leaf in ("trellis", "suh", "svh", "mcg"))
    broken = names(*lost, add=tuple(name.replace("down", "dawn") for name in lost))
    with pytest.raises(TensorError, match=r"2\.down_proj\.trellis: .*There is m\.experts\.2\.dawn_proj\.trellis"):
        broken.all_packed(expert_modules("m.experts", 3))
    with pytest.raises(TensorError, match="1 of the 9 matrices"):
        names(*lost).all_packed(expert_modules("m.experts", 3))


def test_two_markers_and_old_signs() -> None:
    with pytest.raises(TensorError, match="one codebook marker, found mcg and mul1"):
        names(add=("m.experts.0.up_proj.mul1",)).codebook("m.experts.0.up_proj")
    with pytest.raises(TensorError, match=r"a\.su: sign bits of an old EXL3 version"):
        Names(["a.trellis", "a.su", "a.sv"]).codebook("a")


def test_names_of_the_engine() -> None:
    renamed = names()
    renamed.rename({module: f"x.{module}" for module in expert_modules("m.experts", 3)})
    assert renamed.all_packed(expert_modules("x.m.experts", 3))


@pytest.fixture
def matrix() -> dict[str, torch.Tensor]:
    marker = {"mcg": torch.tensor(0, dtype=torch.int32)}
    return tiny.random_matrix(256, 384, 4, torch.Generator().manual_seed(1)) | marker


def packed(count: int = 1, codebook: str = "mcg") -> Packed:
    return Packed([f"m.{n}" for n in range(count)], Cut.by_columns(256, 384, 1, 2), codebook, "cpu")


def test_load_keeps_the_part_of_the_rank(matrix: dict[str, torch.Tensor]) -> None:
    stack = packed(2)
    for n in range(2):
        for leaf, tensor in matrix.items():
            stack.load(n, leaf, tensor)
    assert require_all("m", [stack]) == 8
    assert stack.bits == 4
    assert torch.equal(stack.trellis[1], matrix["trellis"][:, 16:])
    assert torch.equal(stack.svh[0], matrix["svh"][256:])
    assert torch.equal(stack.suh[0], matrix["suh"])


def test_what_never_arrived_is_named(matrix: dict[str, torch.Tensor]) -> None:
    stack = packed(2)
    for leaf in ("trellis", "suh", "svh", "mcg"):
        stack.load(0, leaf, matrix[leaf])
    stack.load(1, "trellis", matrix["trellis"])
    with pytest.raises(
        TensorError, match=r"m: 3 of 8 EXL3 tensors were never loaded: m\.1\.mcg, m\.1\.suh, m\.1\.svh\."
    ):
        require_all("m", [stack])


@pytest.mark.parametrize(
    ("leaf", "bad", "message"),
    [
        ("svh", lambda t: t[:128], r"m\.0\.svh: expected shape \[384\], found \[128\]"),
        ("suh", lambda t: t.float(), r"m\.0\.suh: expected torch\.float16, found torch\.float32"),
        ("trellis", lambda t: t[:8], r"m\.0\.trellis: expected shape \[16, 24, 64\], found \[8, 24, 64\]"),
        ("trellis", lambda t: t[..., :60], "60 values mean 3.75 bits"),
        ("trellis", lambda t: t.int(), "expected torch.int16, found torch.int32"),
        ("mul1", lambda _shape: torch.tensor(0), r"m\.0\.mul1: not expected; the module's codebook is mcg"),
    ],
)
def test_bad_tensor_is_named(matrix: dict[str, torch.Tensor], leaf: str, bad: object, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        packed().load(0, leaf, bad(matrix.get(leaf)))


def test_bits_of_a_stack_are_one(matrix: dict[str, torch.Tensor]) -> None:
    stack = packed(2)
    stack.load(0, "trellis", matrix["trellis"])
    five = tiny.random_matrix(256, 384, 5, torch.Generator().manual_seed(1))
    with pytest.raises(TensorError, match=r"m\.1\.trellis: expected shape \[16, 24, 64\], found \[16, 24, 80\]"):
        stack.load(1, "trellis", five["trellis"])


def test_settings() -> None:
    assert Settings.read({"PATH": "/"}) == Settings()
    assert Settings.read({"TANDEM_OVERLAY_ROWS": "256", "TANDEM_OVERLAY_DETERMINISTIC": "1"}) == Settings(256, True)
    for variable, text in (("ROW", "1"), ("ROWS", "8"), ("ROWS", "many"), ("DETERMINISTIC", "yes")):
        with pytest.raises(ConfigError, match=f"TANDEM_OVERLAY_{variable}: "):
            Settings.read({f"TANDEM_OVERLAY_{variable}": text})
