# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One snapshot in a hub cache on disk: what is there, what is missing, and how a file gets in.

Layout, as huggingface_hub has it: ``blobs/OID`` holds the contents, ``snapshots/REVISION/PATH`` are relative links to them,
``refs/NAME`` hold a revision, ``trees/REVISION.json`` the listing of the repository. Ours are ``blobs/OID.tandem-incomplete``, a
file on its way in, and ``tandem-verified.json``, the blobs whose content was found right. Nothing that is complete is ever removed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from ansible_collections.tandem.serving.plugins.module_utils._manifest import (
    File,
    ManifestError,
    parse_tree,
    tree_text,
)
from ansible_collections.tandem.serving.plugins.module_utils._progress import Progress

ARGUMENTS: dict[str, dict[str, Any]] = {
    "repo": {"type": "str", "required": True},
    "revision": {"type": "str", "required": True},
    "cache_dir": {"type": "path", "required": True},
}

_CHUNK = 4 * 2**20
# Failed tries of one file in a row without a new byte, before the task gives up.
_TRIES = 6
# Wrong contents of one file before the task gives up: the first may have begun in an earlier run.
_WRONG = 2
_LONGEST_PAUSE = 30.0

# Appends the rest of a file to its partial one, and tells whether that alone proved the content. Raises RetryError when it ended early.
Fetch = Callable[[File, Path], bool]


class SnapshotError(Exception):
    """What went wrong, as a sentence for the person who has to mend it."""


class RetryError(Exception):
    """A transfer that ended early and may be tried again, after ``pause`` seconds if the other end asked for it."""

    def __init__(self, reason: str, pause: float = 0) -> None:
        super().__init__(reason)
        self.pause = pause


def digest(path: Path, oid: str, size: int, count: Callable[[int], None] = lambda amount: None) -> str:
    """Name of a content, of the kind of ``oid``: sha256, or git's sha1 of a blob of that size."""
    name = hashlib.sha256() if len(oid) == 64 else hashlib.sha1(b"blob %d\0" % size)
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(_CHUNK)
        view = memoryview(buffer)
        while length := file.readinto(buffer):
            name.update(view[:length])
            count(length)
    return name.hexdigest()


def gib(size: float) -> str:
    """Bytes for people."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


@contextlib.contextmanager
def acting_as_owner(path: Path) -> Iterator[None]:
    """As root, act as the owner of the cache, so that nothing in it ever belongs to somebody else."""
    owner = existing(path).stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


class ContentError(RetryError):
    """A whole file came, and it was not the right one."""


def read_ref(cache: Path, repo: str, name: str) -> str:
    """The revision that a name stood for when the cache was written. Raises SnapshotError."""
    ref = cache / f"models--{repo.replace('/', '--')}" / "refs" / name
    try:
        return ref.read_text().strip()
    except OSError as error:
        raise SnapshotError(f"The cache does not know which revision of {repo} is called {name}: {error}") from error


class Snapshot:
    """One revision of a repository in a cache (the folder that holds ``models--...``)."""

    def __init__(self, cache: Path, repo: str, revision: str) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
            raise SnapshotError(f"Expected a repository as organisation/name, found {repo!r}.")
        if not re.fullmatch(r"[0-9a-f]{40}", revision):
            raise SnapshotError(f"Expected a revision of 40 hexadecimal digits, found {revision!r}.")
        self.repo, self.revision = repo, revision
        self.folder = cache / f"models--{repo.replace('/', '--')}"
        self.blobs = self.folder / "blobs"
        self.path = self.folder / "snapshots" / revision
        self._tree = self.folder / "trees" / f"{revision}.json"
        self._verified = self.folder / "tandem-verified.json"
        self._verified_lock = threading.Lock()

    def read_tree(self) -> list[File] | None:
        """All files of the repository, from the listing in the cache, or None."""
        try:
            return parse_tree(self._tree.read_text(encoding="utf-8"))
        except (OSError, ManifestError):
            return None

    def write_tree(self, files: Iterable[File]) -> None:
        """Keep the listing of the repository."""
        _write(self._tree, tree_text(files))

    def write_ref(self, name: str, replace: bool = True) -> None:
        """Let a name, such as main, stand for this revision."""
        ref = self.folder / "refs" / name
        if (replace or not ref.exists()) and not (ref.exists() and ref.read_text() == self.revision):
            _write(ref, self.revision)

    def has(self, file: File) -> bool:
        """Whether the file is in the snapshot with its size. Reads no content."""
        pointer = self.path / file.path
        try:
            if pointer.stat().st_size != file.size:
                return False
        except OSError:
            return False
        return self._linked(file) == file.oid

    def missing(self, files: Iterable[File]) -> list[File]:
        """The files that are not in the snapshot. Links to blobs that are there are not made here."""
        return [file for file in files if not self.has(file)]

    def found(self, files: Iterable[File]) -> list[File]:
        """The same files with the sizes and contents that the snapshot on the disk has. Reads no content."""
        return [
            File(file.path, (self.path / file.path).stat().st_size, self._linked(file), file.blob_id)
            for file in files
            if (self.path / file.path).is_file()
        ]

    def blob(self, file: File) -> Path:
        """Where the content belongs."""
        return self.blobs / file.oid

    def partial(self, file: File) -> Path:
        """Where the content is on its way in. The name does not change, so that a later run goes on with it."""
        return self.blobs / f"{file.oid}.tandem-incomplete"

    def bytes_needed(self, files: Iterable[File]) -> int:
        """Bytes of these files that have not come yet."""
        wanted = {file.oid: file for file in files}
        return sum(max(0, file.size - _size(self.partial(file))) for file in wanted.values())

    def has_blob(self, file: File) -> bool:
        """Whether the content is there with its size, be it linked or not."""
        return _size(self.blob(file), -1) == file.size

    def check_disk(self, files: Iterable[File]) -> None:
        """Refuse when the missing bytes do not fit. Raises SnapshotError."""
        needed = self.bytes_needed(files)
        folder = existing(self.folder)
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise SnapshotError(
                f"The disk of {folder} is too small: {gib(needed)} of {self.repo} are missing, {gib(free)} are free. "
                f"Free {gib(needed - free)} there, or choose another folder for the weights."
            )

    def link(self, file: File) -> None:
        """Make the relative link of a file whose blob is there."""
        pointer = self.path / file.path
        target = os.path.relpath(self.blob(file), pointer.parent)
        if pointer.is_symlink() and str(pointer.readlink()) == target:
            return
        pointer.parent.mkdir(parents=True, exist_ok=True)
        new = pointer.with_name(f"{pointer.name}.tandem-link")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(pointer)

    def publish(self, file: File, proven: bool) -> None:
        """Put a partial file whose content is right in its place. Raises ContentError, and forgets the file, when it is wrong."""
        partial = self.partial(file)
        found = file.oid if proven else digest(partial, file.oid, file.size)
        if found != file.oid:
            partial.unlink()
            raise ContentError(f"the content is wrong: expected {file.oid}, found {found}")
        partial.replace(self.blob(file))
        self.link(file)
        if not proven:
            self._remember([file])

    def verified(self, files: Iterable[File]) -> set[str]:
        """Names of the contents that were found right before, and not touched since. Reads no content."""
        known = self._read_verified()
        return {file.oid for file in files if self.has(file) and known.get(file.oid) == self._stamp(file)}

    def wrong(self, files: list[File], jobs: int, progress: Progress) -> list[File]:
        """The files whose content is not what their name says. What was verified before and not touched since is not read."""
        known = self._read_verified()
        unknown = [file for file in files if known.get(file.oid) != self._stamp(file)]
        if unknown:
            progress.set(phase="verify", done=0, total=sum(file.size for file in unknown), item=0, items=len(unknown))

        def examine(file: File) -> bool:
            progress.next_item(file.path)
            return digest(self._content(file), file.oid, file.size, progress.add) == file.oid

        with ThreadPoolExecutor(jobs) as pool:
            right = dict(zip(unknown, pool.map(examine, unknown), strict=True))
        self._remember([file for file in unknown if right[file]])
        return [file for file in unknown if not right[file]]

    def fetch(self, files: list[File], fetch: Fetch, jobs: int, progress: Progress) -> int:
        """Bring files in, several at once, the largest first. Returns the bytes that came. Raises SnapshotError."""
        contents = {file.oid: file for file in files}
        todo = sorted(contents.values(), key=lambda file: -file.size)
        needed = self.bytes_needed(todo)
        finished: set[str] = set()

        def measure() -> int:
            return sum(file.size if file.oid in finished else _size(self.partial(file)) for file in todo)

        def bring(file: File) -> None:
            self._bring(file, fetch)
            finished.add(file.oid)

        progress.set(phase="transfer", done=measure(), total=sum(file.size for file in todo), item=0, items=len(todo))
        pool = ThreadPoolExecutor(jobs)
        waiting = [pool.submit(bring, file) for file in todo]
        while True:
            ended, left = wait(waiting, timeout=0.5, return_when=FIRST_EXCEPTION)
            current = next((file.path for file in todo if file.oid not in finished), "")
            progress.set(done=measure(), item=len(finished), current=current)
            if not left or any(future.exception() for future in ended):
                break
        # After a failure what runs may end, and nothing new begins: the next run goes on from there.
        pool.shutdown(wait=True, cancel_futures=True)
        for future in waiting:
            if not future.cancelled():
                future.result()
        for file in files:
            self.link(file)
        return needed

    def _bring(self, file: File, fetch: Fetch) -> None:
        partial = self.partial(file)
        tries = wrong = 0
        while True:
            before = _size(partial)
            proven = False
            try:
                if before > file.size:
                    partial.unlink()
                if before != file.size:
                    proven = fetch(file, partial)
                found = _size(partial)
                if found != file.size:
                    raise RetryError(f"expected {file.size} bytes, found {found}")
                self.publish(file, proven)
                return
            except RetryError as error:
                tries = 1 if _size(partial) > before else tries + 1
                wrong += isinstance(error, ContentError)
                if tries >= _TRIES or wrong >= _WRONG:
                    raise SnapshotError(
                        f"{file.path} of {self.repo} does not arrive: {error} ({tries} tries)."
                    ) from error
                time.sleep(error.pause or min(_LONGEST_PAUSE, 0.5 * 2**tries))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise SnapshotError(
                    f"The disk of {self.folder} is full while {file.path} arrives. Free {gib(file.size - _size(partial))} for this "
                    f"file, and the size of those after it; the next run goes on from there."
                ) from error

    def _linked(self, file: File) -> str:
        """Name of the blob that the link leads to. A link to elsewhere, such as a store of several caches, counts as right."""
        pointer = self.path / file.path
        target = pointer.readlink() if pointer.is_symlink() else pointer
        return target.name if target.parent.name == "blobs" else file.oid

    def _content(self, file: File) -> Path:
        return self.blob(file) if self.has_blob(file) else self.path / file.path

    def _stamp(self, file: File) -> list[int]:
        found = self._content(file).stat()
        return [found.st_size, found.st_mtime_ns, found.st_ino]

    def _read_verified(self) -> dict[str, list[int]]:
        try:
            known = json.loads(self._verified.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _remember(self, files: list[File]) -> None:
        with self._verified_lock:
            known = self._read_verified()
            for file in files:
                known[file.oid] = self._stamp(file)
            with contextlib.suppress(PermissionError):
                _write(self._verified, json.dumps(known))


def _size(path: Path, default: int = 0) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return default


def _write(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.tandem-new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
