# SPDX-License-Identifier: MIT
"""Install the package that lies beside this file, and the compiled kernels, where this Python looks for packages."""

from __future__ import annotations

import re
import shutil
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
SITE = Path(sysconfig.get_path("purelib"))


def main() -> None:
    project = (HERE / "pyproject.toml").read_text("utf-8")
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)[1]
    entry = re.search(r'^\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"', project, re.MULTILINE)
    shutil.copytree(HERE / "src/tandem_overlay", SITE / "tandem_overlay", dirs_exist_ok=True)
    for kernels in HERE.glob("*.so"):
        shutil.move(kernels, SITE / kernels.name)
    about = SITE / f"tandem_overlay-{version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: tandem-overlay\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2]} = {entry[3]}\n")
    (about / "INSTALLER").write_text("tandem\n")


if __name__ == "__main__":
    main()
