#!/usr/bin/env bash
# Attention: tests of main, then main beside the branch, then the 19 shapes with anchors.
export CUDA_VISIBLE_DEVICES=0
run() { taskset -c 0-5 "$@"; }
until [ -f /tmp/log/base_attention ]; do sleep 1; done
(cd /tmp/b-base/tests/attention && run timeout 300 ./attention_test --gtest_filter='Decode*:AttentionCuda*' >/tmp/log/attention-base.log 2>&1; echo "attention base rc $?"); date
until [ -f /tmp/log/both_built ]; do sleep 1; done
mkdir -p /tmp/base /tmp/new; for n in base new; do b=${n/new/both}; ln -sf /tmp/bin/gradtile-$b /tmp/$n/gradtile; ln -sf /tmp/bin/attention_test-$b /tmp/$n/attention_test; done
run bash /tmp/here/exp/gpu_checks.sh /tmp/base /tmp/new /tmp/log/checks; python3 /tmp/here/exp/table.py /tmp/log/checks; date
gzip -dc /tmp/here/fa3.gz >/tmp/fa3.so
run python3 /tmp/src/bench/attention_anchor.py >/tmp/log/anchor.txt 2>/tmp/log/anchor.err
run python3 /tmp/here/fa3_anchor.py /tmp/fa3.so >/tmp/log/fa3.txt 2>/tmp/log/fa3.err
for i in 1 2 3; do for p in base both; do run /tmp/bin/gradtile-$p bench attention --device cuda --anchor /tmp/log/anchor.txt >/tmp/log/shapes-$p-$i.txt 2>&1; done; done; date
(cd /tmp/b-base/tests/attention && GRADTILE_SHARED_MEMORY=101376 GRADTILE_HOPPER_ATTENTION=off run timeout 200 ./attention_test --gtest_filter='AttentionCudaFewQueries.IsAsAccurateAsNaiveUnderEveryOption' >/tmp/log/attention-99k.log 2>&1; echo "99 KB rc $?"); date
touch /tmp/log/gpu0.done
