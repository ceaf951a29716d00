// Attention in a generation step, with lengths in device memory, against float64.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/internal/decode_backend.h>

#include <support/cuda_test.h>
#include <support/environment_variable.h>
#include <support/error_message.h>
#include <support/floating_dtypes.h>

#include "decode_problem.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;

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

class DecodeOnCuda : public CudaTest {};

TEST_F(DecodeOnCuda, EqualsFloat64) {
    for (const DecodeCase& c : decode_cases)
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            if (!attention::can_decode(gpu().device(), dtype, c.dim, {.causal = true})) continue;
            expect_decode(gpu(), cpu, c, dtype);
            if (HasFailure()) return;
        }
}

/// A Hopper GPU has a kernel of its own for these calls.
TEST_F(DecodeOnCuda, CallsForWarpgroupsEqualFloat64InKernelsOfAllGpus) {
    const EnvironmentVariable off("GRADTILE_HOPPER_ATTENTION", "off");
    int calls = 0;
    for (const DecodeCase& c : decode_cases) {
        const attention::DecodeProblem problem{
            std::ssize(c.positions), c.tokens, c.heads, c.kv_heads, c.dim, c.context, DType::bf16};
        if (attention::DecodePlan::of(problem, /*has_warpgroups=*/true).kernel !=
            attention::DecodeKernel::warpgroups)
            continue;
        ++calls;
        expect_decode(gpu(), cpu, c, DType::bf16);
    }
    EXPECT_GT(calls, 0);
}

/// Thread blocks that race would give other bits in some runs. GRADTILE_TEST_ROUNDS=10000 is the long form.
TEST_F(DecodeOnCuda, RepeatedCallsGiveEqualBits) {
    const char* const text = std::getenv("GRADTILE_TEST_ROUNDS");
    const int rounds = text != nullptr ? std::max(2, std::atoi(text)) : 20;
    for (const DecodeCase& c : decode_cases) {
        const DType dtype = c.dim % 8 == 0 ? DType::bf16 : DType::f32;
        SCOPED_TRACE(concat(dtype, ", heads ", c.heads, " with ", c.dim, " elements, tokens ", c.tokens));
        const DecodeOperands x = decode_operands(gpu(), c, dtype);
        const std::int64_t texts = x.in.q.size(0);
        const Tensor y = empty(gpu(), x.in.q.shape(), dtype),
                     lse = empty(gpu(), {texts, c.heads, c.tokens}, DType::f32);
        const attention::DecodeScratch scratch(gpu(), texts, c.heads, x.cache, c.tokens);
        std::vector<std::uint64_t> first_o, first_lse;
        for (int round = 0; round < rounds; ++round) {
            attention::decode(gpu(), y, x.in, x.cache, x.options, scratch, lse);
            const std::vector<std::uint64_t> o = bits_of(to_host(gpu(), y)), l = bits_of(to_host(gpu(), lse));
            if (round == 0) {
                first_o = o;
                first_lse = l;
            }
            ASSERT_EQ(o, first_o) << "round " << round;
            ASSERT_EQ(l, first_lse) << "round " << round;
        }
    }
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
}  // namespace gradtile::test
