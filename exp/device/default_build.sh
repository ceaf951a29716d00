#!/usr/bin/env bash
# Processor seconds of compiling all CUDA sources of the program for the default without a GPU (80-virtual and 90a-real) and for 90a-real.
# usage: default_build.sh SOURCE JOBS SECONDS OUT; goes on in the background when the time is over: call it again
set -u
source=$(readlink -f "$1") jobs=$2 seconds=$3 out=$4
end=$((SECONDS + seconds))
mkdir -p "$out"
for name in hopper default; do
  architectures="90a-real"; [ $name = hopper ] || architectures="80-virtual;90a-real"
  build=/tmp/build-$name
  [ ! -f $build/rc ] && [ ! -f $build/started ] || continue
  nice -n 19 cmake --preset release -S "$source" -B $build -DCMAKE_PREFIX_PATH=/tmp/pre -DOPENSSL_ROOT_DIR=/tmp/pre -DGRADTILE_CPU_BLAS=openblas \
    -DGRADTILE_TESTS=OFF -DGRADTILE_EXAMPLES=OFF -DCMAKE_CUDA_ARCHITECTURES="$architectures" >"$out/configure-$name.log" 2>&1 || { tail -20 "$out/configure-$name.log"; exit 1; }
  date +%s >$build/started
  setsid bash -c "cd $build && TIMEFORMAT='%R s wall, %U s user, %S s system' && { time nice -n 19 ninja -k 0 -j $jobs \$(ninja -t targets all | sed -n 's/: CUDA_COMPILER.*//p' | tr '\n' ' ') >build.log 2>&1; echo \$? >rc.new; } 2>seconds; mv rc.new rc" </dev/null >/dev/null 2>&1 &
  sleep 1
done
while { [ ! -f /tmp/build-hopper/rc ] || [ ! -f /tmp/build-default/rc ]; } && [ $SECONDS -lt $end ]; do sleep 2; done
for name in hopper default; do
  build=/tmp/build-$name
  echo "$name: rc $(cat $build/rc 2>/dev/null || echo 'not ended'); $(cat $build/seconds); $(find $build -name '*.cu.o' | wc -l) of $(cd $build && ninja -t targets all | grep -c ': CUDA_COMPILER') objects; GPU code:"
  find $build -name '*.cu.o' -print0 | xargs -0 python3 "$(dirname "$(readlink -f "$0")")/fatbin_sizes.py"
  awk -F'\t' 'NR > 1 { printf "%.0f %s\n", ($2 - $1) / 1000, $4 }' $build/.ninja_log | sort -rn | head -n 12
done 2>&1 | tee "$out/default_build.txt"
