"""Make a snapshot in a hub cache: make.py CACHE REPO REVISION FILES MIB [sparse]. Prints its manifest."""

import hashlib
import json
import os
import sys
from pathlib import Path

cache, repo, revision, files, mib = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
folder = cache / f"models--{repo.replace('/', '--')}"
snapshot = folder / "snapshots" / revision
for path in (folder / "blobs", folder / "trees", snapshot):
    path.mkdir(parents=True, exist_ok=True)
block = os.urandom(2**20 - 16)
manifest = []
for number in range(files):
    new = folder / "blobs" / "new"
    name = hashlib.sha256(f"{repo} {number}".encode())
    with new.open("wb") as out:
        if sys.argv[6:] == ["sparse"]:
            out.truncate(mib * 2**20)
        else:
            name = hashlib.sha256()
            for piece in range(mib):
                data = b"%8d%8d" % (number, piece) + block
                name.update(data)
                out.write(data)
    oid = name.hexdigest()
    new.rename(folder / "blobs" / oid)
    path = f"model-{number:05}.safetensors"
    (snapshot / path).unlink(missing_ok=True)
    (snapshot / path).symlink_to(f"../../blobs/{oid}")
    manifest.append({"path": path, "size": mib * 2**20, "oid": oid, "blob_id": oid[:40], "verified": True})
tree = {
    item["path"]: {
        "size": item["size"],
        "blob_id": item["blob_id"],
        "lfs_sha256": item["oid"],
        "lfs_size": item["size"],
    }
    for item in manifest
}
(folder / "trees" / f"{revision}.json").write_text(json.dumps({"format_version": 1, "files": tree}))
print(json.dumps(manifest))
