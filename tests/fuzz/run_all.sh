#!/usr/bin/env bash
# Runs all fuzz targets of a build in parallel: tests/fuzz/run_all.sh BUILD_DIRECTORY SECONDS
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
# The readers check sizes before they allocate, so a larger allocation is a finding.
export ASAN_OPTIONS=max_allocation_size_mb=1024
export UBSAN_OPTIONS=print_stacktrace=1
work=$(mktemp -d)
declare -A running
for target in "$build"/tests/fuzz/*_fuzz; do
  [ -x "$target" ] || continue
  name=$(basename "$target")
  mkdir "$work/$name"  # libFuzzer writes new inputs into its first directory
  [ ! -d "$here/inputs/$name" ] || cp -r "$here/inputs/$name/." "$work/$name"
  (cd "$build" && "$target" -max_total_time="$2" "$work/$name") >"$work/$name.log" 2>&1 &
  running[$name]=$!
done
[ ${#running[@]} -gt 0 ] || { echo "run_all.sh: no fuzz target in $build/tests/fuzz" >&2; exit 1; }
failed=0
for name in "${!running[@]}"; do
  if wait "${running[$name]}"; then
    echo "$name, $2 s: $(tail -1 "$work/$name.log")"
  else
    failed=1
    echo "$name: a finding:" >&2
    cat "$work/$name.log" >&2
  fi
done
rm -rf "$work"
exit $failed
