#!/usr/bin/env bash
# Installs missing packages, configures and builds the program build/release/gradtile.
# Arguments are passed to cmake, for example scripts/build.sh -DGRADTILE_NATIVE=OFF.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
mkdir -p build
cmake --preset release "$@" >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
grep '^-- gradtile:' build/configure.log || true
cmake --build --preset release --target gradtile_program
