"""Times FlexAttention (PyTorch, compiled) on one GPU with the masks of `gradtile bench attention --mask`: one sequence, 16 heads,
bfloat16. The block mask is made outside the timing. Prints median milliseconds of forward and backward, measured with CUDA events.
usage: row_ranges_anchor.py [--tokens N] [--head-dim D ...] [MASK ...]"""
import argparse

import torch
import torch._functorch.config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from cuda_timing import median_ms

HEADS = 16
torch._functorch.config.donated_buffer = False  # the backward pass is repeated


def numbers_of(lengths, device):
    """Returns the number of each token's part, for parts with these lengths."""
    return torch.repeat_interleave(torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device))


def document_lengths(tokens):
    """64, 128, .. 2048, 64, .. tokens, in all `tokens`."""
    lengths, length = [], 64
    while sum(lengths) < tokens:
        lengths.append(min(length, tokens - sum(lengths)))
        length = 64 if length == 2048 else 2 * length
    return lengths


def masks(tokens, device):
    """Returns the masks by name: functions of batch, head, row and key, as gradtile's tools/bench/named_masks.cpp has them."""
    document = numbers_of(document_lengths(tokens), device)
    prompt = tokens // 4
    answer = (tokens - prompt) // 6
    part = numbers_of([prompt] + 5 * [answer] + [tokens - prompt - 5 * answer], device)
    return {
        "causal": lambda b, h, i, j: j <= i,
        "documents": lambda b, h, i, j: (j <= i) & (document[i] == document[j]),
        "prefix": lambda b, h, i, j: (j <= i) | (j < tokens // 2),
        "shared-prompt": lambda b, h, i, j: (j <= i) & ((j < prompt) | (part[i] == part[j])),
        "window": lambda b, h, i, j: ((i - 1023 <= j) & (j <= i)) | (j < 64) | (i < 64),
    }


def measure(mask, tokens, head_dim):
    q, k, v = (torch.randn(1, HEADS, tokens, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    blocks = create_block_mask(mask, None, None, tokens, tokens, device="cuda")
    torch._dynamo.reset()
    attention = torch.compile(flex_attention)
    forward = lambda: attention(q, k, v, block_mask=blocks)
    out = forward()
    gradient = torch.randn_like(out)
    backward = lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
    return median_ms(forward, rounds=9, warm_up_rounds=3), median_ms(backward, rounds=9, warm_up_rounds=3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--head-dim", type=int, nargs="*", default=[64, 128])
    parser.add_argument("mask", nargs="*")
    arguments = parser.parse_args()
    for head_dim in arguments.head_dim:
        for name, mask in masks(arguments.tokens, "cuda").items():
            if arguments.mask and name not in arguments.mask:
                continue
            forward_ms, backward_ms = measure(mask, arguments.tokens, head_dim)
            print(f"{name}, head dim {head_dim} | FlexAttention {forward_ms:.4f} / {backward_ms:.4f} ms", flush=True)


if __name__ == "__main__":
    main()
