"""What could not be read on a host, beside what was."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from ansible_collections.tandem.serving.plugins.filter.readings import readings
from ansible_collections.tandem.serving.plugins.module_utils._causes import CAUSES

ROOT = Path(__file__).parents[3]
GOOD = {"name": "processor", "verdict": "pass", "cause": "ok"}


def test_each_result_counts_once() -> None:
    found = readings(
        {
            "engine's log": {"checks": [GOOD], "failed": False},
            "KV pool": {"checks": [GOOD]},
            "RDMA devices": {"skipped": True, "changed": False},
            "host": {"failed": False, "failed_when_result": False, "msg": "No\n bus"},
        }
    )
    assert found == [
        GOOD,
        {
            "name": "host",
            "verdict": "inconclusive",
            "cause": "not_read",
            "expected": "a reading",
            "found": "No bus",
            "evidence": ["host: No bus"],
            "remedy": CAUSES["not_read"].remedy,
        },
    ]


def test_hosts_that_do_not_answer_are_in_the_report(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    # Nothing listens on port 9 of this machine.
    hosts = {name: {"ansible_host": "127.0.0.1", "ansible_port": 9} for name in ("spark-a", "spark-b")}
    inventory.write_text(json.dumps({"ranks": {"hosts": hosts}}))
    words = [
        "ansible-playbook",
        "playbooks/diagnose.yml",
        "-i",
        str(inventory),
        "-e",
        f"diagnose_report_dir={tmp_path}",
    ]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
    run = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "diagnose.json").read_text())
    assert json.dumps(report).count('"host_unreachable"') >= len(hosts)
    assert "Connection refused" in (tmp_path / "diagnose.html").read_text()
