# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A thin image on disk: the layout that C(docker load) reads, holding only the layers that somebody lacks.

Both of Docker's loaders skip what they have: the graph drivers look layers up by chain id, containerd looks blobs up by digest.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils._image_store import Image, Layer, StoreError, digest_of

BLOBS = "blobs/sha256"
# The image's name while it is being loaded.
LOADING = "localhost/tandem/loading:latest"


class LoadError(Exception):
    """Why an image cannot be loaded."""


def blob_path(digest: str) -> str:
    """Where a layout keeps a blob, relative to it."""
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"


def small_files(image: Image) -> dict[str, bytes]:
    """Every file of the layout but the layers, by relative path."""
    config, manifest = digest_of(image["config"]), digest_of(image["manifest"])
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                "mediaType": json.loads(image["manifest"])["mediaType"],
                "digest": manifest,
                "size": len(image["manifest"]),
                "annotations": {
                    "io.containerd.image.name": LOADING,
                    "org.opencontainers.image.ref.name": LOADING.rpartition(":")[2],
                },
            }
        ],
    }
    docker = [
        {
            "Config": blob_path(config),
            "RepoTags": [LOADING],
            "Layers": [blob_path(layer["digest"]) for layer in image["layers"]],
        }
    ]
    return {
        blob_path(config): image["config"],
        blob_path(manifest): image["manifest"],
        "manifest.json": json.dumps(docker).encode(),
        "index.json": json.dumps(index).encode(),
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
    }


def write_blob(layer: Layer, pieces: Iterator[bytes], root: Path, count: Callable[[int], None]) -> None:
    """Write a layer under its digest. A cut leaves only a C(.part); a name without it is a proven blob."""
    path = root / blob_path(layer["digest"])
    part = path.with_suffix(".part")
    digest = hashlib.sha256()
    with part.open("wb", buffering=1 << 20) as file:
        for data in pieces:
            digest.update(data)
            file.write(data)
            count(len(data))
    if f"sha256:{digest.hexdigest()}" != layer["digest"]:
        part.unlink()
        raise StoreError(
            f"Layer {layer['digest']}: what Docker's store gave has the digest sha256:{digest.hexdigest()}. "
            "The store is damaged: remove the image on this host and pull or build it again."
        )
    part.rename(path)


def fetch_blob(wanted: str, root: Path, append: Callable[[str, Path], None]) -> str:
    """Fetch the blob of a digest from another host and return its path. I(append) adds to a C(.part) what it still lacks."""
    name = blob_path(wanted)
    part = (root / name).with_suffix(".part")
    if (root / name).exists():
        return name
    append(name, part)
    digest = hashlib.sha256()
    with part.open("rb", buffering=0) as file:
        while data := file.read(1 << 20):
            digest.update(data)
    found = f"sha256:{digest.hexdigest()}"
    if found != wanted:
        part.unlink()
        raise LoadError(f"blob {wanted} arrived with the digest {found} and was removed; run this again")
    part.rename(root / name)
    return name


def stream(root: Path, names: Iterable[str], out: Any) -> None:
    """Write files of a layout as the tar that Docker loads, each as soon as I(names) tells it."""
    with tarfile.open(fileobj=out, mode="w|", bufsize=1 << 20) as archive:
        archive.copybufsize = 1 << 20  # type: ignore[attr-defined]
        for name in names:
            archive.add(root / name, name, recursive=False)
