"""Long work as ansible-playbook shows it: lines while it advances, an end when it does not, and a second run that finds the first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.tandem.serving.plugins.plugin_utils._long_task import _LOOK

HERE = Path(__file__).parent / "long_task"
ROOT = Path(__file__).parents[3]
PATIENCE = 60


def start(folder: Path, steps: int, **variables: float | str) -> subprocess.Popen[str]:
    # Not the environment's own: ansible-core 2.19 starts nothing in the background with an interpreter whose path has a blank.
    python = str(Path(sys.executable).resolve())
    more = {"work_folder": str(folder), "work_steps": steps, "ansible_python_interpreter": python, **variables}
    words = [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", "-c", "local"]
    playbook = subprocess.Popen(
        [*words, HERE / "play.yml", "-e", json.dumps(more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_LIBRARY": str(HERE / "library"),
            "ANSIBLE_ACTION_PLUGINS": str(HERE / "action_plugins"),
            "ANSIBLE_ASYNC_DIR": str(folder / "async"),
            "ANSIBLE_NOCOLOR": "true",
        },
    )
    watchdog = threading.Timer(PATIENCE, playbook.kill)
    watchdog.daemon = True
    watchdog.start()
    return playbook


def output(playbook: subprocess.Popen[str]) -> str:
    return playbook.communicate()[0]


def wait_for(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


def test_it_tells_how_it_advances(tmp_path: Path) -> None:
    playbook = start(tmp_path, 2, tandem_progress_interval=0.2)
    (tmp_path / "1").touch()
    lines = []
    for line in playbook.stdout or ():
        lines.append(line)
        if "step 1 | 1 of 2 steps (50 %)" in line:
            (tmp_path / "2").touch()
    assert playbook.wait() == 0, lines
    assert any(line.startswith("localhost | step 1 | 1 of 2 steps") for line in lines)


def test_what_does_not_advance_is_ended_and_named(tmp_path: Path) -> None:
    (tmp_path / "1").touch()
    text = " ".join(output(playbook := start(tmp_path, 2, tandem_progress_stall=2)).split())
    assert playbook.returncode == 2
    assert "slow_work on localhost did not advance for 2 s and was ended" in text
    assert "step 1 | 1 of 2 steps (50 %)" in text
    pid = json.loads((tmp_path / "state.json").read_text())["pid"]
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_a_second_run_finds_the_work_of_one_that_was_killed(tmp_path: Path) -> None:
    first = start(tmp_path, 1)
    wait_for(lambda: (tmp_path / "state.json.job").exists())
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    second = start(tmp_path, 1, tandem_progress_interval=0.2)
    lines = []
    for line in second.stdout or ():
        lines.append(line)
        if "goes on, left by a former run" in line:
            (tmp_path / "1").touch()
    assert second.wait() == 0, lines
    assert any("changed=1" in line for line in lines)
    assert (tmp_path / "begun").read_text() == "x"


@pytest.mark.parametrize("wrapped", [True, False])
def test_work_whose_process_is_gone_lives_as_long_as_its_wrapper(tmp_path: Path, wrapped: bool) -> None:
    note, state, result = tmp_path / "job", tmp_path / "state", tmp_path / "result"
    note.write_text(json.dumps({"jid": "j4711.1", "results_file": str(result)}))
    state.write_text(json.dumps({"pid": 2**22 + 1}))
    result.write_text(json.dumps({"started": 1}))
    words = ["sh", "-c", "read line", "j4711" if wrapped else "j4712"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as wrapper:
        told = subprocess.run(
            ["sh", "-c", _LOOK.format(note=note, state=state)], capture_output=True, text=True, check=True
        )
        wrapper.kill()
    assert [json.loads(line) for line in told.stdout.split("\n") if line][1:] == [
        {"started": 1},
        {"pid": 2**22 + 1},
        wrapped,
    ]
