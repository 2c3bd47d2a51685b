"""snapshot_sync against a real rsync daemon on loopback."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.daemon import Daemon, free_port

from ansible_collections.tandem.serving.plugins.module_utils import _snapshot
from ansible_collections.tandem.serving.plugins.module_utils._manifest import File, manifest_hash, to_dicts
from ansible_collections.tandem.serving.plugins.module_utils._progress import Progress
from ansible_collections.tandem.serving.plugins.module_utils._rsync import RsyncError
from ansible_collections.tandem.serving.plugins.module_utils._snapshot import Snapshot, SnapshotError
from ansible_collections.tandem.serving.plugins.module_utils._snapshot_routes import routes
from ansible_collections.tandem.serving.plugins.modules import snapshot_sync

REPO, REVISION = "org/model", "a" * 40
MIB = 2**20


def make(cache: Path) -> list[File]:
    """A complete snapshot, as hf_snapshot leaves it."""
    snapshot = Snapshot(cache, REPO, REVISION)
    snapshot.blobs.mkdir(parents=True)
    files = []
    for number, path in enumerate(
        ["config.json", "sub/model-1.safetensors", "model-2.safetensors", "model-3.safetensors"]
    ):
        content = random.Random(number).randbytes(number * MIB + 100)
        oid = hashlib.sha256(content).hexdigest() if number else hashlib.sha1(b"blob 100\0" + content).hexdigest()
        files.append(File(path, len(content), oid, oid[:40]))
        snapshot.blob(files[-1]).write_bytes(content)
        snapshot.link(files[-1])
    return files


@pytest.fixture
def files(tmp_path: Path) -> list[File]:
    return make(tmp_path / "head")


@pytest.fixture
def daemon(tmp_path: Path, files: list[File]) -> Iterator[Daemon]:
    server = Daemon(tmp_path, "weights", tmp_path / "head")
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_snapshot.time, "sleep", lambda seconds: None)


def go(
    cache: Path, files: list[File], daemon: Daemon | None = None, check: bool = False, **options: Any
) -> dict[str, Any]:
    params: dict[str, Any] = {
        "repo": REPO,
        "revision": REVISION,
        "cache_dir": str(cache),
        "manifest": to_dicts(files),
        "sources": ["127.0.0.1"] if daemon else [],
        "port": daemon.port if daemon else 1,
        "share": daemon.share if daemon else None,
        "password": "right",
        "streams": 4,
        "verify": False,
    } | options
    return snapshot_sync.sync(params, Progress(None, "look"), check)


def test_the_worker_ends_with_the_layout_of_the_head(tmp_path: Path, files: list[File], daemon: Daemon) -> None:
    head, worker = tmp_path / "head", tmp_path / "worker"
    assert go(worker, files, check=True)["bytes_missing"] == 6 * MIB + 400
    assert not worker.exists()
    result = go(worker, files, daemon)
    assert result["changed"] and result["bytes_fetched"] == result["bytes_total"] == 6 * MIB + 400
    assert result["manifest_hash"] == manifest_hash(files)
    for file in files:
        pointer = f"models--org--model/snapshots/{REVISION}/{file.path}"
        assert (worker / pointer).readlink() == (head / pointer).readlink()
        assert (worker / pointer).read_bytes() == (head / pointer).read_bytes()
    assert (worker / "models--org--model/refs/main").read_text() == REVISION
    assert not list(worker.rglob("*incomplete*"))


def test_a_complete_copy_needs_no_daemon_and_reads_no_content(
    tmp_path: Path, files: list[File], daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path / "worker", files, daemon)
    monkeypatch.setattr(_snapshot, "digest", None)
    for verify in (False, True):
        again = go(tmp_path / "worker", files, sources=[], verify=verify)
        assert not again["changed"] and again["diff"]["before"] == {"files_missing": 0, "bytes_missing": 0}


def test_a_part_that_is_there_is_not_sent_again(tmp_path: Path, files: list[File], daemon: Daemon) -> None:
    worker = Snapshot(tmp_path / "worker", REPO, REVISION)
    worker.blobs.mkdir(parents=True)
    last = files[-1]
    worker.partial(last).write_bytes((tmp_path / "head/models--org--model/blobs" / last.oid).read_bytes()[: 2 * MIB])
    assert go(tmp_path / "worker", files, daemon)["bytes_fetched"] == 4 * MIB + 400
    assert daemon.sent()["model-3.safetensors"] < 1.1 * MIB


def test_a_part_with_wrong_bytes_is_dropped_and_sent_anew(tmp_path: Path, files: list[File], daemon: Daemon) -> None:
    worker = Snapshot(tmp_path / "worker", REPO, REVISION)
    worker.blobs.mkdir(parents=True)
    worker.partial(files[1]).write_bytes(bytes(1000))
    go(tmp_path / "worker", files, daemon)
    assert not go(tmp_path / "worker", files, verify=True)["changed"]


def test_rsync_is_trusted_with_whole_files_that_were_verified_where_they_came_from(
    tmp_path: Path, files: list[File], daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Snapshot(tmp_path / "worker", REPO, REVISION)
    worker.blobs.mkdir(parents=True)
    worker.partial(files[1]).write_bytes((tmp_path / "head/models--org--model/blobs" / files[1].oid).read_bytes()[:9])
    hashed: list[str] = []
    digest = _snapshot.digest

    def spy(path: Path, oid: str, *rest: Any) -> str:
        hashed.append(oid)
        return digest(path, oid, *rest)

    monkeypatch.setattr(_snapshot, "digest", spy)
    verified = [item | {"verified": item["oid"] != files[2].oid} for item in to_dicts(files)]
    go(tmp_path / "worker", files, daemon, manifest=verified)
    assert sorted(hashed) == sorted([files[1].oid, files[2].oid]), "one had begun before, one is not known to be right"
    assert not go(tmp_path / "worker", files, verify=True)["changed"]
    assert len(hashed) == 4, "a later check reads what only rsync vouched for"


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "relink"])
def test_only_the_damaged_file_is_sent_again(tmp_path: Path, files: list[File], daemon: Daemon, damage: str) -> None:
    go(tmp_path / "worker", files, daemon)
    before = daemon.sent()
    worker = Snapshot(tmp_path / "worker", REPO, REVISION)
    blob = worker.blob(files[2])
    if damage == "flip":
        content = bytearray(blob.read_bytes())
        content[5] ^= 1
        blob.write_bytes(content)
        assert not go(tmp_path / "worker", files)["changed"], "sizes alone do not show it"
    elif damage == "truncate":
        os.truncate(blob, 10)
    elif damage == "remove":
        blob.unlink()
    else:
        (worker.path / files[2].path).unlink()
    result = go(tmp_path / "worker", files, daemon, verify=damage == "flip")
    assert result["changed"] and result["wrong"] == ([files[2].path] if damage == "flip" else [])
    again = {name for name, size in daemon.sent().items() if size != before[name]}
    assert again == (set() if damage == "relink" else {files[2].path})
    assert not go(tmp_path / "worker", files, verify=True)["changed"]


def test_a_dead_rail_costs_only_the_tries_over_it(tmp_path: Path, files: list[File], daemon: Daemon) -> None:
    assert go(tmp_path / "worker", files, daemon, sources=["127.0.0.9", "127.0.0.1"], streams=1)["changed"]
    assert not go(tmp_path / "worker", files, verify=True)["changed"]


def test_a_wrong_source_is_refused_by_its_checksum(tmp_path: Path, files: list[File], daemon: Daemon) -> None:
    blob = Snapshot(tmp_path / "head", REPO, REVISION).blob(files[1])
    blob.write_bytes(bytes(files[1].size))
    with pytest.raises(
        SnapshotError, match=r"sub/model-1.safetensors of org/model does not arrive: the content is wrong"
    ):
        go(tmp_path / "worker", files, daemon)
    assert not Snapshot(tmp_path / "worker", REPO, REVISION).has(files[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"password": "wrong"}, r"The daemon at 127.0.0.1:\d+ refuses this host"),
        ({"share": "other"}, r"does not arrive: The daemon at 127.0.0.1:\d+ refuses this host"),
        ({"sources": []}, "there is no address to fetch files from"),
        ({"port": 1}, r"does not arrive: 127.0.0.1:1: .* \(6 tries\)"),
        ({"revision": "main"}, "Expected a revision of 40 hexadecimal digits, found 'main'"),
    ],
    ids=["password", "share", "no source", "no daemon", "revision"],
)
def test_failures_are_named(
    tmp_path: Path, files: list[File], daemon: Daemon, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((SnapshotError, RsyncError), match=message):
        go(tmp_path / "worker", files, daemon, **options)


def test_contents_that_the_head_keeps_elsewhere_arrive_as_contents(
    tmp_path: Path, files: list[File], daemon: Daemon
) -> None:
    head = Snapshot(tmp_path / "head", REPO, REVISION)
    for file, link in ((files[1], head.blob(files[1])), (files[2], head.path / files[2].path)):
        elsewhere = tmp_path / f"elsewhere-{file.size}"
        head.blob(file).rename(elsewhere)
        link.unlink(missing_ok=True)
        link.symlink_to(elsewhere)
    go(tmp_path / "worker", files, daemon)
    worker = Snapshot(tmp_path / "worker", REPO, REVISION)
    assert all(worker.blob(file).is_file() and not worker.blob(file).is_symlink() for file in files)
    assert not go(tmp_path / "worker", files, verify=True)["changed"]
    assert go(tmp_path / "disk", files, sources=[str(tmp_path / "head")])["changed"]
    assert not go(tmp_path / "disk", files, verify=True)["changed"]


def test_a_file_that_the_head_lost_is_named(tmp_path: Path, files: list[File], daemon: Daemon) -> None:
    Snapshot(tmp_path / "head", REPO, REVISION).blob(files[0]).unlink()
    with pytest.raises(
        SnapshotError, match=r"config.json of org/model does not arrive: \S+ cannot be copied from 127.0.0.1"
    ):
        go(tmp_path / "worker", files, daemon)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_says_how_much_it_needs_and_the_next_run_goes_on(
    tmp_path: Path, files: list[File], daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(disk)], check=True)
    try:
        with pytest.raises(
            SnapshotError, match=r"The disk of \S+ is too small: 6.0 MiB of org/model are missing, 5.0 MiB are free"
        ):
            go(disk / "worker", files, daemon)
        monkeypatch.setattr(Snapshot, "check_disk", lambda *rest: None)
        with pytest.raises(SnapshotError, match=r"is full while \S+ arrives. Free \d.\d MiB"):
            go(disk / "worker", files, daemon)
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert go(disk / "worker", files, daemon)["bytes_fetched"] < 6 * MIB
        assert not go(disk / "worker", files, verify=True)["changed"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    "cables",
    [
        {1: "ab", 2: "ab"},
        {1: "ab", 2: "bc", 3: "ca"},
        {1: "ab", 2: "bc", 3: "cd", 4: "da"},
        {1: "abcd"},
    ],
    ids=["pair", "triangle", "ring", "switch"],
)
def test_all_hosts_get_the_bytes_and_no_link_carries_them_twice(
    tmp_path: Path, files: list[File], cables: dict[int, str]
) -> None:
    hosts = sorted({host for ends in cables.values() for host in ends})
    fabric = {
        host: {
            "rails": [
                {"subnet": net, "address": f"127.{net}.0.{ord(host)}"} for net, ends in cables.items() if host in ends
            ]
        }
        for host in hosts
    }
    (tmp_path / "head").rename(tmp_path / "a")
    total = sum(file.size for file in files)
    found = routes(fabric)
    port = free_port()
    carried: dict[str, int] = {}
    for turn in range(1, 1 + max(route["turn"] for route in found.values())):
        for host in (host for host in hosts if found[host]["turn"] == turn):
            daemons = {}
            for rail in found[host]["rails"]:
                folder = tmp_path / f"{rail['source']}-{host}"
                folder.mkdir()
                cache = tmp_path / found[host]["source"]
                daemons[rail["source"]] = Daemon(folder, "weights", cache, address=rail["source"], port=port)
            try:
                go(tmp_path / host, files, next(iter(daemons.values())), sources=list(daemons))
            finally:
                for address, daemon in daemons.items():
                    daemon.stop()
                    carried[address] = carried.get(address, 0) + sum(daemon.sent().values())
    for host in hosts[1:]:
        assert not go(tmp_path / host, files, verify=True)["changed"]
    assert all(0 < sent < 1.01 * total + 10_000 for sent in carried.values())
    assert sum(carried.values()) < (len(hosts) - 1) * (1.01 * total + 10_000)


def test_a_disk_is_a_source_too(tmp_path: Path, files: list[File]) -> None:
    assert go(tmp_path / "disk", files, sources=[str(tmp_path / "head")])["bytes_fetched"] == 6 * MIB + 400
    assert not go(tmp_path / "disk", files, verify=True)["changed"]
