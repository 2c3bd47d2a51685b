"""hf_snapshot against a real hub in this process, read back by the real huggingface_hub."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub.server import Fault, Hub, Repo, running

from ansible_collections.tandem.serving.plugins.module_utils import _hub, _snapshot
from ansible_collections.tandem.serving.plugins.module_utils._progress import Progress
from ansible_collections.tandem.serving.plugins.module_utils._snapshot import Snapshot, SnapshotError
from ansible_collections.tandem.serving.plugins.modules import hf_snapshot

REPO, GATED, OTHER, CHANGED = "org/model", "org/gated", "org/mirror", "org/changed"
SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
MIB = 2**20


def fill(folder: Path, seed: int = 1) -> None:
    (folder / "docs").mkdir(parents=True)
    (folder / "config.json").write_text('{"a": 1}\n')
    (folder / "docs" / "read me.md").write_text("text\n")
    for number, shard in enumerate(SHARDS):
        (folder / shard).write_bytes(random.Random(f"{seed}{number}").randbytes((3 + number) * MIB))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    for name in (REPO, GATED, OTHER):
        fill(tmp_path / "root" / name)
    fill(tmp_path / "root" / CHANGED, seed=2)
    with running(Hub(tmp_path / "root", gated={GATED: "hf_good"})) as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_snapshot.time, "sleep", lambda seconds: None)
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def revision(hub: Hub, repo: str = REPO) -> str:
    return Repo(hub.root / repo).revision


def go(hub: Hub, cache: Path, check: bool = False, **options: Any) -> dict[str, Any]:
    """Run the task with the options' defaults."""
    params: dict[str, Any] = {
        "repo": REPO,
        "revision": revision(hub, options.get("repo", REPO)),
        "cache_dir": str(cache),
        "allow": [],
        "ignore": [],
        "fallback_repo": None,
        "fallback_revision": None,
        "fallback_trusted": False,
        "endpoint": hub.url,
        "workers": 4,
        "state": "present",
        "offline": False,
        "token": None,
        "token_file": None,
    } | options
    asked = None if params["offline"] else _hub.Hub(params["endpoint"], hf_snapshot.read_token(params))
    with _snapshot.acting_as_owner(cache):
        return hf_snapshot.Task(params, asked, Progress(None, "look"), check).run()


def sent(hub: Hub) -> dict[str, int]:
    """Bytes that the hub sent of each file."""
    total: dict[str, int] = {}
    for line in hub.log:
        if line["method"] == "GET" and "/resolve/" in line["path"]:
            name = line["path"].rpartition("/")[2]
            total[name] = total.get(name, 0) + line["sent"]
    return total


def hf(cache: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The real command."""
    command = [str(Path(sys.executable).with_name("hf")), *words]
    return subprocess.run(
        command, env=os.environ | {"HF_HUB_CACHE": str(cache)} | env, capture_output=True, text=True, check=False
    )


def test_makes_the_cache_that_the_real_client_calls_complete(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = go(hub, cache)
    assert first["changed"] and first["bytes_fetched"] == first["bytes_total"] == 12 * MIB + 9 + 5
    offline = hf(cache, "download", REPO, "--revision", first["revision"], HF_HUB_OFFLINE="1")
    assert offline.stdout.strip().endswith(first["snapshot"])
    assert hf(cache, "download", REPO, HF_HUB_OFFLINE="1").returncode == 0, "main is known too"
    assert hf(cache, "cache", "verify", REPO, "--revision", first["revision"], HF_ENDPOINT=hub.url).returncode == 0
    link = Path(first["snapshot"]) / SHARDS[0]
    assert str(link.readlink()) == f"../../blobs/{link.resolve().name}"
    assert not list(cache.rglob("*incomplete*"))

    asked = len(hub.log)
    second = go(hub, cache)
    assert not second["changed"] and second["bytes_missing"] == 0
    assert second["manifest_hash"] == first["manifest_hash"]
    assert len(hub.log) == asked, "a complete snapshot needs no network"


def test_a_cache_that_the_real_client_made_is_taken_over_without_a_download(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert hf(cache, "download", REPO, "--revision", revision(hub), HF_ENDPOINT=hub.url).returncode == 0
    asked = len(hub.log)
    assert not go(hub, cache)["changed"]
    assert len(hub.log) == asked


def test_patterns_choose_files(hub: Hub, tmp_path: Path) -> None:
    assert [
        file["path"] for file in go(hub, tmp_path / "cache", allow=["*.json", "docs/"], ignore=["docs/*"])["manifest"]
    ] == ["config.json"]
    with pytest.raises(SnapshotError, match="No file of org/model matches"):
        go(hub, tmp_path / "cache", allow=["*.pt"])


def test_check_mode_tells_what_is_missing_and_writes_nothing(hub: Hub, tmp_path: Path) -> None:
    result = go(hub, tmp_path / "cache", check=True)
    assert result["changed"] and result["bytes_missing"] == result["bytes_total"] and result["bytes_fetched"] == 0
    assert result["diff"]["before"] == {"files_missing": 5, "bytes_missing": result["bytes_total"]}
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "cut", "after": 3 * MIB // 2, "times": 2},
        {"kind": "status", "status": 429, "retry_after": 0, "times": 2},
        {"kind": "status", "status": 500, "times": 2},
        {"kind": "truncate", "after": 100, "times": 1},
        {"kind": "corrupt", "after": 1000, "times": 1},
    ],
    ids=lambda fault: f"{fault['kind']}{fault.get('status', '')}",
)
def test_a_fault_of_one_file_costs_no_other_file(hub: Hub, tmp_path: Path, fault: dict[str, Any]) -> None:
    hub.faults = [Fault(match=f"resolve/.*/{SHARDS[1]}", **fault)]
    result = go(hub, tmp_path / "cache", state="present")
    assert not hub.faults, "the fault was met"
    assert (
        hf(
            tmp_path / "cache", "cache", "verify", REPO, "--revision", result["revision"], HF_ENDPOINT=hub.url
        ).returncode
        == 0
    )
    again = go(hub, tmp_path / "cache", state="verified")
    assert not again["changed"]
    assert sent(hub)[SHARDS[0]] == 3 * MIB and sent(hub)[SHARDS[2]] == 5 * MIB


def test_a_killed_run_goes_on_with_a_range(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    # Slow enough that a busy machine ends it in time.
    hub.faults = [Fault("rate", match=f"resolve/.*/{SHARDS[2]}", after=MIB // 3)]
    arguments = {"repo": REPO, "revision": revision(hub), "cache_dir": str(cache), "endpoint": hub.url, "workers": 1}
    module = [
        sys.executable,
        "-c",
        "from ansible_collections.tandem.serving.plugins.modules.hf_snapshot import main; main()",
    ]
    collections = Path(__file__).parents[3] / "collections"
    process = subprocess.Popen(
        module,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(collections)},
        text=True,
    )
    assert process.stdin
    process.stdin.write(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    process.stdin.close()
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size >= MIB for path in cache.rglob("*.tandem-incomplete")):
        assert time.monotonic() < deadline and process.poll() is None
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    process.wait()
    hub.faults = []
    have = next(cache.rglob("*.tandem-incomplete")).stat().st_size

    result = go(hub, cache)
    assert result["bytes_fetched"] == result["bytes_total"] - have
    ranges = [line["range"] for line in hub.log if line["path"].endswith(SHARDS[2]) and line["method"] == "GET"]
    assert ranges == [None, f"bytes={have}-"]
    assert not list(cache.rglob("*incomplete*"))


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_verified_names_and_mends_one_damaged_file(hub: Hub, tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    snapshot = Path(go(hub, cache)["snapshot"])
    blob = (snapshot / SHARDS[1]).resolve()
    if damage == "flip":
        content = bytearray(blob.read_bytes())
        content[77] ^= 4
        blob.write_bytes(content)
    elif damage == "truncate":
        os.truncate(blob, 1000)
    else:
        blob.unlink()
    others = {path: path.stat().st_mtime_ns for path in blob.parent.iterdir() if path != blob}
    hub.log.clear()

    predicted = go(hub, cache, check=True, state="verified")
    assert predicted["changed"] and predicted["bytes_missing"] == 4 * MIB
    with pytest.raises(
        SnapshotError, match=f"1 files of org/model are missing or wrong, and offline is set: {SHARDS[1]}"
    ):
        go(hub, cache, state="verified", offline=True)
    result = go(hub, cache, state="verified")
    assert result["wrong"] == ([SHARDS[1]] if damage == "flip" else [])
    assert sent(hub) == {SHARDS[1]: 4 * MIB}
    assert others == {path: path.stat().st_mtime_ns for path in others}
    assert not go(hub, cache, state="verified")["changed"]


def test_what_was_verified_and_not_touched_is_not_read_again(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    snapshot = Path(go(hub, cache)["snapshot"])
    read: list[str] = []
    real = _snapshot.digest
    monkeypatch.setattr(_snapshot, "digest", lambda path, *rest: read.append(path.name) or real(path, *rest))
    go(hub, cache, state="verified")
    assert read == []
    os.utime((snapshot / SHARDS[0]).resolve())
    go(hub, cache, state="verified", offline=True)
    assert read == [(snapshot / SHARDS[0]).resolve().name]


def test_offline_needs_neither_network_nor_token(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(SnapshotError, match="does not tell which files org/model has"):
        go(hub, cache, offline=True)
    go(hub, cache, revision="main")
    monkeypatch.setattr(_hub, "Hub", None)
    assert not go(hub, cache, offline=True, endpoint="http://127.0.0.1:1", revision="main")["changed"]
    with pytest.raises(SnapshotError, match="does not know which revision of org/model is called other"):
        go(hub, cache, offline=True, revision="other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"repo": GATED},
            r"org/gated is gated and no token was sent \(401\). Accept its licence on http://\S+/org/gated",
        ),
        (
            {"repo": GATED, "token": "hf_other"},
            r"the account of the token has no access \(403\). Accept its licence on http",
        ),
        ({"repo": GATED, "token": "junk"}, r"does not know the token that was sent \(401\)"),
        ({"repo": "org/none", "revision": "a" * 40, "token": "hf_x"}, r"/org/none does not exist, .*\(404\)"),
        (
            {"repo": "org/none", "revision": "a" * 40},
            r"/org/none does not exist, or it is private and needs a token \(401\)",
        ),
        ({"revision": "a" * 40}, r"org/model has no revision a{40} \(404\)"),
        ({"endpoint": "http://127.0.0.1:1"}, r"The hub http://127.0.0.1:1 cannot be reached"),
    ],
    ids=["gated", "gated, no access", "bad token", "no repo", "no repo, stranger", "no revision", "no hub"],
)
def test_refusals_are_told_apart(hub: Hub, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        go(hub, tmp_path / "cache", check=True, **options)
    assert not sent(hub)


@pytest.mark.parametrize("way", ["option", "file", "environment"])
def test_a_gated_repository_opens_to_its_token(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (tmp_path / "token").write_text("hf_good\n")
    if way == "environment":
        monkeypatch.setenv("HF_TOKEN", "hf_good")
    options = {"option": {"token": "hf_good"}, "file": {"token_file": str(tmp_path / "token")}, "environment": {}}[way]
    assert go(hub, tmp_path / "cache", repo=GATED, **options)["files"] == 5


def test_the_disk_is_asked_for_the_missing_bytes_only(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    go(hub, cache, ignore=SHARDS[1:])

    def disk(free: int) -> None:
        monkeypatch.setattr(
            _snapshot.shutil, "disk_usage", lambda path: os.terminal_size((0, 0)) and type("U", (), {"free": free})
        )

    hub.log.clear()
    disk(9 * MIB - 1)
    with pytest.raises(SnapshotError, match=r"too small: 9.0 MiB of org/model are missing, 9.0 MiB are free"):
        go(hub, cache)
    assert not sent(hub)
    disk(9 * MIB)
    assert go(hub, cache)["bytes_fetched"] == 9 * MIB


@pytest.mark.parametrize(
    ("fallback", "trusted", "message"),
    [
        (OTHER, False, None),
        (CHANGED, False, "not known to be the same"),
        (CHANGED, True, None),
        ("org/none", True, "The fallback neither"),
    ],
    ids=["same bytes", "other bytes", "other bytes, trusted", "no such fallback"],
)
def test_fallback(hub: Hub, tmp_path: Path, fallback: str, trusted: bool, message: str | None) -> None:
    other = revision(hub, fallback) if fallback != "org/none" else "a" * 40
    options = {"repo": GATED, "fallback_repo": fallback, "fallback_revision": other, "fallback_trusted": trusted}
    if message:
        with pytest.raises(SnapshotError, match=message):
            go(hub, tmp_path / "cache", **options)
        return
    result = go(hub, tmp_path / "cache", **options)
    assert (result["source"], result["repo"], result["files"]) == (fallback, GATED, 5)
    assert result["snapshot"].endswith(f"models--org--gated/snapshots/{revision(hub, GATED)}")
    assert not go(hub, tmp_path / "cache", offline=True, repo=GATED)["changed"]


def test_a_fallback_is_no_proof_when_the_repository_cannot_even_be_listed(hub: Hub, tmp_path: Path) -> None:
    options = {
        "repo": "org/none",
        "revision": "b" * 40,
        "fallback_repo": OTHER,
        "fallback_revision": revision(hub, OTHER),
    }
    with pytest.raises(SnapshotError, match="not known to be the same"):
        go(hub, tmp_path / "cache", **options)
    assert go(hub, tmp_path / "cache", fallback_trusted=True, **options)["files"] == 5


def test_a_hub_that_sends_wrong_bytes_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault("corrupt", match=SHARDS[0], after=5, times=9)]
    with pytest.raises(
        SnapshotError, match=rf"{SHARDS[0]} of org/model does not arrive: the content is wrong: expected"
    ):
        go(hub, tmp_path / "cache")
    assert Snapshot(tmp_path / "cache", REPO, revision(hub)).has(
        next(iter(_hub.Hub(hub.url, None).tree(_hub.Place(REPO, revision(hub)))))
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")
def test_root_leaves_nothing_of_its_own_in_the_cache_of_a_user(hub: Hub, tmp_path: Path) -> None:
    for folder in [tmp_path, *tmp_path.parents]:
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    cache = tmp_path / "home" / "cache"
    cache.parent.mkdir()
    os.chown(cache.parent, 12345, 12346)
    go(hub, cache)
    assert os.geteuid() == 0
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in [cache, *cache.rglob("*")]} == {(12345, 12346)}
