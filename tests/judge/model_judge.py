"""Judges trained models: JAX computes the loss of a text from a checkpoint that h5py reads, in float64, and `gradtile eval` must agree.

usage: model_judge.py GRADTILE DIRECTORY    (scripts/judge.sh calls it)
"""
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from gradtile_runs import read_checkpoint, run

jax.config.update("jax_enable_x64", True)

# Every option of the model occurs in one of these commands.
MODELS = {
    "GPT-2": ["--dropout", "0.1"],
    "GPT-2 without biases, exact GELU, a head of its own": ["--no-bias", "--activation", "gelu", "--no-tied-head"],
    "Llama": ["--norm", "rms", "--activation", "swiglu", "--positions", "rope", "--kv-heads", "2", "--no-bias", "--no-tied-head"],
    "windows, softcap and sinks": ["--window", "9", "--window-pattern", "2", "--softcap", "3", "--sinks", "--attention-dropout", "0.1"],
    "ALiBi": ["--positions", "alibi", "--heads", "3"],
    "grouped queries with normalised heads": ["--kv-heads", "1", "--qk-norm", "--positions", "rope", "--rope-base", "500", "--optimizer", "muon"],
}
# The relative difference between gradtile's float32 loss and the float64 loss. The loss of a row has an error
# of at most a few hundred roundings of 6e-8, together 2e-5. The errors of 20,000 rows have random signs, so
# their mean has an error of 2e-5 / sqrt(20,000) = 1.4e-7. The bound is seven times that.
BOUND = 1e-6


def layer_norm(x, weight, bias, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight + bias


def rms_norm(x, weight, epsilon):
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate(x, base):
    """x [B,T,H,D]: pairs (i, i + D/2), Su et al. 2021."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * base ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def alibi_slopes(heads):
    """Press et al. 2022, with the rule of the authors' program for numbers that are no power of two."""
    def power_slopes(n):
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]
    power = 2 ** (heads.bit_length() - 1)
    return jnp.array(power_slopes(power) + power_slopes(2 * power)[0::2][: heads - power])


def attend(q, k, v, config, window, sinks):
    """q [B,T,H,D]. Without the options of gradtile's attention it is JAX's own attention, which has no softcap and no sinks."""
    alibi = config["positions"] == "alibi"
    if not (window or config["softcap"] or sinks is not None or alibi):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)
    length, heads, dim = q.shape[1:]
    k, v = (jnp.repeat(t, heads // t.shape[2], 2) for t in (k, v))
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / dim**0.5
    if config["softcap"]:
        scores = config["softcap"] * jnp.tanh(scores / config["softcap"])
    distance = jnp.arange(length)[:, None] - jnp.arange(length)
    if alibi:
        scores = scores - alibi_slopes(heads)[:, None, None] * distance
    scores = jnp.where((distance >= 0) & ((distance < window) | (window == 0)), scores, -jnp.inf)
    if sinks is not None:
        scores = jnp.concatenate([scores, jnp.broadcast_to(sinks[None, :, None, None], scores.shape[:3] + (1,))], -1)
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores, -1)[..., :length], v)


def losses(parameters, config, tokens, targets):
    """-ln p of each target [B,T]."""
    epsilon = config["norm-epsilon"]

    def linear(name, x):
        y = x @ parameters[name + ".weight"].T
        return y + parameters[name + ".bias"] if name + ".bias" in parameters else y

    def norm(names, x):
        name = next(n for n in names if n + ".weight" in parameters)
        if config["norm"] == "rms":
            return rms_norm(x, parameters[name + ".weight"], epsilon)
        return layer_norm(x, parameters[name + ".weight"], parameters.get(name + ".bias", 0.0), epsilon)

    def attention(name, x, layer):
        batch, length, width = x.shape
        heads, kv_heads = config["heads"], config["kv-heads"] or config["heads"]
        dim = width // heads
        q, k, v = jnp.split(linear(name + ".qkv", x), [heads * dim, (heads + kv_heads) * dim], -1)
        q, k, v = (t.reshape(batch, length, -1, dim) for t in (q, k, v))
        if config["qk-norm"]:
            q = rms_norm(q, parameters[name + ".q_norm.weight"], epsilon)
            k = rms_norm(k, parameters[name + ".k_norm.weight"], epsilon)
        if config["positions"] == "rope":
            q, k = rotate(q, config["rope-base"]), rotate(k, config["rope-base"])
        full = config["window-pattern"] and (layer + 1) % config["window-pattern"] == 0
        o = attend(q, k, v, config, 0 if full else config["window"], parameters.get(name + ".sinks"))
        return linear(name + ".proj", o.reshape(batch, length, width))

    def mlp(name, x):
        if config["activation"] == "swiglu":
            gate, up = jnp.split(linear(name + ".gate_up", x), 2, -1)
            return linear(name + ".down", jax.nn.silu(gate) * up)
        return linear(name + ".proj", jax.nn.gelu(linear(name + ".fc", x), approximate=config["activation"] == "gelu-tanh"))

    x = parameters["wte.weight"][tokens]
    if config["positions"] == "learned":
        x = x + parameters["wpe.weight"][: tokens.shape[1]]
    for layer in range(config["layers"]):
        block = f"h.{layer}."
        x = x + attention(block + "attn", norm([block + "ln_1", block + "norm_1"], x), layer)
        x = x + mlp(block + "mlp", norm([block + "ln_2", block + "norm_2"], x))
    x = norm(["ln_f", "norm_f"], x)
    head = parameters["wte.weight" if config["tied-head"] else "head.weight"]
    log_p = jax.nn.log_softmax(x @ head.T, -1)
    return -jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0]


def mean_loss(parameters, config, ids):
    """Non-overlapping windows of the context; the last one may be short."""
    context = config["context"]
    full_windows = (len(ids) - 1) // context
    body, rest = ids[: full_windows * context + 1], ids[full_windows * context :]
    total = losses(parameters, config, body[:-1].reshape(full_windows, context), body[1:].reshape(full_windows, context)).sum()
    if len(rest) > 1:
        total += losses(parameters, config, rest[None, :-1], rest[None, 1:]).sum()
    return float(total) / (len(ids) - 1)


def main(gradtile, directory):
    text = directory / "text.txt"
    run(gradtile, "corpus", "--characters", "20000", "--out", text)
    failed = False
    for number, (name, flags) in enumerate(MODELS.items()):
        out = directory / f"run{number}"
        run(gradtile, "train", "--data", text, "--layers", "2", "--width", "48", "--heads", "4", "--context", "32", "--batch", "8", "--steps", "30",
            "--warmup", "2", "--quiet", "--device", "cpu", "--out", out, *flags)
        parameters, config, tokenizer = read_checkpoint(out / "checkpoints" / "step_00000030.h5")
        vocabulary = {character: number for number, character in enumerate(tokenizer["characters"])}
        ids = np.array([vocabulary[character] for character in text.read_text(encoding="utf-8")])
        judged = mean_loss(parameters, config, ids)
        said = json.loads(run(gradtile, "eval", out, "--data", text, "--device", "cpu", "--json"))["loss"]
        difference = abs(said / judged - 1)
        ok = difference <= BOUND
        failed |= not ok
        print(f"{name}: gradtile {said:.9f}, JAX {judged:.9f}, relative difference {difference:.1e}{'' if ok else f' IS BEYOND {BOUND}'}")
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
