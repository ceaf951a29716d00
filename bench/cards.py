"""Prints the tables of docs/which_gpu.md: for each model and each memory of a GPU, what `gradtile plan` says of a memory budget.

    python3 bench/cards.py build/release/gradtile

The first table trains all weights, the second one adapters. A cell is the speed relative to the same training without a limit, by
the cost model, and what the budget chose.
"""
import json
import subprocess
import sys

MODELS = {
    "124M": "--model gpt2-124m",
    "350M": "--model gpt2-350m",
    "774M": "--model gpt2-774m",
    "1.5B": "--model gpt2-774m --layers 48 --heads 25 --width 1600",
    "2.7B": "--model gpt2-774m --layers 32 --heads 20 --width 2560",
    "6.7B": "--model gpt2-774m --layers 32 --heads 32 --width 4096",
}
CARDS = [(1, 8), (1, 12), (1, 16), (1, 24), (1, 48), (1, 80), (2, 12), (2, 24)]
COMMON = "--dtype bf16 --batch 256"
TABLES = ["", "--lora-rank 8"]  # flags of each


def plan(program, model, gpus, gib):
    flags = f"plan {model} {COMMON} --gpus {gpus} --gpu-memory {gib} --json".split()
    done = subprocess.run([program, *flags], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def short(chosen):
    """'recompute block (saves ..), offload optimizer (..)' -> 'block, offload optimizer'"""
    names = {"recompute": "", "masters": "masters ", "offload": "offload ", "moment-dtype": "moments ", "gradient-dtype": "gradients "}
    words = []
    for part in chosen.split("), "):
        name, value = part.split(" (")[0].split(" ", 1)
        if name in names:
            words.append(names[name] + value)
    return ", ".join(words)


def cell(program, model, gpus, gib, unlimited):
    ways = [way for way in plan(program, model, gpus, gib)["ways_to_fit"] if way["prediction"]]
    if not ways:
        return "-"
    best = max(ways, key=lambda way: way["prediction"]["tokens_per_s"])
    speed = best["prediction"]["tokens_per_s"] / gpus / unlimited
    words = [f"zero {best['zero']}"] if best["zero"] else []
    words += [best["frozen_dtype"]] if best["frozen_dtype"] != "same" else []
    words += [short(best["chosen"])] if best["chosen"] else []
    return f"{speed:.2f}: {', '.join(words) or 'as it is'}"


def print_table(program, flags):
    print("| model | " + " | ".join(f"{f'{gpus} x ' if gpus > 1 else ''}{gib} GiB" for gpus, gib in CARDS) + " |")
    print("| --- |" + " --- |" * len(CARDS))
    for name, model in MODELS.items():
        model = f"{model} {flags}"
        unlimited = max(way["prediction"]["tokens_per_s"] for way in plan(program, model, 1, 100000)["ways_to_fit"])
        print(f"| {name} | " + " | ".join(cell(program, model, gpus, gib, unlimited) for gpus, gib in CARDS) + " |", flush=True)


def main():
    for flags in TABLES:
        print_table(sys.argv[1], flags)
        print()


if __name__ == "__main__":
    main()
