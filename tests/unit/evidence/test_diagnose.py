"""Folders of saved logs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.tandem.serving.plugins.filter.diagnose import diagnose

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Names say nothing: two ranks of which one hangs, an engine's log, a measurement and something else."""
    hangs = (FIXTURES / "nccl/nccl_b17_hang_rank0_no_complete.log").read_text()
    whole = (FIXTURES / "nccl/nccl_b37_peer_closed_after_init.log").read_text().partition("\n\n")[0]
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_text(hangs)
    (tmp_path / "b/a.txt").write_text(
        whole.replace("spark-a:", "spark-b:").replace("rank 0 nranks", "rank 1 nranks").replace("2.28.9", "2.28.3")
    )
    (tmp_path / "engine").write_text(
        "(EngineCore pid=1) INFO 11-02 10:24:27 [k.py:1] GPU KV cache size: 9,000 tokens\n"
        "(APIServer pid=1) INFO 11-02 10:25:27 [api_server.py:1] Application startup complete.\n"
    )
    shutil.copy(FIXTURES / "nccl_perf/all_gather_perf_low.txt", tmp_path / "c")
    (tmp_path / "d").write_text("MemTotal: 1 kB\n")
    return tmp_path


def test_each_file_is_what_it_says(folder: Path) -> None:
    found = diagnose(str(folder))
    causes = {name: {check["name"]: check["cause"] for check in checks} for name, checks in found.items()}
    assert causes == {
        "all ranks": {"nccl": "init_not_complete"},
        "c": {"nccl-tests results": "ok", "nccl-tests bus bandwidth": "wrong_data_path_or_build"},
        "d": {"log": "no_known_line"},
        "engine": {"engine start": "ok", "kv pool": "ok"},
    }
    [nccl] = found["all ranks"]
    assert "while rank 1 did" in nccl["found"]
    assert nccl["evidence"][0].startswith("a.txt:11: ")


def test_a_closed_file_does_not_hide_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: path.name != "engine")
    found = diagnose(str(folder))
    [closed] = found["engine"]
    assert (closed["verdict"], closed["cause"]) == ("inconclusive", "not_read")
    assert found["all ranks"][0]["cause"] == "init_not_complete"


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AnsibleFilterError, match="No file in"):
        diagnose(str(tmp_path))
