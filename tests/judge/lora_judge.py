"""Judges LoRA: JAX trains the adapters of the same base on the same batches in float64, and the losses must agree.

usage: lora_judge.py GRADTILE DIRECTORY    (scripts/judge.sh calls it)

JAX computes with whole matrices W + alpha/r B A and differentiates through the sum, so it shares no formula with gradtile's adapters.
"""
import itertools
import json
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from data_order import text_of_words, windows
from gradtile_runs import read_checkpoint, run
from model_judge import losses, mean_loss

STEPS = 100
COMMON = ["--layers", "3", "--width", "32", "--heads", "4", "--context", "24", "--batch", "8", "--device", "cpu", "--quiet", "--eval-every", "0"]
TUNING = ["--warmup", "10", "--lr", "1e-3", "--min-lr", "1e-4", "--seed", "5"]
LLAMA = ["--norm", "rms", "--activation", "swiglu", "--positions", "rope", "--no-bias", "--no-tied-head", "--kv-heads", "2", "--qk-norm"]
CASES = {
    "GPT-2, all matrices": ([], ["--lora-rank", "4"]),
    "GPT-2, attention, alpha": ([], ["--lora-rank", "3", "--lora-alpha", "6", "--lora-on", "attn", "--micro-batch", "2"]),
    "Llama, two matrices": (LLAMA, ["--lora-rank", "8", "--lora-alpha", "4", "--lora-on", "attn.qkv,mlp.down", "--recompute", "block"]),
}
# As in training_judge.py. Training amplifies roundings: with a factor alpha/r of 4, the second case agrees for 50 steps, and then drifts apart to 3e-5.
BOUND = 1e-6


def merged(parameters, config):
    """The model's matrices: W + alpha/r B A where there is an adapter."""
    scale = (config["lora-alpha"] or config["lora-rank"]) / config["lora-rank"]
    model = {name: value for name, value in parameters.items() if ".lora_" not in name}
    for name in [name for name in parameters if name.endswith(".lora_a")]:
        module = name[: -len(".lora_a")]
        model[module + ".weight"] = model[module + ".weight"] + scale * parameters[module + ".lora_b"] @ parameters[name]
    return model


def learning_rate(step, config):
    lr, least, warmup = config["lr"], config["min-lr"], config["warmup"]
    if step <= warmup:
        return lr * step / warmup
    t = (step - warmup) / (STEPS - warmup)
    return least + (lr - least) * (1 + math.cos(math.pi * t)) / 2


def train(parameters, config, source):
    """AdamW (Loshchilov and Hutter 2019) on the adapters alone; returns the loss of each step."""
    adapters = {name: jnp.asarray(value) for name, value in parameters.items() if ".lora_" in name}
    frozen = {name: jnp.asarray(value) for name, value in parameters.items() if ".lora_" not in name}

    def loss_of(adapters, tokens, targets):
        counts = targets >= 0
        each = losses(merged({**frozen, **adapters}, config), config, tokens, jnp.where(counts, targets, 0))
        return jnp.where(counts, each, 0.0).sum() / counts.sum()

    gradient_of = jax.jit(jax.value_and_grad(loss_of))
    beta1, beta2 = config["beta1"], config["beta2"]
    m = {name: jnp.zeros_like(value) for name, value in adapters.items()}
    v = dict(m)
    curve = []
    for step in range(1, STEPS + 1):
        batch = list(itertools.islice(source, config["batch"]))
        loss, gradient = gradient_of(adapters, *(jnp.asarray([window[part] for window in batch]) for part in (0, 1)))
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradient.values()))
        clip = min(1.0, config["clip"] / norm)
        rate = learning_rate(step, config)
        for name, g in gradient.items():
            m[name] = beta1 * m[name] + (1 - beta1) * clip * g
            v[name] = beta2 * v[name] + (1 - beta2) * (clip * g) ** 2
            update = m[name] / (1 - beta1**step) / (jnp.sqrt(v[name] / (1 - beta2**step)) + config["epsilon"])
            adapters[name] = adapters[name] * (1 - rate * config["weight-decay"]) - rate * update
        curve.append(float(loss))
    return curve


def main(gradtile, directory):
    # The base is trained on a text, and the adapters on the same text backwards.
    forwards, text = directory / "forwards.txt", directory / "text.txt"
    forwards.write_text(text_of_words(400), encoding="utf-8")
    text.write_text(text_of_words(400)[::-1], encoding="utf-8")
    failed = False
    for number, (name, (model, lora)) in enumerate(CASES.items()):
        base, first, out = (directory / f"{kind}{number}" for kind in ("base", "first", "run"))
        data = ["--data", text, "--val-data", text]
        run(gradtile, "train", "--data", forwards, "--val-data", forwards, *COMMON, *model, "--steps", "60", "--warmup", "5", "--out", base)
        tuning = [*data, *COMMON, *model, "--init-from", base, *TUNING, *lora]
        # The checkpoint after one step with a rate of almost 0 contains the initial adapters: the zeros of B
        # have become 1e-30.
        run(gradtile, "train", *tuning, "--out", first, "--steps", "1", "--warmup", "0", "--lr", "1e-30", "--min-lr", "1e-30")
        initial, _, _ = read_checkpoint(first / "checkpoints" / "step_00000001.h5")
        run(gradtile, "train", *tuning, "--out", out, "--steps", STEPS)
        trained, config, tokenizer = read_checkpoint(out / "checkpoints" / f"step_{STEPS:08}.h5")
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        said = [line["loss"] for line in lines if "loss" in line]

        vocabulary = {character: id for id, character in enumerate(tokenizer["characters"])}
        ids = [vocabulary[character] for character in text.read_text(encoding="utf-8")]
        judged = train(initial, config, windows(ids, config, vocabulary["\n"]))
        difference = max(abs(a / b - 1) for a, b in zip(said, judged, strict=True))
        # `gradtile eval` merges the adapters of the checkpoint.
        evaluated = json.loads(run(gradtile, "eval", out, "--data", text, "--device", "cpu", "--json"))["loss"]
        merged_difference = abs(evaluated / mean_loss(merged(trained, config), config, np.array(ids)) - 1)
        has_learned = judged[-1] < 0.9 * judged[0]
        ok = difference <= BOUND and merged_difference <= BOUND and has_learned
        failed |= not ok
        print(f"{name}: loss {judged[0]:.4f} to {judged[-1]:.4f}; gradtile's float32 differs from JAX's float64 by {difference:.1e}, its merged model by "
              f"{merged_difference:.1e}{'' if ok else f' IS BEYOND {BOUND}' if has_learned else ' HAS NOT LEARNED'}")
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
