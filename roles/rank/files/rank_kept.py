# Copyright: Tandem contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configurations that have served: the present one and the one before it, to return to.

A configuration is a set, one on every host, and has one name for all of them. ``current`` and ``previous`` are links to
folders of that name.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

KEPT = Path("/var/lib/tandem/kept")


def _name(link: Path) -> str:
    return link.readlink().name if link.is_symlink() else ""


def _link(link: Path, name: str) -> None:
    link.unlink(missing_ok=True)
    if name:
        link.symlink_to(name)


def _same(file: Path, copy: Path) -> bool:
    return copy.is_file() and file.read_bytes() == copy.read_bytes()


def target(on_disk: str, kept: Path = KEPT) -> str:
    """The set to return to: the last one that served and is not on the disk. Empty when there is none."""
    current = _name(kept / "current")
    return current if current != on_disk else _name(kept / "previous")


def keep(name: str, files: Sequence[str], kept: Path = KEPT) -> bool:
    """Remember that the files of this host serve. Returns whether that is news."""
    current = _name(kept / "current")
    folder = kept / name
    if not name or (name == current and all(_same(Path(file), folder / file.lstrip("/")) for file in files)):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    for file in files:
        copy = folder / file.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)
    kept.chmod(0o700)
    if name != current:
        _link(kept / "previous", current)
        _link(kept / "current", name)
    for old in kept.iterdir():
        if not old.is_symlink() and old.name not in (name, _name(kept / "previous")):
            shutil.rmtree(old)
    return True


def restore(on_disk: str, kept: Path = KEPT, root: Path = Path("/")) -> str:
    """Put the files of the target back in their places, and forget what is left behind. Returns its name."""
    name = target(on_disk, kept)
    if not name:
        return ""
    folder = kept / name
    for copy in folder.rglob("*"):
        if copy.is_file():
            place = root / copy.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh = place.with_name(f"{place.name}.new")
            shutil.copy2(copy, fresh)
            fresh.replace(place)
    _link(kept / "current", name)
    if _name(kept / "previous") == name:
        _link(kept / "previous", "")
    return name
