#!/usr/bin/env python3
"""Trains a small GPT-2 style model with PyTorch and writes its loss curve, which
tests/train/reference_curve_test.cpp must reproduce from the same weights and tokens.

    python3 make_reference_curve.py            # writes reference_curve.inc beside this file

Weights and tokens are integer formulas (below) that both sides compute exactly, so only losses are stored:
one line a step, "{float32 loss, float64 loss},".
"""
import math
import pathlib

import numpy
import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 2, 4, 32, 16, 37
BATCH, STEPS = 8, 200
LR, MIN_LR, WARMUP = 1e-3, 1e-4, 20
BETAS, EPSILON, DECAY, CLIP = (0.9, 0.99), 1e-8, 0.1, 1.0


def mix(x):
    """A 32-bit integer hash (the finaliser of MurmurHash3)."""
    x = x.astype(numpy.uint64)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = ((x ^ (x >> numpy.uint64(shift))) * numpy.uint64(factor)) & numpy.uint64(0xFFFFFFFF)
    return x ^ (x >> numpy.uint64(16))


def uniform(index, shape, scale):
    """Parameter number `index`: multiples of 2^-23 in [-1, 1), times a power of two; exact in float32."""
    count = int(numpy.prod(shape))
    words = mix(numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(index) * numpy.uint64(0x10001))
    values = ((words >> numpy.uint64(8)).astype(numpy.int64) - 2**23) / 2.0**23
    return torch.tensor(values.reshape(shape) * scale)


def parameters():
    """Name -> initial value, in the order in which gradtile declares them."""
    shapes = {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (CONTEXT, WIDTH)}
    for i in range(LAYERS):
        for name, shape in (
            ("ln_1.weight", (WIDTH,)), ("ln_1.bias", (WIDTH,)),
            ("attn.qkv.weight", (3 * WIDTH, WIDTH)), ("attn.qkv.bias", (3 * WIDTH,)),
            ("attn.proj.weight", (WIDTH, WIDTH)), ("attn.proj.bias", (WIDTH,)),
            ("ln_2.weight", (WIDTH,)), ("ln_2.bias", (WIDTH,)),
            ("mlp.fc.weight", (4 * WIDTH, WIDTH)), ("mlp.fc.bias", (4 * WIDTH,)),
            ("mlp.proj.weight", (WIDTH, 4 * WIDTH)), ("mlp.proj.bias", (WIDTH,)),
        ):
            shapes[f"h.{i}.{name}"] = shape
    shapes |= {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    result = {}
    for index, (name, shape) in enumerate(shapes.items()):
        if len(shape) == 1:
            result[name] = torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
        else:
            result[name] = uniform(index, shape, 2.0**-4)
    return result


def batch(step):
    """Token t+1 is three times token t plus 1 (mod V), but one time in four a hash decides."""
    tokens = numpy.zeros((BATCH, CONTEXT + 1), dtype=numpy.int64)
    for b in range(BATCH):
        for t in range(CONTEXT + 1):
            word = int(mix(numpy.array([step * 65536 + b * 256 + t + 0x7777]))[0])
            follows = t > 0 and word % 4 != 0
            tokens[b, t] = (3 * tokens[b, t - 1] + 1) % VOCABULARY if follows else (word >> 8) % VOCABULARY
    return torch.from_numpy(tokens[:, :-1]), torch.from_numpy(tokens[:, 1:])


def loss_of(p, tokens, targets):
    norm = lambda x, name: F.layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"], 1e-5)
    linear = lambda x, name: F.linear(x, p[name + ".weight"], p[name + ".bias"])
    x = F.embedding(tokens, p["wte.weight"]) + p["wpe.weight"]
    hidden_from = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
    for i in range(LAYERS):
        qkv = linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.qkv")
        q, k, v = (part.view(BATCH, CONTEXT, HEADS, -1).transpose(1, 2) for part in qkv.split(WIDTH, dim=-1))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        o = torch.softmax(scores.masked_fill(hidden_from, -math.inf), -1) @ v
        x = x + linear(o.transpose(1, 2).reshape(BATCH, CONTEXT, WIDTH), f"h.{i}.attn.proj")
        h = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.fc")
        gelu = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + linear(gelu, f"h.{i}.mlp.proj")
    logits = F.linear(norm(x, "ln_f"), p["wte.weight"])
    return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def learning_rate(step):
    if step <= WARMUP:
        return LR * step / WARMUP
    t = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + (LR - MIN_LR) * (1 + math.cos(math.pi * t)) / 2


def curve(dtype):
    p = {name: value.to(dtype).requires_grad_() for name, value in parameters().items()}
    matrices = [value for value in p.values() if value.dim() >= 2]
    vectors = [value for value in p.values() if value.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPSILON)
    losses = []
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        loss = loss_of(p, *batch(step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    torch.set_num_threads(1)
    single, double = curve(torch.float32), curve(torch.float64)
    worst = max(abs(a - b) / b for a, b in zip(single, double))
    lines = [f"// Written by make_reference_curve.py with PyTorch {torch.__version__}: {{float32, float64}} loss of each step.",
             f"// The two differ by at most {worst:.1e} of the loss."]
    lines += [f"{{{a:.9g}, {b:.17g}}}," for a, b in zip(single, double)]
    pathlib.Path(__file__).with_name("reference_curve.inc").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[:2]), f"first {single[0]:.4f}, last {single[-1]:.4f}", sep="\n")


if __name__ == "__main__":
    main()
