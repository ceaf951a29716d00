#!/usr/bin/env bash
# Builds the preset all-gpus from a source tree beside other work, and reports sizes. The build goes on in the background when the
# time is over: call it again to wait longer (same machine), it reports what exists so far.
# usage: tarball.sh SOURCE JOBS SECONDS OUT [PROGRAM OF ANOTHER BUILD, for load times]
set -u
source=$(readlink -f "$1") jobs=$2 seconds=$3 out=$4 other=${5:-}
here=$(dirname "$(readlink -f "$0")")
build=/tmp/all-gpus
end=$((SECONDS + seconds))
mkdir -p "$out"

if [ ! -f $build/build.ninja ]; then
  # -t 3: nvcc compiles a source's architectures at the same time.
  nice -n 19 cmake --preset all-gpus -S "$source" -B $build -DCMAKE_PREFIX_PATH=/tmp/pre -DOPENSSL_ROOT_DIR=/tmp/pre -DGRADTILE_CPU_BLAS=openblas \
    -DCMAKE_CUDA_FLAGS="--compress-mode=size -t 3" >"$out/configure.log" 2>&1 || { tail -30 "$out/configure.log"; exit 1; }
  grep -- '-- gradtile' "$out/configure.log"
fi
if [ ! -f $build/started ] || { [ -f $build/rc ] && [ "$(cat $build/rc)" != 0 ]; }; then
  date +%s >$build/started
  rm -f $build/rc
  slow=$(cd $build && ninja -t targets all | sed -n 's/: CUDA_COMPILER.*//p' | grep instances | sort -t/ -k6 | tr '\n' ' ')
  setsid bash -c "cd $build && nice -n 19 ninja -k 0 -j $jobs $slow gradtile_program; echo \$? >rc; date +%s >ended" >$build/build.log 2>&1 </dev/null &
fi
while [ ! -f $build/rc ] && [ $SECONDS -lt $end ]; do sleep 2; done

{
  echo "build: $(tail -n 1 $build/build.log | cut -c1-200)"
  echo "rc: $(cat $build/rc 2>/dev/null || echo 'not ended'), after $(($(cat $build/ended 2>/dev/null || date +%s) - $(cat $build/started))) s"
  grep -m 5 -E 'error|FAILED' $build/build.log
  echo "== GPU code of the objects that exist ($(find $build -name '*.cu.o' | wc -l) of $(cd $build && ninja -t targets all | grep -c ': CUDA_COMPILER'))"
  find $build -name '*.cu.o' -print0 | xargs -0 python3 "$here/fatbin_sizes.py"
  echo "== sources without an object"
  (cd $build && ninja -t targets all | sed -n 's/: CUDA_COMPILER.*//p' | while read -r o; do [ -f "$o" ] || echo "$o"; done)
  echo "== seconds of the slowest steps (wall, beside other work)"
  awk -F'\t' 'NR > 1 { printf "%.0f %s\n", ($2 - $1) / 1000, $4 }' $build/.ninja_log | sort -rn | awk '!seen[$2]++' | head -n 25
  program=$(find $build -name gradtile -type f -perm -u+x | head -n 1)
  if [ -n "$program" ]; then
    strip -o /tmp/gradtile.stripped "$program"
    echo "== program"
    echo "stripped: $(stat -c %s /tmp/gradtile.stripped) bytes"
    python3 "$here/fatbin_sizes.py" /tmp/gradtile.stripped
    size -A /tmp/gradtile.stripped | sort -k2 -rn | head -n 8
    echo "tar.gz of it: $(tar -C /tmp -c gradtile.stripped | gzip | wc -c) bytes; tar.xz: $(tar -C /tmp -c gradtile.stripped | xz -6 -T 8 | wc -c)"
    if command -v cuobjdump >/dev/null; then cuobjdump -lelf /tmp/gradtile.stripped | sed -n 's/.*\.\(sm_[0-9a-z]*\)\.cubin/\1/p' | sort | uniq -c; fi
    if nvidia-smi -L >/dev/null 2>&1; then
      echo "== load times on this GPU (s): first call, then three more"
      head -c 300000 /dev/urandom | base64 >/tmp/load.txt
      for p in /tmp/gradtile.stripped $other; do
        for task in "doctor" "train --preset demo --data /tmp/load.txt --device cuda --dtype bf16 --steps 1 --out /tmp/load-run"; do
          for i in 1 2 3 4; do
            rm -rf /tmp/load-run
            /usr/bin/env bash -c "TIMEFORMAT=%R; time $p $task >/tmp/load.log 2>&1" 2>&1 | tr '\n' ' '
          done
          echo ": $(basename "$p") ${task%% --*}; $(tail -n 1 /tmp/load.log | cut -c1-150)"
        done
      done
    fi
    cp /tmp/gradtile.stripped "$out/" && xz -6 -T 8 -f "$out/gradtile.stripped"  # comes back if it has less than 16 MiB
  fi
} 2>&1 | tee "$out/sizes.txt"
cp $build/.ninja_log "$out/ninja_log.txt"
