"""What the documentation of the modules says they return, against what they return."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from unit.fabric import tree

ROOT = Path(__file__).parents[3]
FIXTURES = Path(__file__).parent.parent / "fixtures"
PACKAGE = "ansible_collections.tandem.serving.plugins.modules"
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
# What every module returns is documented by Ansible.
COMMON = {"changed", "diff", "invocation"}


def documented(name: str) -> dict[str, Any]:
    return yaml.safe_load(importlib.import_module(f"{PACKAGE}.{name}").RETURN) or {}


def answered(calls: Iterator[ast.Call], module: ast.Module) -> Iterator[str]:
    """The keys of all ``exit_json`` of a module, as far as it writes them itself."""
    for call in calls:
        for word in call.keywords:
            if word.arg:
                yield word.arg
            elif isinstance(word.value, ast.Name):
                yield from filled(word.value.id, module)


def filled(name: str, module: ast.Module) -> Iterator[str]:
    """The keys that a variable gets as a literal or one by one."""
    for node in ast.walk(module):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if isinstance(target, ast.Name) and target.id == name and isinstance(node.value, ast.Dict):
                yield from (key.value for key in node.value.keys if isinstance(key, ast.Constant))
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id == name:
                yield from [target.slice.value] if isinstance(target.slice, ast.Constant) else []


def words(path: Path) -> set[str]:
    """Everything that a file names: strings and keywords."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return found | {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}


@pytest.mark.parametrize("name", MODULES)
def test_no_key_is_returned_in_secret(name: str) -> None:
    module = ast.parse((ROOT / f"plugins/modules/{name}.py").read_text())
    calls = (
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "exit_json"
    )
    assert set(answered(calls, module)) - COMMON - set(documented(name)) == set()


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"nccl_log_info", "rdma_info"}))
def test_no_key_is_promised_in_vain(name: str) -> None:
    """It stands in the module, or in the action of its name, or (of the two others) in an answer below."""
    action = ROOT / f"plugins/action/{name}.py"
    said = words(ROOT / f"plugins/modules/{name}.py") | (words(action) if action.exists() else set())
    assert set(documented(name)) - COMMON - said == set()


def run(name: str, folder: Path, **arguments: Any) -> dict[str, Any]:
    """The module's answer, from a process of its own as on a host."""
    given = folder / "arguments.json"
    given.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_remote_tmp": "/tmp"}}))
    code = f"import runpy; runpy.run_module('{PACKAGE}.{name}', run_name='__main__')"
    setup = (
        f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\nsys.argv = ['module', {str(given)!r}]\n"
    )
    profile = "from ansible.module_utils import basic; basic._ANSIBLE_PROFILE = 'legacy'\n"
    done = subprocess.run([sys.executable, "-c", setup + profile + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


POOL = "(EngineCore pid=1) INFO 11-02 10:24:27 [k.py:1] GPU KV cache size: 9,000 tokens\n"
NCCL = (FIXTURES / "nccl/nccl_b31_ray_two_ranks_one_file.log").read_text()
ANSWERS: dict[str, dict[str, Any]] = {
    "connection_info": {"proc_root": str(FIXTURES / "proc")},
    "engine_log_info": {"content": POOL},
    "fabric_probe_info": {"rails": [], "host": "spark-a"},
    "host_info": {"paths": ["/"]},
    "kv_pool_info": {"content": POOL},
    "nccl_log_info": {"content": NCCL},
    "nccl_perf_info": {"content": (FIXTURES / "nccl_perf/ib_write_bw_ok.txt").read_text()},
    "pin_info": {"images": [], "revisions": []},
    "rdma_info": {},
}


def disagree(answer: Any, listed: dict[str, Any], where: str) -> Iterator[str]:
    """Where an answer has other keys than its documentation, however deep."""
    for one in answer if isinstance(answer, list) else [answer]:
        if isinstance(one, dict) and "contains" in listed:
            if set(one) != set(listed["contains"]):
                yield f"{where}: {sorted(set(one) ^ set(listed['contains']))}"
            for key in set(one) & set(listed["contains"]):
                yield from disagree(one[key], listed["contains"][key], f"{where}.{key}")


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_has_the_documented_keys(name: str, tmp_path: Path) -> None:
    arguments = ANSWERS[name]
    if name == "rdma_info":
        arguments = {"root": str(tree.write(tmp_path, tree.load("spark_two_cables")))}
    answer = run(name, tmp_path, **arguments)
    assert set(answer) - COMMON == set(documented(name)) - COMMON
    assert answer["changed"] is False
    assert [line for key, listed in documented(name).items() for line in disagree(answer[key], listed, key)] == []
