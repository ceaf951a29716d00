"""Judges quantized weights: bitsandbytes must compute the same codes, scales and weights.

usage: quantized_judge.py GRADTILE DIRECTORY    (scripts/judge.sh --torch calls it)

A Llama model with weights of a kind is imported, and a QLoRA run of one step starts from it, with a learning rate so small that no weight changes.
Its checkpoint has the codes. nf4: the packed codes must be those of bitsandbytes' quantize_4bit, and the mean and group scales must agree to
rounding. bitsandbytes' own dequantize_4bit, given the program's codes and scales, must return the exported weights, to the bit. The scales' codes
must be as near as those of bitsandbytes: its CPU kernel searches a table, and does not always return the nearest. int8: checked by its definition.
"""
import json
import sys
from pathlib import Path

import bitsandbytes.functional as bnb
import h5py
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from gradtile_runs import run

VOCABULARY, LAYERS = 40, 2
# width, heads, key and value heads, MLP width. The blocks of the second one are not full.
SHAPES = {"even": (192, 4, 2, 352), "odd": (20, 2, 1, 27)}


# A mean over blocks is summed in another order, and a short block of zeros has the scale 1e-38 in bitsandbytes.
def bound(offset):
    return 2.0**-20 * abs(offset) + 1e-38


def normal(shape):
    return 0.02 * torch.randn(shape)


def with_zero_rows(shape):
    weights = normal(shape)
    weights[::3] = 0
    return weights


KINDS = {
    "normal": normal,
    "uniform": torch.rand,
    "with outliers": lambda shape: torch.distributions.StudentT(2.0).sample(shape),
    "with zero rows": with_zero_rows,
    "constant": lambda shape: torch.full(shape, -0.37),
    "zero": torch.zeros,
    "huge": lambda shape: 1e30 * torch.randn(shape),
    "tiny": lambda shape: 1e-30 * torch.randn(shape),
}


def write_llama(folder, shape, make, dtype):
    width, heads, kv_heads, hidden = shape
    head = width // heads
    tensors = {"model.embed_tokens.weight": normal((VOCABULARY, width)), "lm_head.weight": normal((VOCABULARY, width)), "model.norm.weight": torch.ones(width)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, size in {"self_attn.q_proj": (heads * head, width), "self_attn.k_proj": (kv_heads * head, width), "self_attn.v_proj": (kv_heads * head, width),
                           "self_attn.o_proj": (width, heads * head), "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width),
                           "mlp.down_proj": (width, hidden)}.items():
            tensors[f"{prefix}{name}.weight"] = make(size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = torch.ones(width)
    folder.mkdir(parents=True)
    save_file({name: x.to(dtype).contiguous() for name, x in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": LAYERS,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": 16, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": str(dtype).removeprefix("torch.")}))


def matrices_of(path):
    """The blocks' matrices in a checkpoint, or their codes."""
    with h5py.File(path) as file:
        return {f"{layer}.{part}": file[f"params/h.{layer}.{part}.weight"][()] for layer in range(LAYERS)
                for part in ("attn.qkv", "attn.proj", "mlp.gate_up", "mlp.down")}


def exported_matrices(folder):
    """The same from exported files, packed as the program packs them."""
    tensors = load_file(folder / "model.safetensors")
    result = {}
    for layer in range(LAYERS):
        def packed(*names):
            return torch.cat([tensors[f"model.layers.{layer}.{name}.weight"] for name in names]).float()
        result[f"{layer}.attn.qkv"] = packed("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        result[f"{layer}.attn.proj"] = packed("self_attn.o_proj")
        result[f"{layer}.mlp.gate_up"] = packed("mlp.gate_proj", "mlp.up_proj")
        result[f"{layer}.mlp.down"] = packed("mlp.down_proj")
    return result


def checked(condition, what):
    if not condition:
        print(f"  {what}")
    return bool(condition)


def judge_nf4(name, weights, words, exported):
    """Returns whether all agrees, and the number of blocks and of scale codes that differ from those of bitsandbytes."""
    elements, blocks = weights.numel(), -(-weights.numel() // 64)
    data = words.tobytes()
    scales_at, groups_at = blocks * 32, blocks * 32 + -(-blocks // 4) * 4
    mean_at = groups_at + -(-blocks // 256) * 4
    codes = torch.frombuffer(bytearray(data[:-(-elements // 2)]), dtype=torch.uint8)
    scale_codes = torch.frombuffer(bytearray(data[scales_at : scales_at + blocks]), dtype=torch.uint8)
    groups = torch.frombuffer(bytearray(data[groups_at:mean_at]), dtype=torch.float32)
    mean = torch.frombuffer(bytearray(data[mean_at:]), dtype=torch.float32)
    expected, plain = bnb.quantize_4bit(weights, blocksize=64, quant_type="nf4", compress_statistics=False)
    _, state = bnb.quantize_4bit(weights, blocksize=64, quant_type="nf4", compress_statistics=True)
    ok = checked(len(data) == mean_at + 4, f"{name}: {len(data)} bytes; expected {mean_at + 4}")
    ok &= checked(torch.equal(codes, expected.flatten()), f"{name}: codes differ")
    offset = state.offset.item()
    ok &= checked(abs(mean.item() - offset) <= bound(offset), f"{name}: mean scale {mean.item()}; bitsandbytes' is {offset}")
    ok &= checked((groups - state.state2.absmax).abs().max() <= bound(offset), f"{name}: group scales differ")

    def errors(scale_codes, groups, mean):
        decoded = state.state2.code[scale_codes.long()] * groups.repeat_interleave(256)[:blocks]
        return (decoded - (plain.absmax - mean)).abs()

    mine, theirs = errors(scale_codes, groups, mean), errors(state.absmax, state.state2.absmax, offset)
    ok &= checked((mine <= theirs + bound(offset)).all(), f"{name}: a scale's code is not the nearest")
    different = int((scale_codes != state.absmax).sum())
    state.absmax, state.offset, state.state2.absmax = scale_codes, mean.squeeze(), groups
    # Blocks run through the matrix. The CPU kernel of bitsandbytes 0.50.2 begins a new one with each row, unlike its quantize_4bit; as one row it does
    # not.
    state.shape = torch.Size([elements])
    dequantized = bnb.dequantize_4bit(codes.reshape(expected.shape), state).reshape(weights.shape)
    # The adapters' product is at most the learning rate.
    ok &= checked((dequantized - exported).abs().max() <= 1e-38, f"{name}: weights differ")
    return ok, blocks, different


def judge_int8(name, weights, words, exported):
    blocks, flat = -(-weights.numel() // 64), np.zeros(-(-weights.numel() // 64) * 64, np.float32)
    flat[: weights.numel()] = weights.numpy().ravel()
    flat = flat.reshape(blocks, 64)
    scales = np.abs(flat).max(1, keepdims=True) / np.float32(127)
    with np.errstate(invalid="ignore"):
        codes = np.nan_to_num(np.rint(flat / scales)).astype(np.int8)
    ok = checked(words.tobytes() == codes.tobytes() + scales.astype(np.float32).tobytes(), f"{name}: codes or scales differ")
    expected = (codes.astype(np.float32) * scales).ravel()[: weights.numel()].reshape(weights.shape)
    return ok & checked(np.abs(expected - exported.numpy()).max() <= 1e-38, f"{name}: weights differ"), blocks, 0


def judge(gradtile, directory, shape, kind, dtype):
    write_llama(directory / "original", SHAPES[shape], KINDS[kind], dtype)
    run(gradtile, "import", directory / "original", "--out", directory / "base", "--tokenizer", "none")
    weights = matrices_of(next((directory / "base" / "checkpoints").glob("step_*.h5")))
    (directory / "tokens.bin").write_bytes((np.arange(2000) * 7 % VOCABULARY).astype(np.uint16).tobytes())
    failed, counts = False, {}
    for number_format, check in (("nf4", judge_nf4), ("int8", judge_int8)):
        out, exported = directory / number_format, directory / f"{number_format}_exported"
        run(gradtile, "train", "--init-from", directory / "base", "--data", directory / "tokens.bin", "--out", out, "--lora-rank", "1", "--frozen-dtype", number_format,
            "--steps", "1", "--batch", "1", "--warmup", "0", "--lr", "1e-38", "--min-lr", "1e-38", "--device", "cpu", "--quiet", "--eval-every", "0")
        run(gradtile, "export", out, "--dtype", "f32", "--out", exported)
        words, merged = matrices_of(out / "checkpoints" / "step_00000001.h5"), exported_matrices(exported)
        for name, matrix in weights.items():
            ok, blocks, different = check(f"{number_format} {name}", torch.from_numpy(matrix.astype(np.float32)), words[name], merged[name])
            failed |= not ok
            counts[number_format] = [sum(pair) for pair in zip(counts.get(number_format, (0, 0)), (blocks, different))]
    blocks, different = counts["nf4"]
    print(f"{shape} shapes, {kind} {str(dtype).removeprefix('torch.')} weights: {blocks} blocks{' DIFFER' if failed else ' as bitsandbytes has them'}; "
          f"{different} codes of scales differ, and are no farther")
    return failed


def main(gradtile, directory):
    torch.manual_seed(1)
    failed = False
    for shape in SHAPES:
        for kind in KINDS:
            for dtype in (torch.float32, torch.bfloat16) if kind == "normal" else (torch.float32,):
                failed |= judge(gradtile, directory / f"{shape} {kind} {dtype}".replace(" ", "_"), shape, kind, dtype)
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
