"""Layers on their way: written, fetched, loaded."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from unit.image import graph

from ansible_collections.tandem.serving.plugins.module_utils import _image_layout
from ansible_collections.tandem.serving.plugins.module_utils._image_layout import LoadError
from ansible_collections.tandem.serving.plugins.module_utils._image_store import (
    GraphStore,
    Image,
    Layer,
    StoreError,
    digest_of,
)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    inspected, _tars = graph.make(tmp_path / "docker", [{"a": b"first"}, {"b": b"second"}])
    return GraphStore(tmp_path / "docker", "overlay2").image(inspected)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool" / _image_layout.BLOBS).mkdir(parents=True)
    return tmp_path / "spool"


def test_small_files_name_each_other(image: Image) -> None:
    files = _image_layout.small_files(image)
    (described,) = json.loads(files["index.json"])["manifests"]
    manifest = files[_image_layout.blob_path(described["digest"])]
    assert described["size"] == len(manifest)
    (entry,) = json.loads(files["manifest.json"])
    assert files[entry["Config"]] == image["config"]
    assert entry["Layers"] == [_image_layout.blob_path(layer["digest"]) for layer in image["layers"]]
    assert entry["RepoTags"] == [described["annotations"]["io.containerd.image.name"]]


def test_a_written_layer_is_proven(image: Image, spool: Path) -> None:
    layer = image["layers"][0]
    tar = graph.tar_of({"a": b"first"})
    counted: list[int] = []
    _image_layout.write_blob(layer, iter([tar[:100], tar[100:]]), spool, counted.append)
    assert (spool / _image_layout.blob_path(layer["digest"])).read_bytes() == tar
    assert sum(counted) == layer["size"]


def test_a_damaged_store_is_refused(image: Image, spool: Path) -> None:
    with pytest.raises(StoreError, match="The store is damaged"):
        _image_layout.write_blob(image["layers"][0], iter([b"other"]), spool, lambda count: None)
    assert [path for path in spool.rglob("*") if path.is_file()] == []


class Peer:
    """Another host's folder, which appends the rest of a file as rsync does."""

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        self.sent = 0

    def append(self, _name: str, partial: Path) -> None:
        have = partial.stat().st_size if partial.exists() else 0
        self.sent += len(self.blob[have:])
        with partial.open("ab") as file:
            file.write(self.blob[have:])


@pytest.mark.parametrize("have", [0, 1, 700, -1])
def test_a_cut_layer_goes_on(image: Image, spool: Path, have: int) -> None:
    layer, tar = image["layers"][0], graph.tar_of({"a": b"first"})
    path = spool / _image_layout.blob_path(layer["digest"])
    path.with_suffix(".part").write_bytes(tar[:have])
    peer = Peer(tar)
    assert spool / _image_layout.fetch_blob(layer["digest"], spool, peer.append) == path
    assert path.read_bytes() == tar
    assert peer.sent == len(tar[have:]) if have else len(tar)
    _image_layout.fetch_blob(layer["digest"], spool, peer.append)
    assert peer.sent == len(tar[have:]) if have else len(tar)


def test_a_wrong_layer_is_removed_and_mended(image: Image, spool: Path) -> None:
    layer, tar = image["layers"][0], graph.tar_of({"a": b"first"})
    path = spool / _image_layout.blob_path(layer["digest"])
    path.with_suffix(".part").write_bytes(b"wrong" + tar[5:100])
    with pytest.raises(LoadError, match="arrived with the digest"):
        _image_layout.fetch_blob(layer["digest"], spool, Peer(tar).append)
    assert not path.exists()
    _image_layout.fetch_blob(layer["digest"], spool, Peer(tar).append)
    assert digest_of(path.read_bytes()) == layer["digest"]


def test_stream_gives_what_was_named(spool: Path) -> None:
    for name in ("manifest.json", "blobs/sha256/aa", "blobs/sha256/left-over"):
        (spool / name).write_text(name)
    out = io.BytesIO()
    _image_layout.stream(spool, ["manifest.json", "blobs/sha256/aa"], out)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        assert archive.getnames() == ["manifest.json", "blobs/sha256/aa"]


def test_layers_keep_their_order(image: Image) -> None:
    layers: list[Layer] = image["layers"]
    assert layers[1]["chain_id"] == digest_of(f"{layers[0]['diff_id']} {layers[1]['diff_id']}".encode())
