"""Saved logs."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.tandem.serving.plugins.filter.diagnose import diagnose

FIXTURES = Path(__file__).parent.parent / "fixtures"
LOADS = b"(EngineCore pid=1) INFO 11-02 10:24:27 [k.py:1] Starting to load model x\n"


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


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        # Words that an engine uses too.
        ("ethtool.txt", b"Link detected: no (Cable is unplugged)\n\tNo data\n", "no_known_line"),
        ("nvidia_smi.txt", b"| NVIDIA-SMI 580.95.05    CUDA Version: 13.0 |\n", "no_known_line"),
        ("blob", b"\x7fELF\x02\x00Error\x00SIG\x00\n\xff\xfe", "no_known_line"),
        ("short.log", LOADS, "still_loading"),
        ("nccl.1.log", b"", "debug_level_too_low"),
        ("nccl.2.log.gz", gzip.compress(b"", mtime=0), "debug_level_too_low"),
        ("whole.log.gz", gzip.compress(LOADS, mtime=0), "still_loading"),
        ("end_lost.log.gz", gzip.compress(LOADS, mtime=0)[:-9], "still_loading"),
        ("garbled.log.gz", gzip.compress(LOADS, mtime=0)[:10] + b"\xff" * 20, "not_read"),
        ("corrupt.log.gz", b"no gzip", "not_read"),
        ("cut.log.gz", gzip.compress(b"Application startup complete\n", mtime=0)[:9], "not_read"),
    ],
)
def test_what_says_little(tmp_path: Path, name: str, content: bytes, cause: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert {check["cause"] for check in diagnose(str(tmp_path))[name]} == {cause}


def test_a_page_about_the_logs_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("`NCCL WARN Failed to initialize any NET plugin`: no RDMA device\n")
    (tmp_path / "a.log").write_text("Application startup complete\n")
    assert list(diagnose(str(tmp_path))) == ["a.log"]
    assert list(diagnose(str(tmp_path / "README.md"))) == ["README.md"]


def test_one_file(folder: Path) -> None:
    assert diagnose(str(folder / "c")) == {"c": diagnose(str(folder))["c"]}
    [nccl] = diagnose(str(folder / "a.txt"))["a.txt"]
    assert nccl["evidence"][0].startswith("a.txt:")


@pytest.mark.parametrize(("path", "said"), [("", "No log in .*: point"), ("gone", "gone does not exist: point")])
def test_no_log_is_an_error(tmp_path: Path, path: str, said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        diagnose(str(tmp_path / path))


def test_an_unknown_platform_is_an_error(folder: Path) -> None:
    with pytest.raises(AnsibleFilterError, match="platform: expected one of gb10, gb300, generic, found 'gb20'"):
        diagnose(str(folder), "gb20")
