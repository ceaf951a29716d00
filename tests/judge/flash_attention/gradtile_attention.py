"""gradtile's attention on PyTorch tensors, through libflash_attention_shim.so, and what both of FlashAttention's interfaces need of it."""
import ctypes
import itertools
from typing import NamedTuple

import torch

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int32]  # in the order of gradtile's DType
NAN = float("nan")  # outputs are filled with NaN, so that an element that gradtile does not write fails the test


class Refused(Exception):
    """gradtile refuses the call, or has nothing that corresponds to an argument."""


class Options(NamedTuple):
    """Options of a call, in the order of the shim's struct Call."""
    causal: bool = False
    deterministic: bool = False
    left: int = -1
    right: int = -1
    scale: float = 0.0  # 0 means 1 / sqrt(Dqk)
    softcap: float = 0.0
    dropout_p: float = 0.0
    seed: int = 0
    alibi_slopes: torch.Tensor | None = None
    cumulative_q: torch.Tensor | None = None
    cumulative_k: torch.Tensor | None = None


class View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("rank", ctypes.c_int32), ("dtype", ctypes.c_int32), ("shape", ctypes.c_int64 * 4),
                ("strides", ctypes.c_int64 * 4)]


class Call(ctypes.Structure):
    _fields_ = [("stream", ctypes.c_void_p), ("causal", ctypes.c_int32), ("deterministic", ctypes.c_int32), ("left", ctypes.c_int64),
                ("right", ctypes.c_int64), ("scale", ctypes.c_double), ("softcap", ctypes.c_double), ("dropout_p", ctypes.c_double),
                ("seed", ctypes.c_uint64), ("alibi_slopes", View), ("cumulative_q", View), ("cumulative_k", View)]


def options(softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False, **more):
    left, right = map(int, window_size)
    return Options(bool(causal), bool(deterministic), left, right, softmax_scale or 0.0, max(float(softcap), 0.0), **more)


def refuse(**arguments):
    for name, value in arguments.items():
        if value is not None:
            raise Refused(f"{name}: gradtile has no such argument")


# ---- The shim ----

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
def allocate(size):
    return torch.cuda.caching_allocator_alloc(max(size, 1))


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def release(data):
    torch.cuda.caching_allocator_delete(data)


def open_shim(path, device):
    global shim
    shim = ctypes.CDLL(str(path.resolve()))
    shim.shim_message.restype = ctypes.c_char_p
    if shim.shim_open(-1 if device == "cpu" else 0, allocate, release):
        raise RuntimeError(shim.shim_message().decode())


def view(x):
    if x is None:
        return View(rank=-1)
    if x.dtype not in DTYPES:
        raise Refused(f"gradtile has no {x.dtype}")
    return View(x.data_ptr(), x.dim(), DTYPES.index(x.dtype), tuple(x.shape), tuple(x.stride()))


def call(function, o, *tensors):
    stream = torch.cuda.current_stream().cuda_stream if tensors[-1].is_cuda else None
    arguments = Call(stream, *o[:-3], *map(view, o[-3:]))
    status = getattr(shim, "shim_" + function)(ctypes.byref(arguments), (View * len(tensors))(*map(view, tensors)))
    if status:
        raise {1: Refused, 2: torch.cuda.OutOfMemoryError, 3: RuntimeError}[status](shim.shim_message().decode())


def scaled(o, q):
    return o if o.scale else o._replace(scale=q.shape[-1] ** -0.5)


def explain(q, k, v, o=Options()):
    call("explain", scaled(o, q), q, k, v)
    return shim.shim_message().decode()


def forward(q, k, v, o):
    out = q.new_full((*q.shape[:-1], v.shape[-1]), NAN)
    lse = q.new_full((q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else (q.shape[1], q.shape[0]), NAN, dtype=torch.float32)
    for v_part, out_part in zip(v.split(256, -1), out.split(256, -1)):  # FlashAttention 3 also takes value heads of 512 elements
        call("forward", scaled(o, q), q, k, v_part, out_part, lse)
    return out, lse


def backward(d_out, d_lse, q, k, v, out, lse, d_q, d_k, d_v, o):
    for gradient in (d_q, d_k, d_v):
        gradient.fill_(NAN)
    call("backward", scaled(o, q), d_out, d_lse, q, k, v, out, lse, d_q, d_k, d_v)


def merge(parts):
    """Merges parts (o, lse) one after the other, from a result without keys on; o [B, S, H, D], lse [B, H, S]."""
    o, lse = torch.zeros_like(parts[0][0]), torch.full_like(parts[0][1], float("-inf"))
    for part in parts:
        call("merge", Options(), o, lse, o, lse, *part)
    return o, lse


class Attention(torch.autograd.Function):
    """attention(options, q, k, v), (options, q, kv) or (options, qkv): slices of packed tensors are read, and their gradients written, in place."""

    @staticmethod
    def split(tensors):
        *separate, last = tensors
        return tensors if len(tensors) == 3 else (*separate, *last.unbind(-3))

    @staticmethod
    def forward(ctx, o, *tensors):
        out, lse = forward(*Attention.split(tensors), o)
        ctx.options = o
        ctx.save_for_backward(out, lse, *tensors)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        out, lse, *tensors = ctx.saved_tensors
        gradients = [torch.empty_like(x) for x in tensors]
        d_out = torch.zeros_like(out) if d_out is None else d_out
        backward(d_out, d_lse, *Attention.split(tensors), out, lse, *Attention.split(gradients), ctx.options)
        return None, *gradients


# ---- What FlashAttention has, as packed sequences ----

def lengths(cumulative):
    offsets = cumulative.tolist()
    return [end - begin for begin, end in zip(offsets, offsets[1:])]


def chunked(rows, keys, chunk):
    """attention_chunk: the rows and keys of a chunk are a sequence; the last row and key of each have the same position."""
    if not chunk:
        return [(rows, keys)]
    before = max(rows - keys, 0)  # these rows come before the first key and see none
    first = max(keys - rows, 0)
    ends = [min(begin + chunk, keys) for begin in range(0, keys, chunk)]
    return [(before, 0)] + [(max(end - max(first, begin), 0), end - begin) for begin, end in zip(range(0, keys, chunk), ends)]


def packed(o, sequences, device):
    """Options for the sequences: a list of (rows, keys) for each batch. Unused rows, or unused keys, are a sequence without the other."""
    parts = [(*part, batch) for batch, parts in enumerate(sequences) for part in parts if any(part)] or [(0, 0, 0)]
    rows, keys, batches = zip(*parts)
    cumulative_q, cumulative_k = (torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32, device=device) for n in (rows, keys))
    slopes = o.alibi_slopes
    if slopes is not None and slopes.dim() == 2:
        slopes = slopes[list(batches)]
    return o._replace(cumulative_q=cumulative_q, cumulative_k=cumulative_k, alibi_slopes=slopes)


def batched(out, lse, batch):
    """Packed results of sequences with equal lengths, as results with a batch axis."""
    return out.unflatten(0, (batch, -1)), lse.unflatten(1, (batch, -1)).transpose(0, 1)


def with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens, slots, leftpad, o, chunk=0, cu_seqlens_q=None, cu_seqlens_k_new=None):
    """Appends k and v to the caches' slots. Calls attention::decode where it computes the same, else attention on packed sequences."""
    batch, context = k_cache.shape[0] if slots is None else len(slots), k_cache.shape[1]
    slots = torch.arange(batch, dtype=torch.int32, device=q.device) if slots is None else slots
    if not isinstance(cache_seqlens, torch.Tensor):
        cache_seqlens = torch.full((batch,), context if cache_seqlens is None else cache_seqlens, dtype=torch.int32, device=q.device)
    if (k is not None and leftpad is None and not chunk and cu_seqlens_q is None and k.shape[:2] == q.shape[:2] and k.shape == v.shape
            and (o.causal or q.shape[1] == 1) and q.shape[1] <= 16 and q.shape[-1] * q.element_size() % 16 == 0):
        if q.is_cuda:
            torch.cuda.current_stream().synchronize()  # no kernel may still write what decode reads early
        out = torch.full_like(q, NAN)
        lse = q.new_full((batch, q.shape[2], q.shape[1]), NAN, dtype=torch.float32)
        call("decode", scaled(o._replace(causal=True, right=-1), q), q, k, v, slots, cache_seqlens, k_cache, v_cache, out, lse)
        return out, lse
    used = cache_seqlens.tolist()
    if k is not None:
        split = (lambda x: x.unbind(0)) if cu_seqlens_k_new is None else (lambda x: x.split(lengths(cu_seqlens_k_new)))
        for b, (slot, new_k, new_v) in enumerate(zip(slots.tolist(), split(k), split(v))):
            begin, used[b] = used[b], used[b] + len(new_k)
            k_cache[slot, begin:used[b]], v_cache[slot, begin:used[b]] = new_k, new_v
    rows = [q.shape[1]] * batch if cu_seqlens_q is None else lengths(cu_seqlens_q)
    pads = [0] * batch if leftpad is None else leftpad.tolist()
    sequences = [[(0, pad), *chunked(n, end - pad, chunk), (0, context - end)] for n, pad, end in zip(rows, pads, used)]
    k, v = (cache[slots].flatten(0, 1) for cache in (k_cache, v_cache))
    if cu_seqlens_q is None:
        return batched(*forward(q.flatten(0, 1), k, v, packed(o, sequences, q.device)), batch)
    return forward(q, k, v, packed(o, sequences, q.device))
