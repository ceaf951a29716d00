"""Trains a character model with PyTorch on a few CPU cores for a fixed time, for comparison with `gradtile train --preset
speedrun-cpu` on the same cores and the same text. Prints the lowest bits per byte on the validation text that any of its
evaluations found; evaluations do not count as training time.

    taskset -c 0,1 python3 bench/laptop_anchor.py train.txt val.txt --seconds 900 --optimizer muon --rate 0.02
"""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        # Matrices of their own, as Muon's literature has them.
        self.q, self.k, self.v, self.projection = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        split = lambda y: y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)
        h = self.attention_norm(x)
        y = F.scaled_dot_product_attention(split(self.q(h)), split(self.k(h)), split(self.v(h)), is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, a, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, a.width), nn.Embedding(a.context, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.layers))
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * a.layers) if residual else 0.02)

    def forward(self, x, targets):
        h = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), targets.flatten())


def optimizers(a, model):
    """nanoGPT's AdamW, or torch's Muon on the blocks' matrices beside it."""
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    adamw = lambda parameters, rate: torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}], rate, (0.9, 0.99))
    if a.optimizer == "adamw":
        return [adamw(list(model.parameters()), a.rate)]
    return [torch.optim.Muon(matrices, a.rate, momentum=0.95, weight_decay=0.1), adamw(others, 1e-3)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("val")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--evaluations", type=int, default=15)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--rate", type=float, default=1e-3, help="of AdamW, or of Muon's matrices")
    for name, default in (("layers", 4), ("heads", 4), ("width", 128), ("context", 128), ("batch", 16), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    texts = [open(name, "rb").read() for name in (a.train, a.val)]
    characters = sorted(set(texts[0] + texts[1]))
    ids = torch.zeros(256, dtype=torch.long)
    ids[characters] = torch.arange(len(characters))
    train, val = (ids[torch.frombuffer(bytearray(text), dtype=torch.uint8).long()] for text in texts)

    model = Gpt(a, len(characters))
    steppers = optimizers(a, model)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in steppers]
    windows = torch.arange(a.context)

    @torch.no_grad()
    def bits_per_byte():
        rows = (len(val) - 1) // a.context
        x, y = (val[shift:][: rows * a.context].view(rows, a.context) for shift in (0, 1))
        total = sum(model(p, q).item() * p.numel() for p, q in zip(x.split(64), y.split(64)))
        return total / (rows * a.context) / math.log(2)

    trained, steps, next_evaluation, best = 0.0, 0, 1, (math.inf, 0.0)
    while trained < a.seconds:
        start = time.perf_counter()
        progress = trained / a.seconds  # the schedule follows the clock: 2% of warm-up, then a cosine to a tenth
        factor = progress / 0.02 if progress < 0.02 else 0.55 + 0.45 * math.cos(math.pi * (progress - 0.02) / 0.98)
        for optimizer, rates in zip(steppers, peaks):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor
        at = torch.randint(len(train) - a.context - 1, (a.batch, 1)) + windows
        loss = model(train[at], train[at + 1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in steppers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        trained += time.perf_counter() - start
        steps += 1
        if trained >= a.seconds * next_evaluation / a.evaluations:
            next_evaluation += 1
            best = min(best, (bits_per_byte(), trained))
            print(f"  {trained:.0f} s, step {steps}: best {best[0]:.4f}", flush=True)
    print(f"torch {torch.__version__} {a.layers} x {a.width}, {a.optimizer} {a.rate:g}: {best[0]:.4f} bits per byte after {best[1]:.0f} s; "
          f"{steps} steps of {a.batch} x {a.context} in {trained:.0f} s", flush=True)


if __name__ == "__main__":
    main()
