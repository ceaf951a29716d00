#!/usr/bin/env bash
# Compares a build with independent software from PyPI. usage: scripts/judge.sh [GRADTILE] (default: build/release/gradtile)
# Installs the packages of tests/judge/requirements.txt in build/judge; exit code 77 when that is not possible.
set -euo pipefail
cd "$(dirname "$0")/.."
gradtile=${1:-build/release/gradtile}
[ -x "$gradtile" ] || { echo "judge.sh: $gradtile: no such program; scripts/build.sh builds build/release/gradtile" >&2; exit 1; }

python=build/judge/bin/python
mkdir -p build
if ! cmp --silent tests/judge/requirements.txt build/judge/installed.txt; then
  rm -rf build/judge
  if ! { python3 -m venv build/judge && "$python" -m pip install --quiet --timeout 30 --retries 2 -r tests/judge/requirements.txt; } >build/judge.log 2>&1; then
    echo "judge.sh: cannot install tests/judge/requirements.txt (needs python3 with venv, and PyPI): $(tail -1 build/judge.log)" >&2
    exit 77
  fi
  cp tests/judge/requirements.txt build/judge/installed.txt
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for judge in tests/judge/*_judge.py; do
  echo "== $judge"
  mkdir "$work/$(basename "$judge" .py)"
  "$python" "$judge" "$gradtile" "$work/$(basename "$judge" .py)"
done
