"""Take Docker from a machine, and leave a package source with Docker's own packages, made of the same files.

Runs as root on the machine, which has Debian's packages and cannot reach those of Docker.

repack.py FOLDER: leaves debian/pool/*.deb and debian/dists/trixie/{Release,stable/binary-*/Packages} there, not signed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

PARTS = {
    "docker-ce": ["docker.io"],
    "docker-ce-cli": ["docker-cli"],
    "containerd.io": ["containerd", "runc"],
    "docker-buildx-plugin": ["docker-buildx"],
}
NEEDS = {"docker-ce": "containerd.io, docker-ce-cli, iptables"}
PINNED = ("docker-ce", "docker-ce-cli")
VERSIONS = ("5:28.0.1-1~debian.13~trixie", "5:29.1.0-1~debian.13~trixie")
# What is left in the folder for a purge removes the folder, which is a mount here.
NUKE = Path("/var/lib/docker/nuke-graph-directory.sh")
POSTINST = "#!/bin/sh\nset -e\ngetent group docker >/dev/null || groupadd --system docker\nsystemctl daemon-reload\n"


def run(*words: str | Path) -> str:
    """Standard output of a program."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def package(name: str, version: str, architecture: str, files: list[str], pool: Path) -> str:
    """Build a package of files of this machine, and tell what the list of the source says of it."""
    tree = pool / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = (
        f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: Tandem\n"
        + (f"Depends: {NEEDS[name]}\n" if name in NEEDS else "")
        + "Description: Made of Debian's files\n"
    )
    (tree / "DEBIAN/control").write_text(control)
    postinst = tree / "DEBIAN/postinst"
    postinst.write_text(POSTINST)
    postinst.chmod(0o755)
    for path in files:
        (tree / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, tree / path[1:], follow_symlinks=False)
    deb = pool / f"{name}_{version.replace(':', '%3a')}_{architecture}.deb"
    run("dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, deb)
    shutil.rmtree(tree)
    with deb.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{control}Filename: pool/{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n"


def files_of(packages: list[str]) -> list[str]:
    """What is in installed packages, but for folders and configuration."""
    paths = [Path(line) for line in run("dpkg-query", "--listfiles", *packages).splitlines() if line.startswith("/")]
    return [
        str(path.parent.resolve() / path.name)
        for path in dict.fromkeys(paths)
        if path.parts[1:2] != ("etc",) and path.is_file()
    ]


def main(folder: Path) -> None:
    """Build, list, and take away."""
    root = folder / "debian"
    pool = root / "pool"
    pool.mkdir(parents=True)
    architecture = run("dpkg", "--print-architecture").strip()
    listed = []
    for name, originals in PARTS.items():
        listed.append(package(name, VERSIONS[0], architecture, files_of(originals), pool))
        # There not to be chosen: it is newer, and has no program.
        listed.append(package(name, VERSIONS[1], architecture, [], pool) if name in PINNED else "")
    text = "\n".join(filter(None, listed))
    index = root / f"dists/trixie/stable/binary-{architecture}/Packages"
    index.parent.mkdir(parents=True)
    index.write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (root / "dists/trixie/Release").write_text(
        f"Suite: trixie\nCodename: trixie\nComponents: stable\nArchitectures: {architecture}\n"
        f"Date: Thu, 01 Oct 2026 00:00:00 UTC\n"
        f"SHA256:\n {digest} {len(text.encode())} stable/binary-{architecture}/Packages\n"
    )
    installed = [original for originals in PARTS.values() for original in originals]
    run("dpkg", "--remove", *installed)
    NUKE.unlink(missing_ok=True)
    run("dpkg", "--purge", *installed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
