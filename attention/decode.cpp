#include <gradtile/attention/decode.h>

#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention {
namespace {

void check_decode(const Tensor& o, const DecodeInputs& in, const DecodeCache& cache, const Options& options,
                  Device device) {
    check(in.q.rank() == 3 && in.k.rank() == 3 && cache.k.rank() == 4, "decode: q ", in.q, ", k ", in.k,
          ", cache ", cache.k, "; expected [R, Hq, D], [R, Hkv, D] and [slots, context, Hkv, D]");
    const std::int64_t rows = in.q.size(0), heads = in.q.size(1), dim = in.q.size(2);
    const std::int64_t kv_heads = cache.k.size(2);
    check(cache.v.shape() == cache.k.shape() && cache.k.size(3) == dim &&
              in.k.shape() == Shape{rows, kv_heads, dim} && in.v.shape() == in.k.shape() &&
              o.shape() == in.q.shape() && kv_heads > 0 && heads % kv_heads == 0,
          "decode: o ", o, ", q ", in.q, ", k ", in.k, ", v ", in.v, ", caches ", cache.k, " and ", cache.v,
          "; shapes do not fit");
    for (const Tensor* x : {&o, &in.k, &in.v, &cache.k, &cache.v})
        check(x->dtype() == in.q.dtype() && (x->stride(-1) == 1 || dim == 1), "decode: ", *x, " for q ", in.q,
              "; expected its dtype, and heads whose elements lie side by side");
    check(in.q.stride(-1) == 1 || dim == 1, "decode: q has strides ", in.q.strides(), "; the last must be 1");
    for (const Tensor* x : {&in.slots, &in.positions})
        check(x->dtype() == DType::i32 && x->is_contiguous() && x->shape() == Shape{rows}, "decode: ", *x,
              "; expected contiguous int32 ", Shape{rows}, " for slots and positions");
    if (device.is_cuda()) require_gpu_kernels(in.q.dtype());
    check(can_decode(device, in.q.dtype(), dim), "decode: head_dim ", dim, " in ", in.q.dtype(), " on ",
          device, "; expected whole 16-byte vectors of at most 256 elements, and not float64, on a GPU");
    check(options.causal, "decode: causal is not set; expected causal attention");
    refuse_unsupported("decode", Method::decode, options);
}

}  // namespace

bool can_decode(Device device, DType dtype, std::int64_t head_dim) {
    if (device.is_cpu()) return is_floating(dtype);
    return supports(device, dtype) && dtype != DType::f64 && head_dim <= 256 &&
           head_dim * static_cast<std::int64_t>(size_of(dtype)) % 16 == 0;
}

DecodeScratch::DecodeScratch(const Context& ctx, std::int64_t rows, std::int64_t heads,
                             const DecodeCache& cache) {
    std::int64_t count = 0, parts = 0;
    if (!ctx.device().is_cpu())
        for (std::int64_t some = 1; some <= rows; ++some) {
            const DecodePlan plan = DecodePlan::of(some, heads, cache);
            count = some * cache.k.size(2) * plan.head_sets;
            parts = std::max(parts, some * heads * plan.splits);
        }
    counters = zeros(ctx, {count}, DType::i32);
    o = empty(ctx, {parts, cache.k.size(3)}, DType::f32);
    sums = empty(ctx, {parts, 2}, DType::f32);
}

void decode(const Context& ctx, const Tensor& o, const DecodeInputs& in, const DecodeCache& cache,
            const Options& options, const DecodeScratch& scratch) {
    check_decode(o, in, cache, options, ctx.device());
    for (const Operand& written :
         {Operand{"o", o}, Operand{"cached k", cache.k}, Operand{"cached v", cache.v}})
        check_sharing(ctx, "decode", written,
                      {{"q", in.q},
                       {"k", in.k},
                       {"v", in.v},
                       {"slots", in.slots},
                       {"positions", in.positions},
                       {"alibi_slopes", options.alibi_slopes},
                       {"sink", options.sink}});
    check_sharing(ctx, "decode", {"o", o}, {{"cached k", cache.k}, {"cached v", cache.v}});
    check_sharing(ctx, "decode", {"cached k", cache.k}, {{"cached v", cache.v}});
    if (o.elements() == 0) return;
    // Each row is a batch with one query. All batches have a whole context's keys.
    const std::int64_t rows = in.q.size(0), heads = in.q.size(1), dim = in.q.size(2);
    const Tensor queries = in.q.reshape({rows, 1, heads, dim});
    on_device(ctx, cpu::decode, cuda::decode, o, in, cache, resolve(options, {}, queries, cache.k), scratch);
}

namespace cpu {

/// Computes one row after the other with the kernels for few queries.
void decode(const Context& ctx, const Tensor& o, const DecodeInputs& in, const DecodeCache& cache,
            const ResolvedOptions& options, const DecodeScratch&) {
    const Tensor lse = empty(ctx, {1, o.size(1), 1}, accumulator_of(o.dtype())),
                 remainder = empty_like(ctx, lse);
    for (std::int64_t row = 0; row < o.size(0); ++row) {
        const std::int64_t slot = in.slots.data<std::int32_t>()[row],
                           position = in.positions.data<std::int32_t>()[row];
        check(slot >= 0 && slot < cache.k.size(0) && position >= 0 && position < cache.k.size(1),
              "decode: row ", row, " has slot ", slot, " and position ", position, "; the cache is ",
              cache.k);
        const Tensor keys = cache.k.slice(0, slot, 1).slice(1, 0, position + 1),
                     values = cache.v.slice(0, slot, 1).slice(1, 0, position + 1);
        const auto row_of = [&](const Tensor& x) {
            return x.slice(0, row, 1).expand({1, 1, x.size(1), x.size(2)});
        };
        copy(ctx, keys.slice(1, position, 1), row_of(in.k));
        copy(ctx, values.slice(1, position, 1), row_of(in.v));
        ResolvedOptions row_options = options;
        row_options.mask.keys = position + 1;
        row_options.mask.offset = row_options.scores.offset = position;
        if (row_options.scores.alibi_slopes != nullptr)
            row_options.scores.alibi_slopes += row * row_options.scores.alibi_batch_stride;
        flash_forward(ctx, row_options,
                      {.q = row_of(in.q),
                       .k = keys,
                       .v = values,
                       .o = row_of(o),
                       .lse = lse,
                       .lse_remainder = remainder});
    }
}

}  // namespace cpu
}  // namespace gradtile::attention
