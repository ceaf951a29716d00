#!/usr/bin/env bash
# Compiles the program (CPU side, without optimisation) with every compiler and standard library, and configures it with every CMake,
# that Debian and PyPI have. Prints one line each: ok, FAILED, or missing with the command that brings it.
# usage: compiler_matrix.sh [--syntax] [ROW...]; without rows: all. Logs and builds are in build/matrix.
# --syntax: compilers only check the sources, with all templates; they generate no code and nothing is linked. A sixth of the time.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/matrix
failed=0
syntax_only=false
if [ "${1:-}" = --syntax ]; then syntax_only=true; shift; fi

report() { printf '%-22s %s\n' "$1" "$2"; }

# run ROW COMMAND...
run() {
  local row=$1 begin=$SECONDS
  shift
  if "$@" >build/matrix/"$row".log 2>&1; then
    report "$row" "ok in $((SECONDS - begin)) s"
  else
    report "$row" "FAILED: $(grep -m 1 -E 'error|Error' build/matrix/"$row".log || tail -n 1 build/matrix/"$row".log); see build/matrix/$row.log"
    failed=1
  fi
}

configure() { "$1" -S . -B build/matrix/"$2" -G Ninja -DGRADTILE_CUDA=OFF -DGRADTILE_TESTS=OFF -DGRADTILE_EXAMPLES=OFF -DGRADTILE_NATIVE=OFF "${@:3}"; }

compile() {
  local row=$1
  shift
  configure cmake "$row" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG= "$@" || return
  if $syntax_only; then check_syntax build/matrix/"$row"; else cmake --build build/matrix/"$row" --target gradtile_program; fi
}

# check_syntax BUILD: executes the compile commands of a build without generating code, except for embedded files, which only a build writes
check_syntax() (
  cd "$1" || exit
  sed -n 's/^ *"command": "\(.*\)",$/\1/p' compile_commands.json | sed 's/\\\(.\)/\1/g' | grep -v '/gradtile__[^/ ]*\.cpp$' >commands
  all() { xargs -d '\n' -P "$(nproc)" -n 1 bash -c; }
  grep 'cmake_pch\.hxx\.cxx$' commands | all && grep -v 'cmake_pch\.hxx\.cxx$' commands | sed 's/ -c / -fsyntax-only -c /' | all
)

# OpenBLAS is loaded at run time, so compiling needs none of it. oneDNN would need the libomp of each Clang.
openblas=(-DGRADTILE_CPU_BLAS=openblas -DOPENBLAS_LIBRARY=libopenblas.so.0)

# compiler ROW CC CXX CXXFLAGS [cmake's arguments]
compiler() {
  if command -v "$3" >/dev/null; then
    run "$1" compile "$1" -DCMAKE_C_COMPILER="$2" -DCMAKE_CXX_COMPILER="$3" -DCMAKE_CXX_FLAGS="$4" "${@:5}"
  else
    report "$1" "missing: apt-get install $2"
  fi
}

# pip ROW PACKAGE: unpacks a package of PyPI into build/matrix/ROW.pip
pip() {
  local folder=build/matrix/$1.pip
  [ -d "$folder" ] || python3 -m pip install -q --no-deps --target "$folder" "$2" >build/matrix/"$1".log 2>&1 || {
    report "$1" "missing: PyPI's $2 cannot be installed"
    return 1
  }
}

# On macOS int64_t is long long and ptrdiff_t is long; on Linux both are long, which hides calls such as std::min of one of each.
types_of_macos() {
  local system
  system=$(echo '#include <bits/types.h>' | cc -E - | sed -n 's/^# 1 "\(.*bits\/types.h\)".*/\1/p' | head -n 1)
  mkdir -p build/matrix/macos/bits
  sed -E 's/typedef (signed|unsigned) long int (__u?int64_t);/typedef \1 long long int \2;/' "$system" >build/matrix/macos/bits/types.h
  ! cmp -s "$system" build/matrix/macos/bits/types.h
}

row() {
  case $1 in
    gcc-12) compiler gcc-12 gcc-12 g++-12 "" ;;
    clang-16) compiler clang-16 clang-16 clang++-16 "" ;;
    clang-19) compiler clang-19 clang-19 clang++-19 "" "${openblas[@]}" ;;
    clang-16-libc++)
      if [ -e /usr/lib/llvm-16/include/c++/v1/vector ]; then
        types_of_macos || { report "$1" "FAILED: the system's bits/types.h has another form than expected"; failed=1; return; }
        compiler "$1" clang-16 clang++-16 "-stdlib=libc++ -I$PWD/build/matrix/macos"
      else
        report "$1" "missing: apt-get install libc++-16-dev libc++abi-16-dev"
      fi
      ;;
    openblas) run openblas compile openblas "${openblas[@]}" ;;
    onednn-3) # only the source that uses oneDNN: PyPI's library needs Intel's SYCL runtime
      if pip onednn-3 onednn-devel; then
        configure cmake onednn-3 >build/matrix/onednn-3.log 2>&1  # for the folder of headers
        run onednn-3 c++ -std=c++20 -fsyntax-only -fopenmp -I build/matrix/onednn-3/include -I build/matrix/onednn-3.pip/include core/gemm/gemm_onednn.cpp
      fi
      ;;
    cmake-*)
      if pip "$1" "cmake==${1#cmake-}.*"; then
        PYTHONPATH=build/matrix/$1.pip run "$1" configure build/matrix/"$1".pip/bin/cmake "$1"
      fi
      ;;
    *)
      echo "compiler_matrix.sh: unknown row $1; expected some of: ${rows[*]}" >&2
      exit 2
      ;;
  esac
}

rows=(gcc-12 clang-16 clang-19 clang-16-libc++ openblas onednn-3 cmake-3.22 cmake-3.31 cmake-4)
for name in "${@:-${rows[@]}}"; do row "$name"; done
exit $failed
