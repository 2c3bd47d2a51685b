#!/bin/bash
# Build the kernels for this machine's GPU if they are not there, and run what is named: check, bench, engine.
#   tests/gpu/run.sh SOURCES FOLDER check bench
# SOURCES is the folder exllamav3_ext of exllamav3's wheel, FOLDER holds or gets the compiled module. FLASHMLA names
# vLLM's _flashmla_C library, for the padding checks. Results go to $OUT.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sources=$1 folder=$2
shift 2
compgen -G "$folder/exllamav3_ext*.so" > /dev/null ||
    python3 "$here/../../files/overlay/kernels/build.py" "$sources" "$folder" --arch "${ARCH:-9.0}"
export PYTHONPATH=$folder:${PYTHONPATH:-} PYTHONUNBUFFERED=1
for part; do
    python3 "$here/$part.py" || echo "$part: status $?"
done
