#!/usr/bin/env bash
set -u
options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES=90a-real -DGRADTILE_NATIVE=ON -DGRADTILE_EXAMPLES=OFF
         -DGRADTILE_CPU_BLAS=openblas -DCMAKE_PREFIX_PATH=/tmp/pre -DOPENSSL_ROOT_DIR=/tmp/pre)
cmake "${options[@]}" -S /tmp/src -B /tmp/b-base >/tmp/log/configure.log 2>&1
cd /tmp/b-base
ninja -k 0 gradtile_program && cp gradtile /tmp/bin/gradtile-base && cp gradtile /tmp/bin/gradtile
ninja -k 0 attention_test && cp tests/attention/attention_test /tmp/bin/attention_test-base && touch /tmp/log/base_attention
ninja -k 0 train_test processes_test signal_at_send_module formats_test tools_test cost_model_test; touch /tmp/log/base_tests; date
cp -a /tmp/src /tmp/src-both && cd /tmp/src-both && patch -p1 -s </tmp/here/both.patch || { echo "patch failed"; exit; }
cmake "${options[@]}" -S /tmp/src-both -B /tmp/b-both >/tmp/log/configure-both.log 2>&1
cd /tmp/b-both
ninja -k 0 gradtile_program attention_test
cp gradtile /tmp/bin/gradtile-both; cp tests/attention/attention_test /tmp/bin/attention_test-both; touch /tmp/log/both_built; date
