"""What a rank runs."""

from __future__ import annotations

import copy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.module_utils._launch import Host, launch, systemd_quote

RECIPE: dict[str, Any] = {
    "name": "toy",
    "engine": "vllm",
    "model": {"repo": "org/model", "revision": "a" * 40, "served_name": "m"},
    "drafter": {"repo": "org/draft", "revision": "b" * 40},
    "serve": {
        "max-model-len": 2048,
        "enforce-eager": True,
        "enable-flashinfer-autotune": False,
        "cudagraph-capture-sizes": [1, 2],
        "speculative-config": {"method": "dflash", "model": "@drafter"},
    },
    "env": {"A": 1},
    "container": {"cap-add": ["IPC_LOCK"], "shm-size": "1g"},
    "ports": {"api": 8888, "master": 29521, "bind": "0.0.0.0"},
}
IMAGE = {"ref": "registry/engine@sha256:0", "identity": "i"}
HOST = Host(name="tandem-rank", hf_home="/hf", etc="/etc/tandem", cache="/cache-root", env={}, api_key=False, gpu="")


def fabric(rank: int) -> dict[str, Any]:
    return {"rank": rank, "nranks": 2, "master_address": "10.0.0.1", "env": {"VLLM_HOST_IP": f"10.0.0.{rank + 1}"}}


def test_the_ranks_differ_in_nothing_but_rank_address_and_headless() -> None:
    head, worker = (launch(RECIPE, fabric(rank), IMAGE, HOST) for rank in (0, 1))
    assert head["shared_hash"] == worker["shared_hash"]
    shared = head["engine"][:-1]
    assert head["engine"] == [*shared, "0"]
    assert worker["engine"] == [*shared, "1", "--headless"]
    assert {name for name in head["env"] if head["env"][name] != worker["env"][name]} == {"VLLM_HOST_IP"}
    assert head["rank_hash"] != worker["rank_hash"]
    assert [a for a, b in zip(head["docker"], worker["docker"], strict=True) if a != b] == [
        f"tandem.rank={head['rank_hash']}"
    ]


def test_values_are_spelt_as_the_engine_reads_them() -> None:
    line = shlex.join(launch(RECIPE, fabric(0), IMAGE, HOST)["engine"])
    assert line.startswith(f"vllm serve /hf/hub/models--org--model/snapshots/{'a' * 40} ")
    assert "--enforce-eager " in line
    assert "--no-enable-flashinfer-autotune" in line
    assert "--cudagraph-capture-sizes 1 2 " in line
    draft = f"/hf/hub/models--org--draft/snapshots/{'b' * 40}"
    assert f'{{"method":"dflash","model":"{draft}"}}' in line


@pytest.mark.parametrize(
    ("path", "value"), [("serve", {"max-model-len": 1}), ("env", {"A": 2}), ("container", {"shm-size": "2g"})]
)
def test_whatever_must_be_the_same_changes_the_hash(path: str, value: Any) -> None:
    other = copy.deepcopy(RECIPE)
    other[path] |= value
    assert launch(other, fabric(0), IMAGE, HOST)["shared_hash"] != launch(RECIPE, fabric(0), IMAGE, HOST)["shared_hash"]


def test_another_image_changes_hash_and_cache() -> None:
    one, two = (launch(RECIPE, fabric(0), {**IMAGE, "identity": name}, HOST) for name in "ij")
    assert one["shared_hash"] != two["shared_hash"]
    assert one["cache_key"] != two["cache_key"]


@pytest.mark.parametrize(
    ("part", "change", "same"),
    [
        ("ports", {"api": 8890, "master": 29522, "bind": "127.0.0.1"}, True),
        ("model", {"served_name": "other"}, True),
        ("serve", {"default-chat-template-kwargs": {"enable_thinking": False}, "chat-template": "/t.jinja"}, True),
        ("serve", {"reasoning-parser": "glm45"}, True),
        ("env", {"NCCL_DEBUG": "INFO", "VLLM_CPU_OMP_THREADS_BIND": 1}, True),
        ("serve", {"max-num-batched-tokens": 7168}, False),
        ("env", {"TORCH_CUDA_ARCH_LIST": "12.1a"}, False),
        ("model", {"revision": "c" * 40}, False),
    ],
)
def test_compiled_kernels_are_kept_until_their_shape_changes(part: str, change: dict[str, Any], same: bool) -> None:
    one, two = (
        launch(recipe, fabric(0), IMAGE, HOST) for recipe in (RECIPE, {**RECIPE, part: {**RECIPE[part], **change}})
    )
    assert (one["cache_key"] == two["cache_key"]) is same


def test_kernels_for_another_number_of_ranks_are_others() -> None:
    two, three = (launch(RECIPE, {**fabric(0), "nranks": nranks}, IMAGE, HOST) for nranks in (2, 3))
    assert two["cache_key"] != three["cache_key"]


def test_what_a_host_alone_tells_compilers_counts() -> None:
    host = Host(**{**HOST, "env": {"TORCH_CUDA_ARCH_LIST": "12.1a"}})
    assert launch(RECIPE, fabric(0), IMAGE, host)["cache_key"] != launch(RECIPE, fabric(0), IMAGE, HOST)["cache_key"]


def test_switches_of_docker_take_no_word() -> None:
    words = launch({**RECIPE, "container": {"init": True, "sig-proxy": False}}, fabric(0), IMAGE, HOST)["docker"]
    assert {"--init=true", "--sig-proxy=false"} <= set(words) and "True" not in words


def test_a_container_says_what_it_serves() -> None:
    labelled = launch(RECIPE, fabric(1), IMAGE, HOST)
    labels = [labelled["docker"][place + 1] for place, word in enumerate(labelled["docker"]) if word == "--label"]
    assert labels[2:] == [f"tandem.model=org/model@{'a' * 40}", "tandem.recipe=toy"]
    assert launch({**RECIPE, "name": "x"}, fabric(1), IMAGE, HOST)["rank_hash"] == labelled["rank_hash"]


def test_the_key_is_a_file_for_the_head_alone_and_on_no_command_line() -> None:
    head, worker = (launch(RECIPE, fabric(rank), IMAGE, Host(**{**HOST, "api_key": True})) for rank in (0, 1))
    assert "/etc/tandem/api_key:/run/tandem/api_key:ro" in head["docker"]
    assert not [word for word in worker["docker"] if "api_key" in word]
    assert "VLLM_API_KEY" not in head["env"]


def test_the_shell_that_reads_the_key_passes_the_arguments_on(tmp_path: Path) -> None:
    words = launch(RECIPE, fabric(0), IMAGE, Host(**{**HOST, "api_key": True}))["docker"]
    script = words[words.index("-c") + 1].replace("/run/tandem/api_key", str(tmp_path / "key"))
    (tmp_path / "key").write_text("secret")
    show = ["sh", "-c", 'printf "%s|" "$VLLM_API_KEY" "$@"', "x", "a b", "c"]
    out = subprocess.run(["sh", "-c", script, "sh", *show], capture_output=True, text=True, check=True).stdout
    assert out == "secret|a b|c|"


TENSORFOLD: dict[str, Any] = {
    **RECIPE,
    "engine": "tensorfold",
    "serve": {"context": 1048576, "parallel": 4, "thinking": True, "vision": True},
    "ports": {"api": 8888, "master": 29551, "bind": "0.0.0.0"},
}


def test_tensorfold_gives_the_api_to_rank_0_alone() -> None:
    head, worker = (shlex.join(launch(TENSORFOLD, fabric(rank), IMAGE, HOST)["engine"]) for rank in (0, 1))
    snapshots = "/hf/hub/models--org--model/snapshots/" + "a" * 40, "/hf/hub/models--org--draft/snapshots/" + "b" * 40
    shared = (
        f"tensorfold serve {snapshots[0]} --tp 2 --master 10.0.0.1 --master-port 29551 --context 1048576 "
        f"--drafter {snapshots[1]} --parallel 4 --thinking --vision"
    )
    assert head == f"{shared} --rank 0 --name m --host 0.0.0.0 --port 8888"
    assert worker == f"{shared} --rank 1"


def test_tensorfold_without_a_drafter_uses_the_own_head_of_the_checkpoint() -> None:
    recipe = {**TENSORFOLD, "drafter": {}, "serve": {"thinking": False, "vision": False}}
    line = shlex.join(launch(recipe, fabric(1), IMAGE, HOST)["engine"])
    assert "--drafter none --no-thinking --rank 1" in line
    assert "vision" not in line


def test_tensorfold_keeps_its_entrypoint_and_has_no_key() -> None:
    assert "--entrypoint" not in launch(TENSORFOLD, fabric(0), IMAGE, HOST)["docker"]
    with pytest.raises(ValueError, match="tensorfold asks for no key"):
        launch(TENSORFOLD, fabric(0), IMAGE, Host(**{**HOST, "api_key": True}))


def test_a_gpu_that_the_recipe_names_is_chosen_by_its_uuid() -> None:
    recipe = {**RECIPE, "gpu": "GB300", "container": {"gpus": "all"}}
    words = launch(recipe, fabric(0), IMAGE, Host(**{**HOST, "gpu": "GPU-77"}))["docker"]
    assert words[words.index("--gpus") + 1] == "device=GPU-77" and "all" not in words
    with pytest.raises(ValueError, match="a GPU named GB300: set rank_gpu"):
        launch(recipe, fabric(0), IMAGE, HOST)


def test_the_uuid_of_a_gpu_is_not_shared_but_its_content_files_are() -> None:
    recipe = {**RECIPE, "gpu": "GB300", "files": {"chat_template.jinja": "x"}}
    one, two = (launch(recipe, fabric(0), IMAGE, Host(**{**HOST, "gpu": gpu})) for gpu in ("GPU-1", "GPU-2"))
    other = launch(
        {**recipe, "files": {"chat_template.jinja": "y"}}, fabric(0), IMAGE, Host(**{**HOST, "gpu": "GPU-1"})
    )
    assert one["shared_hash"] == two["shared_hash"] != other["shared_hash"]
    assert "/etc/tandem/files:/etc/tandem/files:ro" in one["docker"]


def test_the_direction_of_an_ablation_reaches_the_overlay() -> None:
    ablation = {"direction": "/srv/direction.safetensors", "layers": "15-45", "alpha": 3.0, "mtp": True, "hidden": 4096}
    found = launch({**RECIPE, "ablation": ablation}, fabric(1), IMAGE, HOST)
    said = "direction=/srv/direction.safetensors,alpha=3.0,layers=15-45,mtp=1"
    assert found["env"]["TANDEM_OVERLAY_ABLATION"] == said
    mount = "type=bind,source=/srv/direction.safetensors,target=/srv/direction.safetensors,readonly"
    assert found["docker"][found["docker"].index("--mount") + 1] == mount
    assert found["shared_hash"] != launch(RECIPE, fabric(1), IMAGE, HOST)["shared_hash"]


def test_the_graph_of_a_ring_is_mounted_and_belongs_to_the_rank() -> None:
    plain, ring, other = (launch(RECIPE, {**fabric(0), "graph": graph}, IMAGE, HOST) for graph in ("", "<a/>", "<b/>"))
    assert "/etc/tandem/files:/etc/tandem/files:ro" in ring["docker"]
    assert "/etc/tandem/files:/etc/tandem/files:ro" not in plain["docker"]
    assert ring["rank_hash"] != other["rank_hash"]
    assert ring["shared_hash"] == other["shared_hash"]


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(ValueError, match="engine is 'sglang', expected one of"):
        launch({**RECIPE, "engine": "sglang"}, fabric(0), IMAGE, HOST)


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ('{"a":1}', '"{\\"a\\":1}"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ("back\\slash", '"back\\\\slash"'),
    ],
)
def test_words_survive_systemd(word: str, quoted: str) -> None:
    assert systemd_quote(word) == quoted


def test_the_bytes_of_the_direction_are_part_of_the_configuration() -> None:
    hashes = set()
    for digest in ("aa", "bb"):
        recipe = {
            **RECIPE,
            "ablation": {
                "direction": "/srv/direction.safetensors",
                "alpha": 1,
                "layers": "15-45",
                "mtp": True,
                "sha256": digest,
            },
        }
        hashes.add(launch(recipe, fabric(0), IMAGE, HOST)["shared_hash"])
    assert len(hashes) == 2
