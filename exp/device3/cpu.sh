#!/usr/bin/env bash
# The program for all GPUs, of main, and the rest of the aarch64 tests (if out/ has the pack), beside the GPU's runs.
until [ -f /tmp/log/built-new ]; do sleep 1; done
if [ -f /tmp/here/aarch64.tar.xz ]; then
  mkdir -p /tmp/pack && tar xJf /tmp/here/aarch64.tar.xz -C /tmp/pack && cp /tmp/here/run_tests.py /tmp/pack/
  taskset -c 10-15 nice -n 19 python3 /tmp/pack/run_tests.py --no-binfmt --out /tmp/log/aarch64 --done /tmp/here/aarch64_done.txt --seconds 1250 --jobs 6 >/tmp/log/aarch64.log 2>&1 &
fi
taskset -c 2-11 bash /tmp/here/tarball.sh /tmp/src-main 10 1300 /tmp/log/tarball
wait
touch /tmp/log/cpu.done
