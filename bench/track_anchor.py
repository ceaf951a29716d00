"""Runs modded-nanogpt's records/track_3_optimization/train_gpt_simple.py, which you bring, on one GPU with fewer tokens, for
comparison with bench/variants/track.txt on the same shards. The script is changed in a few numbers and in its data; every change
is printed, and each text that is replaced must occur exactly once. Prints step, validation loss and training seconds at each
validation, and one JSON line at the end.

    python3 bench/track_anchor.py train_gpt_simple.py DATA --out OUT        # DATA from scripts/track_shards.sh

With --check GRADTILE it trains a tiny model on a CPU in float32, by the script and by gradtile, from gradtile's initial weights and
on the same batches, prints both losses after each step, and fails if they differ by more than 1e-4. Then the script has no bias in
its head, no rounding to bfloat16, and a constant learning rate.

    python3 bench/track_anchor.py train_gpt_simple.py --check build/release/gradtile
"""
import argparse
import difflib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).resolve().parent
TINY = {"layers": 2, "heads": 2, "width": 256, "vocabulary": 256, "context": 64, "batch": 8}
TINY_STEPS, VAL_WINDOWS, BOUND = 30, 32, 1e-4
WINDOW_BYTES = 2 * 1024


def replaced(text, changes):
    for old, new in changes:
        found = text.count(old)
        if found != 1:
            raise SystemExit(f"track_anchor.py: the script has {found} times, expected once: {old!r}")
        text = text.replace(old, new)
    return text


def shuffle_windows(data, to, seed):
    """Writes the shards' windows in a random order, as gradtile reads them. A window's last target becomes another window's token."""
    headers, windows, rest = [], [], b""
    for path in sorted(Path(data).glob("train*.bin")):
        shard = path.read_bytes()
        headers.append(shard[:1024])
        tokens = rest + shard[1024:]
        whole = len(tokens) // WINDOW_BYTES * WINDOW_BYTES
        windows += [tokens[i : i + WINDOW_BYTES] for i in range(0, whole, WINDOW_BYTES)]
        rest = tokens[whole:]
    random.Random(seed).shuffle(windows)
    tokens = b"".join(windows) + rest
    to.write_bytes(headers[0][:8] + (len(tokens) // 2).to_bytes(4, "little") + headers[0][12:] + tokens)


def own_numbers(a, data):
    # A bias whose gradient is zero stays zero.
    no_bias = [("    # create the optimizer(s)\n", "    model.proj.bias.register_hook(torch.zeros_like)\n")] if a.no_head_bias else []
    # AdamW's weights and moments are float32, and passes read them rounded, as gradtile does.
    embedding = [("nn.Embedding(vocab_size, model_dim).bfloat16()", "nn.Embedding(vocab_size, model_dim)"),
                 ("self.norm1(self.embed(inputs))", "self.norm1(self.embed(inputs).bfloat16())")] if a.float32_embedding else []
    newton_schulz = [("X = G.bfloat16()", "X = G")] if a.float32_newton_schulz else []
    return no_bias + embedding + newton_schulz + [('"data/fineweb10B/fineweb_val_*.bin"', repr(f"{data}/val*.bin")),
            ('"data/fineweb10B/fineweb_train_*.bin"', repr("shuffled.bin" if a.shuffle_windows else f"{data}/train*.bin")),
            ("val_tokens = 20 * 524288\n", f"val_tokens = {a.val_tokens}\n"),
            ("batch_size = 8 * 64 * 1024\n", f"batch_size = {a.batch} * 1024\n"),
            ("mbs = 64\n", f"mbs = {a.micro_batch}\n"),
            ("train_steps = 3250\n", f"train_steps = {a.steps}\n"),
            ("val_inputs, val_targets = next(", f"torch.manual_seed({a.seed})\nval_inputs, val_targets = next(")]


def tiny_numbers(place, checkpoint):
    call = f"__import__('sys').path.insert(0, {str(BENCH)!r}); import track_anchor"
    return [('"data/fineweb10B/fineweb_val_*.bin"', "'val.bin'"),
            ('distributed_data_generator("data/fineweb10B/fineweb_train_*.bin", batch_size)',
             f"track_anchor.gradtile_batches({str(place)!r})"),
            ("val_tokens = 20 * 524288\n", f"val_tokens = {VAL_WINDOWS * TINY['context']}\n"),
            ("batch_size = 8 * 64 * 1024\n", f"batch_size = {TINY['batch'] * TINY['context']}\n"),
            ("mbs = 64\n", f"mbs = {TINY['batch']}\n"),
            ("train_steps = 3250\n", f"train_steps = {TINY_STEPS}\n"),
            ("seq_len=1024", f"seq_len={TINY['context']}"),
            ("vocab_size=50304, num_layers=12, model_dim=768).cuda()",
             f"vocab_size={TINY['vocabulary']}, num_layers={TINY['layers']}, model_dim={TINY['width']})"),
            ("val_step_freq = 125 if step / train_steps < 0.9 else 25\n", "val_step_freq = 1\n"),
            ("val_loss:{val_loss:.5f}", "val_loss:{val_loss:.9f}"),
            ("cooldown_frac=0.7", "cooldown_frac=1e-9"),
            ("    # create the optimizer(s)\n", f"    {call}; track_anchor.load_weights(model, {str(checkpoint)!r})\n"),
            ("nn.Embedding(vocab_size, model_dim).bfloat16()", "nn.Embedding(vocab_size, model_dim)"),
            ("self.proj = Linear(model_dim, vocab_size)", "self.proj = nn.Linear(model_dim, vocab_size, bias=False)"),
            ("X = G.bfloat16()", "X = G"),
            ("@torch.compile\n", ""), ("model.compile(dynamic=False)\n", ""), (", fused=True)", ")"),
            ('torch.device("cuda", int(os.environ["LOCAL_RANK"]))', 'torch.device("cpu")'),
            ("torch.cuda.set_device(device)\n", ""),
            ('backend="nccl", device_id=device', 'backend="gloo"'),
            ("{torch.cuda.get_device_name(device)}", "cpu"),
            (", pin_memory=True", ""),
            ('device="cuda", dtype=torch.int32', 'device="cpu", dtype=torch.int32'),
            ('device="cuda", dtype=torch.int64', 'device="cpu", dtype=torch.int64')]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def run_script(text, out):
    """Yields step, validation loss and training seconds."""
    (out / "train_gpt_simple.py").write_text(text)
    environment = dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(free_port()), PYTHONUNBUFFERED="1")
    with subprocess.Popen([sys.executable, "train_gpt_simple.py"], cwd=out, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=open(out / "stderr", "w")) as process:
        try:
            for line in process.stdout:
                if found := re.match(r"step:(\d+)/\d+ val_loss:([\d.naif]+) train_time:([\d.]+)s", line):
                    yield int(found[1]), float(found[2]), float(found[3])
        except GeneratorExit:  # the caller has what it wants
            process.kill()
            raise
    if process.returncode != 0:
        raise SystemExit(f"track_anchor.py: the script ended with {process.returncode}:\n" + (out / "stderr").read_text()[-3000:])


# ---- Called in the script by --check ----


def load_weights(model, checkpoint):
    """Gives the script's model the weights of a gradtile checkpoint. The script rotates by the opposite angle, which swaps the two
    halves of each head's query and key."""
    import torch

    sys.path.insert(0, str(BENCH.parent / "tests/judge"))
    from gradtile_runs import read_checkpoint

    parameters, config, _ = read_checkpoint(checkpoint)
    swap = lambda x: x.unflatten(0, (config["heads"], 2, -1)).flip(1).flatten(0, 2)
    named = dict(model.named_parameters())
    p = {name: torch.tensor(value, dtype=torch.float32) for name, value in parameters.items()}
    new = {"embed.weight": p["wte.weight"], "proj.weight": p["head.weight"], "norm1.gains": p["norm_e.weight"], "norm2.gains": p["norm_f.weight"]}
    for i in range(config["layers"]):
        block, own = f"blocks.{i}.", f"h.{i}."
        for norm in (1, 2):
            new[f"{block}norm{norm}.gains"] = p[f"{own}norm_{norm}.weight"]
        for kind in ("weight", "bias"):
            q, k, v = p[f"{own}attn.qkv.{kind}"].chunk(3)
            new |= {f"{block}attn.q.{kind}": swap(q), f"{block}attn.k.{kind}": swap(k), f"{block}attn.v.{kind}": v}
            for theirs, ours in (("attn.proj", "attn.proj"), ("mlp.fc", "mlp.fc"), ("mlp.proj", "mlp.proj")):
                new[f"{block}{theirs}.{kind}"] = p[f"{own}{ours}.{kind}"]
    if new.keys() != named.keys():
        raise SystemExit(f"track_anchor.py: other parameters: {sorted(new.keys() ^ named.keys())}")
    with torch.no_grad():
        for name, value in new.items():
            named[name].copy_(value)


def gradtile_batches(place):
    """Yields the batches of gradtile's data loader."""
    import torch

    sys.path.insert(0, str(BENCH.parent / "tests/judge"))
    from data_order import windows

    ids = list((Path(place) / "train.txt").read_bytes())
    source = windows(ids, {"context": TINY["context"], "seed": 1, "packed": False}, 10)
    while True:
        rows = [next(source) for _ in range(TINY["batch"])]
        yield torch.tensor([row[0] for row in rows], dtype=torch.int32), torch.tensor([row[1] for row in rows])


# ---- The check ----


def track_flags():
    lines = (BENCH / "variants/track.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("base ")).split()[1:]


def check(a):
    place = Path(tempfile.mkdtemp())
    text = b"".join(path.read_bytes() for path in sorted((BENCH.parent / "docs").glob("*.md")))
    train, val = text[: 60 * TINY["batch"] * TINY["context"]], text[-(VAL_WINDOWS * TINY["context"] + 1) :]
    (place / "train.txt").write_bytes(train)
    (place / "val.txt").write_bytes(val)
    # The script wants one token more than it validates on, beyond the last target.
    words = [20240520, 1, len(val) + 1] + [0] * 253
    (place / "val.bin").write_bytes(b"".join(w.to_bytes(4, "little") for w in words) + b"".join(b.to_bytes(2, "little") for b in val + b" "))
    sizes = [part for name, value in TINY.items() for part in (f"--{name}", str(value))]
    of_schedule = ("--schedule", "--wsd-decay", "--min-lr")  # the rates are constant here
    base = track_flags()
    base = [flag for before, flag in zip(["", *base], base) if flag not in of_schedule and before not in of_schedule]
    flags = ["--preset", "gpt2-124m", *base, *sizes, "--micro-batch", str(TINY["batch"]), "--tokenizer", "bytes", "--data", str(place / "train.txt"),
             "--val-data", str(place / "val.txt"), "--device", "cpu", "--dtype", "f32", "--muon-products", "f32", "--schedule", "constant", "--seed", "1",
             "--eval-every", "1", "--quiet"]
    still = ["--steps", "1", "--lr", "1e-30", "--muon-lr", "1e-30"]
    for out, more in (("first", still), ("run", ["--steps", str(TINY_STEPS)])):
        subprocess.run([a.check, "train", *flags, *more, "--out", str(place / out)], check=True, stdout=subprocess.DEVNULL)
    ours = {line["step"]: line["val_loss"] for line in map(json.loads, (place / "run/metrics.jsonl").open()) if "val_loss" in line}
    script = replaced(Path(a.script).read_text(), tiny_numbers(place, place / "first/checkpoints/step_00000001.h5"))
    largest = 0.0
    for step, loss, _ in run_script(script, place):
        if step in ours:
            largest = max(largest, abs(loss - ours[step]))
            print(f"step {step}: script {loss:.7f}, gradtile {ours[step]:.7f}, difference {ours[step] - loss:+.2e}", flush=True)
    print(json.dumps({"check": "track", "steps": TINY_STEPS, "largest_difference": largest, "bound": BOUND}))
    return 0 if largest <= BOUND else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", help="train_gpt_simple.py")
    parser.add_argument("data", nargs="?", help="directory of train*.bin and val*.bin, llm.c's shards")
    parser.add_argument("--out", default="track_anchor", help="directory for the changed script and its log")
    for name, default in (("steps", 900), ("batch", 128), ("micro-batch", 64), ("val-tokens", 16 * 131072), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--no-head-bias", action="store_true", help="the head's bias stays zero, as in gradtile, whose heads have none")
    parser.add_argument("--float32-embedding", action="store_true", help="the embedding and its moments are float32 and not bfloat16")
    parser.add_argument("--float32-newton-schulz", action="store_true", help="Newton-Schulz's iteration is in float32")
    parser.add_argument("--shuffle-windows", action="store_true", help="read the windows of 1,024 tokens in a random order, as gradtile does")
    parser.add_argument("--stop-after", type=int, metavar="N", help="end the script after the validation of step N, a multiple of 125")
    parser.add_argument("--check", metavar="GRADTILE")
    a = parser.parse_args()
    if a.check:
        return check(a)
    if not a.data:
        parser.error("DATA is required without --check")
    out = Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    if a.shuffle_windows:
        shuffle_windows(a.data, out / "shuffled.bin", a.seed)
    original = Path(a.script).read_text()
    changed = replaced(original, own_numbers(a, os.path.relpath(a.data, out)))
    print("".join(line for line in difflib.unified_diff(original.splitlines(True), changed.splitlines(True), n=0) if line[:2] not in ("--", "++", "@@")))
    losses, last = [], a.stop_after or a.steps
    for step, loss, seconds in run_script(changed, out):
        losses.append((step, loss, seconds))
        print(f"step {step}: val_loss {loss:.5f}, {seconds:.1f} s", flush=True)
        if step == last:
            break
    if not losses or losses[-1][0] != last:
        raise SystemExit(f"track_anchor.py: no loss after step {last}: {(out / 'stderr').read_text()[-1000:]}")
    print(json.dumps({"anchor": "train_gpt_simple.py", "steps": a.steps, "batch": a.batch, "micro_batch": a.micro_batch, "seed": a.seed, "head_bias": not a.no_head_bias, "float32_embedding": a.float32_embedding, "float32_newton_schulz": a.float32_newton_schulz, "shuffled_windows": a.shuffle_windows,
                      "val_loss": losses[-1][1], "train_seconds": losses[-1][2], "losses": losses}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
