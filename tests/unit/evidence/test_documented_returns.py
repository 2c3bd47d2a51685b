"""What the documentation of the modules says they return, against what they return."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

MODULES = "ansible_collections.tandem.serving.plugins.modules"


def run(name: str, **arguments: Any) -> dict[str, Any]:
    """The module's answer, from a process of its own as on a host."""
    code = f"import runpy; runpy.run_module('{MODULES}.{name}', run_name='__main__')"
    given = json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_remote_tmp": "/tmp"}})
    setup = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\nsys.argv = ['module', {given!r}]\n"
    profile = "from ansible.module_utils import basic; basic._ANSIBLE_PROFILE = 'legacy'\n"
    done = subprocess.run([sys.executable, "-c", setup + profile + code], capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("name", ["engine_log_info", "kv_pool_info"])
def test_every_key_is_documented_and_every_documented_key_is_there(name: str) -> None:
    documented = yaml.safe_load(importlib.import_module(f"{MODULES}.{name}").RETURN)
    answer = run(name, content="(EngineCore pid=1) INFO 11-02 10:24:27 [k.py:1] GPU KV cache size: 9,000 tokens\n")
    assert set(answer) - {"changed", "invocation"} == set(documented)
    assert set(answer["summary"]) == set(documented["summary"]["contains"])
    assert answer["changed"] is False


def test_connections_have_the_documented_keys() -> None:
    documented = yaml.safe_load(importlib.import_module(f"{MODULES}.connection_info").RETURN)
    answer = run("connection_info", proc_root=str(Path(__file__).parent.parent / "fixtures/proc"))
    assert set(answer) - {"changed", "invocation"} == set(documented)
    for name, listed in documented.items():
        assert answer[name]
        assert all(set(item) == set(listed["contains"]) for item in answer[name])
