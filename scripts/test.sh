#!/usr/bin/env bash
# Installs missing packages, builds, and runs all tests. Arguments are passed to ctest, for example -R Attention.
set -euo pipefail
cd "$(dirname "$0")/.."

# The kernels for float16 are tested where a GPU can run them.
float16=()
if nvidia-smi -L >/dev/null 2>&1; then float16=(-DGRADTILE_FLOAT16=ON); fi
scripts/build.sh "${float16[@]}"
cmake --build --preset release
ctest --test-dir build/release --output-on-failure --parallel 2 "$@"
