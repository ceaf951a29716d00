"""Times other attention kernels at the shape that the Triton tutorial measures, beside gradtile's algorithms
(`gradtile bench attention --device cuda --algorithm A`): PyTorch's memory-efficient kernel, FlashAttention-2, cuDNN,
FlexAttention (compiled), and the tutorial's own kernel if its file is given (python/tutorials/06-fused-attention.py of
github.com/triton-lang/triton; float16). Prints median milliseconds of forward and backward, measured with CUDA events.

    python3 bench/lab_anchor.py [--shape 4,48,4096,32] [--causal] [--triton 06-fused-attention.py]
"""
import argparse
import importlib.util

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from cuda_timing import median_ms

BACKENDS = {"memory-efficient": SDPBackend.EFFICIENT_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION,
            "cuDNN": SDPBackend.CUDNN_ATTENTION}


def sdpa(backend, causal):
    def attention(q, k, v):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attention


def flex(length, causal):
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cuda") if causal else None
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def triton_tutorial(path, causal):
    spec = importlib.util.spec_from_file_location("triton_tutorial", path)
    tutorial = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tutorial)
    return lambda q, k, v: tutorial.attention(q, k, v, causal, q.shape[-1] ** -0.5, False)  # without warp specialization


def measure(attention, dtype, shape):
    q, k, v = (torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        forward_ms = median_ms(lambda: attention(q, k, v), rounds=9, warm_up_rounds=3)
    out = attention(q, k, v)
    gradient = torch.randn_like(out)
    backward = lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
    return forward_ms, median_ms(backward, rounds=9, warm_up_rounds=3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="4,48,4096,32", help="batch,heads,length,head dim")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--triton", help="the tutorial's file")
    arguments = parser.parse_args()
    shape = tuple(int(n) for n in arguments.shape.split(","))

    kernels = {name: (sdpa(backend, arguments.causal), torch.bfloat16) for name, backend in BACKENDS.items()}
    kernels["FlexAttention"] = (flex(shape[2], arguments.causal), torch.bfloat16)
    if arguments.triton:
        kernels["Triton tutorial"] = (triton_tutorial(arguments.triton, arguments.causal), torch.float16)
    kernels["memory-efficient, float32"] = (sdpa(SDPBackend.EFFICIENT_ATTENTION, arguments.causal), torch.float32)
    for name, (attention, dtype) in kernels.items():
        try:
            print("%s: %.3f / %.3f ms" % (name, *measure(attention, dtype, shape)), flush=True)
        except Exception as error:  # one kernel that cannot run must not hide the others
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)


if __name__ == "__main__":
    main()
