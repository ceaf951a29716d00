"""Makes tests/reference/rope_frequencies.inc: the rotary frequencies that transformers' modeling_rope_utils computes in float32.

usage: pip install torch transformers==5.24.0; python tests/reference/make_rope_reference.py > tests/reference/rope_frequencies.inc
"""
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FACTORS = [1 + 0.25 * i for i in range(8)]
LONGROPE = {"short_factor": [1.0] * 4 + [1.25] * 4, "long_factor": FACTORS, "original_max_position_embeddings": 512}
YARN = {"factor": 4.0, "original_max_position_embeddings": 256}
# name, rotated columns, base, context, parameters
CASES = [
    ("linear", 16, 1e4, 1024, {"factor": 8.0}),
    ("dynamic", 16, 1e4, 1024, {"factor": 2.0}),
    ("dynamic", 64, 5e5, 4096, {"factor": 4.0}),
    ("llama3", 16, 5e5, 4096, {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}),
    ("llama3", 128, 5e5, 131072, {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    ("yarn", 16, 1e4, 1024, YARN),
    ("yarn", 64, 1e6, 131072, {"factor": 4.0, "original_max_position_embeddings": 32768, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}),
    ("yarn", 32, 1e4, 1024, YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}),
    ("yarn", 32, 1e4, 1024, YARN | {"attention_factor": 1.5}),
    ("longrope", 16, 1e4, 512, LONGROPE | {"factor": 32.0}),
    ("longrope", 16, 1e4, 1024, LONGROPE | {"factor": 2.0}),
    ("longrope", 16, 1e4, 1024, LONGROPE | {"factor": 2.0, "attention_factor": 1.25}),
]


def numbers(values):
    return "{" + ", ".join(f"{float(value):.9g}" for value in values) + "}"


def main():
    print("// Written by tests/reference/make_rope_reference.py.")
    for kind, width, base, context, parameters in CASES:
        # dynamic takes the original context from max_position_embeddings.
        original = parameters.get("original_max_position_embeddings", context // 4 if kind == "dynamic" else 0)
        config = LlamaConfig(head_dim=width, max_position_embeddings=original or context,
                             rope_parameters={"rope_type": kind, "rope_theta": base} | parameters)
        values, magnitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=context)
        get = parameters.get
        print(f"{{{width}, {base:g}, {context}, {{.kind = RopeKind::{kind}, .factor = {get('factor')}, "
              f".original_context = {original}, .low_factor = {get('low_freq_factor', 1.0)}, "
              f".high_factor = {get('high_freq_factor', 4.0)}, .beta_fast = {get('beta_fast', 32.0)}, "
              f".beta_slow = {get('beta_slow', 1.0)}, .truncate = {str(get('truncate', True)).lower()}, "
              f".attention_factor = {get('attention_factor', 0.0)}, .mscale = {get('mscale', 0.0)}, "
              f".mscale_all_dim = {get('mscale_all_dim', 0.0)}, .short_factors = {numbers(get('short_factor', []))}, "
              f".long_factors = {numbers(get('long_factor', []))}}}, {{{numbers(values)}, {magnitude:.9g}}}}},")


main()
