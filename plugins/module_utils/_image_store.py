# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layers in a Docker engine's image store, one by one.

C(docker save) always writes every layer of an image, which for a small change on a 20 GB image is 20 GB of work. Both of Docker's stores
can give single layers: the graph driver keeps, for every layer, the recipe (tar-split) that rebuilds its tar to the byte; containerd
keeps the blob. Either way the digest of what is read proves it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol, TypedDict, cast

from ansible.module_utils.basic import AnsibleModule

_CHUNK = 1 << 20
_OCI = "application/vnd.oci.image"
_CONTAINERD_SOCKETS = ("/run/containerd/containerd.sock", "/run/docker/containerd/containerd.sock")


class StoreError(Exception):
    """An image store that cannot be read, in one sentence with what to do."""


class Layer(TypedDict):
    """A layer: diff id (of the tar), chain id (of it and all below), and the blob that the store can give: digest, bytes, type."""

    diff_id: str
    chain_id: str
    digest: str
    size: int
    media_type: str


class Image(TypedDict):
    """An image as a store gives it: the configuration's bytes, the manifest's bytes and the layers from the bottom up."""

    config: bytes
    manifest: bytes
    layers: list[Layer]


class Store(Protocol):
    """What is asked of an image store."""

    def image(self, inspected: dict[str, Any]) -> Image:
        """The image that C(docker image inspect) describes."""

    def lacks(self, layers: list[Layer]) -> list[Layer]:
        """Those of the layers that a load must bring along."""

    def read(self, layer: Layer) -> Iterator[bytes]:
        """The blob of a layer in pieces."""


def digest_of(data: bytes) -> str:
    """The digest by which a store names these bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def chain_ids(diff_ids: list[str]) -> list[str]:
    """For each layer the name of the stack that ends with it: a layer is the same only on the same layers."""
    chains: list[str] = []
    for diff_id in diff_ids:
        chains.append(digest_of(f"{chains[-1]} {diff_id}".encode()) if chains else diff_id)
    return chains


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def split_entries(lines: Iterator[bytes]) -> Iterator[tuple[bytes, bytes, int]]:
    """Read tar-split: for each entry the literal bytes, or the path and size of the file whose content stands there."""
    for line in lines:
        entry = json.loads(line)
        if entry["type"] == 2:
            yield base64.b64decode(entry["payload"]), b"", 0
        elif entry.get("size"):
            raw = entry.get("name_raw")
            yield b"", base64.b64decode(raw) if raw else entry["name"].encode(), entry["size"]


def manifest_of(config: bytes, layers: list[Layer]) -> bytes:
    """The OCI manifest of an image, as C(docker save) writes it."""
    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": {"mediaType": f"{_OCI}.config.v1+json", "digest": digest_of(config), "size": len(config)},
            "layers": [
                {"mediaType": layer["media_type"], "digest": layer["digest"], "size": layer["size"]} for layer in layers
            ],
        },
        separators=(",", ":"),
    ).encode()


class GraphStore:
    """The store of the graph drivers (overlay2). A layer's blob is its plain tar, so that the digest is the diff id."""

    def __init__(self, root: Path, driver: str) -> None:
        self._layers = root / "image" / driver / "layerdb" / "sha256"
        self._configs = root / "image" / driver / "imagedb" / "content" / "sha256"
        self._content = root / driver

    def image(self, inspected: dict[str, Any]) -> Image:
        config = (self._configs / _hex(inspected["Id"])).read_bytes()
        diff_ids = json.loads(config)["rootfs"]["diff_ids"]
        layers = [
            Layer(
                diff_id=diff_id,
                chain_id=chain_id,
                digest=diff_id,
                size=sum(len(text) + size for text, _name, size in self._split(chain_id)),
                media_type=f"{_OCI}.layer.v1.tar",
            )
            for diff_id, chain_id in zip(diff_ids, chain_ids(diff_ids), strict=True)
        ]
        return Image(config=config, manifest=manifest_of(config, layers), layers=layers)

    def lacks(self, layers: list[Layer]) -> list[Layer]:
        return [layer for layer in layers if not (self._layers / _hex(layer["chain_id"]) / "diff").is_file()]

    def read(self, layer: Layer) -> Iterator[bytes]:
        files = self._content / (self._layers / _hex(layer["chain_id"]) / "cache-id").read_text() / "diff"
        for text, name, size in self._split(layer["chain_id"]):
            if not size:
                yield text
                continue
            with (files / name.decode(errors="surrogateescape").lstrip("/")).open("rb", buffering=0) as file:
                while data := file.read(_CHUNK):
                    yield data

    def _split(self, chain_id: str) -> Iterator[tuple[bytes, bytes, int]]:
        with gzip.open(self._layers / _hex(chain_id) / "tar-split.json.gz") as lines:
            yield from split_entries(lines)


class ContentStore:
    """The containerd store. A layer's blob is what was pulled, mostly compressed."""

    def __init__(self, ctr: str, address: str) -> None:
        self._ctr = [ctr, "--address", address, "--namespace", "moby", "content"]

    def image(self, inspected: dict[str, Any]) -> Image:
        raw = self._get(inspected["Id"])
        manifest = json.loads(raw)
        if "manifests" in manifest:
            raw = self._get(self._child(manifest["manifests"], inspected))
            manifest = json.loads(raw)
        config = self._get(manifest["config"]["digest"])
        diff_ids = json.loads(config)["rootfs"]["diff_ids"]
        held = self._held()
        layers = [
            self._layer(diff_id, chain_id, blob, held)
            for diff_id, chain_id, blob in zip(diff_ids, chain_ids(diff_ids), manifest["layers"], strict=True)
        ]
        if [layer["digest"] for layer in layers] != [blob["digest"] for blob in manifest["layers"]]:
            raw = manifest_of(config, layers)
        return Image(config=config, manifest=raw, layers=layers)

    def lacks(self, layers: list[Layer]) -> list[Layer]:
        held = self._held()
        return [layer for layer in layers if layer["digest"] not in held]

    def read(self, layer: Layer) -> Iterator[bytes]:
        # A layer is gigabytes, which run_command of a module would hold in memory.
        with subprocess.Popen(  # pylint: disable=ansible-bad-function
            [*self._ctr, "get", layer["digest"]], stdout=subprocess.PIPE
        ) as process:
            output = cast(IO[bytes], process.stdout)
            while data := output.read(_CHUNK):
                yield data

    def _held(self) -> set[str]:
        return set(self._run("ls", "--quiet").decode().split())

    def _layer(self, diff_id: str, chain_id: str, blob: dict[str, Any], held: set[str]) -> Layer:
        """A pull leaves out a layer that is unpacked already, though the store may have it as the plain tar of another load only."""
        layer = Layer(
            diff_id=diff_id,
            chain_id=chain_id,
            digest=blob["digest"],
            size=blob["size"],
            media_type=blob["mediaType"],
        )
        if blob["digest"] in held:
            return layer
        if diff_id not in held:
            raise StoreError(
                f"containerd's store has layer {blob['digest']} unpacked only. Remove all images with it on this host and pull again."
            )
        layer["digest"], layer["media_type"] = diff_id, f"{_OCI}.layer.v1.tar"
        layer["size"] = sum(map(len, self.read(layer)))
        return layer

    @staticmethod
    def _child(manifests: list[dict[str, Any]], inspected: dict[str, Any]) -> str:
        wanted = (inspected["Os"], inspected["Architecture"])
        for entry in manifests:
            platform = entry.get("platform", {})
            if (platform.get("os"), platform.get("architecture")) == wanted:
                return str(entry["digest"])
        raise StoreError(f"Image {inspected['Id']} has no manifest for {'/'.join(wanted)}. Pull it for this platform.")

    def _get(self, digest: str) -> bytes:
        return self._run("get", digest)

    def _run(self, *words: str) -> bytes:
        # Bytes, which run_command of a module would decode.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            [*self._ctr, *words], capture_output=True, check=False
        )
        if done.returncode:
            raise StoreError(f"{' '.join([*self._ctr, *words])} failed: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout


def store_of(info: dict[str, Any], ctr: str | None) -> Store:
    """The store of the engine that C(docker info) describes. I(ctr) is the path of containerd's client, needed for its store only."""
    if not any("containerd.snapshotter" in str(value) for _name, value in info.get("DriverStatus") or []):
        return GraphStore(Path(info["DockerRootDir"]), info["Driver"])
    if not ctr:
        raise StoreError(
            "Docker uses the containerd image store, but there is no ctr on this host. Install containerd's client."
        )
    named = (info.get("Containerd") or {}).get("Address")
    for address in [named] if named else _CONTAINERD_SOCKETS:
        if Path(address).exists():
            return ContentStore(ctr, address)
    raise StoreError(
        f"Docker uses the containerd image store, but no socket of containerd was found at {_CONTAINERD_SOCKETS}."
    )


def engine(module: AnsibleModule) -> tuple[str, Store]:
    """The path of Docker's client on this host and the engine's image store."""
    docker = module.get_bin_path("docker", required=True)
    return docker, store_of(_ask(module, [docker, "info"]), module.get_bin_path("ctr"))


def inspect(module: AnsibleModule, docker: str, name: str) -> dict[str, Any]:
    """What C(docker image inspect) says of an image."""
    return _ask(module, [docker, "image", "inspect", name])


def _ask(module: AnsibleModule, words: list[str]) -> dict[str, Any]:
    code, text, error = module.run_command([*words, "--format", "{{json .}}"])
    if code:
        raise StoreError(f"{' '.join(words)} failed: {error.strip()}")
    return dict(json.loads(text))
