#!/usr/bin/env bash
# Cross-compiles everything for aarch64 Linux on Debian and runs the tests under qemu-user, except those of tests/aarch64/left_out.txt.
# qemu cannot show a missing memory barrier, because it runs on a processor that keeps loads and stores in order, and says nothing
# about speed.
# usage: cross_aarch64.sh [ARGUMENT OF CTEST...]    for example -R core_test; ctest's log is in build/aarch64/Testing/Temporary
#        cross_aarch64.sh --reduced                 the attention operator and the products with few rows only
set -euo pipefail
cd "$(dirname "$0")/.."

need() {
  local what
  for what in "$@"; do
    [ -e "${what%%:*}" ] || command -v "${what%%:*}" >/dev/null || {
      echo "cross_aarch64.sh: ${what%%:*} is missing: apt-get install ${what#*:}" >&2
      exit 1
    }
  done
}

# run_kernels PROCESSOR TESTS...: patterns of tests, of which each must match one
run_kernels() {
  local emulated=(qemu-aarch64-static -cpu "$1" -L /usr/aarch64-linux-gnu build/aarch64-kernels/kernels_test) pattern
  echo "cross_aarch64.sh: $1"
  shift
  for pattern in "$@"; do
    [[ $("${emulated[@]}" --gtest_list_tests --gtest_filter="$pattern") == *$'\n  '* ]] || {
      echo "cross_aarch64.sh: no test is called $pattern" >&2
      exit 1
    }
  done
  time "${emulated[@]}" --gtest_brief=1 --gtest_filter="$(IFS=:; echo "$*")"
}

# The reduced form needs no package of the target: the cross compiler brings glibc and libstdc++.
reduced() {
  need aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static /usr/src/googletest:googletest
  cmake -S tests/aarch64 -B build/aarch64-kernels -G Ninja -DCMAKE_BUILD_TYPE=Release -DGRADTILE_WERROR=ON \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null
  time cmake --build build/aarch64-kernels
  # A processor with every extension that qemu knows, and the Raspberry Pi 4's, which lacks bfloat16.
  local everywhere=('FewRows.*' 'AttentionRandomCalls.Are*')
  run_kernels max 'NeonKernels.*WithBfloat16' "${everywhere[@]}" 'FlashKernelSets.*' '*FlashKernels.*AtAnyHeadDim/*' 'AttentionContract.*' \
    'AttentionRefuses.*' 'Subnormal.*'
  run_kernels cortex-a72 'NeonKernels.*WithoutBfloat16' "${everywhere[@]}"
}

if [ "${1:-}" = --reduced ]; then
  reduced
  exit
fi

need aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static mmdebstrap:mmdebstrap
[ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || {
  echo "cross_aarch64.sh: Linux does not start aarch64 programs with qemu, as tests do: cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register" >&2
  exit 1
}

# The target's packages are only unpacked: none of their programs runs, so the links of alternatives do not exist.
packages=libc6-dev,libstdc++-12-dev,libhdf5-dev,libssl-dev,libopenblas-dev,libcli11-dev,nlohmann-json3-dev,libgtest-dev
packages+=,libgmock-dev,libpcre2-dev,libutf8proc-dev,zlib1g-dev,libzstd-dev
sysroot=$PWD/build/aarch64-sysroot
if [ ! -d "$sysroot" ]; then
  rm -rf "$sysroot.new"
  mkdir -p build
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mmdebstrap --quiet --architectures=arm64 --variant=extract --include="$packages" "$release" "$sysroot.new"
  # Links with absolute paths would lead out of the folder.
  find "$sysroot.new" -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$sysroot.new$(readlink "$link")")" "$link"
  done
  rm -r "$sysroot.new"/{dev,etc,tmp,var}  # qemu would show them to programs in place of the machine's
  mv "$sysroot.new" "$sysroot"
fi

cmake --preset aarch64
time cmake --build --preset aarch64
# ctest starts the tests with qemu; these variables are for the programs that tests start. With more jobs than cores, ctest loops for
# ever, because PROCESSOR_AFFINITY then finds no core.
export QEMU_CPU=max QEMU_LD_PREFIX=$sysroot LD_LIBRARY_PATH=$sysroot/usr/lib/aarch64-linux-gnu/openblas-pthread OPENBLAS_NUM_THREADS=1
left_out=$(sed 's/ *#.*//; /^$/d; s/\./[.]/g; s/\*/.*/g; s/?/./g' tests/aarch64/left_out.txt | paste -sd '|')
ctest --test-dir build/aarch64 --output-on-failure --parallel "$(nproc)" --exclude-regex "^($left_out)( |\$)" "$@"
