#!/usr/bin/env bash
# Repeats the measured run of docs/speedrun.md on one GPU, from Debian's Linux sources to a model: builds the program, makes
# the corpus, trains with the preset speedrun, and prints the validation loss and the seconds of training. Needs Debian 12.
# FLAGS are those of gradtile train.
#     scripts/speedrun.sh [DIRECTORY] [FLAGS...]     # default: runs/speedrun-data
set -euo pipefail
cd "$(dirname "$0")/.."
directory=${1:-runs/speedrun-data}
shift || true
nvidia-smi -L >/dev/null 2>&1 || {
    echo "speedrun.sh: nvidia-smi finds no GPU; on a CPU run: gradtile train --preset speedrun-cpu --data TEXT" >&2
    exit 1
}
[ -x build/release/gradtile ] || scripts/build.sh
[ -f "$directory/val.bin" ] || scripts/linux_corpus.sh "$directory"  # val.bin is made last
began=$SECONDS
build/release/gradtile train --preset speedrun --device cuda --tokenizer "$directory/tokenizer.json" \
    --data "$directory/train.bin" --val-data "$directory/val.bin" "$@"
echo "training, with its start and evaluation: $((SECONDS - began)) s"
