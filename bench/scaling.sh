#!/usr/bin/env bash
# Times training steps on several GPUs of this host and prints measurements for `gradtile plan --fit`, one JSON object per
# line.
#
#   bench/scaling.sh build/release/gradtile 1 2 4 > bench/results/DATE-MACHINE-scaling.jsonl
#
# CASES: lines of "preset sequences-per-GPU zero"; FLAGS: further flags of train; LAUNCH=--processes: run on the CPU.
set -euo pipefail
gradtile=$1
shift
cases=${CASES:-"gpt2-124m 64 0
gpt2-124m 64 1
gpt2-124m 8 0
gpt2-124m 8 1
gpt2-350m 32 0
gpt2-350m 32 1"}
steps=${STEPS:-40}
dtype=${DTYPE:-bf16}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$gradtile" corpus --characters 2000000 --out "$work/stories.txt" > /dev/null

# Computes the median over all steps except the first five, in which algorithms are chosen and the graph is captured.
median_ms() {
    sed -n 's/.*"ms": *\([0-9.e+-]*\).*/\1/p' "$1" | tail -n +6 | sort -g | awk '{ms[NR] = $1} END {print ms[int((NR + 1) / 2)]}'
}

while read -r preset sequences zero; do
    for gpus in "$@"; do
        [ "$zero" = 0 ] || [ "$gpus" != 1 ] || continue
        run=$work/run
        settings=(--preset "$preset" --dtype "$dtype" --batch $((sequences * gpus)) --micro-batch "$sequences" --zero "$zero"
            --tokenizer bytes --vocabulary 50257 --data "$work/stories.txt" --out "$run" --steps "$steps" --eval-every 0 --save-every 0
            --val-fraction 0)
        launch=()
        [ "$gpus" = 1 ] || launch=("${LAUNCH:---gpus}" "$gpus" --on-loss stop)
        # shellcheck disable=SC2086
        "$gradtile" train "${launch[@]}" "${settings[@]}" --quiet ${FLAGS:-} < /dev/null > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
        printf '{"what": "step", "gpus": %s, "ms": %s, "note": "%s", "preset": "%s", "dtype": "%s", "vocabulary": 50257, "batch": %s, "micro-batch": %s, "zero": %s}\n' \
            "$gpus" "$(median_ms "$run/metrics.jsonl")" "$preset" "$preset" "$dtype" $((sequences * gpus)) "$sequences" "$zero"
        rm -rf "$run"
    done
done <<< "$cases"
