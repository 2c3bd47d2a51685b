"""The whole job for machines that are not here, on the rig: their recipes, with a stand-in for the engine.

Shows that every stage does for these recipes what it should, that their arguments are those of the facts, and that each fault of the
facts is named. Shows nothing of the engines themselves.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standin import dress

Play = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SMALL = {"repo": "HuggingFaceTB/SmolLM2-135M-Instruct", "revision": "84b8df8ce5f5fc75a2607a25630f02fb95b8a0d6"}
MODEL = {**SMALL, "architecture": "LlamaForCausalLM", "quantization": None, "size_gib": 0.3}
UNIT = "tandem-rank"
CTL = "python3 /usr/local/libexec/tandem/rank_ctl.py"


class System(NamedTuple):
    """An inventory, the saved machine to look like, how they are cabled, and what is said beside the inventory.

    ``stands`` is what stands in the recipe for what the rig does not have.
    """

    inventory: str
    kind: str
    cabling: str
    stands: dict[str, Any]
    said: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.inventory}-{self.cabling}"


IMAGE = {"size_gib": 1}
MEMORY = {"weights_gib": 0.2, "host_gib": 0.5, "pool_gib": 0.2, "page_bytes": 1024}
SPARKS = {"model": MODEL, "drafter": SMALL, "image": IMAGE, "memory": MEMORY}
TENSORFOLD = System("two_spark_tensorfold", "spark_bare", "pair", SPARKS, {})
STATION = System("two_station", "station", "pair2", {"model": MODEL, "image": IMAGE}, {})
TRIANGLE = System("three_spark", "spark_bare", "triangle", SPARKS, {})
SWITCH = System("four_spark", "spark_bare", "switch", SPARKS, {"fabric_topology": "switch"})
# The way to the machine across is the role's to make.
RING = System("four_spark", "spark_bare", "ring", SPARKS, {"fabric_configure": True})

# A fault, the stage that meets it, and what is said of it.
FAULTS = [
    (TENSORFOLD, "window", "cannot hold one request of max-model-len"),
    (TENSORFOLD, "split", "NCCL failed"),
    (TENSORFOLD, "repeats", "canary_repeats"),
    (TENSORFOLD, "socket", "socket_transport"),
    (STATION, "free_memory", "180.2 of 251.98 GiB were free"),
    (STATION, "kv", "81664"),
    (STATION, "gid", "gid_index_empty"),
    (STATION, "no_gdr", "gdr_disabled"),
    (STATION, "drafts", "canary_no_drafts_accepted"),
]


class Rig:
    """The nodes, dressed as one system at a time."""

    # What they wear outlives a test.
    worn: System | None = None

    def __init__(
        self, play: Play, command: Callable[..., str], ship: Callable[..., None], home: Path, image: str
    ) -> None:
        self._play, self.command, self.ship, self.home, self.image = play, command, ship, home, image

    @property
    def nodes(self) -> list[str]:
        """Those that take part, by rank."""
        return list(dress.machines(self.worn.kind, self.worn.cabling)) if self.worn else ["spark-a", "spark-b"]

    def dress(self, system: System) -> None:
        if self.worn != system:
            self.undress()
            Rig.worn = system
            dress.dress(system.kind, system.cabling, self.command, self.ship)

    def undress(self) -> None:
        """Stop what runs. What a session before left on the pair goes, too."""
        run = self.play("playbooks/stop.yml")
        assert run.status == "successful", run.failure
        dress.undress(self.nodes, self.command)
        Rig.worn = None

    def play(self, playbook: str, **given: Any) -> Any:
        """A playbook with the inventory of what the nodes wear; beside it, only where the hosts are."""
        if self.worn is None:
            return self._play(playbook, **given)
        inventory = [ROOT / "inventories" / self.worn.inventory, HERE / "hosts.yml"]
        return self._play(playbook, inventory=inventory, standin_home=str(self.home), **given)

    def run(self, tags: str = "", fault: str = "") -> Any:
        """site.yml for the system that the nodes wear."""
        assert self.worn
        # The inventory of four machines names an archive instead.
        image = {} if self.worn.inventory == "four_spark" else {"image_ref": self.image}
        return self.play(
            "site.yml",
            tags=tags,
            recipe_overrides={
                **self.worn.stands,
                "env": {"STANDIN_TOPOLOGY": self.worn.cabling, "STANDIN_FAULT": fault},
            },
            recipe_accept_licences=["incoai/GLM-5.3-Flash-DFlash2"],
            # No packages of NVIDIA's can be had, and no RDMA tools have anything to measure.
            container_runtime_nvidia=False,
            fabric_bandwidth=False,
            **self.worn.said,
            **image,
        )

    def states(self) -> list[dict[str, Any]]:
        """What every rank tells of itself."""
        return [json.loads(self.command(host, f"{CTL} state")) for host in self.nodes]


def report() -> list[dict[str, Any]]:
    """All checks of the report that the last run wrote."""
    hosts = json.loads(Path("report/report.json").read_text())["hosts"]
    return [check for checks in hosts.values() for check in checks]


def serves() -> bool:
    """Whether the head answers."""
    body = {"model": "GLM-5.3-Flash-EXL3", "messages": [{"role": "user", "content": "Which is the capital of France?"}]}
    request = urllib.request.Request("http://10.98.0.11:8888/v1/chat/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return "Paris" in answer.read().decode()
    except OSError:
        return False


def wait(what: Callable[[], bool], seconds: int) -> None:
    """Until something is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(1)


@pytest.fixture
def rig(
    play: Play,
    command: Callable[..., str],
    ship: Callable[..., None],
    machines: Path,
    image: str,
    archive: None,
) -> Rig:
    return Rig(play, command, ship, machines, image)


@pytest.mark.parametrize("system", [TENSORFOLD, STATION, TRIANGLE, SWITCH, RING], ids=str)
def test_the_whole_job_ends_with_a_proof(rig: Rig, system: System) -> None:
    rig.dress(system)
    run = rig.run()
    assert run.status == "successful", run.failure
    assert [check for check in report() if check["verdict"] == "fail"] == []
    assert {"canary tool", "canary long"} <= {check["name"] for check in report()}
    again = rig.run()
    assert again.status == "successful", again.failure
    assert again.changed == {}


def test_a_lost_rank_of_four_brings_all_back_together(rig: Rig) -> None:
    rig.dress(RING)
    run = rig.run(tags="start")
    assert run.status == "successful", run.failure
    before = rig.states()
    rig.command("spark-c", "docker kill tandem-rank")
    wait(lambda: rig.states()[2]["invocation"] != before[2]["invocation"] and serves(), 120)
    after = rig.states()
    assert [state["active"] for state in after] == ["active"] * 4
    assert {state["invocation"] for state in before}.isdisjoint(state["invocation"] for state in after)
    assert {state["shared_hash"] for state in after} == {before[0]["shared_hash"]}
    # One kernel, one clock.
    since = [int(rig.command(host, f"systemctl show {UNIT} -P ActiveEnterTimestampMonotonic")) for host in rig.nodes]
    assert since == sorted(since, reverse=True)


def test_a_planned_stop_of_four_is_not_healed(rig: Rig) -> None:
    rig.dress(RING)
    assert rig.run(tags="start").status == "successful"
    assert rig.play("playbooks/stop.yml").status == "successful"
    time.sleep(25)
    # The workers may have ended by themselves, since they lost the head.
    assert {state["active"] for state in rig.states()} <= {"inactive", "failed"}


def test_a_changed_file_on_one_of_four_is_named_before_the_next_start(rig: Rig) -> None:
    rig.dress(RING)
    assert rig.run(tags="start").status == "successful"
    rig.command("spark-c", "echo NCCL_DEBUG=TRACE >> /etc/tandem/rank.env; docker kill tandem-rank")
    wait(lambda: rig.command("spark-a", "systemctl is-active tandem-supervisor || true") == "failed", 60)
    told = json.loads(rig.command("spark-a", "cat /var/lib/tandem/supervisor.json"))
    assert told["action"] == "give_up"
    assert "/etc/tandem/rank.env on spark-3 changed since site.yml wrote it" in told["reason"]
    run = rig.run(tags="start")
    assert run.status == "successful", run.failure
    assert serves()


@pytest.mark.parametrize(("system", "fault", "said"), FAULTS, ids=str)
def test_a_fault_of_the_facts_is_named(rig: Rig, system: System, fault: str, said: str) -> None:
    rig.dress(system)
    run = rig.run(tags="start,verify", fault=fault)
    # What does not start says why; what starts and is wrong is in the report.
    causes = [check["cause"] for check in report()] if run.results("Write the report") else []
    assert said in causes or said in run.failure


def test_the_pair_serves_again_as_itself(rig: Rig) -> None:
    rig.undress()
    run = rig.play("site.yml")
    assert run.status == "successful", run.failure
