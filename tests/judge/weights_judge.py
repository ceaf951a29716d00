"""Judges import and export of weights: transformers, safetensors and gguf must agree with the program on the same models.

usage: weights_judge.py GRADTILE DIRECTORY    (scripts/judge.sh --torch calls it)

Random models are made by transformers, so none is downloaded. Each is imported; its logits in float32 must equal transformers' logits. Then it
is exported as safetensors, which transformers must read with bit-equal weights and equal logits, and as GGUF, which gguf must read with
bit-equal weights, in llama.cpp's order of rows. A model in llm.c's format must give the weights that transformers had.
"""
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from gradtile_runs import run

# The largest difference of a logit, relative to the largest logit. Both sides compute in float32 and add in
# different orders.
BOUND = 1e-5
CONTEXT, VOCABULARY = 48, 131


def gpt2(**changes):
    return GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=4, n_embd=32, n_positions=CONTEXT, vocab_size=VOCABULARY, initializer_range=0.2, **changes))


def llama(**changes):
    settings = dict(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=88,
                    max_position_embeddings=CONTEXT, vocab_size=VOCABULARY, initializer_range=0.2, tie_word_embeddings=False)
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))


# Name, model, dtype of the files, size of a shard (None: one file), whether GGUF can hold it.
MODELS = [
    ("GPT-2", gpt2, {}, torch.float32, None, True),
    ("GPT-2 with a head of its own, exact GELU", gpt2, {"tie_word_embeddings": False, "activation_function": "gelu"}, torch.float32, "20KB", False),
    ("GPT-2 in bfloat16, another epsilon and MLP width", gpt2, {"layer_norm_epsilon": 1e-3, "n_inner": 80}, torch.bfloat16, None, True),
    ("GPT-2 in float16", gpt2, {}, torch.float16, None, True),
    ("Llama, grouped queries", llama, {}, torch.float32, None, True),
    ("Llama, tied, sharded", llama, {"tie_word_embeddings": True, "rope_theta": 500.0}, torch.float32, "20KB", True),
    ("Llama in bfloat16, one key head, another epsilon", llama, {"num_key_value_heads": 1, "rms_norm_eps": 1e-3}, torch.bfloat16, "20KB", True),
    ("Llama with biases", llama, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}, torch.float32, None, False),
]


def weights_of(folder):
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(file))
    return weights


def transformers_logits(folder, tokens):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor(tokens[None].astype(np.int64))).logits[0].numpy()


def program_logits(gradtile, model, tokens_file, out):
    run(gradtile, "eval", model, "--data", tokens_file, "--device", "cpu", "--logits", out)
    with safe_open(out, "np") as file:
        return file.get_tensor("logits")


def relative_difference(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def permuted(rows, heads):
    """llama.cpp's order of the rows of queries and keys."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def gguf_values(tensor):
    if tensor.tensor_type == gguf.GGMLQuantizationType.BF16:
        wide = np.ascontiguousarray(tensor.data).view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    return tensor.data.astype(np.float32)


def check_gguf(path, weights, config):
    """Returns what is wrong."""
    reader = gguf.GGUFReader(path)
    architecture = config["model_type"]
    layers = config.get("n_layer", config.get("num_hidden_layers"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2 if architecture == "gpt2" else gguf.MODEL_ARCH.LLAMA, layers)
    tensors = {tensor.name: gguf_values(tensor).reshape(tensor.shape[::-1]) for tensor in reader.tensors}
    wrong, seen = [], set()
    for name, weight in weights.items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        expected = weight.float().numpy()
        if name.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and expected.ndim == 2:
            expected = expected.T
        heads = {"q_proj": config.get("num_attention_heads"), "k_proj": config.get("num_key_value_heads")}.get(name.split(".")[-2])
        if heads:
            expected = permuted(expected, heads)
        if target not in tensors or not np.array_equal(tensors[target], expected):
            wrong.append(f"{name} is not {target}")
        seen.add(target)
    wrong += [f"{name} is of no weight" for name in tensors if name not in seen]
    field = lambda key: reader.get_field(key).contents()  # noqa: E731
    expected = {"general.architecture": architecture, f"{architecture}.block_count": layers,
                f"{architecture}.context_length": CONTEXT, f"{architecture}.embedding_length": 32}
    if architecture == "llama":
        expected.update({"llama.attention.head_count_kv": config["num_key_value_heads"], "llama.rope.dimension_count": 8})
        expected.update({"llama.rope.freq_base": np.float32(config.get("rope_theta") or config["rope_parameters"]["rope_theta"]),
                         "llama.attention.layer_norm_rms_epsilon": np.float32(config["rms_norm_eps"])})
    else:
        expected["gpt2.attention.layer_norm_epsilon"] = np.float32(config["layer_norm_epsilon"])
    wrong += [f"{key} is {field(key)}, expected {value}" for key, value in expected.items() if field(key) != value]
    return wrong


def judge(gradtile, directory, tokens, case):
    name, make, changes, dtype, shard, has_gguf = case
    torch.manual_seed(7)
    original, imported, exported = directory / "original", directory / "run", directory / "exported"
    model = make(**changes).to(dtype)
    # Biases are all 0 and norms' weights all 1 at first, which would hide an exchange of two of them.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(original, **({"max_shard_size": shard} if shard else {}))
    tokens_file = directory / "tokens.bin"
    tokens.astype("<u2").tofile(tokens_file)
    run(gradtile, "import", original, "--out", imported)
    run(gradtile, "export", imported, "--format", "safetensors", "--out", exported, *(["--dtype", "f16"] if dtype == torch.float16 else []))
    wrong = []
    before, after = weights_of(original), weights_of(exported)
    if before.keys() != after.keys() or any(a.dtype != after[n].dtype or not torch.equal(bits(a), bits(after[n])) for n, a in before.items()):
        wrong.append("the exported weights are not the original ones")
    expected = transformers_logits(original, tokens)
    # bfloat16 models are computed in float32 here: an export in float32 of the same weights.
    if dtype == torch.bfloat16:
        run(gradtile, "export", imported, "--dtype", "f32", "--out", directory / "wide")
        run(gradtile, "import", directory / "wide", "--out", directory / "wide_run")
        imported = directory / "wide_run"
    difference = relative_difference(program_logits(gradtile, imported, tokens_file, directory / "logits.safetensors"), expected)
    again = relative_difference(transformers_logits(exported, tokens), expected)
    if difference > BOUND or again > BOUND:
        wrong.append(f"logits differ by more than {BOUND}")
    if has_gguf:
        file = directory / "model.gguf"
        run(gradtile, "export", imported, "--format", "gguf", "--out", file)
        wrong += check_gguf(file, before, json.loads((original / "config.json").read_text()))
    elif "stored" not in (said := run(gradtile, "export", imported, "--format", "gguf", "--out", directory / "no.gguf", fails=True)):
        wrong.append(f"GGUF was refused for another reason: {said}")
    print(f"{name}: logits differ by {difference:.1e} after import, {again:.1e} after export{'; ' + '; '.join(wrong) if wrong else ''}")
    return bool(wrong)


def write_llmc(path, model, bfloat16):
    """llm.c's format as its train_gpt2.py writes it: the vocabulary's matrix is padded, here with ones."""
    weights, layers = model.state_dict(), model.config.n_layer
    header = np.zeros(256, "<i4")
    header[:8] = 20240326, 5 if bfloat16 else 3, CONTEXT, VOCABULARY, layers, model.config.n_head, model.config.n_embd, 256
    order = [weights["transformer.wte.weight"], torch.ones(256 - VOCABULARY, model.config.n_embd), weights["transformer.wpe.weight"]]
    for name in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",
                 "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"):
        for layer in range(layers):
            weight = weights[f"transformer.h.{layer}.{name}"]
            order.append(weight.T if name.startswith(("attn", "mlp")) and weight.dim() == 2 else weight)
    order += [weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"]]
    numbers = torch.cat([weight.flatten() for weight in order])
    raw = numbers.bfloat16().view(torch.int16) if bfloat16 else numbers.float()
    path.write_bytes(header.tobytes() + raw.numpy().tobytes())


def judge_llmc(gradtile, directory, tokens, bfloat16):
    torch.manual_seed(8)
    model = gpt2().to(torch.bfloat16 if bfloat16 else torch.float32)
    write_llmc(directory / "model.bin", model, bfloat16)
    tokens.astype("<u2").tofile(directory / "tokens.bin")
    run(gradtile, "import", directory / "model.bin", "--out", directory / "run")
    run(gradtile, "export", directory / "run", "--out", directory / "exported")
    after = weights_of(directory / "exported")
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    equal = state.keys() == after.keys() and all(torch.equal(bits(value), bits(after[name])) for name, value in state.items())
    print(f"llm.c, {'bfloat16' if bfloat16 else 'float32'}: the weights are {'' if equal else 'NOT '}those that transformers had")
    return not equal


def main(gradtile, directory):
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, CONTEXT)
    failed = False
    for number, case in enumerate(MODELS):
        folder = directory / str(number)
        folder.mkdir()
        failed |= judge(gradtile, folder, tokens, case)
    for bfloat16 in (False, True):
        folder = directory / f"llmc_{bfloat16}"
        folder.mkdir()
        failed |= judge_llmc(gradtile, folder, tokens, bfloat16)
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2])))
