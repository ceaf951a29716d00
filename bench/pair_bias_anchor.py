"""Times FlexAttention (PyTorch, compiled) on one GPU with the biases of AlphaFold's MSA row attention: a pair bias [H, L, L] with
a gradient, and a mask bias [N, L] without. Prints median milliseconds of forward and backward, measured with CUDA events.
usage: pair_bias_anchor.py [SEQUENCES HEADS LENGTH HEAD_DIM], for example 256 8 512 32 (the default)"""
import sys

import torch
from torch.nn.attention.flex_attention import flex_attention

from cuda_timing import median_ms

SEQUENCES, HEADS, LENGTH, HEAD_DIM = map(int, sys.argv[1:5]) if len(sys.argv) == 5 else (256, 8, 512, 32)


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def main():
    q, k, v = (random(SEQUENCES, HEADS, LENGTH, HEAD_DIM) for _ in range(3))
    pair = random(HEADS, LENGTH, LENGTH)
    mask = torch.zeros(SEQUENCES, LENGTH, device="cuda", dtype=torch.bfloat16)
    attention = torch.compile(flex_attention)

    def forward():
        return attention(q, k, v, score_mod=lambda score, b, h, i, j: score + pair[h, i, j] + mask[b, j])

    out = forward()
    gradient = torch.randn_like(out)
    forward_ms = median_ms(forward, rounds=15, warm_up_rounds=4)
    backward_ms = median_ms(lambda: torch.autograd.grad(out, (q, k, v, pair), gradient, retain_graph=True), rounds=15,
                            warm_up_rounds=4)
    print(f"FlexAttention {SEQUENCES} x {HEADS} x {LENGTH} x {HEAD_DIM}: {forward_ms:.3f} / {backward_ms:.3f} ms")


if __name__ == "__main__":
    main()
