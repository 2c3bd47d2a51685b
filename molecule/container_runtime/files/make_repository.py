#!/usr/bin/env python3
"""A package source with stand-ins for the NVIDIA Container Toolkit, since the real one is not for the rig.

make_repository.py FOLDER: leaves *.deb, Packages and Release there, not signed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

VERSIONS = ("1.18.0-1", "1.19.0-1")
PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
NVIDIA_CTK = """#!/bin/sh
# cdi generate --output=FILE
mkdir -p /etc/cdi
cat > "${3#--output=}" <<END
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - name: all
    containerEdits:
      env: [TANDEM_GPU=all]
END
"""
RUNTIME = '#!/bin/sh\nexec runc "$@"\n'


def package(name: str, version: str, folder: Path) -> Path:
    """Build one package."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Tandem\nDescription: Stand-in\n"
    )
    programs = {"nvidia-ctk": NVIDIA_CTK, "nvidia-container-runtime": RUNTIME} if name == PACKAGES[0] else {}
    for program, text in programs.items():
        path = tree / "usr/bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    target = folder / f"{name}_{version}_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, target], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["rm", "-r", tree], check=True)
    return target


def main(folder: Path) -> None:
    """Build the packages and list them."""
    folder.mkdir(parents=True)
    listed = []
    for version in VERSIONS:
        for name in PACKAGES:
            deb = package(name, version, folder)
            data = deb.read_bytes()
            listed.append(
                f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Tandem\nDescription: Stand-in\n"
                f"Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
            )
    text = "\n".join(listed)
    (folder / "Packages").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "Release").write_text(f"Date: Thu, 01 Oct 2026 00:00:00 UTC\nSHA256:\n {digest} {len(text)} Packages\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
