# SPDX-License-Identifier: MIT
"""Install the package that lies beside this file, and the compiled kernels, without pip: python3 install.py [FOLDER]"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

import tomllib

HERE = Path(__file__).parent


def install(site: Path) -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
    shutil.copytree(HERE / "src/tandem_overlay", site / "tandem_overlay", dirs_exist_ok=True)
    for kernels in HERE.glob("*.so"):
        shutil.move(kernels, site / kernels.name)
    about = site / f"tandem_overlay-{project['version']}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n")
    [(group, points)] = project["entry-points"].items()
    (about / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{n} = {point}\n" for n, point in points.items()))


if __name__ == "__main__":
    install(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("purelib")))
