#!/usr/bin/env bash
# aarch64 tests under qemu, without those that ended before.
mkdir -p /tmp/pack && tar xJf /tmp/here/aarch64.tar.xz -C /tmp/pack && cp /tmp/here/run_tests.py /tmp/pack/
taskset -c 4-31 nice -n 19 python3 /tmp/pack/run_tests.py --no-binfmt --out /tmp/log/aarch64 --done /tmp/here/aarch64_done.txt --seconds ${AARCH64_SECONDS:-1600} --jobs 28; date
touch /tmp/log/cpu.done
