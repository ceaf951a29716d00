#!/usr/bin/env bash
# main with simpler.patch.
set -u
options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES=90a-real -DGRADTILE_NATIVE=ON -DGRADTILE_EXAMPLES=OFF
         -DGRADTILE_CPU_BLAS=openblas -DCMAKE_PREFIX_PATH=/tmp/pre -DOPENSSL_ROOT_DIR=/tmp/pre)
cd /tmp/src && patch -p1 -s </tmp/here/simpler.patch || echo "patch failed"
cmake "${options[@]}" -S /tmp/src -B /tmp/b >/tmp/log/configure.log 2>&1; cd /tmp/b
ninja -k 0 gradtile_program attention_test layers_test core_test train_test model_test 2>&1 | tail -n 3
cp gradtile /tmp/bin/gradtile-new; touch /tmp/log/built-new; date
