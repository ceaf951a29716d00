#!/usr/bin/env bash
# Installs missing packages, builds, and runs all tests. Arguments are passed to ctest, for example -R Attention.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/build.sh
cmake --build --preset release
ctest --test-dir build/release --output-on-failure --parallel 2 "$@"
