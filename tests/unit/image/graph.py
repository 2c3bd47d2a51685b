"""A graph driver's store on disk, as Docker keeps it, with layers that are really tars."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils._image_store import chain_ids, digest_of

Files = dict[str, bytes]


def tar_of(files: Files) -> bytes:
    """A layer's tar. A name that is too long for a plain header is among what tests put in."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def split_of(tar: bytes) -> bytes:
    """Tar-split's record of a tar: everything but the files' contents."""
    lines: list[dict[str, Any]] = []
    at = 0
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            lines.append({"type": 2, "payload": base64.b64encode(tar[at : member.offset_data]).decode()})
            raw = member.name.encode("utf-8", "surrogateescape")
            entry = {"type": 1, "name": member.name, "size": member.size, "payload": "AAAAAAAAAAA="}
            if not member.name.isascii():
                entry |= {"name": "?", "name_raw": base64.b64encode(raw).decode()}
            lines.append(entry)
            at = member.offset_data + member.size
    lines.append({"type": 2, "payload": base64.b64encode(tar[at:]).decode()})
    return gzip.compress("\n".join(json.dumps(line) for line in lines).encode())


def make(root: Path, layers: list[Files]) -> tuple[dict[str, Any], list[bytes]]:
    """Put an image into the store under I(root). Returns what inspect says of it, and the layers' tars."""
    tars = [tar_of(files) for files in layers]
    diff_ids = [digest_of(tar) for tar in tars]
    for number, (files, tar, chain) in enumerate(zip(layers, tars, chain_ids(diff_ids), strict=True)):
        place = root / "image/overlay2/layerdb/sha256" / chain.removeprefix("sha256:")
        place.mkdir(parents=True)
        (place / "diff").write_text(diff_ids[number])
        (place / "cache-id").write_text(f"cache{number}")
        (place / "tar-split.json.gz").write_bytes(split_of(tar))
        for name, content in files.items():
            path = root / "overlay2" / f"cache{number}" / "diff" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()
    name = hashlib.sha256(config).hexdigest()
    configs = root / "image/overlay2/imagedb/content/sha256"
    configs.mkdir(parents=True)
    (configs / name).write_bytes(config)
    return {"Id": f"sha256:{name}", "Os": "linux", "Architecture": "amd64"}, tars
