#!/usr/bin/env bash
# Runs every fuzz target of a build for some seconds: tests/fuzz/run_all.sh BUILD_DIRECTORY SECONDS
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
# libhdf5 asks for whatever size a damaged file states; as without a sanitizer, it gets no memory then.
export ASAN_OPTIONS=allocator_may_return_null=1:max_allocation_size_mb=1024
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
ran=0
for target in "$build"/tests/fuzz/*_fuzz; do
  [ -x "$target" ] || continue
  name=$(basename "$target")
  inputs=$(mktemp -d)  # libFuzzer writes what it finds into its first directory
  [ ! -d "$here/inputs/$name" ] || cp -r "$here/inputs/$name/." "$inputs"
  echo "$name: $2 s"
  (cd "$build" && "$target" -max_total_time="$2" "$inputs")
  rm -rf "$inputs"
  ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "run_all.sh: no fuzz target in $build/tests/fuzz" >&2; exit 1; }
