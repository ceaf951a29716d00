"""FlashAttention 3's functions over gradtile. num_splits, pack_gqa, sm_margin and scheduler_metadata choose a schedule, so they have no effect."""
import gradtile_attention as gradtile
from gradtile_attention import Attention, chunked, lengths, packed


def flash_attn_func(q, k, v, *, qv=None, q_descale=None, k_descale=None, v_descale=None, attention_chunk=0, num_splits=1, pack_gqa=None,
                    sm_margin=0, return_attn_probs=False, **options):
    gradtile.refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    o = gradtile.options(**options)
    if attention_chunk:
        o = packed(o, [chunked(q.shape[1], k.shape[1], attention_chunk)] * q.shape[0], q.device)
        out, lse = gradtile.batched(*Attention.apply(o, *(x.flatten(0, 1) for x in (q, k, v))), q.shape[0])
    else:
        out, lse = Attention.apply(o, q, k, v)
    return (out, lse) if return_attn_probs else out


def used_rows(o, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, chunk=0):
    if cu_seqlens_q is None:
        return o
    rows, keys = lengths(cu_seqlens_q), lengths(cu_seqlens_k)
    used_q, used_k = (n if used is None else used.tolist() for n, used in ((rows, seqused_q), (keys, seqused_k)))
    sequences = [[*chunked(n, m, chunk), (row - n, 0), (0, key - m)] for row, key, n, m in zip(rows, keys, used_q, used_k)]
    return packed(o, sequences, cu_seqlens_q.device)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, seqused_q=None, seqused_k=None, qv=None,
                           q_descale=None, k_descale=None, v_descale=None, attention_chunk=0, num_splits=1, pack_gqa=None, sm_margin=0,
                           return_attn_probs=False, **options):
    gradtile.refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    o = used_rows(gradtile.options(**options), cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, attention_chunk)
    out, lse = Attention.apply(o, q, k, v)
    return (out, lse) if return_attn_probs else out


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q, max_seqlen_k, dq, dk, dv,
                         softmax_scale, is_causal, **options):
    o = used_rows(gradtile.options(softmax_scale, is_causal, **options), cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k)
    gradtile.backward(dout, None, *(x.detach() for x in (q, k, v, out, softmax_lse, dq, dk, dv)), o)
    return dq, dk, dv, None


def flash_attn_combine(out_partial, lse_partial, out_dtype):
    out, lse = gradtile.merge([(o, lse.transpose(1, 2)) for o, lse in zip(out_partial, lse_partial)])
    return out.to(out_dtype), lse.transpose(1, 2)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, *, qv=None, rotary_cos=None, rotary_sin=None, rotary_seqlens=None,
                            rotary_interleaved=True, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
                            cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, attention_chunk=0, scheduler_metadata=None,
                            num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False, **options):
    gradtile.refuse(qv=qv, rotary_cos=rotary_cos, rotary_sin=rotary_sin, page_table=page_table)
    out, lse = gradtile.with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, cache_leftpad, gradtile.options(**options),
                                     attention_chunk, cu_seqlens_q, cu_seqlens_k_new)
    return (out, lse) if return_softmax_lse else out


def get_scheduler_metadata(*arguments, **options):
    return None
