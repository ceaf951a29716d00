#include <gradtile/attention/decode.h>

#include <algorithm>

#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/core/internal/block_table.h>
#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention {
namespace {

bool has_decode_kernel(Device device, DType dtype, std::int64_t head_dim) {
    if (device.is_cpu()) return is_floating(dtype);
    return supports(device, dtype) && dtype != DType::f64 && head_dim <= 256 &&
           head_dim * static_cast<std::int64_t>(size_of(dtype)) % 16 == 0;
}

void check_decode(const Tensor& o, const Tensor& lse, const DecodeInputs& in, const DecodeCache& cache,
                  const Options& options, Device device) {
    check(in.q.rank() == 4 && in.k.rank() == 4 && cache.k.rank() == 4, "decode: q ", in.q, ", k ", in.k,
          ", cache ", cache.k, "; expected [R, T, Hq, D], [R, T, Hkv, D] and [blocks, block tokens, Hkv, D]");
    check_block_table("decode", cache.k, cache.table);
    const std::int64_t texts = in.q.size(0), tokens = in.q.size(1), heads = in.q.size(2), dim = in.q.size(3);
    const std::int64_t kv_heads = cache.k.size(2);
    check(tokens >= 1 && tokens <= max_decode_tokens, "decode: ", tokens,
          " new tokens per text; expected 1 to ", max_decode_tokens);
    check(cache.v.shape() == cache.k.shape() && cache.k.size(3) == dim &&
              in.k.shape() == Shape{texts, tokens, kv_heads, dim} && in.v.shape() == in.k.shape() &&
              o.shape() == in.q.shape() && kv_heads > 0 && heads % kv_heads == 0,
          "decode: o ", o, ", q ", in.q, ", k ", in.k, ", v ", in.v, ", caches ", cache.k, " and ", cache.v,
          "; shapes do not fit");
    for (const Tensor* x : {&o, &in.k, &in.v, &cache.k, &cache.v})
        check(x->dtype() == in.q.dtype() && (x->stride(-1) == 1 || dim == 1), "decode: ", *x, " for q ", in.q,
              "; expected its dtype, and heads whose elements lie side by side");
    check(in.q.stride(-1) == 1 || dim == 1, "decode: q has strides ", in.q.strides(), "; the last must be 1");
    for (const Tensor* x : {&in.slots, &in.positions})
        check(x->dtype() == DType::i32 && x->is_contiguous() && x->shape() == Shape{texts}, "decode: ", *x,
              "; expected contiguous int32 ", Shape{texts}, " for slots and positions");
    if (lse.defined())
        check(lse.dtype() == accumulator_of(in.q.dtype()) && lse.is_contiguous() &&
                  lse.shape() == Shape{texts, heads, tokens},
              "decode: lse ", lse, "; expected contiguous ", accumulator_of(in.q.dtype()), " ",
              Shape{texts, heads, tokens});
    if (device.is_cuda()) require_gpu_kernels(in.q.dtype());
    check(has_decode_kernel(device, in.q.dtype(), dim), "decode: head_dim ", dim, " in ", in.q.dtype(),
          " on ", device,
          "; expected whole 16-byte vectors of at most 256 elements, and not float64, on a GPU");
    check(options.causal, "decode: causal is not set; expected causal attention");
    refuse_unsupported("decode", Method::decode, options);
}

}  // namespace

bool can_decode(Device device, DType dtype, std::int64_t head_dim, const Options& options) {
    const std::vector<OptionState> states = option_states(options);
    return has_decode_kernel(device, dtype, head_dim) && options.causal &&
           std::ranges::none_of(states, [](const OptionState& option) {
               return option.is_set && !computes(Method::decode, option.kind);
           });
}

DecodeScratch::DecodeScratch(const Context& ctx, std::int64_t texts, std::int64_t heads,
                             const DecodeCache& cache, std::int64_t tokens) {
    check(cache.k.rank() == 4, "decode: cached k ", cache.k, "; expected [blocks, block tokens, Hkv, D]");
    std::int64_t count = 0, parts = 0;
    if (!ctx.device().is_cpu())
        for (std::int64_t some = 1; some <= texts; ++some)
            for (const bool has_warpgroups : {false, true}) {
                const DecodePlan plan =
                    DecodePlan::of(DecodeProblem::of(some, tokens, heads, cache), has_warpgroups);
                count = std::max(count, some * cache.k.size(2) * plan.query_sets);
                parts = std::max(parts, some * tokens * heads * plan.splits);
            }
    counters = zeros(ctx, {count}, DType::i32);
    o = empty(ctx, {parts, cache.k.size(3)}, DType::f32);
    sums = empty(ctx, {parts, 2}, DType::f32);
}

void decode(const Context& ctx, const Tensor& o, const DecodeInputs& in, const DecodeCache& cache,
            const Options& options, const DecodeScratch& scratch, const Tensor& lse) {
    check_decode(o, lse, in, cache, options, ctx.device());
    const Operand written[] = {{"o", o}, {"lse", lse}, {"cached k", cache.k}, {"cached v", cache.v}};
    for (const Operand& x : written)
        check_sharing(ctx, "decode", x,
                      {{"q", in.q},
                       {"k", in.k},
                       {"v", in.v},
                       {"slots", in.slots},
                       {"positions", in.positions},
                       {"table", cache.table},
                       {"alibi_slopes", options.alibi_slopes},
                       {"sink", options.sink}});
    check_sharing(ctx, "decode", written[0], {written[1], written[2], written[3]});
    check_sharing(ctx, "decode", written[1], {written[2], written[3]});
    check_sharing(ctx, "decode", written[2], {written[3]});
    if (o.elements() == 0) return;
    // Each text is a batch. All batches have a whole context's keys.
    const Tensor keys =
        in.k.slice(1, 0, 1).expand({in.k.size(0), cache.context(), in.k.size(2), in.k.size(3)});
    on_device(ctx, cpu::decode, cuda::decode, o, lse, in, cache, resolve(options, {}, in.q, keys), scratch);
}

namespace cpu {
namespace {

/// A text's rows in a cache.
struct TextRows {
    const BlockTable& blocks;
    int slot;

    int block_of(std::int64_t row) const { return blocks.block_of(slot, static_cast<int>(row)); }
    /// Calls visit(block, row in the block, begin, count) for the parts of rows [begin, end) that lie in one
    /// block each.
    template <class Visit>
    void for_each_part(const Tensor& cached, std::int64_t begin, std::int64_t end, Visit&& visit) const {
        while (begin < end) {
            const std::int64_t row = blocks.row_in_block(static_cast<int>(begin)),
                               count = std::min(end - begin, cached.size(1) - row);
            visit(block_of(begin), row, begin, count);
            begin += count;
        }
    }

    void append(const Context& ctx, const Tensor& cached, std::int64_t position, const Tensor& added) const {
        for_each_part(cached, position, position + added.size(1),
                      [&](std::int64_t block, std::int64_t row, std::int64_t begin, std::int64_t count) {
                          copy(ctx, cached.slice(0, block, 1).slice(1, row, count),
                               added.slice(1, begin - position, count));
                      });
    }
    /// Returns rows [0, end) as [1, end, H, D]: a view if their blocks are neighbours in their order, else a
    /// copy with zeros before `first`.
    Tensor all(const Context& ctx, const Tensor& cached, std::int64_t first, std::int64_t end) const {
        bool is_run = true;
        for_each_part(cached, 0, end,
                      [&](std::int64_t block, std::int64_t, std::int64_t begin, std::int64_t) {
                          is_run = is_run && block == block_of(0) + (begin >> blocks.log2_rows) &&
                                   blocks.in_cache(static_cast<int>(block));
                      });
        const std::int64_t used = ceil_div(end, cached.size(1));
        if (is_run && (used == 1 || cached.stride(0) == cached.size(1) * cached.stride(1)))
            return cached.slice(0, block_of(0), used)
                .reshape({1, used * cached.size(1), cached.size(2), cached.size(3)})
                .slice(1, 0, end);
        const Tensor copied = empty(ctx, {1, end, cached.size(2), cached.size(3)}, cached.dtype());
        fill(ctx, copied.slice(1, 0, first), 0.0);
        for_each_part(cached, first, end,
                      [&](std::int64_t block, std::int64_t row, std::int64_t begin, std::int64_t count) {
                          copy(ctx, copied.slice(1, begin, count),
                               cached.slice(0, block, 1).slice(1, row, count));
                      });
        return copied;
    }
};

}  // namespace

/// Computes one text after the other with the kernels for few queries.
void decode(const Context& ctx, const Tensor& o, const Tensor& lse, const DecodeInputs& in,
            const DecodeCache& cache, const ResolvedOptions& options, const DecodeScratch&) {
    const std::int64_t tokens = o.size(1), heads = o.size(2);
    const Tensor unused = empty(ctx, {1, heads, tokens}, accumulator_of(o.dtype())),
                 remainder = empty_like(ctx, unused);
    const BlockTable blocks(cache.k, cache.table);
    for (std::int64_t text = 0; text < o.size(0); ++text) {
        const std::int32_t slot = in.slots.data<std::int32_t>()[text];
        const std::int64_t position = in.positions.data<std::int32_t>()[text], keys = position + tokens;
        check(slot >= 0 && slot < blocks.slots && position >= 0 && keys <= cache.context(), "decode: text ",
              text, " has slot ", slot, " and position ", position, " for ", tokens,
              " new tokens; the cache is ", cache.k, " for texts of ", cache.context(), " tokens");
        ResolvedOptions text_options = options;
        text_options.mask.keys = keys;
        text_options.mask.offset = text_options.scores.offset = position;
        if (text_options.scores.alibi_slopes != nullptr)
            text_options.scores.alibi_slopes += text * text_options.scores.alibi_batch_stride;
        const std::int64_t first = text_options.mask.visible_keys({0, tokens}).begin;
        const TextRows rows{blocks, slot};
        rows.for_each_part(cache.k, first, keys,
                           [&](std::int64_t block, std::int64_t, std::int64_t begin, std::int64_t) {
                               check(blocks.in_cache(static_cast<int>(block)), "decode: text ", text,
                                     " has key ", begin, " in block ", block, "; the cache is ", cache.k);
                           });
        rows.append(ctx, cache.k, position, in.k.slice(0, text, 1));
        rows.append(ctx, cache.v, position, in.v.slice(0, text, 1));
        flash_forward(ctx, text_options,
                      {.q = in.q.slice(0, text, 1),
                       .k = rows.all(ctx, cache.k, first, keys),
                       .v = rows.all(ctx, cache.v, first, keys),
                       .o = o.slice(0, text, 1),
                       .lse = lse.defined() ? lse.slice(0, text, 1) : unused,
                       .lse_remainder = remainder});
    }
}

}  // namespace cpu
}  // namespace gradtile::attention
