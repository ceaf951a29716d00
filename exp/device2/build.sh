#!/usr/bin/env bash
# main in /tmp/b-base, with row_ranges.patch in /tmp/b-new.
set -u
options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES=90a-real -DGRADTILE_NATIVE=ON -DGRADTILE_EXAMPLES=OFF
         -DGRADTILE_CPU_BLAS=openblas -DCMAKE_PREFIX_PATH=/tmp/pre -DOPENSSL_ROOT_DIR=/tmp/pre)
cp -a /tmp/src /tmp/src-new && (cd /tmp/src-new && patch -p1 -s </tmp/here/row_ranges.patch) || echo "patch failed"
for n in base new; do
  src=/tmp/src; [ $n = base ] || src=/tmp/src-new
  (cmake "${options[@]}" -S $src -B /tmp/b-$n >/tmp/log/configure-$n.log 2>&1; cd /tmp/b-$n
   ninja -k 0 gradtile_program attention_test 2>&1 | tail -n 3; cp gradtile /tmp/bin/gradtile-$n; cp tests/attention/attention_test /tmp/bin/attention_test-$n; touch /tmp/log/built-$n; date) &
done
wait
