"""Times greedy generation of GPT-2 with random weights by the library transformers on one GPU, without network, and
prints tokens per second: `generate` as it is, and with a static cache whose forward pass is compiled. The same prompt
and number of tokens as `gradtile bench generate`: half of the context each."""
import argparse
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {"124M": dict(n_layer=12, n_head=12, n_embd=768), "350M": dict(n_layer=24, n_head=16, n_embd=1024),
         "774M": dict(n_layer=36, n_head=20, n_embd=1280), "1.5B": dict(n_layer=48, n_head=25, n_embd=1600)}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def model_of(size, dtype):
    torch.manual_seed(1)
    # No token ends a text early.
    config = GPT2Config(**SIZES[size], eos_token_id=None, bos_token_id=None, pad_token_id=0)
    return GPT2LMHeadModel(config).to("cuda", dtype).eval()


def generate_seconds(model, prompt, tokens, **options):
    """Seconds of a generation, and of one whose only token is the prompt's."""
    def seconds(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count,
                                pad_token_id=0, **options)
        torch.cuda.synchronize()
        assert result.shape[1] == prompt.shape[1] + count, result.shape
        return time.perf_counter() - start
    return seconds(tokens), seconds(1)


def measure(name, model, prompt, tokens, runs, **options):
    try:
        with torch.inference_mode():
            generate_seconds(model, prompt, min(tokens, 8), **options)  # warm-up, and compilation
            times = [total - first for total, first in
                     (generate_seconds(model, prompt, tokens, **options) for _ in range(runs))]
    except Exception as error:  # a version without this option
        print("%s: not measured: %s" % (name, str(error).splitlines()[0]), flush=True)
        return
    ms = 1e3 * statistics.median(times) / (tokens - 1)
    print("%s: %.3f ms/token, %.1f tokens/s" % (name, ms, 1e3 * prompt.shape[0] / ms), flush=True)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--size", choices=SIZES, nargs="*", default=["124M", "774M"])
parser.add_argument("--dtype", choices=DTYPES, default="bf16")
parser.add_argument("--texts", type=int, default=1)
parser.add_argument("--prompt-tokens", type=int, default=512)
parser.add_argument("--tokens", type=int, default=512)
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--compile", action="store_true", help="also with the static cache and torch.compile")
arguments = parser.parse_args()
for size in arguments.size:
    model = model_of(size, DTYPES[arguments.dtype])
    prompt = torch.arange(arguments.prompt_tokens, device="cuda").repeat(arguments.texts, 1) * 7 % 50257
    line = "transformers generate, GPT-2 %s, %s, %d texts, prompt %d, %d tokens" % (
        size, arguments.dtype, arguments.texts, arguments.prompt_tokens, arguments.tokens)
    measure(line, model, prompt, arguments.tokens, arguments.runs)
    if arguments.compile:
        measure(line + ", static cache", model, prompt, arguments.tokens, arguments.runs,
                cache_implementation="static")
    del model
    torch.cuda.empty_cache()
