#!/usr/bin/env bash
# Installs the packages for building, testing and the demo (Debian, Ubuntu), and those that its arguments name. On other systems it
# prints a list and fails.
set -euo pipefail

required=(build-essential cmake ninja-build libhdf5-dev libssl-dev libcli11-dev nlohmann-json3-dev libgtest-dev libgmock-dev "$@")
matrix_library=libdnnl-dev                # oneDNN
second_choice=libopenblas-dev             # for systems without oneDNN
# For BPE tokenizers; for normalizers of tokenizers; for compressed data; for a test that reads checkpoints in Python; for
# several processes on the CPU.
optional=(libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev python3-h5py libopenmpi-dev openmpi-bin)

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  {
    echo "setup.sh installs on Debian and Ubuntu only. Please install these yourself:"
    echo "  a C++20 compiler, CMake 3.22 or later, Ninja, HDF5 (C library), OpenSSL (libcrypto), CLI11, nlohmann-json,"
    echo "  GoogleTest and oneDNN (or OpenBLAS), for tokenizers PCRE2 and utf8proc, and for compressed data zlib and libzstd; then: cmake --preset release && cmake --build --preset release"
    echo "  On macOS: brew install cmake ninja hdf5 openssl@3 cli11 nlohmann-json googletest pcre2 utf8proc zstd"
  } >&2
  exit 1
fi

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
missing=()
for package in "${required[@]}"; do installed "$package" || missing+=("$package"); done
installed "$matrix_library" || installed "$second_choice" || missing+=("$matrix_library")
missing_optional=()
for package in "${optional[@]}"; do installed "$package" || missing_optional+=("$package"); done
[ ${#missing[@]} -gt 0 ] || [ ${#missing_optional[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup.sh: not root and no sudo; please install: ${missing[*]} ${missing_optional[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
install_packages() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

echo "setup.sh: installing ${missing[*]} ${missing_optional[*]}"
"${as_root[@]}" apt-get update -qq
if ! apt-cache show "$matrix_library" >/dev/null 2>&1; then
  missing=("${missing[@]/#$matrix_library/$second_choice}")
fi
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
for package in "${missing_optional[@]}"; do
  install_packages "$package" 2>/dev/null || echo "setup.sh: the optional package $package is not available; skipped"
done
