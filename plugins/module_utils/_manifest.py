# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifest of a snapshot: its files with their sizes and the names of their contents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any


class ManifestError(Exception):
    """A manifest that cannot be used, with what was expected and found."""


@dataclass(frozen=True)
class File:
    """One file of a snapshot.

    ``oid`` names the content and the blob in the cache: the sha256 for large (LFS) files, else git's sha1 of the blob.
    ``blob_id`` is git's sha1 in both cases, for LFS that of the pointer file. ``size`` is in bytes.
    """

    path: str
    size: int
    oid: str
    blob_id: str

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or ".." in parts or "\0" in self.path:
            raise ManifestError(f"expected a path inside the snapshot, found {self.path!r}")
        if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", self.oid):
            raise ManifestError(f"{self.path}: expected an oid of 40 or 64 hexadecimal digits, found {self.oid!r}")
        if self.size < 0:
            raise ManifestError(f"{self.path}: expected a size, found {self.size}")


def to_dicts(files: Iterable[File]) -> list[dict[str, Any]]:
    """Files as plain data, in the order of their paths."""
    return [asdict(file) for file in sorted(files, key=lambda file: file.path)]


def from_dicts(items: Iterable[dict[str, Any]]) -> list[File]:
    """Files from plain data. Raises ManifestError."""
    try:
        return [File(item["path"], int(item["size"]), item["oid"], item["blob_id"]) for item in items]
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"expected files with path, size, oid and blob_id: {error!r}") from error


def manifest_hash(files: Iterable[File]) -> str:
    """One sha256 over paths, sizes and contents. The order by code points does not depend on a locale."""
    lines = "".join(f"{file.path}\0{file.size}\0{file.oid}\n" for file in sorted(files, key=lambda file: file.path))
    return hashlib.sha256(lines.encode()).hexdigest()


def select(files: Iterable[File], allow: list[str], ignore: list[str]) -> list[File]:
    """The files that match a pattern of ``allow`` (or any, when it is empty) and none of ``ignore``. ``x/`` means all below x."""
    allow, ignore = ([f"{item}*" if item.endswith("/") else item for item in patterns] for patterns in (allow, ignore))
    return [
        file
        for file in files
        if (not allow or any(fnmatch(file.path, item) for item in allow))
        and not any(fnmatch(file.path, item) for item in ignore)
    ]


def parse_tree(text: str) -> list[File]:
    """Files from the listing that huggingface_hub keeps as trees/REVISION.json. Raises ManifestError."""
    try:
        tree = json.loads(text)
        if tree["format_version"] != 1:
            raise ManifestError(f"expected a listing of format 1, found {tree['format_version']}")
        return [
            File(path, int(item["size"]), item.get("lfs_sha256") or item["blob_id"], item["blob_id"])
            for path, item in tree["files"].items()
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(f"expected the listing of a repository: {error!r}") from error


def tree_text(files: Iterable[File]) -> str:
    """The listing as huggingface_hub keeps it."""
    tree: dict[str, Any] = {}
    for file in sorted(files, key=lambda file: file.path):
        large = {"lfs_sha256": file.oid, "lfs_size": file.size} if file.oid != file.blob_id else {}
        tree[file.path] = {"size": file.size, "blob_id": file.blob_id, **large}
    return json.dumps({"format_version": 1, "files": tree}, indent=1)
