#!/usr/bin/env bash
# Installs missing packages, builds, and runs all tests. Arguments are passed to ctest, for example -R Attention.
set -euo pipefail
cd "$(dirname "$0")/.."

# The kernels for float16 are tested where a GPU can run them. Without a GPU a new build is for one kind of GPU only, which is quicker.
options=()
if nvidia-smi -L >/dev/null 2>&1; then
  options=(-DGRADTILE_FLOAT16=ON)
elif [ ! -f build/release/CMakeCache.txt ]; then
  options=(-DCMAKE_CUDA_ARCHITECTURES=90a-real)
fi
scripts/build.sh "${options[@]}"
cmake --build --preset release
# Tests start several threads each, and some mostly wait.
ctest --test-dir build/release --output-on-failure --parallel 3 "$@"
