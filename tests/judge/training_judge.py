"""Judges training: PyTorch trains the same models from the same weights on the same batches, and the losses must agree.

usage: training_judge.py GRADTILE DIRECTORY [--write]    (scripts/judge.sh --torch calls it)

The losses of PyTorch in float64 stand in tests/reference/training_losses.json, with which PyTorchParity of tests/cli compares the trainer. This
program computes them again; --write replaces the file.
"""
import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from data_order import documents_of_window, key_of, mix_seed, permuted, philox, text_of_words, windows
from gradtile_runs import read_checkpoint, run

REFERENCE = Path(__file__).parent.parent / "reference" / "training_losses.json"
STEPS = 100
COMMON = ["--layers", "3", "--width", "32", "--heads", "4", "--context", "24", "--batch", "8", "--warmup", "10", "--lr", "1e-3", "--min-lr", "1e-4"]
LLAMA = ["--norm", "rms", "--activation", "swiglu", "--positions", "rope", "--no-bias", "--no-tied-head", "--kv-heads", "2", "--qk-norm"]
CASES = {
    "gpt2": [],
    "llama": LLAMA,
    "muon": LLAMA + ["--optimizer", "muon", "--muon-lr", "0.01", "--muon-products", "f32"],
    "normuon": LLAMA + ["--optimizer", "muon", "--muon-lr", "2e-3", "--muon-products", "f32", "--muon-split", "--no-muon-nesterov", "--muon-momentum-warmup",
                        "30", "--muon-scale", "rms", "--muon-coefficients", "polar-express", "--muon-beta2", "0.9", "--embedding-lr-factor", "3",
                        "--head-lr-factor", "0.5", "--vector-lr-factor", "2"],
    "window": ["--window", "5", "--window-pattern", "2"],
    "softcap": LLAMA + ["--softcap", "1.5"],
    "sinks": LLAMA + ["--sinks", "--window", "7"],
    "dropout": ["--dropout", "0.1", "--attention-dropout", "0.2", "--micro-batch", "2"],
    "alibi": ["--positions", "alibi", "--heads", "2"],
    "alibi-3-heads": ["--positions", "alibi", "--heads", "3", "--width", "48"],
    "packed": ["--packed", "--context", "48"],
    "packed-llama": LLAMA + ["--packed", "--context", "48", "--max-documents", "3", "--attention-dropout", "0.1", "--micro-batch", "2"],
    "conversations": ["--micro-batch", "2"],
    "gemma3": [flag for flag in LLAMA if flag not in ("--no-tied-head", "--activation", "swiglu")] +
              ["--block", "sandwich-norm", "--norm-offset", "--activation", "geglu-tanh", "--scaled-embedding", "--head-width", "16",
               "--window", "6", "--window-pattern", "2", "--window-rope-base", "100", "--rope-scaling", "linear", "--rope-factor", "4",
               "--query-scalar", "12", "--logit-softcap", "3"],
    "olmo2": LLAMA + ["--block", "output-norm", "--qk-norm-kind", "projection"],
    "neox": ["--block", "parallel", "--positions", "rope", "--rotary-width", "2", "--dropout", "0.1"],
    "records": ["--norm", "rms", "--positions", "rope", "--rope-base", "1024", "--rope-scaling", "half-truncated", "--head-width", "16", "--qk-norm",
                "--qk-norm-kind", "head-without-gain", "--embedding-norm", "--query-scalar", "69.4", "--logit-softcap", "15", "--logit-softcap-form", "root",
                "--activation", "relu2", "--no-tied-head", "--zero-init"],
    "streams": LLAMA + ["--layers", "5", "--x0-lambdas", "--dropout", "0.1"],
    "gates": LLAMA + ["--attention-gate", "--value-embeddings", "--optimizer", "muon", "--muon-lr", "0.01", "--muon-products", "f32",
                      "--embedding-lr-factor", "2"],
    "key-offset": ["--norm", "rms", "--positions", "rope", "--rope-base", "1024", "--rope-scaling", "half-truncated", "--head-width", "16", "--kv-heads", "2",
                   "--qk-norm", "--qk-norm-kind", "head-without-gain", "--key-offset", "--window", "6", "--window-pattern", "2", "--packed", "--context", "48"],
    "all-options": ["--positions", "alibi", "--kv-heads", "2", "--qk-norm", "--window", "6", "--window-pattern", "3", "--softcap", "2", "--sinks"],
}
# At this learning rate, 100 steps in float32 stay within 4e-7 of float64, in gradtile and in PyTorch. Training amplifies roundings: at twice the
# rate, PyTorch's own float32 losses of "llama" are 3e-6 off.
BOUND = 1e-6


def text_of(flags):
    """A blank line ends a packed document: as test::some_documents()."""
    text = text_of_words(400)
    return text.replace("\n", "\n\n") if "--packed" in flags else text


def some_conversations(count):
    """As test::some_conversations() in tests/train/tiny_run.h: lists of (role, content)."""
    words = text_of_words(60 * count).replace("\n", "")
    conversations = []
    for i in range(count):
        lengths = [("system", 9)] if i % 3 == 0 else []
        for _ in range(i % 2 + 1):
            lengths += [("user", 5 + i * 7 % 23), ("assistant", 3 + i * 5 % 31)]
        conversation = []
        for role, length in lengths:
            conversation.append((role, words[:length]))
            words = words[length:]
        conversations.append(conversation)
    return conversations


def plain_text(conversation):
    """The plain template: the text, and for each character whether it is a target."""
    text, targets = "", []

    def add(part, is_target):
        nonlocal text
        text += part
        targets.extend([is_target] * len(part))

    for (role, content), (before, _) in zip(conversation, [("", "")] + conversation):
        add(f"\n{role.capitalize()}:", (before, role) == ("assistant", "user"))
        add(" " + content, role == "assistant")
    if role == "assistant":
        add("\nUser:", True)
    return text, targets


class Documents:
    """number [B,T]: each token's document in its window. position [B,T]: each token's place in its document."""

    def __init__(self, number, most):
        self.number, self.most = number, most
        place = torch.arange(number.shape[1]).expand_as(number)
        begins = F.pad(number[:, 1:] != number[:, :-1], (1, 0))
        self.position = place - torch.where(begins, place, 0).cummax(1).values


def conversation_windows(conversations, encode, context, seed):
    """Yields the same of conversations, one in a window: what is no target is -100."""
    cut = []
    for conversation in conversations:
        text, is_target = plain_text(conversation)
        ids = encode(text)
        targets = [token if counts else -100 for token, counts in zip(ids, is_target)]
        for begin in range(0, len(ids) - 1, context):
            end = min(begin + context, len(ids) - 1)
            rest = context - (end - begin)
            if any(target != -100 for target in targets[begin + 1 : end + 1]):
                cut.append((ids[begin:end] + [0] * rest, targets[begin + 1 : end + 1] + [-100] * rest))
    for epoch in itertools.count():
        order = key_of(mix_seed(mix_seed(seed, 0x6F726472), epoch))
        for position in range(len(cut)):
            ids, targets = cut[permuted(position, len(cut), order)]
            yield ids, targets, [0] * context


def batches(source, config):
    for _ in range(STEPS):
        tokens, targets, number = (torch.tensor(part) for part in zip(*(next(source) for _ in range(config["batch"]))))
        yield tokens, targets, Documents(number, documents_of_window(config))


# ---- Dropout: core/dropout_key.h, layers/dropout.h, attention/score_rule.h ----


class Masks:
    """The factors of dropout in one step. `place` numbers the embeddings (0), or a block (from 1) and a place in it."""

    def __init__(self, config, step):
        self.seed = mix_seed(config["seed"], step)
        self.residual, self.attention = config["dropout"], config["attention-dropout"]

    def factors(self, p, place, samples, heads, rows, columns):
        """Returns [samples, heads, rows, columns]: 0 or the scale of kept elements."""
        seed = self.seed
        for purpose in place:
            seed = mix_seed(seed, purpose)
        axes = np.ogrid[:samples, :heads, :rows, : -(-columns // 8)]
        words = philox([axis.astype(np.uint64) for axis in reversed(axes)], key_of(seed))
        bits = np.stack([word >> shift & 0xFFFF for word in words for shift in (0, 16)], -1)
        threshold = round(65536 * p)
        kept = bits.reshape(samples, heads, rows, -1)[..., :columns] >= threshold
        return torch.tensor(kept * (65536 / (65536 - threshold)))

    def drop(self, x, *place):
        """x [B,T,C]: embeddings, or the output of a branch."""
        if self.residual == 0:
            return x
        return x * self.factors(self.residual, place, x.shape[0], 1, *x.shape[1:])[:, 0].to(x.dtype)

    def drop_probabilities(self, x, layer, documents):
        """x [B,H,T,T]. A document is a sample with rows and columns of its own."""
        if self.attention == 0:
            return x
        windows, heads, length, _ = x.shape
        most, position = documents.most, documents.position
        document_factors = self.factors(self.attention, (layer + 1, 2), windows * most, heads, length, length)
        sample = most * torch.arange(windows)[:, None] + documents.number.clamp(max=most - 1)
        dropped = document_factors[sample[:, None, :, None], torch.arange(heads)[:, None, None], position[:, None, :, None], position[:, None, None, :]]
        return x * dropped.to(x.dtype)


# ---- The model ----


def alibi_slopes(heads):
    """Press et al. 2022, with the rule of the authors' program for numbers that are no power of two."""
    def power_slopes(n):
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]
    power = 2 ** int(math.log2(heads))
    return power_slopes(power) + power_slopes(2 * power)[0::2][: heads - power]


def has_window(config, layer):
    return bool(config["window"]) and not (config["window-pattern"] and (layer + 1) % config["window-pattern"] == 0)


def frequencies(config, layer, columns):
    """[columns/2]"""
    base, scaling = config["rope-base"], config["rope-scaling"]
    if config["window-rope-base"] and has_window(config, layer):
        base, scaling = config["window-rope-base"], "none"
    half = columns // 2
    if scaling == "half-truncated":
        return F.pad((1 / base) ** torch.linspace(0, 1, columns // 4, dtype=torch.float64), (0, half - columns // 4))
    return base ** (-torch.arange(half, dtype=torch.float64) / half) / (config["rope-factor"] if scaling == "linear" else 1)


def rotate(x, config, layer, position):
    """x [B,H,T,D]: pairs (i, i + R/2) of the first R columns, Su et al. 2021."""
    columns = config["rotary-width"] or x.shape[-1]
    angles = position[:, None, :, None].double() * frequencies(config, layer, columns)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., : columns // 2], x[..., columns // 2 : columns]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., columns:]], -1)


def offset_keys(k, config, layer, position):
    """k [B,H,T,D]: the columns that rotate() leaves as they are come from the token before, if the document has one."""
    columns = config["rotary-width"] or k.shape[-1]
    still = torch.cat([(frequencies(config, layer, columns) == 0).repeat(2), torch.ones(k.shape[-1] - columns, dtype=torch.bool)])
    before = F.pad(k[:, :, :-1], (0, 0, 1, 0))
    return torch.where(still & (position > 0)[:, None, :, None], before, k)


def attention(q, k, v, config, layer, sinks, masks, documents):
    """Dense: S and P are [B,H,T,T], the mask is block-diagonal for packed documents, and a sink is one more column of logits whose probability is
    thrown away. FlexAttention cannot be the peer: on a CPU, PyTorch refuses inputs that require a gradient."""
    length, heads = q.shape[2], q.shape[1]
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(config["query-scalar"] or q.shape[-1])
    if config["softcap"]:
        scores = config["softcap"] * torch.tanh(scores / config["softcap"])
    distance = torch.arange(length)[:, None] - torch.arange(length)
    if config["positions"] == "alibi":
        scores = scores - torch.tensor(alibi_slopes(heads), dtype=q.dtype)[:, None, None] * distance.abs()
    visible = distance >= 0
    if has_window(config, layer):
        visible = visible & (distance < config["window"])
    same_document = documents.number[:, None, :, None] == documents.number[:, None, None, :]
    scores = scores.masked_fill(~(visible & same_document), -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(q.shape[0], heads, length, 1)], -1)
    return masks.drop_probabilities(torch.softmax(scores, -1)[..., :length], layer, documents) @ v


def loss_of(p, config, tokens, targets, documents, masks):
    width, heads, kv_heads = config["width"], config["heads"], config["kv-heads"] or config["heads"]
    epsilon, dim = config["norm-epsilon"], config["head-width"] or config["width"] // config["heads"]
    offset = 1 if config["norm-offset"] else 0

    def linear(name, x):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    def norm(place, x):
        if config["norm"] == "rms":
            return F.rms_norm(x, (width,), offset + p[f"{place[0]}norm_{place[1]}.weight"], epsilon)
        return F.layer_norm(x, (width,), p[f"{place[0]}ln_{place[1]}.weight"], p.get(f"{place[0]}ln_{place[1]}.bias"), epsilon)

    def qk_norm(name, x):
        """x [B,T,H,D]"""
        kind = config["qk-norm-kind"]
        if kind == "projection":
            return F.rms_norm(x.flatten(2), (x.shape[2] * dim,), offset + p[name], epsilon).unflatten(-1, (-1, dim))
        return F.rms_norm(x, (dim,), None if kind == "head-without-gain" else offset + p[name], epsilon)

    def head_gates(name, x):
        """[B,T,H,1], from the first 16 columns of x."""
        return torch.sigmoid(F.linear(x[..., :16], p[name + ".weight"])).unsqueeze(-1)

    def attend(layer, block, x):
        qkv = linear(block + "attn.qkv", x)
        q, k, v = (t.unflatten(-1, (-1, dim)) for t in qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], -1))
        if config["qk-norm"]:
            q, k = qk_norm(block + "attn.q_norm.weight", q), qk_norm(block + "attn.k_norm.weight", k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if config["positions"] == "rope":
            q, k = (rotate(t, config, layer, documents.position) for t in (q, k))
        if config["key-offset"] and not has_window(config, layer):
            k = offset_keys(k, config, layer, documents.position)
        if config["value-embeddings"] and (config["layers"] - 1 - layer) % 2 == 0:
            values = F.embedding(tokens, p[block + "attn.value_embedding.weight"]).unflatten(-1, (kv_heads, dim))
            v = v + (2 * head_gates(block + "attn.value_gate", x) * values).transpose(1, 2)
        o = attention(q, k, v, config, layer, p.get(block + "attn.sinks"), masks, documents).transpose(1, 2)
        if config["attention-gate"]:
            o = o * head_gates(block + "attn.gate", x)
        return linear(block + "attn.proj", o.flatten(2))

    def mlp(block, x):
        activation = config["activation"]
        if activation in ("swiglu", "geglu-tanh"):
            gate, up = linear(block + "mlp.gate_up", x).chunk(2, -1)
            return linear(block + "mlp.down", (F.silu(gate) if activation == "swiglu" else F.gelu(gate, approximate="tanh")) * up)
        hidden = linear(block + "mlp.fc", x)
        return linear(block + "mlp.proj", hidden.relu().square() if activation == "relu2" else F.gelu(hidden, approximate="tanh"))

    x = F.embedding(tokens, p["wte.weight"])
    if config["scaled-embedding"]:
        x = x * math.sqrt(width)
    if config["positions"] == "learned":
        x = x + p["wpe.weight"][documents.position]
    if config["embedding-norm"]:
        x = norm(("", "e"), x)
    x = x0 = masks.drop(x, 0)
    for layer in range(config["layers"]):
        block = f"h.{layer}."
        kind = config["block"]
        x = p.get(block + "mix.stream", 1) * x
        if config["x0-lambdas"]:
            x = x + p[block + "mix.x0"] * x0

        def inward(number, x):
            return x if kind == "output-norm" else norm((block, number), x)

        def outward(number, x):
            return norm((block, f"post_{number}"), x) if kind in ("output-norm", "sandwich-norm") else x

        first = masks.drop(outward(1, attend(layer, block, inward(1, x))), layer + 1, 0)
        second = masks.drop(outward(2, mlp(block, inward(2, x if kind == "parallel" else x + first))), layer + 1, 1)
        x = x + first + second
    logits = F.linear(norm(("", "f"), x), p["wte.weight" if config["tied-head"] else "head.weight"])
    if cap := config["logit-softcap"]:
        logits = cap * torch.tanh(logits / cap) if config["logit-softcap-form"] == "tanh" else logits / torch.sqrt(1 + (logits / cap) ** 2)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---- Training ----


# Jordan 2024, and Amsel et al. 2025 (arXiv 2505.16932, algorithm 1), which divides the argument of each quintic by 1.01.
JORDAN = [(3.4445, -4.7750, 2.0315)] * 5
POLAR_EXPRESS = [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in [
    (8.28721201814563, -23.595886519098837, 17.300387312530933), (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137), (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673)]]


def newton_schulz(g, name):
    """With products in g's dtype."""
    quintics, safety = {"jordan": (JORDAN, 1.0), "polar-express": (POLAR_EXPRESS, 1.01)}[name]
    x = g / ((g.norm() + 1e-7) * safety)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for a, b, c in quintics:
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if tall else x


def shrinks(update, w):
    """Cautious decay (arXiv 2510.12402): where update and weight have one sign."""
    return (update * w >= 0).to(w.dtype)


class Muon(torch.optim.Optimizer):
    """Jordan 2024: momentum, orthogonalised; with the variations that `config` chooses. torch.optim.Muon has the same form, but multiplies
    bfloat16. `packed` has the rows of the matrices that a parameter packs."""

    def __init__(self, parameters, packed, config):
        super().__init__(parameters, {"lr": 0.0})
        self.packed, self.config, self.updates = packed, config, 0

    def direction(self, g, key):
        """Algorithm 1 of NorMuon (arXiv 2510.05491); the norm is kept, as in its authors' program."""
        c = self.config
        update = newton_schulz(g, c["muon-coefficients"])
        if c["muon-beta2"] > 0:
            v = self.state[key].setdefault("v", torch.zeros_like(update[:, :1]))
            v.lerp_(update.square().mean(1, keepdim=True), 1 - c["muon-beta2"])
            divided = update / (v.sqrt() + 1e-10)
            update = divided * update.norm() / divided.norm()
        rows, cols = g.shape
        return update * (0.2 * math.sqrt(max(rows, cols)) if c["muon-scale"] == "rms" else math.sqrt(max(1, rows / cols)))

    @torch.no_grad()
    def step(self):
        c = self.config
        rise = min(1, self.updates / c["muon-momentum-warmup"]) if c["muon-momentum-warmup"] else 1
        momentum = 0.85 + (c["muon-momentum"] - 0.85) * rise
        self.updates += 1
        for group in self.param_groups:
            for w in group["params"]:
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                m.lerp_(w.grad, 1 - momentum)
                g = torch.lerp(w.grad, m, momentum) if c["muon-nesterov"] else m
                parts = zip(g.split(self.packed[w]), w.split(self.packed[w]))
                for number, (part, weights) in enumerate(parts):
                    update = self.direction(part, (w, number))
                    kept = shrinks(update, weights) if c["cautious-decay"] else 1
                    weights.sub_(group["lr"] * (c["weight-decay"] * kept * weights + update))


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW with cautious decay."""

    def __init__(self, groups, betas, eps):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
        self.betas, self.eps, self.updates = betas, eps, 0

    @torch.no_grad()
    def step(self):
        self.updates += 1
        (beta1, beta2), t = self.betas, self.updates
        for group in self.param_groups:
            for w in group["params"]:
                m, v = (self.state[w].setdefault(name, torch.zeros_like(w)) for name in "mv")
                m.lerp_(w.grad, 1 - beta1)
                v.lerp_(w.grad.square(), 1 - beta2)
                update = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + self.eps)
                w.sub_(group["lr"] * (group["weight_decay"] * shrinks(update, w) * w + update))


def packed_rows(name, w, config):
    """The rows of q, k and v, and of gate and up."""
    rows = w.shape[0]
    if config["muon-split"] and name.endswith("attn.qkv.weight"):
        key_rows = (config["kv-heads"] or config["heads"]) * (config["width"] // config["heads"])
        return [rows - 2 * key_rows, key_rows, key_rows]
    if config["muon-split"] and name.endswith("mlp.gate_up.weight"):
        return [rows // 2, rows // 2]
    return [rows]


# The matrices of blocks that AdamW updates.
NO_MUON = ("gate.weight", "value_embedding.weight")


def rate_factor(name, w, config):
    if name in ("wte.weight", "wpe.weight") or name.endswith("value_embedding.weight"):
        return config["embedding-lr-factor"]
    if name == "head.weight":
        return config["head-lr-factor"]
    return config["vector-lr-factor"] if w.dim() == 1 else 1.0


def learning_rate(step, config):
    lr, least, warmup = config["lr"], config["min-lr"], config["warmup"]
    if step <= warmup:
        return lr * step / warmup
    t = (step - warmup) / (STEPS - warmup)
    return least + (lr - least) * (1 + math.cos(math.pi * t)) / 2


def train(initial, config, source, dtype):
    p = {name: torch.tensor(value, dtype=dtype, requires_grad=True) for name, value in initial.items()}
    muon = config["optimizer"] == "muon"
    hidden = {name: w for name, w in p.items() if muon and w.dim() == 2 and name.startswith("h.") and not name.endswith(NO_MUON)}
    groups = [{"params": [w], "weight_decay": config["weight-decay"] if w.dim() == 2 else 0.0, "factor": rate_factor(name, w, config)}
              for name, w in p.items() if name not in hidden]
    adamw = AdamW if config["cautious-decay"] else torch.optim.AdamW
    optimizers = [adamw(groups, betas=(config["beta1"], config["beta2"]), eps=config["epsilon"])]
    if muon:
        packed = {w: packed_rows(name, w, config) for name, w in hidden.items()}
        optimizers.append(Muon([{"params": list(packed), "factor": config["muon-lr"] / config["lr"]}], packed, config))
    losses = []
    for step, (tokens, targets, documents) in enumerate(batches(source, config), 1):
        for w in p.values():
            w.grad = None
        loss = loss_of(p, config, tokens, targets, documents, Masks(config, step))
        loss.backward()
        # torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm.
        norm = torch.stack([w.grad.double().square().sum() for w in p.values()]).sum().sqrt().item()
        for w in p.values():
            w.grad.mul_(min(1.0, config["clip"] / norm))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["factor"] * learning_rate(step, config)
            optimizer.step()
        losses.append(loss.item())
    return losses


def worst(a, b):
    return max(abs(x / y - 1) for x, y in zip(a, b, strict=True))


def judge(gradtile, directory, name, flags, reference):
    """Returns PyTorch's float64 losses, and whether all agree."""
    has_conversations = name.startswith("conversations")
    text = directory / ("text.jsonl" if has_conversations else "text.txt")
    conversations = some_conversations(60)
    if has_conversations:
        lines = [json.dumps({"messages": [{"role": role, "content": content} for role, content in one]}) + "\n" for one in conversations]
        text.write_text("".join(lines), encoding="utf-8")
    else:
        text.write_text(text_of(flags), encoding="utf-8")
    train_flags = ["--data", text, "--val-data", text, "--eval-every", "0", "--quiet", "--device", "cpu", *COMMON, *flags]
    # The checkpoint after one step with a rate of almost 0 contains the initial weights: zeros have become 1e-30.
    first = directory / f"{name}-first"
    still = ["--lr", "1e-30", "--min-lr", "1e-30"] + (["--muon-lr", "1e-30"] if "muon" in flags else [])
    run(gradtile, "train", *train_flags, "--out", first, "--steps", "1", "--warmup", "0", *still)
    initial, _, tokenizer = read_checkpoint(first / "checkpoints" / "step_00000001.h5")
    out = directory / name
    run(gradtile, "train", *train_flags, "--out", out, "--steps", STEPS)
    _, config, _ = read_checkpoint(out / "checkpoints" / f"step_{STEPS:08}.h5")
    said = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    ours = [line["loss"] for line in said if "loss" in line]

    vocabulary = {character: number for number, character in enumerate(tokenizer["characters"])}

    def encode(characters):
        return [vocabulary[character] for character in characters]

    def source():
        if has_conversations:
            return conversation_windows(conversations, encode, config["context"], config["seed"])
        return windows(encode(text.read_text(encoding="utf-8")), config, vocabulary["\n"])

    single, double = (train(initial, config, source(), dtype) for dtype in (torch.float32, torch.float64))
    to_double, to_single, again = worst(ours, double), worst(ours, single), worst(double, reference or double)
    ok = to_double <= BOUND and again <= 1e-9
    print(f"{name}: loss {double[0]:.4f} to {double[-1]:.4f}; gradtile's float32 differs from PyTorch's float64 by {to_double:.1e}, from its float32 by "
          f"{to_single:.1e}; PyTorch's float32 from its float64 by {worst(single, double):.1e}; the committed losses by {again:.1e}"
          f"{'' if ok else ' IS BEYOND THE BOUND'}")
    return double, ok


def main(gradtile, directory, write):
    torch.set_num_threads(1)
    committed = {} if write or not REFERENCE.exists() else json.loads(REFERENCE.read_text())["cases"]
    cases, failed = {}, False
    for name, flags in CASES.items():
        known = committed.get(name)
        if not write and (known is None or known["flags"] != COMMON + flags):
            raise SystemExit(f"{REFERENCE}: has no losses of '{name}' with these flags; run with --write")
        losses, ok = judge(gradtile, directory, name, flags, known and known["losses"])
        cases[name] = {"flags": COMMON + flags, "losses": losses}
        failed |= not ok
    if write:
        lines = [f'"{name}": {{"flags": {json.dumps(case["flags"])},\n"losses": {json.dumps([float(f"{x:.12g}") for x in case["losses"]])}}}'
                 for name, case in cases.items()]
        REFERENCE.write_text(f'{{"about": "Losses of PyTorch {torch.__version__} in float64, written by tests/judge/training_judge.py", "cases": {{\n'
                             + ",\n".join(lines) + "\n}}\n")
    return failed


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["--write"]):
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] == ["--write"]))
