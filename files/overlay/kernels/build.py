# SPDX-License-Identifier: MIT
"""Build `exllamav3_ext` with only the kernels that the overlay calls, from the sources in exllamav3's wheel.

    python build.py SOURCES OUT [--bits 3,4,5,6] [--arch 12.1a] [--jobs N]

SOURCES is the unpacked wheel's folder `exllamav3/exllamav3_ext`. The full extension has 194 units; the instance tables
that link to the others (other bit widths, wide row tiles, quantiser) are filled with functions that return null.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).parent
NAME = "exllamav3_ext"
CORE = "exl3_gemm exl3_gemv exl3_gemv_int8 exl3_kernel_map exl3_devctx coop_autotune exl3_moe exl3_moe_coop hadamard reconstruct"
ANY_BITS = "exl3_moe_inst_k0_n???_cb?.cu"
PER_BITS = "exl3_comp_unit_{}_cb?.cu exl3_gemv_int8_inst_*_k{}.cu exl3_moe_inst_k{}_cb?.cu exl3_moe_coop_inst_k{}.cu"
FLAGS = "-O3 --use_fast_math --compress-mode=size -Xcudafe --diag_suppress=177 -Xcudafe --diag_suppress=20012 -Xcompiler -fPIC"
STUB = re.compile(r"exl3_|Graph|tfp_|hgemm|quantize|_gr\b|cublas")


def units(sources: Path, bits: list[int]) -> list[Path]:
    """The translation units, the slowest first."""
    patterns = [pattern.format(k) for k in bits for pattern in shlex.split(PER_BITS)] + [ANY_BITS]
    found = [path for pattern in patterns for path in sorted((sources / "quant" / "comp_units").glob(pattern))]
    return [*found, *(sources / "quant" / f"{name}.cu" for name in shlex.split(CORE)), HERE / "bindings.cpp"]


def compilers(sources: Path, arch: str, bits: list[int]) -> dict[str, list[str]]:
    built = ",".join(map(str, bits))
    os.environ["TORCH_CUDA_ARCH_LIST"] = arch
    cuda = Path(cpp_extension.CUDA_HOME or "/usr/local/cuda")
    site = Path(sysconfig.get_path("purelib"))
    folders = [sources, *cpp_extension.include_paths(), sysconfig.get_path("include"), cuda / "include"]
    # pip keeps cusparse.h and its kin here, not under CUDA_HOME
    folders += [path for path in site.glob("nvidia/cu*/include") if path.is_dir()]
    common = [f"-DTORCH_EXTENSION_NAME={NAME}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    common += [f"-I{path}" for path in folders] + ["-std=c++20" if torch.__version__ >= (2, 12) else "-std=c++17", "-c"]
    nvcc = [str(cuda / "bin" / "nvcc"), *cpp_extension.COMMON_NVCC_FLAGS, *cpp_extension._get_cuda_arch_flags()]
    nvcc += shlex.split(FLAGS)
    return {".cu": nvcc + common, ".cpp": ["g++", "-O3", "-fPIC", "-w", f'-DTANDEM_BITS="{built}"', *common]}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def link(objects: list[Path], out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    libraries = [f"-L{path}" for path in cpp_extension.library_paths(device_type="cuda")]
    libraries += ["-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda", "-ltorch", "-ltorch_python", "-lcudart"]
    return run(["g++", "-shared", *map(str, objects), *libraries, *flags, "-o", str(out)])


def undefined(objects: list[Path], out: Path) -> list[str]:
    """Symbols that neither the units nor the libraries define. Python's own come from the interpreter."""
    told = link(objects, out, "-Wl,-z,defs,--no-demangle").stderr
    found = sorted(set(re.findall(r"undefined reference to `(\w+)'", told)))
    found = [symbol for symbol in found if not symbol.startswith(("Py", "_Py"))]
    if odd := [symbol for symbol in found if not STUB.search(symbol)]:
        raise SystemExit(f"no unit defines {', '.join(odd)}, and they are no instances\n{told[-3000:]}")
    return found


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("sources", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--bits", default="3,4,5,6")
    arguments.add_argument("--arch", default="12.1a")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count())
    chosen = arguments.parse_args()
    sources, bits = chosen.sources.resolve(), [int(k) for k in chosen.bits.split(",")]
    chosen.out.mkdir(parents=True, exist_ok=True)
    command, began = compilers(sources, chosen.arch, bits), time.monotonic()

    def build(unit: Path) -> Path:
        target, start = chosen.out / f"{unit.stem}.o", time.monotonic()
        done = run([*command[unit.suffix], str(unit), "-o", str(target)])
        if done.returncode:
            raise SystemExit(f"{unit}: compilation failed\n{done.stderr[-6000:]}")
        print(f"{time.monotonic() - start:6.1f} s  {unit.name}", flush=True)
        return target

    with ThreadPoolExecutor(chosen.jobs) as pool:
        objects = list(pool.map(build, units(sources, bits)))
    target = chosen.out / (NAME + sysconfig.get_config_var("EXT_SUFFIX"))
    lost = undefined(objects, target)
    stubs = chosen.out / "stubs.c"
    stubs.write_text(
        "".join(f'void *f{n}(void) __asm__("{s}"); void *f{n}(void) {{ return 0; }}\n' for n, s in enumerate(lost))
    )
    stub = stubs.with_suffix(".o")
    for done in (run(["gcc", "-O1", "-fPIC", "-c", str(stubs), "-o", str(stub)]), link([*objects, stub], target, "-s")):
        if done.returncode:
            raise SystemExit(done.stderr[-6000:])
    print(f"{target}: {len(objects)} units, {len(lost)} stubs, {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
