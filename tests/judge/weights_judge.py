"""Judges import and export of weights: transformers, safetensors and gguf must agree with the program on the same models.

usage: weights_judge.py GRADTILE DIRECTORY [NAME]    (scripts/judge.sh --torch calls it; NAME: only models whose name contains it)

Random models of every family are made by transformers, so none is downloaded. Each is imported; logits, loss, the gradient of every tensor and
a greedy text must equal those of transformers in float64. Then it is exported as safetensors, which transformers must read with bit-equal
weights and equal logits, and as GGUF, which gguf must read with bit-equal weights, in llama.cpp's order of rows. A model in llm.c's format must
give the weights that transformers had.
"""
import json
import shutil
import sys
from pathlib import Path

import gguf
import h5py
import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from data_order import windows
from gradtile_runs import run

# Relative to the largest logit or element. The program computes in float32: a sum of some hundred products has an error of some ten roundings
# of 6e-8, and a gradient passes through some ten such sums, whose errors have random signs.
BOUND, GRADIENT_BOUND, LOSS_BOUND = 1e-5, 1e-5, 1e-6
CONTEXT, VOCABULARY = 48, 380


def gpt2(**changes):
    return GPT2LMHeadModel(GPT2Config(**{**dict(n_layer=3, n_head=4, n_embd=32, n_positions=CONTEXT, vocab_size=VOCABULARY, initializer_range=0.2), **changes}))


def family(name, without=(), **settings):
    """Returns a maker for models of the classes NAMEConfig and NAMEForCausalLM. `without` names settings that the family does not have."""
    config_class = getattr(transformers, f"{name}Config")
    model_class = getattr(transformers, name.removesuffix("Text") + "ForCausalLM")
    # PyTorch's embedding drops the gradient of pad_token_id's row.
    common = dict(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=88, max_position_embeddings=CONTEXT,
                  vocab_size=VOCABULARY, initializer_range=0.2, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0, pad_token_id=None)

    def make(**changes):
        values = {**common, **settings, **changes}
        return model_class(config_class(**{key: value for key, value in values.items() if key not in without}))
    return make


llama = family("Llama")
mistral = family("Mistral", sliding_window=9)
qwen2 = family("Qwen2")
qwen3 = family("Qwen3", head_dim=12)
smollm3 = family("SmolLM3", num_hidden_layers=5, tie_word_embeddings=True)
olmo2 = family("Olmo2")
gemma2 = family("Gemma2", head_dim=12, query_pre_attn_scalar=10, sliding_window=9, num_hidden_layers=3, final_logit_softcapping=4.0, attn_logit_softcapping=3.0,
                tie_word_embeddings=True)
gemma3 = family("Gemma3Text", head_dim=12, query_pre_attn_scalar=10, sliding_window=9, num_hidden_layers=7, tie_word_embeddings=True)
neox = family("GPTNeoX", without=["num_key_value_heads"])
phi3 = family("Phi3")


def rope(kind, **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


LLAMA3 = rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
YARN = rope("yarn", factor=3.0, original_max_position_embeddings=16)
FACTORS = [1.0, 1.5, 2.0, 4.0]
LONGROPE = {**rope("longrope", short_factor=FACTORS, long_factor=[2 * f for f in FACTORS]), "original_max_position_embeddings": 16, "initializer_range": 0.1}
# Up to the original context transformers takes the short factors for a text of any length, and gradtile for a model of at most that context.
SHORT_LONGROPE = {**LONGROPE, "original_max_position_embeddings": CONTEXT}

# Name, model, changes of its config, dtype of the files, size of a shard (None: one file), whether GGUF can hold it.
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
MODELS = [
    ("GPT-2", gpt2, {}, F32, None, True),
    ("GPT-2 with a head of its own, exact GELU", gpt2, {"tie_word_embeddings": False, "activation_function": "gelu"}, F32, "20KB", False),
    ("GPT-2 in bfloat16, another epsilon and MLP width", gpt2, {"layer_norm_epsilon": 1e-3, "n_inner": 80}, BF16, None, True),
    ("GPT-2 in float16", gpt2, {}, F16, None, True),
    ("Llama, grouped queries", llama, {}, F32, None, True),
    ("Llama, tied, sharded", llama, {"tie_word_embeddings": True, "rope_theta": 500.0}, F32, "20KB", True),
    ("Llama in bfloat16, one key head, another epsilon", llama, {"num_key_value_heads": 1, "rms_norm_eps": 1e-3}, BF16, "20KB", True),
    ("Llama with biases", llama, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}, F32, None, False),
    ("Llama 3.1, scaled frequencies", llama, LLAMA3, F32, None, True),
    ("Llama, linear scaling", llama, rope("linear", factor=2.5), F32, None, True),
    ("Llama, dynamic NTK", llama, rope("dynamic", factor=2.0), F32, None, True),
    ("Llama, YaRN", llama, YARN, F32, None, True),
    ("Mistral, a window in every layer", mistral, {}, F32, None, False),
    ("Mistral, no window, wide heads", mistral, {"sliding_window": None, "head_dim": 12}, F32, None, True),
    ("Qwen2, biases on q, k and v", qwen2, {}, F32, None, True),
    ("Qwen2.5, tied, windows in all layers", qwen2, {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}, F32, None, False),
    ("Qwen2.5, YaRN", qwen2, YARN, F32, None, True),
    ("Qwen3, wide heads", qwen3, {}, F32, None, True),
    ("Qwen3 in bfloat16, tied", qwen3, {"tie_word_embeddings": True}, BF16, None, True),
    ("SmolLM3, no rotation in every fourth layer", smollm3, {}, F32, None, True),
    ("SmolLM3, no rotation in every second layer", smollm3, {"no_rope_layer_interval": 2, "tie_word_embeddings": False}, F32, None, False),
    ("OLMo 2", olmo2, {}, F32, None, True),
    ("Gemma 2", gemma2, {}, F32, None, False),
    ("Gemma 2, GGUF's scale", gemma2, {"query_pre_attn_scalar": 12}, F32, None, True),
    ("Gemma 2 in bfloat16", gemma2, {"query_pre_attn_scalar": 12}, BF16, None, True),
    ("Gemma 3", gemma3, {}, F32, None, False),
    ("Gemma 3, linear scaling, a softcap", gemma3, {"query_pre_attn_scalar": 12, "final_logit_softcapping": 4.0, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}}, F32, None, True),
    ("Pythia", neox, {}, F32, None, True),
    ("GPT-NeoX, sequential, tanh GELU, half of a head rotates", neox, {"use_parallel_residual": False, "hidden_act": "gelu_new", **rope("default", partial_rotary_factor=0.5)}, F32, None, True),
    ("Phi-3", phi3, {}, F32, None, True),
    ("Phi-3, a window", phi3, {"sliding_window": 9}, F32, None, False),
    ("Phi-3.5, longrope", phi3, LONGROPE, F32, None, True),
    ("Phi-3.5, longrope's short factors", phi3, SHORT_LONGROPE, F32, None, True),
    ("Phi-4-mini, tied, three quarters of a head rotate", phi3, {"tie_word_embeddings": True, **rope("default", partial_rotary_factor=0.75)}, F32, None, True),
]


def weights_of(folder):
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(file))
    return weights


def transformers_logits(folder, tokens, dtype=torch.float64):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor(tokens[None].astype(np.int64))).logits[0].numpy()


def gradients_of(folder, tokens):
    """The mean loss of the first window of training on these tokens, and a model whose weights are their gradients."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    ids, targets, _ = next(windows(tokens.tolist(), {"context": CONTEXT, "seed": 1, "packed": False}, newline=-1))
    loss = torch.nn.functional.cross_entropy(model(torch.tensor([ids])).logits[0], torch.tensor(targets))
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    return loss.item(), model.float()


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


# Architectures for which llama.cpp rotates neighbouring rows.
PAIRS = {"llama", "smollm3"}


def gguf_rows(name, weight, config):
    """The tensor as llama.cpp expects it."""
    values, kind = weight.float().numpy(), config["model_type"]
    if name.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and values.ndim == 2:
        values = values.T
    heads = {"q_proj": config.get("num_attention_heads"), "k_proj": config.get("num_key_value_heads")}.get(name.split(".")[-2])
    if heads and gguf_architecture(config) in PAIRS:
        values = permuted(values, heads)
    if name.split(".")[-2] == "query_key_value":
        values = values.reshape(config["num_attention_heads"], 3, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        values = values + np.float32(1)
    return values


def gguf_architecture(config):
    return {"mistral": "llama", "gemma3_text": "gemma3", "gpt_neox": "gptneox"}.get(config["model_type"], config["model_type"])


def check_gguf(path, weights, config):
    """Returns what is wrong."""
    reader = gguf.GGUFReader(path)
    architecture = gguf_architecture(config)
    layers = config.get("n_layer", config.get("num_hidden_layers"))
    arch = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, layers)
    tensors = {tensor.name: gguf_values(tensor).reshape(tensor.shape[::-1]) for tensor in reader.tensors}
    wrong, seen = [], {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
    for name, weight in weights.items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target not in tensors or not np.array_equal(tensors[target], gguf_rows(name, weight, config)):
            wrong.append(f"{name} is not {target}")
        seen.add(target)
    wrong += [f"{name} is of no weight" for name in tensors if name not in seen]
    field = lambda key: reader.get_field(f"{architecture}.{key}").contents()  # noqa: E731
    expected = {"block_count": layers, "context_length": CONTEXT, "embedding_length": 32}
    if reader.get_field("general.architecture").contents() != architecture:
        wrong.append("general.architecture")
    expected["attention.layer_norm_rms_epsilon" if "rms_norm_eps" in config else "attention.layer_norm_epsilon"] = np.float32(
        config.get("rms_norm_eps", config.get("layer_norm_epsilon", config.get("layer_norm_eps"))))
    if architecture not in ("gpt2", "gptneox"):
        expected["attention.head_count_kv"] = config["num_key_value_heads"]
    if architecture != "gpt2":
        parameters = config["rope_parameters"].get("full_attention", config["rope_parameters"])
        expected["rope.freq_base"] = np.float32(parameters["rope_theta"])
        head_dim = config.get("head_dim") or 8
        expected["rope.dimension_count"] = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        if head_dim != 8:
            expected["attention.key_length"] = expected["attention.value_length"] = head_dim
    wrong += [f"{key} is {field(key)}, expected {value}" for key, value in expected.items() if field(key) != value]
    return wrong


def checkpoint_tensors(folder, group):
    with h5py.File(next((folder / "checkpoints").glob("*.h5"))) as file:
        tensors = {}
        file[group].visititems(lambda name, item: tensors.update({name: np.asarray(item[()], np.float64)}) if isinstance(item, h5py.Dataset) else None)
        return tensors


def check_training(gradtile, directory, imported, tokens):
    """Compares the loss and every gradient of one step. AdamW's first moment is then a tenth of the gradient."""
    text = directory / "training.bin"
    tokens.astype("<u2").tofile(text)
    loss, gradients = gradients_of(directory / "original", tokens)
    gradients.save_pretrained(directory / "gradients")
    run(gradtile, "import", directory / "gradients", "--out", directory / "gradient_run", "--tokenizer", "none")
    run(gradtile, "train", "--init-from", imported, "--data", text, "--val-data", text, "--steps", "1", "--batch", "1", "--clip", "0", "--warmup", "0",
        "--eval-every", "0", "--device", "cpu", "--quiet", "--out", directory / "trained")
    expected = checkpoint_tensors(directory / "gradient_run", "params")
    found = checkpoint_tensors(directory / "trained", "optimizer/m")
    wrong, worst = [], 0.0
    if expected.keys() != found.keys():
        wrong.append(f"gradients of {sorted(expected.keys() ^ found.keys())}")
    for name, values in expected.items():
        difference = relative_difference(10 * found[name], values)
        worst = max(worst, difference)
        if difference > GRADIENT_BOUND:
            wrong.append(f"the gradient of {name} differs by {difference:.1e}")
    said = json.loads((directory / "trained" / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    if abs(said / loss - 1) > LOSS_BOUND:
        wrong.append(f"the loss is {said}, expected {loss}")
    return wrong, abs(said / loss - 1), worst


def check_greedy(gradtile, directory, imported):
    """Compares greedy texts, which the program makes with its cache."""
    prompt, original = "One day", directory / "original"
    model = AutoModelForCausalLM.from_pretrained(original, dtype=torch.float64, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(original)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    count = CONTEXT - ids.shape[1]
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    expected = tokenizer.decode(ids[0])
    said = run(gradtile, "sample", imported, "--prompt", prompt, "--temperature", "0", "--tokens", count, "--device", "cpu", "--ignore-eos")
    return [] if said.rstrip("\n") == expected.rstrip("\n") else [f"the greedy text is {said!r}, expected {expected!r}"]


def judge(gradtile, directory, tokens, tokenizer, case):
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
    (original / "generation_config.json").unlink()
    shutil.copy(tokenizer, original / "tokenizer.json")
    (original / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    tokens_file = directory / "tokens.bin"
    tokens[:CONTEXT].astype("<u2").tofile(tokens_file)
    run(gradtile, "import", original, "--out", imported)
    run(gradtile, "export", imported, "--format", "safetensors", "--out", exported, *(["--dtype", "f16"] if dtype == F16 else []))
    wrong = []
    before, after = weights_of(original), weights_of(exported)
    if before.keys() != after.keys() or any(a.dtype != after[n].dtype or not torch.equal(bits(a), bits(after[n])) for n, a in before.items()):
        wrong.append("the exported weights are not the original ones")
    expected = transformers_logits(original, tokens[:CONTEXT])
    # bfloat16 models are computed in float32 here: an export in float32 of the same weights.
    if dtype == BF16:
        run(gradtile, "export", imported, "--dtype", "f32", "--out", directory / "wide")
        run(gradtile, "import", directory / "wide", "--out", directory / "wide_run")
        imported = directory / "wide_run"
    difference = relative_difference(program_logits(gradtile, imported, tokens_file, directory / "logits.safetensors"), expected)
    again = relative_difference(transformers_logits(exported, tokens[:CONTEXT]), expected)
    if difference > BOUND or again > BOUND:
        wrong.append(f"logits differ by more than {BOUND}")
    training = ""
    if dtype == F32:
        found, loss, gradient = check_training(gradtile, directory, imported, tokens)
        wrong += found
        if changes is not LONGROPE:  # transformers changes the factors while the text grows
            wrong += check_greedy(gradtile, directory, imported)
        training = f", the loss by {loss:.1e}, gradients by {gradient:.1e}"
        # Without the imported config.json, export writes its own.
        run(gradtile, "export", directory / "trained", "--out", directory / "trained_export")
        config = json.loads((directory / "trained_export" / "config.json").read_text())
        if config["model_type"] != json.loads((original / "config.json").read_text())["model_type"]:
            wrong.append(f"the trained model is exported as {config['model_type']}")
    if has_gguf:
        file = directory / "model.gguf"
        run(gradtile, "export", imported, "--format", "gguf", "--out", file)
        wrong += check_gguf(file, before, json.loads((original / "config.json").read_text()))
    elif "stored" not in (said := run(gradtile, "export", imported, "--format", "gguf", "--out", directory / "no.gguf", fails=True)):
        wrong.append(f"GGUF was refused for another reason: {said}")
    print(f"{name}: logits differ by {difference:.1e} after import{training}, {again:.1e} after export{'; ' + '; '.join(wrong) if wrong else ''}", flush=True)
    return bool(wrong)


def write_llmc(path, model, bfloat16):
    """llm.c's format as its train_gpt2.py writes it: the vocabulary's matrix is padded, here with ones."""
    weights, layers = model.state_dict(), model.config.n_layer
    header, padded = np.zeros(256, "<i4"), -(-VOCABULARY // 256) * 256
    header[:8] = 20240326, 5 if bfloat16 else 3, CONTEXT, VOCABULARY, layers, model.config.n_head, model.config.n_embd, padded
    order = [weights["transformer.wte.weight"], torch.ones(padded - VOCABULARY, model.config.n_embd), weights["transformer.wpe.weight"]]
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


def main(gradtile, directory, chosen):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    text, tokenizer = directory / "text.txt", directory / "tokenizer.json"
    run(gradtile, "corpus", "--characters", "20000", "--out", text)
    run(gradtile, "tokenizer", "train", "--data", text, "--vocabulary", str(VOCABULARY), "--out", tokenizer)
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 4 * CONTEXT + 1)
    failed = False
    for number, case in enumerate(MODELS):
        if chosen not in case[0]:
            continue
        folder = directory / str(number)
        folder.mkdir()
        failed |= judge(gradtile, folder, tokens, tokenizer, case)
    for bfloat16 in (False, True) if not chosen else ():
        folder = directory / f"llmc_{bfloat16}"
        folder.mkdir()
        failed |= judge_llmc(gradtile, folder, tokens, bfloat16)
    return failed


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) == 4 else ""))
