#!/usr/bin/env bash
# GPU 0: masks before and after, FlexAttention, packed calls, the 19 shapes with pauses. GPU 1: tests.
until [ -f /tmp/log/built-base ] && [ -f /tmp/log/built-new ]; do sleep 1; done
mask_tests='KeyBlockRows*:FlashPlan*:BlockOrderOnHopper*:*RowRanges*:*HiddenInputs*:*MaskedRows*:*RandomCalls*'
(cd /tmp/b-new/tests/attention; CUDA_VISIBLE_DEVICES=1 timeout 900 /tmp/bin/attention_test-new --gtest_filter="$mask_tests" >/tmp/log/tests-new.log 2>&1; echo "tests rc $?"; date) &
export CUDA_VISIBLE_DEVICES=0
run() { taskset -c 0-3 "$@"; }
for i in 1 2 3; do
  for d in 64 128; do
    for m in causal documents prefix shared-prompt window; do
      for n in base new; do run /tmp/bin/gradtile-$n bench attention --device cuda --dtype bf16 --batch 1 --heads 16 --length 8192 --head-dim $d --mask $m --runs 5 --json 2>&1 | sed "s/^/$n $i $m /" >>/tmp/log/masks.txt; done
    done
    # 8,192 tokens in documents of 64, 128, .. 2,048, 64, .. tokens
    run /tmp/bin/gradtile-base bench attention --device cuda --dtype bf16 --heads 16 --head-dim $d --packed 64,128,256,512,1024,2048,64,128,256,512,1024,2048,64,64 --json 2>&1 | sed "s/^/packed $i $d /" >>/tmp/log/masks.txt
  done
done; date
run python3 /tmp/src/bench/row_ranges_anchor.py >/tmp/log/flex.txt 2>/tmp/log/flex.err; date
run python3 /tmp/src/bench/attention_anchor.py >/tmp/log/anchor.txt 2>/tmp/log/anchor.err
for i in 1 2 3; do run /tmp/bin/gradtile-base bench attention --device cuda --anchor /tmp/log/anchor.txt >/tmp/log/shapes-$i.txt 2>&1; done; date
wait
touch /tmp/log/gpu.done
