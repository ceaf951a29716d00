#!/usr/bin/env bash
# Trains a tokenizer and the demo model on the CPU (one to four minutes on two cores) and prints samples. usage: scripts/demo.sh [DIR]
set -euo pipefail
cd "$(dirname "$0")/.."

run=${1:-runs/demo}
if [ -e "$run" ]; then
  echo "demo.sh: $run exists already; remove it, or choose another directory: scripts/demo.sh DIR" >&2
  exit 1
fi
# The demo runs on the CPU. Without a GPU here a new build has no kernels for one, which take most of the time to compile.
options=()
if [ ! -f build/release/CMakeCache.txt ] && ! nvidia-smi -L >/dev/null 2>&1; then
  options=(-DGRADTILE_CUDA=OFF)
fi
# Training a tokenizer needs PCRE2, which is optional elsewhere.
scripts/setup.sh libpcre2-dev
scripts/build.sh "${options[@]}"
gradtile=build/release/gradtile
corpus=$run-corpus.txt
tokenizer=$run-tokenizer.json
mkdir -p "$(dirname "$run")"

echo "--- generates stories and trains a tokenizer and a model on them (one to four minutes on two cores) ---"
$gradtile corpus --characters 1000000 --seed 1 --out "$corpus"
$gradtile tokenizer train --data "$corpus" --vocabulary 512 --out "$tokenizer"
$gradtile train --preset demo --data "$corpus" --tokenizer "$tokenizer" --out "$run" --device cpu

for seed in 1 2; do
  echo
  echo "--- sample $seed ---"
  $gradtile sample "$run" --tokens 300 --temperature 0.8 --seed "$seed" --device cpu
done
echo
echo "--- files ---"
echo "text:        $corpus"
echo "tokenizer:   $tokenizer"
echo "checkpoints: $run/checkpoints"
echo "metrics:     $run/metrics.jsonl"
echo "loss curve:  $run/loss.svg"
echo "more text:   $gradtile sample $run --prompt 'One day' --tokens 300"
