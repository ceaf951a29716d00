// Attention in a generation step, with lengths in device memory, against float64.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/decode.h>
#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/cuda_test.h>
#include <support/error_message.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using test::epsilon_of;
using test::message_of;
using testing::HasSubstr;

struct DecodeCase {
    std::int64_t heads, kv_heads, dim, context;
    std::vector<std::int32_t> positions;
    std::int64_t left = -1;
    std::int64_t tokens = 1;
    double softcap = 0;
    bool alibi = false, sink = false;
};
const DecodeCase decode_cases[] = {
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
};

Tensor decode_float64(const Context& ctx, const Context& cpu, const Tensor& x) {
    return from_host(cpu, to_host(ctx, x), x.shape(), DType::f64);
}

struct DecodeOperands {
    attention::DecodeInputs in;
    attention::DecodeCache cache;
    attention::Options options;
};

DecodeOperands decode_operands(const Context& ctx, const DecodeCase& c, DType dtype) {
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

std::vector<std::int64_t> integers(const Context& ctx, const Tensor& x) {
    std::vector<std::int64_t> values;
    for (const double value : to_host(ctx, x)) values.push_back(static_cast<std::int64_t>(value));
    return values;
}

/// What decode() must compute: attention::forward() in float64 on the CPU, from the same rounded inputs.
struct ExactResult {
    std::vector<double> o, lse;  ///< of all texts
};
ExactResult exact_result(const Context& ctx, const Context& cpu, const DecodeOperands& x) {
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

/// o's bound is relative to the largest |v|, because o is a weighted mean of values. Scores are up to about 6
/// and have relative errors up to 2^-24 (dim + 50). A score's absolute error is its weight's relative error,
/// and bounds the LSE's error. o is also rounded to its dtype, and on tensor cores the weights are, too: each
/// by half an epsilon.
struct DecodeBounds {
    double o, lse;
    DecodeBounds(const DecodeCase& c, DType dtype)
        : o((lse_error(c) + epsilon_of(dtype)) * 5), lse(2 * lse_error(c)) {}

  private:
    static double lse_error(const DecodeCase& c) { return 2 * 0x1p-24 * static_cast<double>(c.dim + 50) * 6; }
};

void expect_decode(const Context& ctx, const Context& cpu, const DecodeCase& c, DType dtype) {
    const DecodeOperands x = decode_operands(ctx, c, dtype);
    const Shape shape = x.in.q.shape();
    const Tensor y = empty(ctx, shape, dtype),
                 lse = empty(ctx, {shape[0], c.heads, c.tokens}, accumulator_of(dtype));
    const attention::DecodeScratch scratch(ctx, shape[0] + 1, c.heads, x.cache, c.tokens);
    const ExactResult expected = exact_result(ctx, cpu, x);
    const DecodeBounds bounds(c, dtype);
    // Calls decode() twice: the first call must leave its counters at zero for the second.
    for (int call = 0; call < 2; ++call) {
        SCOPED_TRACE(concat(dtype, ", heads ", c.heads, " with ", c.dim, " elements, context ", c.context,
                            ", tokens ", c.tokens, ", call ", call));
        fill(ctx, y, std::numeric_limits<double>::quiet_NaN());
        fill(ctx, lse, std::numeric_limits<double>::quiet_NaN());
        attention::decode(ctx, y, x.in, x.cache, x.options, scratch, call == 0 ? Tensor() : lse);
        const std::vector<double> values = to_host(ctx, y);
        for (std::size_t i = 0; i < values.size(); ++i)
            ASSERT_NEAR(values[i], expected.o[i], bounds.o) << "element " << i;
    }
    const std::vector<double> lse_values = to_host(ctx, lse);
    for (std::size_t i = 0; i < lse_values.size(); ++i)
        ASSERT_NEAR(lse_values[i], expected.lse[i], bounds.lse) << "LSE " << i;
    // The new keys and values are in the cache.
    const std::vector<std::int64_t> slots = integers(ctx, x.in.slots);
    for (std::int64_t text = 0; text < shape[0]; ++text) {
        const auto cached = [&](const Tensor& kv) {
            const auto number = static_cast<std::size_t>(text);
            return to_host(ctx, kv.slice(0, slots[number], 1).slice(1, c.positions[number], c.tokens));
        };
        EXPECT_EQ(cached(x.cache.k), to_host(ctx, x.in.k.slice(0, text, 1)));
        EXPECT_EQ(cached(x.cache.v), to_host(ctx, x.in.v.slice(0, text, 1)));
    }
}

/// A case whose context is whole blocks, so that both caches have the same one.
DecodeCase in_whole_blocks(DecodeCase c, std::int64_t block_tokens) {
    c.context = ceil_div(c.context, block_tokens) * block_tokens;
    return c;
}

/// The cache in blocks, in an order in which no two blocks are neighbours, among blocks with NaN that no text
/// has.
attention::DecodeCache in_blocks(const Context& ctx, const attention::DecodeCache& cache,
                                 std::int64_t block_tokens) {
    const std::int64_t slots = cache.k.size(0), blocks = cache.k.size(1) / block_tokens,
                       all = 2 * slots * blocks + 1;
    std::vector<std::int32_t> table;
    for (std::int64_t i = 0; i < slots * blocks; ++i)
        table.push_back(static_cast<std::int32_t>(all - 2 - 2 * i));
    const auto divided = [&](const Tensor& from) {
        const Tensor to = empty(ctx, {all, block_tokens, from.size(2), from.size(3)}, from.dtype());
        fill(ctx, to, std::numeric_limits<double>::quiet_NaN());
        for (std::int64_t i = 0; i < slots * blocks; ++i)
            copy(ctx, to.slice(0, table[static_cast<std::size_t>(i)], 1),
                 from.slice(0, i / blocks, 1).slice(1, i % blocks * block_tokens, block_tokens));
        return to;
    };
    return {divided(cache.k), divided(cache.v), from_host(ctx, table, {slots, blocks})};
}

/// All keys or values of a cache in blocks: [slots, context, Hkv, D].
std::vector<double> contiguous(const Context& ctx, const Tensor& kv, const Tensor& table) {
    std::vector<double> all;
    for (const std::int64_t block : integers(ctx, table)) {
        const std::vector<double> values = to_host(ctx, kv.slice(0, block, 1));
        all.insert(all.end(), values.begin(), values.end());
    }
    return all;
}

/// Bits, so that NaN equals NaN.
std::vector<std::uint64_t> bits_of(const std::vector<double>& values) {
    std::vector<std::uint64_t> bits;
    for (const double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
    return bits;
}

/// In a window, blocks before the first key that a token sees need not exist.
void forget_unseen_blocks(const Context& ctx, const DecodeCase& c, const DecodeOperands& x,
                          std::int64_t block_tokens) {
    if (c.left < 0) return;
    const std::vector<std::int64_t> slots = integers(ctx, x.in.slots);
    for (std::size_t text = 0; text < slots.size(); ++text)
        if (const std::int64_t unseen = (c.positions[text] - c.left) / block_tokens; unseen > 0)
            copy(
                ctx, x.cache.table.slice(0, slots[text], 1).slice(1, 0, unseen),
                from_host(ctx, std::vector<std::int32_t>(static_cast<std::size_t>(unseen), -1), {1, unseen}));
}

/// Keys in blocks give the bits of contiguous keys, and the float64 result.
void expect_bits_of_contiguous_keys(const Context& ctx, const Context& cpu, const DecodeCase& made_of,
                                    DType dtype, std::int64_t block_tokens) {
    const DecodeCase c = in_whole_blocks(made_of, block_tokens);
    SCOPED_TRACE(concat(dtype, ", heads ", c.heads, " with ", c.dim, " elements, context ", c.context,
                        ", tokens ", c.tokens, ", blocks of ", block_tokens));
    DecodeOperands x = decode_operands(ctx, c, dtype);
    const std::int64_t texts = x.in.q.size(0);
    // In one dtype, because a reference in float64 takes most of the test's time.
    const ExactResult expected = dtype == DType::f32 ? exact_result(ctx, cpu, x) : ExactResult{};
    const attention::DecodeScratch scratch(ctx, texts, c.heads, x.cache, c.tokens);
    struct Results {
        std::vector<double> o, lse;
    };
    const auto decoded = [&](const DecodeOperands& operands) {
        const Tensor y = empty(ctx, operands.in.q.shape(), dtype),
                     lse = empty(ctx, {texts, c.heads, c.tokens}, accumulator_of(dtype));
        attention::decode(ctx, y, operands.in, operands.cache, operands.options, scratch, lse);
        return Results{to_host(ctx, y), to_host(ctx, lse)};
    };
    DecodeOperands paged = x;
    paged.cache = in_blocks(ctx, x.cache, block_tokens);
    const Tensor whole_table = empty_like(ctx, paged.cache.table);
    copy(ctx, whole_table, paged.cache.table);
    forget_unseen_blocks(ctx, c, paged, block_tokens);
    const Results in_blocks = decoded(paged), in_order = decoded(x);
    EXPECT_EQ(bits_of(in_blocks.o), bits_of(in_order.o));
    EXPECT_EQ(bits_of(in_blocks.lse), bits_of(in_order.lse));
    EXPECT_EQ(bits_of(contiguous(ctx, paged.cache.k, whole_table)), bits_of(to_host(ctx, x.cache.k)));
    EXPECT_EQ(bits_of(contiguous(ctx, paged.cache.v, whole_table)), bits_of(to_host(ctx, x.cache.v)));
    const DecodeBounds bounds(c, dtype);
    for (std::size_t i = 0; i < expected.o.size(); ++i)
        ASSERT_NEAR(in_blocks.o[i], expected.o[i], bounds.o) << "element " << i;
}

TEST(Decode, KeysInBlocksGiveTheBitsOfContiguousKeysOnACpu) {
    const Context cpu(Device::cpu(), 2);
    // Longer contexts only take other paths on GPUs. The CPU divides keys from 512 on.
    constexpr std::int64_t longest_context = 1100;
    for (const DecodeCase& c : decode_cases)
        for (const DType dtype : {DType::f32, DType::bf16}) {
            if (c.context > longest_context) continue;
            expect_bits_of_contiguous_keys(cpu, cpu, c, dtype, dtype == DType::f32 ? 64 : 16);
        }
    for (const DType dtype : {DType::f16, DType::f64})
        expect_bits_of_contiguous_keys(cpu, cpu, decode_cases[3], dtype, 16);
}

/// Two texts in blocks of 16 tokens. Text 1 has 18 tokens and gets 3 more, so that all are in its block 1.
DecodeOperands operands_in_blocks(const Context& ctx, DType dtype = DType::f32) {
    DecodeOperands x = decode_operands(
        ctx, {.heads = 2, .kv_heads = 1, .dim = 8, .context = 64, .positions = {5, 18}, .tokens = 3}, dtype);
    x.cache = in_blocks(ctx, x.cache, 16);
    return x;
}
/// Changes an entry of the table. decode_operands() gives text 1 the slot 1.
void set_entry(const Context& ctx, const DecodeOperands& x, std::int64_t block, std::int32_t value) {
    copy(ctx, x.cache.table.slice(0, 1, 1).slice(1, block, 1),
         from_host(ctx, std::vector<std::int32_t>{value}, {1, 1}));
}

TEST(Decode, RefusesBlocksOutsideTheCacheOnACpu) {
    const Context cpu(Device::cpu(), 1);
    const auto error = [&](std::int64_t block, std::int32_t value) {
        const DecodeOperands x = operands_in_blocks(cpu);
        set_entry(cpu, x, block, value);
        return message_of([&] {
            attention::decode(cpu, empty(cpu, x.in.q.shape(), DType::f32), x.in, x.cache, x.options,
                              {cpu, 2, 2, x.cache, 3});
        });
    };
    EXPECT_THAT(error(1, -1), HasSubstr("text 1 has key 16 in block -1; the cache is [33, 16, 1, 8]"));
    EXPECT_THAT(error(1, 33), HasSubstr("text 1 has key 16 in block 33"));
    EXPECT_THAT(error(0, -1), HasSubstr("text 1 has key 0 in block -1"));
    EXPECT_EQ(error(2, -1), "no error");
}

TEST(Decode, RefusesTablesThatItDoesNotTake) {
    const Context cpu(Device::cpu(), 1);
    const auto error = [&](const Shape& keys, const Tensor& table) {
        DecodeOperands x = operands_in_blocks(cpu);
        x.cache = {zeros(cpu, keys, DType::f32), zeros(cpu, keys, DType::f32), table};
        return message_of([&] {
            attention::decode(cpu, empty(cpu, x.in.q.shape(), DType::f32), x.in, x.cache, x.options,
                              {cpu, 2, 2, x.cache, 3});
        });
    };
    const Shape keys{4, 32, 1, 8};
    EXPECT_EQ(error(keys, zeros(cpu, {4, 1}, DType::i32)), "no error");
    EXPECT_THAT(error(keys, zeros(cpu, {4, 1}, DType::f32)), HasSubstr("expected contiguous int32 [slots, "));
    EXPECT_THAT(error(keys, zeros(cpu, {4}, DType::i32)), HasSubstr("expected contiguous int32 [slots, "));
    EXPECT_THAT(error(keys, zeros(cpu, {4, 3}, DType::i32).slice(1, 0, 2)),
                HasSubstr("expected contiguous int32 [slots, "));
    for (const std::int64_t rows : {8, 24})
        EXPECT_THAT(error({4, rows, 1, 8}, zeros(cpu, {4, 1}, DType::i32)),
                    HasSubstr(concat("a table for blocks of ", rows,
                                     " rows; expected a power of two of at least 16")));
}

TEST(Decode, EqualsFloat64OnACpu) {
    const Context cpu(Device::cpu(), 2);
    for (const DecodeCase& c : decode_cases)
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) expect_decode(cpu, cpu, c, dtype);
}

TEST(Decode, RefusesPlacesOutsideTheCacheOnACpu) {
    const Context cpu(Device::cpu(), 1);
    DecodeOperands x = decode_operands(cpu, decode_cases[0], DType::f32);
    const Tensor y = empty(cpu, x.in.q.shape(), DType::f32);
    const attention::DecodeScratch scratch(cpu, 3, 4, x.cache);
    x.in.positions.data<std::int32_t>()[1] = 12;
    EXPECT_THAT(message_of([&] { attention::decode(cpu, y, x.in, x.cache, x.options, scratch); }),
                HasSubstr("text 1 has slot 1 and position 12 for 1 new tokens"));
    x.options.causal = false;
    EXPECT_THAT(message_of([&] { attention::decode(cpu, y, x.in, x.cache, x.options, scratch); }),
                HasSubstr("expected causal attention"));
}

/// Sets an Options field to a value that changes the result, or, for the options that never change it, to a
/// non-default value. `heads` is the query head count.
struct OptionChange {
    std::string_view name;
    void (*set)(const Context& ctx, attention::Options& options, std::int64_t heads);
};
constexpr OptionChange option_changes[] = {
    {"algorithm", [](const Context&, attention::Options& o,
                     std::int64_t) { o.algorithm = attention::Algorithm::memory_efficient; }},
    {"scale", [](const Context&, attention::Options& o, std::int64_t) { o.scale = 0.7; }},
    {"causal", [](const Context&, attention::Options& o, std::int64_t) { o.causal = true; }},
    {"window", [](const Context&, attention::Options& o, std::int64_t) { o.window.left = 2; }},
    {"top_left", [](const Context&, attention::Options& o, std::int64_t) { o.top_left = true; }},
    {"deterministic", [](const Context&, attention::Options& o, std::int64_t) { o.deterministic = true; }},
    {"kernels", [](const Context&, attention::Options& o, std::int64_t) { o.kernels.splits = 1; }},
    {"row_ranges",
     [](const Context& ctx, attention::Options& o, std::int64_t) {
         o.row_ranges = zeros(ctx, {1, 1, 16, 4}, DType::i32);
     }},
    {"softcap", [](const Context&, attention::Options& o, std::int64_t) { o.softcap = 0.5; }},
    {"alibi_slopes", [](const Context& ctx, attention::Options& o,
                        std::int64_t heads) { o.alibi_slopes = randn(ctx, {heads}, DType::f32, Seed{14}); }},
    {"biases",
     [](const Context& ctx, attention::Options& o, std::int64_t heads) {
         o.biases[1] = randn(ctx, {1, heads, 1, 1}, DType::f32, Seed{15});
     }},
    {"batch_divisor",
     [](const Context& ctx, attention::Options& o, std::int64_t heads) {
         o.biases[0] = randn(ctx, {1, heads, 1, 1}, DType::f32, Seed{15});
         o.batch_divisor = 3;
     }},
    {"sink", [](const Context& ctx, attention::Options& o,
                std::int64_t heads) { o.sink = randn(ctx, {heads}, DType::f32, Seed{16}); }},
    {"dropout_p",
     [](const Context&, attention::Options& o, std::int64_t) {
         o.dropout_p = 0.5;
         o.dropout_key = DropoutKey::from_step(1, 1);
     }},
    {"dropout_key",
     [](const Context&, attention::Options& o, std::int64_t) {
         o.dropout_p = 0.5;
         o.dropout_key = DropoutKey::from_step(1, 2);
     }},
    {"cumulative_q", [](const Context& ctx, attention::Options& o,
                        std::int64_t) { o.cumulative_q = zeros(ctx, {2}, DType::i32); }},
    {"cumulative_k", [](const Context& ctx, attention::Options& o,
                        std::int64_t) { o.cumulative_k = zeros(ctx, {2}, DType::i32); }},
};

/// Calls check(state, operands) for every Options field, with operands in which the field is set.
template <class Check>
void for_each_option(const Context& ctx, Check&& check_option) {
    for (const attention::OptionState& option : attention::option_states({})) {
        SCOPED_TRACE(option.name);
        const auto* const change = std::ranges::find(option_changes, option.name, &OptionChange::name);
        ASSERT_NE(change, std::end(option_changes)) << "the test has no value of the option";
        DecodeOperands x = decode_operands(ctx, decode_cases[0], DType::f32);
        change->set(ctx, x.options, decode_cases[0].heads);
        bool is_set = false;
        for (const attention::OptionState& state : attention::option_states(x.options))
            is_set = is_set || (state.name == option.name && state.is_set);
        EXPECT_TRUE(is_set);
        check_option(option, x);
    }
}

/// The error that decode() must throw for these options; "no error" if it computes them.
std::string expected_error(const attention::Options& options) {
    for (const attention::OptionState& state : attention::option_states(options))
        if (state.is_set && !attention::computes(attention::Method::decode, state.kind))
            return concat("decode: ", state.name, " is set");
    return "no error";
}

Tensor output_of(const Context& ctx, const DecodeOperands& x) {
    return empty(ctx, x.in.q.shape(), DType::f32);
}
std::string decode_error(const Context& ctx, const DecodeOperands& x) {
    const attention::DecodeScratch scratch(ctx, x.in.q.size(0), x.in.q.size(2), x.cache);
    return message_of([&] { attention::decode(ctx, output_of(ctx, x), x.in, x.cache, x.options, scratch); });
}

/// An option that is set has the effect that it has in forward(), in float64, or is refused.
TEST(Decode, ComputesEveryOptionOrRefusesItByNameOnACpu) {
    const Context cpu(Device::cpu(), 1);
    for_each_option(cpu, [&](const attention::OptionState& option, const DecodeOperands& x) {
        EXPECT_EQ(attention::can_decode(cpu.device(), DType::f32, decode_cases[0].dim, x.options),
                  attention::computes(attention::Method::decode, option.kind));
        if (!attention::computes(attention::Method::decode, option.kind)) {
            EXPECT_THAT(decode_error(cpu, x), HasSubstr(expected_error(x.options)));
            return;
        }
        const Tensor y = output_of(cpu, x);
        attention::decode(cpu, y, x.in, x.cache, x.options, {cpu, 3, 4, x.cache});
        const std::vector<double> expected = exact_result(cpu, cpu, x).o, values = to_host(cpu, y);
        // As in expect_decode().
        const double bound = 5 * 2 * 0x1p-24 * 58 * 6;
        for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], bound) << i;
    });
}

TEST(Decode, RefusesTokenCountsAndLsesThatItDoesNotTake) {
    const Context cpu(Device::cpu(), 1);
    const auto error = [&](std::int64_t tokens, const Tensor& lse) {
        const DecodeOperands x = decode_operands(
            cpu, {.heads = 2, .kv_heads = 1, .dim = 8, .context = 40, .positions = {3}, .tokens = tokens},
            DType::f32);
        return message_of([&] {
            attention::decode(cpu, output_of(cpu, x), x.in, x.cache, x.options, {cpu, 1, 2, x.cache, tokens},
                              lse);
        });
    };
    EXPECT_EQ(error(16, empty(cpu, {1, 2, 16}, DType::f32)), "no error");
    EXPECT_THAT(error(17, {}), HasSubstr("17 new tokens per text; expected 1 to 16"));
    EXPECT_THAT(error(2, empty(cpu, {1, 2, 3}, DType::f32)),
                HasSubstr("lse [1, 2, 3] float32 on cpu; expected contiguous"));
    EXPECT_THAT(error(2, empty(cpu, {1, 2, 2}, DType::f64)), HasSubstr("expected contiguous float32"));
}

/// The same options are refused for a GPU, before a kernel is launched.
TEST(Decode, RefusesTheSameOptionsForAGpu) {
    const Context plan = Context(Device::cpu(), 1).plan(Arena::for_planning(Device::cuda(0)));
    const Context cpu(Device::cpu(), 1);
    for_each_option(cpu, [&](const attention::OptionState& option, const DecodeOperands& on_cpu) {
        DecodeOperands x = on_cpu;
        const auto on_gpu = [&](Tensor& t) {
            if (t.defined()) t = empty(plan, t.shape(), t.dtype());
        };
        for (Tensor* t : {&x.in.q, &x.in.k, &x.in.v, &x.in.slots, &x.in.positions, &x.cache.k, &x.cache.v,
                          &x.options.alibi_slopes, &x.options.sink, &x.options.biases[0],
                          &x.options.biases[1], &x.options.cumulative_q, &x.options.cumulative_k})
            on_gpu(*t);
        EXPECT_EQ(expected_error(x.options) == "no error",
                  attention::computes(attention::Method::decode, option.kind));
        EXPECT_THAT(decode_error(plan, x), HasSubstr(expected_error(x.options)));
    });
}

/// decode() checks options as forward() does.
TEST(Decode, RefusesSlopesOfAnotherShapeForAGpu) {
    const Context plan = Context(Device::cpu(), 1).plan(Arena::for_planning(Device::cuda(0)));
    DecodeOperands x{
        .in = {.q = empty(plan, {3, 1, 4, 8}, DType::f32),
               .k = empty(plan, {3, 1, 4, 8}, DType::f32),
               .v = empty(plan, {3, 1, 4, 8}, DType::f32),
               .slots = empty(plan, {3}, DType::i32),
               .positions = empty(plan, {3}, DType::i32)},
        .cache = {empty(plan, {5, 12, 4, 8}, DType::f32), empty(plan, {5, 12, 4, 8}, DType::f32)},
        .options = {.causal = true}};
    EXPECT_EQ(decode_error(plan, x), "no error");
    x.options.alibi_slopes = empty(plan, {3}, DType::f32);
    EXPECT_THAT(decode_error(plan, x), HasSubstr("alibi_slopes is [3] float32"));
}

class DecodeOnCuda : public test::CudaTest {};

TEST_F(DecodeOnCuda, EqualsFloat64) {
    for (const DecodeCase& c : decode_cases)
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            if (!attention::can_decode(gpu().device(), dtype, c.dim, {.causal = true})) continue;
            expect_decode(gpu(), cpu, c, dtype);
            if (HasFailure()) return;
        }
}

/// Every option that is computed has the effect that it has in forward().
TEST_F(DecodeOnCuda, ComputesEveryOptionOrRefusesItByName) {
    for_each_option(gpu(), [&](const attention::OptionState& option, const DecodeOperands& x) {
        if (!attention::computes(attention::Method::decode, option.kind)) {
            EXPECT_THAT(decode_error(gpu(), x), HasSubstr(expected_error(x.options)));
            return;
        }
        const Tensor y = output_of(gpu(), x);
        attention::decode(gpu(), y, x.in, x.cache, x.options, {gpu(), 3, 4, x.cache});
        const std::vector<double> expected = exact_result(gpu(), cpu, x).o, values = to_host(gpu(), y);
        // As in expect_decode().
        const double bound = 5 * 2 * 0x1p-24 * 58 * 6;
        for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], bound) << i;
    });
}

TEST_F(DecodeOnCuda, KeysInBlocksGiveTheBitsOfContiguousKeys) {
    for (const DecodeCase& c : decode_cases)
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            if (!attention::can_decode(gpu().device(), dtype, c.dim, {.causal = true})) continue;
            for (const std::int64_t block_tokens : {16, 64, 1024})
                expect_bits_of_contiguous_keys(gpu(), cpu, c, dtype, block_tokens);
            if (HasFailure()) return;
        }
}

/// Text 0 is complete. Without a block for new keys, the cache stays as it is.
TEST_F(DecodeOnCuda, ABlockOutsideTheCacheGivesNaN) {
    for (const DType dtype : {DType::f32, DType::bf16})
        for (const std::int64_t block : {0, 1})
            for (const std::int32_t value : {-1, 33}) {
                SCOPED_TRACE(concat(dtype, ", block ", block, ", entry ", value));
                const DecodeOperands x = operands_in_blocks(gpu(), dtype);
                const Tensor y = empty(gpu(), x.in.q.shape(), dtype);
                const attention::DecodeScratch scratch(gpu(), 2, 2, x.cache, 3);
                const std::vector<double> before = to_host(gpu(), x.cache.k);
                set_entry(gpu(), x, block, value);
                fill(gpu(), y, 0.0);  // the last kernel before decode() writes neither cache nor table
                attention::decode(gpu(), y, x.in, x.cache, x.options, scratch);
                const std::vector<double> values = to_host(gpu(), y);
                for (std::size_t i = 0; i < values.size(); ++i)
                    EXPECT_EQ(std::isnan(values[i]), i >= values.size() / 2) << i;
                if (block == 0) continue;
                const std::vector<std::int64_t> table = integers(gpu(), x.cache.table);
                std::vector<double> after = to_host(gpu(), x.cache.k);
                // Text 0, in the last slot, has its new keys.
                const std::int64_t elements = 16 * 8, own = table[3 * 4];
                for (std::int64_t i = own * elements; i < (own + 1) * elements; ++i)
                    after[static_cast<std::size_t>(i)] = before[static_cast<std::size_t>(i)];
                EXPECT_EQ(bits_of(after), bits_of(before));
            }
}

TEST_F(DecodeOnCuda, APositionOutsideTheCacheGivesNaN) {
    for (const std::int64_t tokens : {1, 2}) {
        DecodeCase c = decode_cases[0];
        c.tokens = tokens;
        c.positions = {2, 3, 4};
        DecodeOperands x = decode_operands(gpu(), c, DType::f32);
        x.in.positions =
            from_host(gpu(), std::vector<std::int32_t>{2, static_cast<std::int32_t>(13 - tokens), -1}, {3});
        fill(gpu(), x.cache.k, 1.0);
        fill(gpu(), x.cache.v, 1.0);
        const Tensor y = empty(gpu(), x.in.q.shape(), DType::f32);
        const attention::DecodeScratch scratch(gpu(), 3, 4, x.cache, tokens);
        fill(gpu(), y, 0.0);  // the last kernel before decode() writes neither cache nor positions
        attention::decode(gpu(), y, x.in, x.cache, x.options, scratch);
        const std::vector<double> values = to_host(gpu(), y);
        for (std::size_t i = 0; i < values.size(); ++i)
            EXPECT_EQ(std::isnan(values[i]), i >= values.size() / 3) << i;
        EXPECT_THAT(to_host(gpu(), x.cache.k.slice(0, 1, 2)), testing::Each(1.0));
    }
}

}  // namespace
}  // namespace gradtile
