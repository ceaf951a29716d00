#!/usr/bin/env bash
# Big models in little memory, then tests of offloading.
export CUDA_VISIBLE_DEVICES=1
P=/tmp/bin/gradtile
until [ -f /tmp/bin/gradtile-base ]; do sleep 1; done; sleep 1
limited() {  # limited NAME MIB SECONDS FLAGS
  local name=$1 mib=$2 seconds=$3; shift 3
  python3 /tmp/here/ballast.py $mib /tmp/log/ballast-$name.txt >/tmp/log/ballast-$name.err 2>&1 & local b=$!
  until grep -q start /tmp/log/ballast-$name.txt 2>/dev/null || ! kill -0 $b; do sleep 0.5; done
  timeout $seconds $P bench train --device cuda --dtype bf16 "$@" >/tmp/log/$name.log 2>&1; echo "$name rc $?: $(tail -n 1 /tmp/log/$name.log | cut -c1-200); $(tail -n 1 /tmp/log/ballast-$name.txt)"; date
  kill $b; wait $b 2>/dev/null
}
llama=(--preset llama-0.5b --layers 32 --width 4096 --heads 32 --kv-heads 32 --head-width 128 --hidden 11008 --vocabulary 32000 --no-tied-head --context 2048 --batch 16 --lora-rank 8 --runs 3)
limited qlora-12 12288 150 "${llama[@]}" --frozen-dtype nf4 --memory-budget 12GiB
limited big-24-budget 24576 240 --preset gpt2-774m --context 1024 --layers 32 --heads 32 --width 4096 --batch 64 --memory-budget 24GiB --runs 1
timeout 120 $P bench train --device cuda --dtype bf16 "${llama[@]}" --frozen-dtype same --micro-batch 4 >/tmp/log/lora-free.log 2>&1; echo "lora without a limit: $(tail -n 1 /tmp/log/lora-free.log)"; date
until [ -f /tmp/log/base_tests ]; do sleep 1; done
cd /tmp/b-base/tests/train
timeout 200 ./train_test --gtest_filter='*PlannedBytes*:*PlannedMemory*' >/tmp/log/planned.log 2>&1; echo "planned rc $?"; date
for i in 1 2 3 4; do  # two at a time, each with its log
  for j in a b; do timeout 100 ./train_test --gtest_filter='CudaTrainer.OffloadedWeightsComeInTimeOverASlowBus' >/tmp/log/slow-bus-$i$j.log 2>&1 & done; wait
done; grep -L PASSED /tmp/log/slow-bus-*.log; grep -c "OK" /tmp/log/slow-bus-*.log; date
touch /tmp/log/gpu1.done
