#!/bin/sh
# FlexAttention over packed trees on one NVIDIA GPU against the CPU's attention: output and gradients in fp32. At most 8 minutes.
# Exit 0 only if all of it holds; the last line is one JSON object. GYRE_PYTHON: of an environment with torch for GPUs and numpy; without
# it .venv of this checkout (make install), whose torch is CUDA's build.
set -eu
cd "$(dirname "$0")/../.."
python="${GYRE_PYTHON:-$PWD/.venv/bin/python}"
if [ ! -x "$python" ]; then
    echo "tree_attention.sh: no $python; run make install, or set GYRE_PYTHON" >&2
    exit 2
fi
PYTHONPATH="$PWD" exec timeout --kill-after=10 460 "$python" -m tests.gpu.tree_attention
