#!/bin/bash
# Trains a model once for each variant of the settings, on one GPU, and prints a line for each: name, validation loss,
# training loss, median ms of a step, seconds in all. Stops before a run that would end after SECONDS. DATA is a
# directory made by scripts/linux_corpus.sh.
#     bench/training_variants.sh GRADTILE DATA STEPS SECONDS [RUNS] < VARIANTS
# A line of VARIANTS is "NAME FLAGS"; flags replace those below. The flags of a line "base" also hold for the lines
# after it. Without a preset among them the model is GPT-2 124M with batches of 64 x 1,024 tokens and a cosine schedule.
# RUNS/NAME keeps the settings and the metrics of each run, for gradtile plan --loss. bench/variants has such lists.
set -euo pipefail
gradtile=$1 data=$2 steps=$3 seconds=$4 runs=${5:-}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
longest=0 base=
while read -r name flags; do
    case $name in
    '' | '#'*) continue ;;
    base) base=$flags flags= ;;
    esac
    if ((SECONDS + longest > seconds)); then
        echo "$name: not run, $SECONDS of $seconds s are over"
        continue
    fi
    began=$SECONDS
    preset="--preset gpt2-124m --batch 64 --micro-batch 64 --warmup $((steps / 15)) --lr 1e-3 --min-lr 1e-4"
    [[ "$base $flags" == *--preset* ]] && preset=
    # shellcheck disable=SC2086  # flags are words
    if ! "$gradtile" train $preset --vocabulary 32768 --data "$data/train.bin" --val-data "$data/val.bin" \
        --device cuda --dtype bf16 --steps "$steps" \
        --eval-every 0 --save-every 0 --quiet --out "$place/run" $base $flags >"$place/log" 2>&1 </dev/null; then
        echo "$name: failed: $(tail -1 "$place/log")"
    else
        median=$(grep -o '"ms":[0-9.]*' "$place/run/metrics.jsonl" | cut -d: -f2 | sort -n | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }')
        echo "$name: $(sed -n 's/^val_loss: /val_loss /p; s/^loss: /loss /p' "$place/log" | paste -sd' ') ms $median s $((SECONDS - began))"
    fi
    [ -z "$runs" ] || [ ! -f "$place/run/config.json" ] || { mkdir -p "$runs/$name" && cp "$place"/run/{config.json,metrics.jsonl} "$runs/$name"; }
    rm -rf "$place/run"
    ((SECONDS - began <= longest)) || longest=$((SECONDS - began))
done
