"""Times FlashAttention-2 of PyTorch on packed sequences, forward and backward, causal: median milliseconds, measured
with CUDA events. `gradtile bench attention --packed LENGTHS` times the same calls of gradtile."""
import argparse
import itertools

import torch

from cuda_timing import median_ms

# The 32 lengths, 16,384 tokens, of bench/results/2026-11-24-packed-h200.md.
LENGTHS = ("64,1308,962,380,171,1149,407,1027,904,340,256,438,270,84,174,803,64,64,472,157,367,305,201,2048,104,255,"
           "108,480,155,211,659,1997")


def measure(lengths, heads, kv_heads, head_dim, rounds):
    total, longest = sum(lengths), max(lengths)
    tensor = lambda h: torch.randn(total, h, head_dim, device="cuda", dtype=torch.bfloat16)
    q, k, v, grad = tensor(heads), tensor(kv_heads), tensor(kv_heads), tensor(heads)
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    sequences = (offsets, offsets, longest, longest)
    dropout, causal = 0.0, True
    forward = lambda: torch.ops.aten._flash_attention_forward(q, k, v, *sequences, dropout, causal, False)
    o, lse, state, unused = forward()[:4]
    backward = lambda: torch.ops.aten._flash_attention_backward(grad, q, k, v, o, lse, *sequences, dropout, causal,
                                                                state, unused)
    return median_ms(forward, rounds, warm_up_rounds=3), median_ms(backward, rounds, warm_up_rounds=3)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--packed", default=LENGTHS, metavar="LENGTHS", help="lengths with commas (default: 32 lengths)")
parser.add_argument("--case", nargs="*", default=["16,16,64", "16,16,128", "32,8,128"], help="heads,kv_heads,head_dim")
parser.add_argument("--rounds", type=int, default=15)
arguments = parser.parse_args()
lengths = [int(n) for n in arguments.packed.split(",")]
pairs = sum(n * n / 2 for n in lengths)  # as gradtile counts them
for case in arguments.case:
    heads, kv_heads, head_dim = (int(n) for n in case.split(","))
    forward_ms, backward_ms = measure(lengths, heads, kv_heads, head_dim, arguments.rounds)
    flops = 4 * pairs * heads * head_dim
    print("%s | flash packed: forward %.4f ms, %.1f TFLOP/s; backward %.4f ms, %.1f TFLOP/s" %
          (case, forward_ms, flops / forward_ms * 1e-9, backward_ms, 2.5 * flops / backward_ms * 1e-9), flush=True)
