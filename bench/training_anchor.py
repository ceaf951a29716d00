"""Times PyTorch's training step, for comparison with `gradtile bench train` on the same machine: GPT-2's architecture,
autocast, torch.compile, fused AdamW, clipped gradients. Prints the median step time, tokens/s over all processes and the
peak memory. With --data it trains on llm.c's shards with nanoGPT's recipe, on one process, and also prints validation losses.

    python3 bench/training_anchor.py --batch 64                                          # GPT-2 124M
    python3 bench/training_anchor.py --layers 24 --heads 16 --width 1024 --batch 32      # 350M
    python3 bench/training_anchor.py --batch 4 --mode reduce-overhead                    # CUDA graphs
    torchrun --standalone --nproc-per-node 4 bench/training_anchor.py --batch 64         # DDP; 64 on each GPU
    python3 bench/training_anchor.py --device cpu --threads 2 --dtype f32 --mode eager --layers 4 --heads 4 --width 128 \\
        --context 64 --vocabulary 65 --batch 12                                          # shakespeare-char-cpu
    python3 bench/training_anchor.py --batch 64 --accumulate 2 --steps 900 --data DATA --rate 1e-3            # AdamW
    python3 bench/training_anchor.py --batch 64 --accumulate 2 --steps 900 --data DATA --optimizer muon --rate 0.02
"""
import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + self.drop(self.projection(y.transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh")))

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training)


class Gpt(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.dropout = a.dropout
        self.tokens, self.positions = nn.Embedding(a.vocabulary, a.width), nn.Embedding(a.context, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads, a.dropout) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.width)
        self.head = nn.Linear(a.width, a.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)
        for block in self.blocks:  # GPT-2: the residual stream is a sum of 2 * layers outputs
            for linear in (block.projection, block.down):
                nn.init.normal_(linear.weight, 0, 0.02 / math.sqrt(2 * a.layers))

    def forward(self, x, targets):
        h = F.dropout(self.tokens(x) + self.positions.weight[: x.shape[1]], self.dropout, self.training)
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 12), ("heads", 12), ("width", 768), ("context", 1024), ("vocabulary", 50304)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batch", type=int, required=True, help="sequences of each process")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--mode", choices=("default", "reduce-overhead", "max-autotune", "eager"), default="default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=0, help="on the CPU; 0: PyTorch's own choice")
    parser.add_argument("--steps", type=int, default=25, help="the first third warms up")
    parser.add_argument("--data", help="directory with train.bin and val.bin of scripts/track_shards.sh: train on it")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw", help="with --data; muon: torch.optim.Muon for the blocks' matrices")
    parser.add_argument("--rate", type=float, default=6e-4, help="with --data: peak rate of AdamW, or of Muon's matrices beside AdamW at 6e-4")
    parser.add_argument("--accumulate", type=int, default=1, help="with --data: batches of a step")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def shard(path):
    """The tokens of an llm.c shard of GPT-2's kind."""
    header = torch.from_file(str(path), size=256, dtype=torch.int32)
    if header[:2].tolist() != [20240520, 1]:
        raise SystemExit(f"{path}: no shard of llm.c")
    count = int(header[2])
    return torch.from_file(str(path), size=512 + count, dtype=torch.uint16)[512:]


def training_optimizers(a, model):
    """nanoGPT's AdamW, or torch's Muon on the blocks' matrices beside it."""
    muon = [p for p in model.blocks.parameters() if p.dim() == 2] if a.optimizer == "muon" else []
    others = [p for p in model.parameters() if all(p is not m for m in muon)]
    groups = [{"params": [p for p in others if (p.dim() == 2) == is_matrix], "weight_decay": 0.1 * is_matrix} for is_matrix in (True, False)]
    adamw = torch.optim.AdamW(groups, 6e-4 if muon else a.rate, (0.9, 0.95), fused=True)
    return [adamw, torch.optim.Muon(muon, a.rate, momentum=0.95, weight_decay=0.1)] if muon else [adamw]


def train(a, model, step, device):
    """nanoGPT's schedule: warm-up, then a cosine to a tenth of the rate. Windows follow each other."""
    data, val = shard(Path(a.data) / "train.bin"), shard(Path(a.data) / "val.bin")
    optimizers = training_optimizers(a, model)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    tokens, warmup = a.batch * a.context, max(1, a.steps // 15)
    autocast = lambda: torch.autocast(a.device, dtype=torch.bfloat16, enabled=a.dtype == "bf16")
    synchronize = torch.cuda.synchronize if a.device == "cuda" else lambda: None

    def loss_of(ids, number):
        window = ids[number * tokens :][: tokens + 1].to(device).long()
        with autocast():
            return step(window[:-1].view(a.batch, -1), window[1:].view(a.batch, -1))

    @torch.no_grad()
    def validation_loss():
        batches = (len(val) - 1) // tokens
        return sum(loss_of(val, i).item() for i in range(batches)) / batches

    losses, trained = [], 0.0
    synchronize()
    start = time.perf_counter()
    for number in range(a.steps):
        factor = (number + 1) / warmup if number < warmup else 0.55 + 0.45 * math.cos(math.pi * (number - warmup) / (a.steps - warmup))
        for optimizer, rates in zip(optimizers, peaks):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor
        for part in range(a.accumulate):
            (loss_of(data, number * a.accumulate + part) / a.accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (number + 1) % 125 == 0 or number + 1 == a.steps:
            synchronize()
            trained += time.perf_counter() - start
            losses.append((number + 1, validation_loss(), trained))
            print("step %d: val_loss %.5f, %.1f s" % losses[-1], flush=True)
            synchronize()
            start = time.perf_counter()
    print(json.dumps({"anchor": a.optimizer, "rate": a.rate, "steps": a.steps, "batch": a.batch * a.accumulate, "seed": a.seed,
                      "val_loss": losses[-1][1], "train_seconds": trained, "losses": losses}))


def main():
    a = arguments()
    rank, processes = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    on_gpu = a.device == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if a.threads:
        torch.set_num_threads(a.threads)
    if processes > 1:
        torch.distributed.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(a.seed)

    model = Gpt(a).to(device)
    step = model if a.mode == "eager" else torch.compile(model, mode=a.mode)
    if a.data:
        return train(a, model, step, device)
    if processes > 1:
        step = nn.parallel.DistributedDataParallel(step, device_ids=[rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, (0.9, 0.95), weight_decay=0.1, fused=True)
    x = torch.randint(0, min(a.vocabulary, 50257), (a.batch, a.context), device=device)
    targets = torch.roll(x, -1, 1)
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None

    seconds = []
    for _ in range(a.steps):
        synchronize()
        start = time.perf_counter()
        with torch.autocast(a.device, dtype=torch.bfloat16, enabled=a.dtype == "bf16"):
            loss = step(x, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize()
        seconds.append(time.perf_counter() - start)

    if rank == 0:
        median = statistics.median(seconds[len(seconds) // 3 :])
        memory = f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else ""
        print(f"torch {torch.__version__} {a.layers} x {a.width}, {a.batch} x {a.context} on {processes} {a.device}, {a.dtype}, "
              f"{a.mode}: {median * 1e3:.2f} ms/step, {processes * a.batch * a.context / median:.0f} tokens/s{memory}", flush=True)
    if processes > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
