#!/usr/bin/env bash
# What needs both GPUs, after the others.
until [ -f /tmp/log/gpu0.done ] && [ -f /tmp/log/gpu1.done ]; do sleep 1; done
P=/tmp/bin/gradtile; cd /tmp/log
big=(--preset gpt2-774m --layers 48 --width 1600 --heads 25 --gpus 2 --on-loss stop --batch 64 --micro-batch 16 --dtype bf16 --steps 12 --eval-every 0 --save-every 0)
head -c 40000000 /dev/urandom >/tmp/tokens.raw; python3 - <<'P'
import numpy as np
t = np.fromfile('/tmp/tokens.raw', np.uint16) % 50257; t.astype(np.uint16).tofile('/tmp/tokens.bin')
P
for z in 3 2; do NCCL_P2P_DISABLE=1 timeout 100 $P train "${big[@]}" --zero $z --data /tmp/tokens.bin --out /tmp/run-p2p$z >p2p-$z.log 2>&1; echo "no p2p zero $z rc $?"; tail -n 3 p2p-$z.log; done
cd /tmp/b-base/tests/tools
GRADTILE_FAULT_GPUS=2 timeout 150 ./processes_test --gtest_filter='DataParallelOnGpus.*' >/tmp/log/dp.log 2>&1; echo "dp rc $?"
GRADTILE_FAULT_GPUS=2 GRADTILE_FAULT_ROUNDS=1 timeout 250 ./processes_test --gtest_filter='ReplacedRanks.MayBeLostAtAnyMomentOnGpus' >/tmp/log/any.log 2>&1; echo "any moment rc $?"
GRADTILE_FAULT_GPUS=2 GRADTILE_FAULT_ROUNDS=4 timeout 200 ./processes_test --gtest_filter='ReplacedRanks.HangingOnesCostNoStep' >/tmp/log/hanging.log 2>&1; echo "hanging rc $?"
touch /tmp/log/both.done
