"""Sign a package source with a key that is made for it and then thrown away.

sign.py FOLDER: leaves InRelease and key.asc beside FOLDER's Release.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


def main(folder: Path) -> None:
    """Make the key, sign, and keep the key's public half."""
    with tempfile.TemporaryDirectory() as home:
        gpg = ["gpg", "--homedir", home, "--batch", "--quiet", "--yes", "--passphrase", ""]
        subprocess.run([*gpg, "--quick-generate-key", "tandem-test", "ed25519", "sign", "never"], check=True)
        signed = ["--output", str(folder / "InRelease"), "--clearsign", str(folder / "Release")]
        subprocess.run([*gpg, *signed], check=True)
        key = subprocess.run([*gpg, "--armor", "--export"], check=True, capture_output=True).stdout
        (folder / "key.asc").write_bytes(key)
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
