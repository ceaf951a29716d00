#!/usr/bin/env bash
# Cross-compiles for aarch64 Linux on Debian, and runs tests of the CPU under qemu-user: of the libraries, or with --reduced of
# the attention operator and the products with few rows only. qemu cannot show a missing memory barrier, because it runs on a processor
# that keeps loads and stores in order, and says nothing about speed.
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

case "${1:-}" in
  "") ;;
  --reduced)
    reduced
    exit
    ;;
  *)
    echo "cross_aarch64.sh: unknown argument $1; --reduced is the only one" >&2
    exit 2
    ;;
esac

programs=(core_test attention_test layers_test train_test)
# Tests that start programs would need a Linux that starts qemu for them. Faults depend on time.
tests='*-*Cuda*:*Process*:*Kill*:*Signal*'
need aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static mmdebstrap:mmdebstrap

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
  mv "$sysroot.new" "$sysroot"
fi

cmake --preset aarch64
time cmake --build --preset aarch64 --target "${programs[@]}"
failed=0
for program in "${programs[@]}"; do
  echo "cross_aarch64.sh: $program"
  time qemu-aarch64-static -cpu max -L "$sysroot" \
    -E LD_LIBRARY_PATH="$sysroot/usr/lib/aarch64-linux-gnu/openblas-pthread" \
    "$(find build/aarch64/tests -type f -name "$program")" --gtest_brief=1 --gtest_filter="$tests" || failed=1
done
exit $failed
