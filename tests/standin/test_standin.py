"""The whole job for machines that are not here, on the rig: their recipes, with a stand-in for the engine.

Shows that every stage does for these recipes what it should, that their arguments are those of the facts, and that each fault of the
facts is named. Shows nothing of the engines themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standin import dress

Play = Callable[..., Any]
SMALL = {"repo": "HuggingFaceTB/SmolLM2-135M-Instruct", "revision": "84b8df8ce5f5fc75a2607a25630f02fb95b8a0d6"}
MODEL = {**SMALL, "architecture": "LlamaForCausalLM", "quantization": None, "size_gib": 0.3}


class System(NamedTuple):
    """A recipe, the saved machine to look like, and what stands for what the rig does not have: model, drafter, memory."""

    recipe: str
    kind: str
    overrides: dict[str, Any]


TENSORFOLD = System(
    "glm53_flash_tensorfold",
    "spark_one_cable",
    {
        "model": MODEL,
        "drafter": SMALL,
        "memory": {"weights_gib": 0.2, "host_gib": 0.5, "pool_gib": 0.2, "page_bytes": 1024},
    },
)
STATION = System("glm53_nvfp4_station", "station", {"model": MODEL})

# A fault, the stage that meets it, and what is said of it.
FAULTS = [
    (TENSORFOLD, "window", "cannot hold one request of max-model-len"),
    (TENSORFOLD, "split", "NCCL failed"),
    (TENSORFOLD, "repeats", "canary_repeats"),
    (TENSORFOLD, "socket", "socket_transport"),
    (STATION, "free_memory", "startup_free_memory_below_request"),
    (STATION, "kv", "81664"),
    (STATION, "gid", "gid_index_empty"),
    (STATION, "no_gdr", "gdr_disabled"),
    (STATION, "drafts", "canary_no_drafts_accepted"),
]


class Rig:
    """The two nodes, dressed as one kind of machine at a time."""

    # What they wear outlives a test.
    worn = ""

    def __init__(self, play: Play, command: Callable[..., str], ship: Callable[..., None]) -> None:
        self.play, self.command, self.ship = play, command, ship

    def dress(self, kind: str) -> None:
        if Rig.worn != kind:
            assert self.play("playbooks/stop.yml").status == "successful"
            self.undress()
            Rig.worn = kind
            dress.dress(kind, self.command, self.ship)

    def undress(self) -> None:
        if Rig.worn:
            dress.undress(Rig.worn, self.command)
        Rig.worn = ""

    def run(self, system: System, image: str, tags: str = "", fault: str = "") -> Any:
        """site.yml for a system, as its own inventory would run it but for the hosts."""
        return self.play(
            "site.yml",
            tags=tags,
            recipe_name=system.recipe,
            recipe_overrides={**system.overrides, "env": {"STANDIN_FAULT": fault} if fault else {}},
            recipe_accept_licences=["incoai/GLM-5.3-Flash-DFlash2"],
            fabric_subnets=[],
            image_ref=image,
            # No packages of NVIDIA's can be had, and no RDMA tools have anything to measure.
            container_runtime_nvidia=False,
            fabric_bandwidth=False,
        )


def report() -> list[dict[str, Any]]:
    """All checks of the report that the last run wrote."""
    hosts = json.loads(Path("report/report.json").read_text())["hosts"]
    return [check for checks in hosts.values() for check in checks]


@pytest.fixture
def rig(play: Play, command: Callable[..., str], ship: Callable[..., None]) -> Rig:
    return Rig(play, command, ship)


@pytest.mark.parametrize("system", [TENSORFOLD, STATION], ids=lambda system: system.recipe)
def test_the_whole_job_ends_with_a_proof(rig: Rig, system: System, image: str) -> None:
    rig.dress(system.kind)
    run = rig.run(system, image)
    assert run.status == "successful", run.failure
    verdicts = {check["name"]: check["verdict"] for check in report()}
    assert "fail" not in verdicts.values()
    assert "canary tool" in verdicts and "canary long" in verdicts
    again = rig.run(system, image)
    assert again.changed == {}


@pytest.mark.parametrize(("system", "fault", "said"), FAULTS, ids=lambda value: getattr(value, "recipe", value))
def test_a_fault_of_the_facts_is_named(rig: Rig, system: System, fault: str, said: str, image: str) -> None:
    rig.dress(system.kind)
    run = rig.run(system, image, tags="start,verify", fault=fault)
    # What does not start says why; what starts and is wrong is in the report.
    causes = [check["cause"] for check in report()] if run.results("Write the report") else []
    assert said in causes or said in run.failure


def test_the_pair_serves_again_as_itself(rig: Rig) -> None:
    assert rig.play("playbooks/stop.yml").status == "successful"
    rig.undress()
    run = rig.play("site.yml")
    assert run.status == "successful", run.failure
