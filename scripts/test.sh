#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. Further arguments go to ctest, for example -R Attention.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/build.sh
cmake --build --preset release
ctest --test-dir build/release --output-on-failure --parallel 2 "$@"
