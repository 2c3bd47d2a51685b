"""Ansible sends its modules as source in a new archive each time, and to compile that is much of the work here: keep the code."""

from __future__ import annotations

import hashlib
import marshal
import os
import zipimport
from pathlib import Path
from types import CodeType

FOLDER = Path("/var/cache/lab")
compile_source = zipimport._compile_source


def kept(pathname: str, source: bytes) -> CodeType:
    """The code of a source, compiled once."""
    file = FOLDER / hashlib.sha1(source).hexdigest()
    if file.exists():
        return marshal.loads(file.read_bytes())
    code = compile_source(pathname, source)
    FOLDER.mkdir(exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}")
    new.write_bytes(marshal.dumps(code))
    new.replace(file)
    return code


zipimport._compile_source = kept
