# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A thin image on disk: the layout that C(docker load) reads, holding only the layers that somebody lacks.

Both of Docker's loaders skip what they have: the graph drivers look layers up by chain id, containerd looks blobs up by digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ansible_collections.tandem.serving.plugins.module_utils._image_store import Image, Layer, StoreError, digest_of

BLOBS = "blobs/sha256"
# The image's name while it is being loaded.
LOADING = "localhost/tandem/loading:latest"


class LoadError(Exception):
    """What docker load said."""


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


def write_blob(layer: Layer, pieces: Iterator[bytes], root: Path) -> None:
    """Write a layer under its digest. A cut leaves only a C(.part); a name without it is a proven blob."""
    path = root / blob_path(layer["digest"])
    part = path.with_suffix(".part")
    digest = hashlib.sha256()
    with part.open("wb", buffering=1 << 20) as file:
        for data in pieces:
            digest.update(data)
            file.write(data)
    if f"sha256:{digest.hexdigest()}" != layer["digest"]:
        part.unlink()
        raise StoreError(
            f"Layer {layer['digest']}: what Docker's store gave has the digest sha256:{digest.hexdigest()}. "
            "The store is damaged: remove the image on this host and pull or build it again."
        )
    part.rename(path)


def stream(root: Path, out: IO[bytes]) -> None:
    """Write the layout as the tar that C(docker load) reads."""
    with tarfile.open(fileobj=out, mode="w|", bufsize=1 << 20) as archive:
        archive.copybufsize = 1 << 20  # type: ignore[attr-defined]
        for path in sorted(root.rglob("*"), key=os.fspath):
            if path.is_file() and path.suffix != ".part":
                archive.add(path, path.relative_to(root).as_posix(), recursive=False)


def load(root: Path, docker: str) -> None:
    """Give the layout to C(docker load)."""
    with subprocess.Popen(
        [docker, "load", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            with process.stdin as pipe:
                stream(root, pipe)
        except BrokenPipeError:
            pass  # Docker has given up; it says why below.
        said = process.stdout.read().decode(errors="replace").strip()
    if process.returncode:
        raise LoadError(said)
