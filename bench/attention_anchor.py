"""Times PyTorch's attention on one GPU and prints the lines that `gradtile bench attention --anchor` reads: median
milliseconds of forward and backward, measured with CUDA events. 16 bits: FlashAttention-2 and cuDNN; float32: the
memory-efficient kernel."""
import argparse

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from cuda_timing import median_ms

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
BACKENDS_16_BIT = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
BACKENDS_F32 = {"efficient": SDPBackend.EFFICIENT_ATTENTION}

# (batch, heads, length, head dim, causal). 16 bits: 16,384 tokens (batch x length) of width 2,048; the attention of
# GPT-2 124M; head dim 32.
CASES_16_BIT = [(16384 // s, 2048 // d, s, d, causal) for d, s, causal in [
    (64, 512, 1), (64, 1024, 0), (64, 1024, 1), (64, 2048, 1), (64, 4096, 1), (64, 16384, 0), (64, 16384, 1),
    (128, 512, 1), (128, 1024, 0), (128, 1024, 1), (128, 2048, 1), (128, 4096, 1), (128, 16384, 0), (128, 16384, 1),
    (256, 4096, 0), (256, 16384, 1)]] + [(64, 12, 1024, 64, 1), (4, 48, 4096, 32, 0), (4, 48, 4096, 32, 1)]
CASES_F32 = [(16, 16, 1024, 64, 1), (16, 16, 1024, 64, 0), (2, 12, 4096, 64, 1), (4, 12, 4096, 64, 1),
             (4, 8, 4096, 128, 1), (8, 16, 1024, 32, 1), (4, 8, 1024, 256, 1)]


def measure(backend, dtype, b, h, s, d, causal):
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    grad = torch.randn_like(q)
    with sdpa_kernel(backend):
        forward = lambda: scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
        with torch.no_grad():
            forward_ms = median_ms(forward, rounds=9, warm_up_rounds=2)
        o = forward()
        backward = lambda: torch.autograd.grad(o, (q, k, v), grad, retain_graph=True)
        return forward_ms, median_ms(backward, rounds=9, warm_up_rounds=2)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--dtype", choices=DTYPES, default="bf16")
parser.add_argument("--case", nargs="*", help="batch,heads,length,head_dim,causal")
arguments = parser.parse_args()
in_16_bit = arguments.dtype != "f32"
torch.backends.cuda.matmul.allow_tf32 = False
cases = CASES_16_BIT if in_16_bit else CASES_F32
if arguments.case:
    cases = [tuple(int(n) for n in text.split(",")) for text in arguments.case]
for case in cases:
    line = ",".join(str(n) for n in case)
    for name, backend in (BACKENDS_16_BIT if in_16_bit else BACKENDS_F32).items():
        line += " | %s %.4f %.4f" % (name, *measure(backend, DTYPES[arguments.dtype], *case))
    print(line, flush=True)
