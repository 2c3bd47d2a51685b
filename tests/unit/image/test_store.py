"""Single layers out of Docker's stores."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.image import graph

from ansible_collections.tandem.serving.plugins.module_utils._image_store import (
    ContentStore,
    GraphStore,
    StoreError,
    chain_ids,
    digest_of,
    store_of,
)

LAYERS: list[graph.Files] = [
    {"etc/passwd": b"root\n", "etc/empty": b"", "big": bytes(range(256)) * 8192},
    {"opt/" + "long" * 60: b"content", "usr/grün": b"umlaut", "opt/.wh.gone": b""},
]


def test_chain_ids() -> None:
    # The store of a real Docker 26.1 had these.
    diff_ids = [
        "sha256:ccde390b2731530ec50c93874cded209591ef007f5e09ec0fa6d534b77312a73",
        "sha256:c86f9245bff9676c516c66ec4f8c95bc0152e656e66e59f68aa91946fd26ebb8",
    ]
    assert chain_ids(diff_ids) == [
        "sha256:ccde390b2731530ec50c93874cded209591ef007f5e09ec0fa6d534b77312a73",
        "sha256:c17880987b4b1dc66c7fbb77e7ebe2d9a803003c0299bf8af828f56707164d3f",
    ]
    assert chain_ids([]) == []


def test_graph_gives_the_very_tars(tmp_path: Path) -> None:
    inspected, tars = graph.make(tmp_path, LAYERS)
    store = GraphStore(tmp_path, "overlay2")
    image = store.image(inspected)
    assert [b"".join(store.read(layer)) for layer in image["layers"]] == tars
    assert [layer["size"] for layer in image["layers"]] == [len(tar) for tar in tars]
    manifest = json.loads(image["manifest"])
    assert manifest["config"]["digest"] == inspected["Id"] == digest_of(image["config"])
    assert [layer["digest"] for layer in manifest["layers"]] == [digest_of(tar) for tar in tars]


def test_graph_lacks(tmp_path: Path) -> None:
    inspected, _tars = graph.make(tmp_path / "head", LAYERS)
    layers = GraphStore(tmp_path / "head", "overlay2").image(inspected)["layers"]
    # A layer counts only on top of the same layers.
    graph.make(tmp_path / "other_base", [{"a": b"a"}, LAYERS[1]])
    graph.make(tmp_path / "same_base", [LAYERS[0], {"a": b"a"}])
    assert GraphStore(tmp_path / "head", "overlay2").lacks(layers) == []
    assert GraphStore(tmp_path / "other_base", "overlay2").lacks(layers) == layers
    assert GraphStore(tmp_path / "same_base", "overlay2").lacks(layers) == layers[1:]


@pytest.fixture
def ctr(tmp_path: Path) -> Callable[[dict[str, bytes]], str]:
    """A stand-in for containerd's client, over a folder of blobs."""

    def make(blobs: dict[str, bytes]) -> str:
        folder = tmp_path / "blobs"
        folder.mkdir()
        for name, data in blobs.items():
            (folder / name).write_bytes(data)
        program = tmp_path / "ctr"
        program.write_text(
            f'#!/bin/sh\n[ "$5" = content ] || exit 9\ncd {folder}\n'
            'case "$6" in ls) ls ;; get) cat "$7" || { echo "content digest $7: not found" >&2; exit 1; } ;; esac\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return str(program)

    return make


def contents(platforms: list[str]) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Blobs of an image with a manifest for each architecture, and what an index says of them."""
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        blobs[digest_of(data)] = data
        return digest_of(data)

    entries = []
    for platform in platforms:
        layer = f"compressed for {platform}".encode()
        config = json.dumps({"rootfs": {"diff_ids": [digest_of(platform.encode())]}}).encode()
        described = {
            "digest": put(layer),
            "size": len(layer),
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
        }
        manifest = {"mediaType": "m", "config": {"digest": put(config)}, "layers": [described]}
        entries.append(
            {"digest": put(json.dumps(manifest).encode()), "platform": {"os": "linux", "architecture": platform}}
        )
    return blobs, entries


def test_content_of_one_platform(ctr: Callable[[dict[str, bytes]], str]) -> None:
    blobs, entries = contents(["amd64", "arm64"])
    index = json.dumps({"manifests": entries}).encode()
    store = ContentStore(ctr({**blobs, digest_of(index): index}), "socket")
    image = store.image({"Id": digest_of(index), "Os": "linux", "Architecture": "arm64"})
    (layer,) = image["layers"]
    assert layer["diff_id"] == digest_of(b"arm64")
    assert b"".join(store.read(layer)) == b"compressed for arm64"
    assert digest_of(image["manifest"]) == entries[1]["digest"]
    missing = {**layer, "digest": "sha256:missing"}
    assert store.lacks([layer, missing]) == [missing]  # type: ignore[list-item]


def test_content_without_the_platform(ctr: Callable[[dict[str, bytes]], str]) -> None:
    blobs, entries = contents(["amd64"])
    index = json.dumps({"manifests": entries}).encode()
    store = ContentStore(ctr({**blobs, digest_of(index): index}), "socket")
    with pytest.raises(StoreError, match="no manifest for linux/arm64"):
        store.image({"Id": digest_of(index), "Os": "linux", "Architecture": "arm64"})


def test_content_that_came_plain_with_another_image(ctr: Callable[[dict[str, bytes]], str]) -> None:
    blobs, entries = contents(["amd64"])
    manifest = json.loads(blobs[entries[0]["digest"]])
    del blobs[manifest["layers"][0]["digest"]]
    inspected = {"Id": entries[0]["digest"], "Os": "linux", "Architecture": "amd64"}
    store = ContentStore(ctr({**blobs, digest_of(b"amd64"): b"amd64"}), "socket")
    image = store.image(inspected)
    (layer,) = image["layers"]
    assert (layer["digest"], layer["size"]) == (digest_of(b"amd64"), 5)
    assert json.loads(image["manifest"])["layers"][0]["digest"] == digest_of(b"amd64")
    assert b"".join(store.read(layer)) == b"amd64"


def test_content_that_is_unpacked_only(ctr: Callable[[dict[str, bytes]], str]) -> None:
    blobs, entries = contents(["amd64"])
    del blobs[json.loads(blobs[entries[0]["digest"]])["layers"][0]["digest"]]
    with pytest.raises(StoreError, match="unpacked only"):
        ContentStore(ctr(blobs), "socket").image({"Id": entries[0]["digest"], "Os": "linux", "Architecture": "amd64"})


def test_content_that_is_gone(ctr: Callable[[dict[str, bytes]], str]) -> None:
    with pytest.raises(StoreError, match="content digest sha256:gone: not found"):
        ContentStore(ctr({}), "socket").image({"Id": "sha256:gone", "Os": "linux", "Architecture": "arm64"})


CONTAINERD = {"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}


def test_store_of(tmp_path: Path) -> None:
    graph_info = {
        "DockerRootDir": "/var/lib/docker",
        "Driver": "overlay2",
        "DriverStatus": [["Backing Filesystem", "xfs"]],
    }
    assert isinstance(store_of(graph_info, None), GraphStore)
    assert isinstance(store_of({**CONTAINERD, "Containerd": {"Address": str(tmp_path)}}, "/usr/bin/ctr"), ContentStore)


@pytest.mark.parametrize(
    ("info", "ctr", "said"),
    [
        (CONTAINERD, None, "no ctr on this host"),
        ({**CONTAINERD, "Containerd": {"Address": "/nonexistent"}}, "/usr/bin/ctr", "no socket of containerd"),
    ],
)
def test_store_that_cannot_be_read(info: dict[str, Any], ctr: str | None, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        store_of(info, ctr)
