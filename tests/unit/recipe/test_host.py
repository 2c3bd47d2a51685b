"""What a host has to bring."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.tandem.serving.plugins.module_utils import _host

SS = """\
LISTEN 0      4096         0.0.0.0:8888       0.0.0.0:*    users:(("vllm",pid=812,fd=3),("vllm",pid=813,fd=3))
LISTEN 0      128             [::]:22            [::]:*
garbage
"""
HOST: dict[str, Any] = {
    "memory": {
        "total": 128 << 30,
        "available": 120 << 30,
        "free": 100 << 30,
        "cma_total": 64 << 20,
        "cma_free": 60 << 20,
    },
    "page_size": 4096,
    "swappiness": 60,
    "remove_ipc": False,
    "cpu_flags": ["avx2"],
    "gpus": [_host.Gpu(name="NVIDIA GB10", uuid="GPU-1", driver="580.173.02", memory=0, used=0, stuck=False)],
    "gpu_processes": [],
}


def test_listeners_name_the_process_where_the_kernel_tells() -> None:
    assert _host.parse_listeners(SS) == [
        {"address": "0.0.0.0", "port": 8888, "process": "vllm", "pid": 812, "own": False},
        {"address": "[::]", "port": 22, "process": "", "pid": 0, "own": False},
    ]


def test_a_taken_port_names_its_holder_and_the_cure() -> None:
    found = _host.judge_port(8888, _host.parse_listeners(SS), "API")
    assert found["verdict"] == "fail" and found["cause"] == "port_taken"
    assert "vllm (pid 812)" in found["found"]
    assert "ports" in found["remedy"]
    own = [_host.Listener(address="[::]", port=8888, process="vllm", pid=812, own=True)]
    assert _host.judge_port(8888, own, "API")["verdict"] == "pass"
    assert _host.judge_port(8889, _host.parse_listeners(SS), "API")["verdict"] == "pass"


@pytest.mark.parametrize(("free", "verdict"), [(4 << 30, "fail"), (5 << 30, "pass")])
def test_the_disk_has_to_hold_the_missing_bytes_only(free: int, verdict: str) -> None:
    found = _host.judge_disk(_host.Disk(path="/data/hub", mount="/data", free=free), 5 << 30, "weights")
    assert found["verdict"] == verdict
    if verdict == "fail":
        assert found["remedy"] == "Free 1.0 GiB on /data, or move /data/hub to a larger disk."


def test_gpus_of_unified_memory_have_no_size_of_their_own() -> None:
    text = "NVIDIA GB10, GPU-1, 580.173.02, [N/A], [N/A]\nNVIDIA GB300, GPU-2, 580.1, 256000 MiB, 512 MiB\n"
    sizes = [(gpu["memory"], gpu["used"]) for gpu in _host.parse_gpus(text)]
    assert sizes == [(0, 0), (256000 << 20, 512 << 20)]


STATION: dict[str, Any] = {
    **HOST,
    "gpus": _host.parse_gpus("RTX, GPU-1, 580.1, 24467 MiB, 310 MiB\nNVIDIA GB300, GPU-2, 580.1, 256000 MiB, 2048 MiB"),
    "gpu_processes": _host.parse_gpu_processes("GPU-1, 71, /usr/bin/Xorg\nGPU-2, 88, python3, x\nNo running processes"),
}


def test_who_computes_on_the_gpu_of_the_rank_is_named_and_what_is_in_use() -> None:
    gpu, used = _host.judge(STATION, {"platform": "gb300"})
    assert "nvidia-smi: NVIDIA GB300, driver 580.1, 2.0 GiB of 250.0 GiB in use" in gpu["evidence"]
    assert (used["verdict"], used["cause"], used["found"]) == ("warn", "gpu_in_use", "python3, x (pid 88)")


def test_the_rank_itself_and_who_is_on_another_gpu_do_not_count() -> None:
    processes = [{**item, "own": item["gpu"] == "GPU-2"} for item in STATION["gpu_processes"]]
    (gpu,) = _host.judge({**STATION, "gpu_processes": processes}, {"platform": "gb300"})
    assert gpu["verdict"] == "pass"


@pytest.mark.parametrize(
    ("change", "platform", "cause"),
    [
        ({"page_size": 65536}, "gb10", "page_size_64k"),
        ({"swappiness": 0}, "gb10", "swappiness_zero"),
        ({"memory": {"cma_total": 0, "cma_free": 940604 << 10}}, "gb10", "kho_cma_pool"),
        (
            {"gpus": _host.parse_gpus("NVIDIA GB10, [GPU requires reset], 580.173.02, [N/A], [N/A]")},
            "gb10",
            "gpu_requires_reset",
        ),
        ({"gpus": _host.parse_gpus("NVIDIA GB10, GPU-1, ERR!, [N/A], [N/A]")}, "gb10", "gpu_requires_reset"),
        ({"remove_ipc": True}, "gb10", "logind_removes_ipc"),
        ({"gpus": []}, "gb10", "gpu_not_found"),
        ({}, "gb300", "gpu_not_found"),
        (
            {"gpus": [_host.Gpu(name="NVIDIA GB10", uuid="", driver="590.44", memory=0, used=0, stuck=False)]},
            "gb10",
            "driver_590",
        ),
        ({"cpu_flags": ["sse2"]}, "generic", "cpu_without_avx2"),
    ],
)
def test_each_odd_thing_has_its_cause_and_its_cure(change: dict[str, Any], platform: str, cause: str) -> None:
    odd = [item for item in _host.judge({**HOST, **change}, {"platform": platform}) if item["verdict"] != "pass"]
    assert [item["cause"] for item in odd] == [cause]
    assert odd[0]["remedy"]


@pytest.mark.parametrize("platform", ["gb10", "generic"])
def test_a_good_host_passes(platform: str) -> None:
    assert {item["verdict"] for item in _host.judge(HOST, {"platform": platform})} == {"pass"}
