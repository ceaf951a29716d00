#!/usr/bin/env python3
"""Prints the medians of gpu_checks.sh's rounds, base and new side by side.

    python3 exp/table.py OUT
"""
import glob
import json
import os
import statistics
import sys

# Name of the benchmark: the columns that identify a row, and the time.
BENCHMARKS = {
    "decode": (["kv_heads", "head_dim", "tokens", "mib"], "us", ["copy_us"]),
    "attention": (["batch", "heads", "length", "head_dim", "mask"], "ms", []),
}


def rows_of(out, name, which):
    """The times of each row in all rounds: {identity: [{column: value}]}."""
    times = {}
    keys, time, more = BENCHMARKS[name]
    for path in sorted(glob.glob(os.path.join(out, f"{name}.{which}.*.jsonl"))):
        with open(path) as lines:
            for line in lines:
                if not line.startswith("{"):
                    continue
                row = json.loads(line)
                if row.get("pass", "forward") != "forward":
                    continue
                identity = tuple(round(row[key]) if isinstance(row[key], float) else row[key] for key in keys)
                times.setdefault(identity, []).append({key: row[key] for key in [time, *more]})
    return times


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def print_table(out, name):
    keys, time, more = BENCHMARKS[name]
    base, new = rows_of(out, name, "base"), rows_of(out, name, "new")
    if not base and not new:
        print(f"{name}: no rows")
        return
    print("| " + " | ".join([*keys, f"base {time}", f"new {time}", "new / base", *more, "base, each round", "new, each round"]) + " |")
    print("|" + " --- |" * (len(keys) + 5 + len(more)))
    ratios = []
    for identity in list(base) + [x for x in new if x not in base]:
        cells = [str(x) for x in identity]
        b, n = base.get(identity), new.get(identity)
        cells += [f"{median(x, time):.4g}" if x else "" for x in (b, n)]
        if b and n:
            ratios.append(median(n, time) / median(b, time))
            cells.append(f"{ratios[-1]:.3f}")
        else:
            cells.append("")
        cells += [f"{median(n or b, key):.4g}" for key in more]
        cells += [" ".join(f"{row[time]:.4g}" for row in x or []) for x in (b, n)]
        print("| " + " | ".join(cells) + " |")
    if ratios:
        print(f"{name}: new / base, geometric mean {statistics.geometric_mean(ratios):.3f}, "
              f"{min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} rows")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: table.py OUT")
    out = sys.argv[1]
    summary = os.path.join(out, "summary.txt")
    if os.path.exists(summary):
        print(open(summary).read())
    for log in sorted(glob.glob(os.path.join(out, "tests.*.log"))):
        for line in open(log, errors="replace"):
            if line.startswith(("[  FAILED  ]", "[  PASSED  ]")):
                print(os.path.basename(log) + ": " + line.rstrip())
    for name in BENCHMARKS:
        print()
        print_table(out, name)


main()
