"""Makes tests/reference/weights: small random models of transformers, the logits that transformers computes, and one model in llm.c's format.

usage: make_weights_reference.py    (with the packages of tests/judge/torch_requirements.txt; tested with transformers 5.23.0, torch 2.15.0)
"""
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "judge"))
import weights_judge as judge  # noqa: E402

FOLDER = Path(__file__).resolve().parent / "weights"
CONTEXT, VOCABULARY = 12, 40


def finish(model, folder, tokens, **options):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and norms are 0 and 1 at first
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink()
    logits = torch.tensor(judge.transformers_logits(folder, np.array(tokens))).float()
    save_file({"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits}, FOLDER / f"{folder.name}_logits.safetensors")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    torch.manual_seed(1)
    tokens = np.random.default_rng(2).integers(0, VOCABULARY, CONTEXT).tolist()
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, n_positions=CONTEXT, vocab_size=VOCABULARY, initializer_range=0.2,
                                      bos_token_id=None, eos_token_id=None))
    finish(gpt2, FOLDER / "gpt2", tokens)
    # Files of older versions of transformers hold the causal masks as well.
    file = FOLDER / "gpt2" / "model.safetensors"
    masks = {f"transformer.h.{i}.attn.bias": torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.uint8)).view(1, 1, CONTEXT, CONTEXT) for i in range(2)}
    save_file({**load_file(file), **masks}, file, metadata={"format": "pt"})
    judge.CONTEXT, judge.VOCABULARY = CONTEXT, VOCABULARY
    judge.write_llmc(FOLDER / "llmc.bin", gpt2, bfloat16=False)

    llama = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=16, intermediate_size=24,
                 max_position_embeddings=CONTEXT, vocab_size=VOCABULARY, initializer_range=0.2, bos_token_id=None, eos_token_id=None)
    finish(LlamaForCausalLM(LlamaConfig(**llama, tie_word_embeddings=False)), FOLDER / "llama_sharded", tokens, max_shard_size="5KB")
    finish(LlamaForCausalLM(LlamaConfig(**llama, tie_word_embeddings=True, rope_theta=500.0)).bfloat16(), FOLDER / "llama_bfloat16", tokens)
    # One model of every other family, in bfloat16, and two kinds of scaled frequencies.
    small = dict(llama, num_hidden_layers=2, pad_token_id=None)
    families = {
        "llama3": (judge.llama, dict(**judge.rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                         original_max_position_embeddings=8))),
        "mistral": (judge.mistral, dict(sliding_window=5)),
        "qwen2": (judge.qwen2, dict(**judge.rope("yarn", factor=3.0, original_max_position_embeddings=8))),
        "qwen3": (judge.qwen3, dict(head_dim=6)),
        "smollm3": (judge.smollm3, dict(no_rope_layer_interval=2)),
        "olmo2": (judge.olmo2, dict()),
        "gemma2": (judge.gemma2, dict(head_dim=6, sliding_window=5)),
        "gemma3_text": (judge.gemma3, dict(head_dim=6, sliding_window=5, layer_types=["sliding_attention", "full_attention"])),
        "gpt_neox": (judge.neox, dict(hidden_size=32, intermediate_size=40)),
        "phi3": (judge.phi3, dict(original_max_position_embeddings=8, **judge.rope("longrope", short_factor=[1.0, 1.5], long_factor=[2.0, 4.0]))),
    }
    for name, (make, changes) in families.items():
        finish(make(**{**small, **changes}).bfloat16(), FOLDER / name, tokens)
    for path in FOLDER.rglob("*.*"):
        path.chmod(0o644)  # safetensors writes files for their owner only


if __name__ == "__main__":
    main()
