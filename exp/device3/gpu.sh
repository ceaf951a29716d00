#!/usr/bin/env bash
# FlexAttention; set sizes of masks; then the tests of what the patch touches.
until [ -f /tmp/log/built-new ]; do sleep 1; done
run() { taskset -c 0-3 "$@"; }
run timeout 330 python3 /tmp/src/bench/row_ranges_anchor.py >/tmp/log/flex.txt 2>/tmp/log/flex.err; date
for d in 128 64; do for m in causal documents prefix shared-prompt window; do run /tmp/bin/gradtile-new bench attention --device cuda --dtype bf16 --batch 1 --heads 16 --length 8192 --head-dim $d --mask $m --tune --runs 5 >/tmp/log/tune-$d-$m.txt 2>&1; done; done; date
cd /tmp/b/tests
(cd layers && timeout 200 ./layers_test --gtest_filter='*Cuda*:*ActivationProduct*:*CrossEntropy*' >/tmp/log/layers.log 2>&1; echo "layers rc $?"; tail -n 3 /tmp/log/layers.log)
(cd core && timeout 120 ./core_test --gtest_filter='*Cuda*:*Hopper*:*Symmetric*' >/tmp/log/core.log 2>&1; echo "core rc $?"; tail -n 3 /tmp/log/core.log)
(cd train && timeout 200 ./train_test --gtest_filter='*Cuda*:*OnAGpu*' >/tmp/log/train.log 2>&1; echo "train rc $?"; tail -n 3 /tmp/log/train.log); date
(cd attention && timeout 500 ./attention_test --gtest_filter='Decode*:*Cuda*RandomCalls*:*AttentionCuda*-*/float64:*/float16' >/tmp/log/attention.log 2>&1; echo "attention rc $?"; tail -n 3 /tmp/log/attention.log); date
touch /tmp/log/gpu.done
