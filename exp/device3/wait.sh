#!/usr/bin/env bash
end=$((SECONDS + $1))
while [ $SECONDS -lt $end ] && { [ ! -f /tmp/log/gpu.done ] || [ ! -f /tmp/log/cpu.done ]; }; do sleep 2; done
for n in build cpu gpu; do echo "== $n"; tail -n 16 /tmp/log/$n.log | cut -c1-200; done
tar czf "$OUT/logs.tgz" -C /tmp log
