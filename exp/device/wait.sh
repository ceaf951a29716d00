#!/usr/bin/env bash
# wait.sh SECONDS: waits for the pipelines, prints the ends of their logs, and sends all logs back.
end=$((SECONDS + $1))
while [ $SECONDS -lt $end ] && [ ! -f /tmp/log/gpu0.done -o ! -f /tmp/log/gpu1.done -o ! -f /tmp/log/both.done -o ! -f /tmp/log/cpu.done ]; do sleep 3; done
for n in build cpu gpu0 gpu1 both; do echo "== $n"; tail -n 12 /tmp/log/$n.log | cut -c1-160; done
tar czf "$OUT/logs.tgz" -C /tmp log
