# SPDX-License-Identifier: MIT
"""Cut a vLLM wheel down to what one GPU needs, in pieces for a machine that takes nothing but small uploads.

    python carry.py WHEEL FOLDER [--arch 90] [--mib 40]

Machine code for other GPUs is overwritten with zeros, which compress to nothing, and libraries that `engine.py` does not use are
left out. `cat FOLDER/vllm.* | tar --extract --xz --directory SITE` puts the pieces together.
"""

from __future__ import annotations

import argparse
import io
import lzma
import re
import struct
import tarfile
import zipfile
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
ELF = 2
UNUSED = re.compile(r"vllm_flash_attn/.*\.so|third_party/deep_gemm|spinloop|vllm-rs")
# Modules that vLLM imports even where nothing asks for them, and that need what is left out.
STUBS = {
    "vllm/vllm_flash_attn/_vllm_fa2_C.py": "",
    "vllm/model_executor/layers/quantization/humming.py": """
class HummingConfig:
    @classmethod
    def override_quantization_method(cls, *_, **__):
        return None
""",
}


def entries(data: bytearray, at: int) -> list[tuple[int, int, int, int, int]]:
    """Kind, compute capability, start, start of the code and end of each program in the fat binary at `at`."""
    header, size = struct.unpack_from("<HQ", data, at + 6)
    found, place = [], at + header
    while place < at + header + size:
        kind, _, head, length = struct.unpack_from("<HHIQ", data, place)
        (capability,) = struct.unpack_from("<I", data, place + 28)
        found.append((kind, capability, place, place + head, place + head + length))
        place += head + length
    return found


def reduce(data: bytearray, arch: int) -> None:
    """Overwrite the programs that a GPU of `arch` does not run."""
    at = -1
    while (at := data.find(MAGIC, at + 1)) >= 0:
        if data[at + 4 : at + 6] != b"\x01\x00":
            continue
        programs = entries(data, at)
        own = any(kind == ELF and capability == arch for kind, capability, *_ in programs)
        for kind, capability, _, start, end in programs:
            if capability != arch if kind == ELF else own or capability > arch:
                data[start:end] = bytes(end - start)
            at = end - 1


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("wheel", type=Path)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--arch", type=int, default=90)
    arguments.add_argument("--mib", type=int, default=40)
    chosen = arguments.parse_args()
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(chosen.wheel) as wheel,
        lzma.open(packed, "wb", preset=3) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w|") as archive,
    ):
        for name in wheel.namelist():
            if name.endswith("/") or name in STUBS or UNUSED.search(name):
                continue
            data = bytearray(wheel.read(name))
            if name.endswith(".so"):
                before = len(data)
                reduce(data, chosen.arch)
                print(f"{name}: {before >> 20} MiB, {(before - data.count(0)) >> 20} MiB not zero", flush=True)
            add(archive, name, data)
        for name, text in STUBS.items():
            add(archive, name, text.encode())
    chosen.folder.mkdir(parents=True, exist_ok=True)
    whole, step = packed.getvalue(), chosen.mib << 20
    for number, start in enumerate(range(0, len(whole), step)):
        (chosen.folder / f"vllm.{number}").write_bytes(whole[start : start + step])
    print(f"{len(whole) >> 20} MiB in {number + 1} pieces")


if __name__ == "__main__":
    main()
