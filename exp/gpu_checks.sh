#!/usr/bin/env bash
# Compares two builds of attention_test and gradtile on one Hopper GPU: correct results, generation's attention,
# and the forward pass at head dim 128. At most 8 minutes.
#
#     exp/gpu_checks.sh BASE NEW OUT     # BASE and NEW: folders with attention_test and gradtile
#     python3 exp/table.py OUT           # afterwards, or also before it has ended
#
# OUT/tests.{decode,forward,random}.{base,new}.log   GoogleTest
# OUT/{decode,attention}.{base,new}.ROUND.jsonl      one JSON object a row
# OUT/summary.txt                                    the seconds of each part, and what failed
set -u
if (( $# != 3 )); then echo "usage: gpu_checks.sh BASE NEW OUT" >&2; exit 2; fi
base=$(realpath "$1") new=$(realpath "$2")
mkdir -p "$3"; out=$(realpath "$3")
for dir in "$base" "$new"; do
    for program in attention_test gradtile; do
        if [[ ! -x $dir/$program ]]; then echo "gpu_checks.sh: no program $dir/$program" >&2; exit 2; fi
    done
done
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
readonly limit=${GPU_CHECKS_SECONDS:-470}
: > "$out/summary.txt"
say() { echo "$SECONDS s: $*" | tee -a "$out/summary.txt"; }
dir_of() { if [[ $1 == base ]]; then echo "$base"; else echo "$new"; fi; }
say "$(nvidia-smi --query-gpu=name,clocks.sm,power.draw,temperature.gpu --format=csv,noheader | head -1)"

# (a) Tests. Both builds at once, and decode beside forward: most of their time is the float64 reference on the CPU.
readonly decode_tests='*Decode*OnCuda*'
readonly forward_tests="\
*HopperTiles.*:\
*AttentionCudaDtypes.IsAsAccurateAsNaiveAtAnyHeadDim/*float16:\
*AttentionCudaDtypes.IsAsAccurateAsNaiveAtAnyLength/*float16:\
*AttentionCudaDtypes.IsAsAccurateAsNaiveUnderAnyOption/*float16:\
*AttentionCudaDtypes.LargeHeadDimsAreAsAccurateAsNaive/*float16:\
*AttentionCudaDtypes.ManyRowBlocksOfWhichSomeSeeNoKey*/*float16:\
*AttentionCudaDtypes.DeterministicGradientsAreAsAccurateAsNaive/*float16:\
*AttentionCudaDtypes.ZeroLengthsAndEmptyBatchesAreValid/*float16:\
*AttentionCudaDtypes.HugeScoresGiveFiniteResults/*float16:\
*AttentionCudaDtypes.TensorsMayHaveAnyStrides/*float16:\
*AttentionCudaRepeats.DenseCalls/*float16:\
*AttentionCudaRepeats.ShortDenseCalls/*float16:\
*AttentionCudaPacked.EqualDenseCallsAtEveryHeadDim/*float16"
# test NAME WHICH SECONDS FILTER [VARIABLE=VALUE ...]
test_in_background() {
    local name=$1 which=$2 seconds=$3 filter=$4; shift 4
    ( env "$@" timeout "$seconds" "$(dir_of "$which")/attention_test" --gtest_filter="$filter" \
          > "$out/tests.$name.$which.log" 2>&1
      code=$?
      case $code in 0) end=passed;; 124) end="not ended in $seconds s";; *) end="FAILED, exit code $code";; esac
      say "tests of $name, $which: $end; $(grep -c '^\[       OK' "$out/tests.$name.$which.log") passed," \
          "$(grep -c '^\[  SKIPPED' "$out/tests.$name.$which.log") lines of skipped ones" ) &
}
for which in base new; do
    test_in_background decode $which 150 "$decode_tests"
    test_in_background forward $which 150 "$forward_tests"
done
test_in_background random new 150 '*AttentionCudaRandomCalls*' GRADTILE_TEST_SECONDS=40
# Warpgroups and Q in registers must also leave the kernels for all GPUs as they were.
test_in_background decode_off new 150 "$decode_tests" GRADTILE_HOPPER_ATTENTION=off
wait
say "tests have ended"

# (b), (c) Benchmarks, one at a time. The order of the builds changes from round to round, since the card gets warmer.
# BATCH HEADS LENGTH MASK: the calls of head dim 128 in bench/attention_anchor.py.
readonly -a shapes=("32 16 512 --causal" "16 16 1024 --no-causal" "16 16 1024 --causal" "8 16 2048 --causal"
                    "4 16 4096 --causal" "1 16 16384 --no-causal" "1 16 16384 --causal")
# bench FILE WHICH ARGUMENT...
bench() {
    local file=$1 which=$2; shift 2
    if (( SECONDS >= limit )); then say "no time for $which: bench $*"; return; fi
    timeout $(( limit + 10 - SECONDS )) "$(dir_of "$which")/gradtile" bench "$@" --json \
        >> "$out/$file" 2>> "$out/errors.txt" || say "FAILED, $which: bench $*"
}
order_in() { if (( $1 % 2 )); then echo base new; else echo new base; fi; }
rm -f "$out"/*.jsonl
for round in 1 2 3; do
    for which in $(order_in $round); do
        bench "decode.$which.$round.jsonl" $which decode --mib 16,256
    done
    say "bench decode, round $round"
    for shape in "${shapes[@]}"; do
        read -r batch heads length mask <<< "$shape"
        for which in $(order_in $round); do
            bench "attention.$which.$round.jsonl" $which attention --device cuda --dtype bf16 --pass forward \
                --batch "$batch" --heads "$heads" --length "$length" --head-dim 128 "$mask"
        done
    done
    say "bench attention, round $round"
done
# Which kernels the calls of (c) took.
for which in base new; do
    (( SECONDS < limit )) && "$(dir_of $which)/gradtile" bench attention --device cuda --dtype bf16 --batch 16 --heads 16 \
        --length 1024 --head-dim 128 --explain > "$out/explain.$which.txt" 2>&1
done
say "ended"
! grep -q FAILED "$out/summary.txt"
