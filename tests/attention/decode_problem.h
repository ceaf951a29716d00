#pragma once
/// Calls of decode() with their operands, and what decode() must compute.
#include <limits>
#include <string>
#include <vector>

#include <gradtile/attention/decode.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::test {

struct DecodeCase {
    std::int64_t heads, kv_heads, dim, context;
    std::vector<std::int32_t> positions;
    std::int64_t left = -1;
    std::int64_t tokens = 1;
    double softcap = 0;
    bool alibi = false, sink = false;
};
inline const DecodeCase decode_cases[] = {
    {.heads = 4, .kv_heads = 4, .dim = 8, .context = 12, .positions = {0, 3, 11}},
    {.heads = 12, .kv_heads = 12, .dim = 64, .context = 1024, .positions = {700}},
    {.heads = 12, .kv_heads = 12, .dim = 64, .context = 1024, .positions = {1023, 0, 15, 16, 64, 65}},
    {.heads = 8, .kv_heads = 2, .dim = 128, .context = 300, .positions = {299, 1, 130}},
    {.heads = 22, .kv_heads = 2, .dim = 32, .context = 200, .positions = {199, 60}},
    {.heads = 2, .kv_heads = 1, .dim = 256, .context = 150, .positions = {149, 7}},
    {.heads = 3, .kv_heads = 3, .dim = 80, .context = 150, .positions = {100, 149}},
    {.heads = 4, .kv_heads = 2, .dim = 64, .context = 500, .positions = {499, 250, 3}, .left = 100},
    {.heads = 4, .kv_heads = 2, .dim = 64, .context = 500, .positions = {499, 20}, .left = 0, .sink = true},
    // On a Hopper GPU a short text's splits form one cluster, and a long text's splits form several. The last
    // case has heads with 4 columns.
    {.heads = 2, .kv_heads = 2, .dim = 64, .context = 1024, .positions = {127}},
    {.heads = 2, .kv_heads = 2, .dim = 64, .context = 1024, .positions = {128}},
    {.heads = 2, .kv_heads = 1, .dim = 64, .context = 9000, .positions = {8999, 4095, 4096, 5}, .sink = true},
    {.heads = 2, .kv_heads = 1, .dim = 4, .context = 1100, .positions = {1099, 2}},
    {.heads = 6,
     .kv_heads = 2,
     .dim = 64,
     .context = 400,
     .positions = {399, 90},
     .softcap = 3,
     .alibi = true,
     .sink = true},
    // Several tokens: in one thread block, in several ones, in windows that end between tokens, in one pass
    // over the keys and in many.
    {.heads = 4, .kv_heads = 4, .dim = 8, .context = 12, .positions = {0, 3, 10}, .tokens = 2},
    {.heads = 12, .kv_heads = 12, .dim = 64, .context = 1024, .positions = {1019, 0, 15, 64}, .tokens = 5},
    {.heads = 8, .kv_heads = 2, .dim = 128, .context = 300, .positions = {284, 1, 130}, .tokens = 16},
    {.heads = 22, .kv_heads = 2, .dim = 32, .context = 200, .positions = {190, 60}, .tokens = 3},
    {.heads = 2, .kv_heads = 1, .dim = 256, .context = 150, .positions = {134, 7}, .tokens = 16},
    {.heads = 4, .kv_heads = 2, .dim = 64, .context = 500, .positions = {490, 3}, .left = 2, .tokens = 10},
    {.heads = 2,
     .kv_heads = 1,
     .dim = 64,
     .context = 9000,
     .positions = {8990, 4095},
     .tokens = 9,
     .sink = true},
    // On tensor cores: 8 queries of one token, 64 queries in one thread block, 56 queries in two.
    {.heads = 16, .kv_heads = 2, .dim = 128, .context = 4096, .positions = {4095, 1000}},
    {.heads = 16,
     .kv_heads = 2,
     .dim = 64,
     .context = 3000,
     .positions = {2980, 700, 60},
     .left = 900,
     .tokens = 8},
    {.heads = 8,
     .kv_heads = 1,
     .dim = 128,
     .context = 5000,
     .positions = {4990, 511},
     .tokens = 7,
     .softcap = 3,
     .sink = true},
    {.heads = 6,
     .kv_heads = 2,
     .dim = 64,
     .context = 400,
     .positions = {396, 90},
     .left = 50,
     .tokens = 4,
     .softcap = 3,
     .alibi = true,
     .sink = true},
    // In warpgroups on a Hopper GPU, from 64 queries on: all rules, windows, head dims that fill no tile, 84
    // and 128 queries in two thread blocks, one split and several clusters. Above 64 columns, only long
    // contexts are in warpgroups.
    {.heads = 12, .kv_heads = 1, .dim = 72, .context = 22016, .positions = {693, 0, 57}, .tokens = 7},
    {.heads = 16,
     .kv_heads = 2,
     .dim = 40,
     .context = 300,
     .positions = {284, 20},
     .tokens = 16,
     .sink = true},
    {.heads = 128,
     .kv_heads = 2,
     .dim = 64,
     .context = 200,
     .positions = {199, 0, 64},
     .softcap = 3,
     .alibi = true,
     .sink = true},
    {.heads = 8,
     .kv_heads = 1,
     .dim = 128,
     .context = 22016,
     .positions = {4984, 511, 63},
     .tokens = 16,
     .softcap = 3,
     .sink = true},
    {.heads = 8,
     .kv_heads = 1,
     .dim = 128,
     .context = 22016,
     .positions = {984, 90, 3},
     .left = 70,
     .tokens = 16,
     .alibi = true},
    // Four splits in two clusters on an H200, where clusters of four would not run at once. The second text's
    // splits are in one cluster.
    {.heads = 32, .kv_heads = 32, .dim = 64, .context = 1040, .positions = {1039, 300}},
    {.heads = 32, .kv_heads = 32, .dim = 72, .context = 1040, .positions = {1038, 300}, .tokens = 2},
};

inline Tensor decode_float64(const Context& ctx, const Context& cpu, const Tensor& x) {
    return from_host(cpu, to_host(ctx, x), x.shape(), DType::f64);
}

struct DecodeOperands {
    attention::DecodeInputs in;
    attention::DecodeCache cache;
    attention::Options options;
};

inline DecodeOperands decode_operands(const Context& ctx, const DecodeCase& c, DType dtype) {
    const auto texts = std::ssize(c.positions), slots = texts + 2;
    // As in the layer, inputs are slices of one packed tensor.
    const Tensor packed = randn(ctx, {texts, c.tokens, (c.heads + 2 * c.kv_heads) * c.dim}, dtype, Seed{11});
    const auto heads = [&](std::int64_t first, std::int64_t count) {
        return packed.slice(2, first * c.dim, count * c.dim).reshape({texts, c.tokens, count, c.dim});
    };
    std::vector<std::int32_t> text_slots;
    for (std::int32_t text = 0; text < texts; ++text)
        text_slots.push_back(text == 0 ? static_cast<std::int32_t>(slots) - 1 : text);
    DecodeOperands made{.in = {.q = heads(0, c.heads),
                               .k = heads(c.heads, c.kv_heads),
                               .v = heads(c.heads + c.kv_heads, c.kv_heads),
                               .slots = from_host(ctx, text_slots, {texts}),
                               .positions = from_host(ctx, c.positions, {texts})},
                        .cache = {randn(ctx, {slots, c.context, c.kv_heads, c.dim}, dtype, Seed{12}),
                                  randn(ctx, {slots, c.context, c.kv_heads, c.dim}, dtype, Seed{13})},
                        .options = {.causal = true, .window = {.left = c.left}, .softcap = c.softcap}};
    // Keys from a text's first new position on must not be read.
    for (std::int64_t text = 0; text < texts; ++text) {
        const std::int64_t position = c.positions[static_cast<std::size_t>(text)];
        for (const Tensor* kv : {&made.cache.k, &made.cache.v})
            fill(ctx,
                 kv->slice(0, text_slots[static_cast<std::size_t>(text)], 1)
                     .slice(1, position, c.context - position),
                 std::numeric_limits<double>::quiet_NaN());
    }
    if (c.alibi) made.options.alibi_slopes = randn(ctx, {c.heads}, DType::f32, Seed{14});
    if (c.sink) made.options.sink = randn(ctx, {c.heads}, DType::f32, Seed{15});
    return made;
}

inline std::vector<std::int64_t> integers(const Context& ctx, const Tensor& x) {
    std::vector<std::int64_t> values;
    for (const double value : to_host(ctx, x)) values.push_back(static_cast<std::int64_t>(value));
    return values;
}

/// What decode() must compute: attention::forward() in float64 on the CPU, from the same rounded inputs.
struct ExactResult {
    std::vector<double> o, lse;  ///< of all texts
};
inline ExactResult exact_result(const Context& ctx, const Context& cpu, const DecodeOperands& x) {
    attention::Options options = x.options;
    options.algorithm = attention::Algorithm::naive;
    for (Tensor* t : {&options.alibi_slopes, &options.sink})
        if (t->defined()) *t = from_host(cpu, to_host(ctx, *t), t->shape(), DType::f32);
    const std::vector<std::int64_t> slots = integers(ctx, x.in.slots),
                                    positions = integers(ctx, x.in.positions);
    const std::int64_t tokens = x.in.q.size(1);
    ExactResult result;
    for (std::int64_t text = 0; text < x.in.q.size(0); ++text) {
        const auto in_64 = [&](const Tensor& t) { return decode_float64(ctx, cpu, t); };
        const std::int64_t position = positions[static_cast<std::size_t>(text)];
        const auto keys = [&](const Tensor& cached, const Tensor& added) {
            const Tensor all = empty(cpu, {1, position + tokens, added.size(2), added.size(3)}, DType::f64);
            copy(cpu, all.slice(1, 0, position),
                 in_64(cached.slice(0, slots[static_cast<std::size_t>(text)], 1).slice(1, 0, position)));
            copy(cpu, all.slice(1, position, tokens), in_64(added.slice(0, text, 1)));
            return all;
        };
        attention::Saved saved;
        const Tensor o = attention::forward(cpu, in_64(x.in.q.slice(0, text, 1)), keys(x.cache.k, x.in.k),
                                            keys(x.cache.v, x.in.v), options, saved);
        for (const double value : to_host(cpu, o)) result.o.push_back(value);
        for (const double value : to_host(cpu, saved.lse)) result.lse.push_back(value);
    }
    return result;
}

}  // namespace gradtile::test
