// Which options decode() computes in a generation step, and how it refuses the others.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/internal/attention_backend.h>

#include <support/cuda_test.h>
#include <support/error_message.h>

#include "decode_problem.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;

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
void expect_every_option_is_computed_or_refused(const Context& ctx, const Context& cpu) {
    for_each_option(ctx, [&](const attention::OptionState& option, const DecodeOperands& x) {
        EXPECT_EQ(attention::can_decode(ctx.device(), DType::f32, decode_cases[0].dim, x.options),
                  attention::computes(attention::Method::decode, option.kind));
        if (!attention::computes(attention::Method::decode, option.kind)) {
            EXPECT_THAT(decode_error(ctx, x), HasSubstr(expected_error(x.options)));
            return;
        }
        const Tensor y = output_of(ctx, x);
        attention::decode(ctx, y, x.in, x.cache, x.options, {ctx, 3, 4, x.cache});
        const std::vector<double> expected = exact_result(ctx, cpu, x).o, values = to_host(ctx, y);
        // As in expect_decode() of decode_test.cpp.
        const double bound = 5 * 2 * 0x1p-24 * 58 * 6;
        for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], bound) << i;
    });
}

TEST(DecodeOptions, AreComputedOrRefusedByNameOnACpu) {
    const Context cpu(Device::cpu(), 1);
    expect_every_option_is_computed_or_refused(cpu, cpu);
}

class DecodeOptionsOnCuda : public CudaTest {};

TEST_F(DecodeOptionsOnCuda, AreComputedOrRefusedByName) {
    expect_every_option_is_computed_or_refused(gpu(), cpu);
}

TEST(DecodeOptions, TokenCountsAndLsesAreCheckedToo) {
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
TEST(DecodeOptions, TheSameAreRefusedForAGpu) {
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
TEST(DecodeOptions, SlopesOfAnotherShapeAreRefusedForAGpu) {
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

}  // namespace
}  // namespace gradtile::test
