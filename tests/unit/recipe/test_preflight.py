"""What the role preflight takes for free memory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30
SPARK = {"gpus": [{"memory": 0, "used": 0}], "memory": {"total": 120 * GIB, "available": 110 * GIB}}
STATION = {
    "gpus": [{"memory": 24 * GIB, "used": 0}, {"memory": 252 * GIB, "used": 2 * GIB}],
    "memory": {"total": 480 * GIB, "available": 470 * GIB},
}


@pytest.mark.parametrize(
    ("host", "runs", "total", "free"),
    [
        ({**SPARK, "gpus": []}, False, 120, 110),
        (SPARK, False, 120, 110),
        (STATION, False, 252, 250),
        (STATION, True, 252, None),
    ],
)
def test_memory_is_that_of_the_largest_gpu_or_the_hosts(
    tmp_path: Path, host: dict[str, Any], runs: bool, total: int, free: float | None
) -> None:
    shown = {"total": "{{ __preflight_total }}", "free": "{{ __preflight_free }}"}
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROOT / "roles" / "preflight" / "vars" / "main.yml")],
        "vars": {"__preflight_host": {**host, "listeners": [{"own": runs}]}, "shown": shown},
        "tasks": [{"ansible.builtin.copy": {"content": "{{ shown | to_json }}", "dest": str(tmp_path / "shown")}}],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    words = ["ansible-playbook", "-i", "localhost,", "-c", "local", str(tmp_path / "play.yml")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert json.loads((tmp_path / "shown").read_text()) == {"total": total * GIB, "free": free}
