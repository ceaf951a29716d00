"""PyTorch's FlashAttention-2 and cuDNN attention on one GPU, in the lines attention_anchor_bench --anchor reads.
bf16 by default; TFLOP/s forward and backward, medians over CUDA events."""
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def median_ms(work, rounds):
    times = []
    for i in range(-2, rounds):  # two warm up
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if i >= 0:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


dtype = torch.float16 if "f16" in sys.argv[1:] else torch.bfloat16
lines = [(64, 512, True), (64, 1024, False), (64, 1024, True), (64, 2048, True), (64, 4096, True),
         (64, 16384, False), (64, 16384, True), (128, 512, True), (128, 1024, False), (128, 1024, True),
         (128, 2048, True), (128, 4096, True), (128, 16384, False), (128, 16384, True), (256, 4096, False),
         (256, 16384, True)]
cases = [(16384 // s, 2048 // d, s, d, causal) for d, s, causal in lines]
cases += [(64, 12, 1024, 64, True), (4, 48, 4096, 32, False), (4, 48, 4096, 32, True)]
for b, h, s, d, causal in cases:
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    grad = torch.randn_like(q)
    flops = 4 * b * h * s * s * d * (0.5 if causal else 1)
    text = f"D{d} S{s} {'causal' if causal else 'full'} B{b} H{h}"
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        with sdpa_kernel(backend):
            forward = lambda: scaled_dot_product_attention(q, k, v, is_causal=causal)
            with torch.no_grad():
                forward_ms = median_ms(forward, 9)
            o = forward()
            backward_ms = median_ms(lambda: torch.autograd.grad(o, (q, k, v), grad, retain_graph=True), 9)
        text += f" | {name} {flops / forward_ms / 1e9:.0f} {2.5 * flops / backward_ms / 1e9:.0f}"
    print(text, flush=True)
