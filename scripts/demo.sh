#!/usr/bin/env bash
# Trains the demo model on the CPU (about three minutes on two cores) and prints samples. usage: scripts/demo.sh [DIR]
set -euo pipefail
cd "$(dirname "$0")/.."

run=${1:-runs/demo}
if [ -e "$run" ]; then
  echo "demo.sh: $run exists already; remove it, or name another directory: scripts/demo.sh DIR" >&2
  exit 1
fi
scripts/build.sh
gradtile=build/release/gradtile
corpus=$run-corpus.txt
mkdir -p "$(dirname "$run")"

$gradtile corpus --characters 1000000 --seed 1 --out "$corpus"
$gradtile train --preset demo --data "$corpus" --out "$run" --device cpu

echo
echo "--- how near the model came to the source of the stories ---"
$gradtile corpus --score "$corpus" --model "$run"
echo
echo "--- samples ---"
for seed in 1 2; do
  $gradtile sample "$run" --tokens 500 --temperature 0.8 --seed "$seed"
  echo
done
echo "--- files ---"
echo "checkpoints: $run/checkpoints"
echo "metrics:     $run/metrics.jsonl"
echo "loss curve:  $run/loss.svg"
