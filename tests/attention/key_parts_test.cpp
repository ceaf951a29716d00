// Tests attention with few queries and many keys on the CPU: the division of the keys into parts, and the
// merged results.
#include <gradtile/attention/cpu/key_parts.h>

#include <gmock/gmock.h>

#include <support/sanitized.h>

#include "every_kernel.h"
#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

using cpu::divide_keys;
using cpu::KeyParts;

/// Lengths near the borders of parts. A part has at least 1,024 keys before its length is rounded up to a
/// multiple of 256.
constexpr std::int64_t divided_lengths[] = {1025, 1279, 1280, 1281, 2047, 2048, 2049, 2305, 4100};

TEST(KeyParts, HoldEveryVisibleKeyOnce) {
    for (const std::int64_t keys : {1025, 1281, 2047, 2048, 2049, 65536, 65537, 131072})
        for (const std::int64_t left : {-1, 0, 1500, 5000})
            for (const std::int64_t tasks : {1, 2, 5, 31, 32, 63}) {
                const Mask mask{.queries = 2, .keys = keys, .offset = keys - 2, .left = left, .right = 0};
                const KeyParts parts = divide_keys(mask, tasks);
                if (!parts.divided()) continue;
                SCOPED_TRACE(::testing::Message() << keys << ' ' << left << ' ' << tasks);
                const IndexRange visible = mask.visible_keys({0, 2});
                EXPECT_LE(parts.part(0).begin, visible.begin);
                EXPECT_GT(parts.part(0).end, visible.begin);
                for (std::int64_t i = 0; i < parts.count; ++i) {
                    EXPECT_EQ(parts.part(i).begin % 256, 0);
                    EXPECT_GT(parts.part(i).end, parts.part(i).begin);
                    EXPECT_EQ(parts.part(i).begin, i == 0 ? parts.begin : parts.part(i - 1).end);
                }
                EXPECT_EQ(parts.part(parts.count - 1).end, visible.end);
                EXPECT_LE(parts.count, KeyParts::max_count);
            }
}
TEST(KeyParts, OfOneHeadKeepEveryThreadBusy) {
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 1025}, 1).count, 2);
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 65536}, 1).count, 64);
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 131072}, 1).count, 64);
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 65536}, 8).count, 8);
    // The keys that a window hides are in no part.
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 65536, .offset = 65535, .left = 4095}, 1).count, 4);
}
TEST(KeyParts, LeaveCallsWithEnoughTasksManyQueriesOrFewKeysWhole) {
    EXPECT_TRUE(divide_keys({.queries = 64, .keys = 65536}, 2).divided());
    EXPECT_FALSE(divide_keys({.queries = 65, .keys = 65536}, 2).divided());
    EXPECT_FALSE(divide_keys({.queries = 1, .keys = 65536}, 64).divided());
    EXPECT_FALSE(divide_keys({.queries = 1, .keys = 1024}, 1).divided());
    EXPECT_FALSE(divide_keys({.queries = 1, .keys = 65536, .offset = 65535, .left = 500}, 1).divided());
    EXPECT_FALSE(divide_keys({.queries = 0, .keys = 65536}, 0).divided());
    EXPECT_FALSE(divide_keys({.queries = 3, .keys = 0}, 3).divided());
}

class DividedKeys : public testing::TestWithParam<DType> {
  protected:
    /// Every kernel against float64. dO is multiplied by `gradient`.
    void expect_accurate_parts(const Problem& problem, double gradient = 1.0) const {
        const Context ctx(Device::cpu(), 2);
        SCOPED_TRACE(::testing::Message() << problem);
        const Inputs in = random_inputs(ctx, problem, GetParam());
        axpy(ctx, in.d_o, gradient - 1.0, in.d_o);
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(GetParam(), ctx.device()));
        const Result naive = run(ctx, in, problem.options(Algorithm::naive));
        for_every_kernel(GetParam(), [&] {
            EXPECT_THAT(explain_forward(ctx, in.q, in.k, in.v, problem.options()),
                        ::testing::HasSubstr("merged by their LSE"));
            expect_accurate(GetParam(), naive, run(ctx, in, problem.options()), reference);
        });
    }
};
INSTANTIATE_TEST_SUITE_P(Attention, DividedKeys, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(DividedKeys, AreAsAccurateAsNaiveAtAnyLength) {
    for (const std::int64_t keys : divided_lengths)
        for (const std::int64_t queries : {1, 3, 64})
            expect_accurate_parts({.queries = queries,
                                   .keys = keys,
                                   .d_qk = 16,
                                   .d_v = 24,
                                   .causal = queries > 1,
                                   .heads = 2,
                                   .key_heads = 1});
}
TEST_P(DividedKeys, AreAsAccurateAsNaiveUnderEveryOption) {
    const Problem base{
        .queries = 6, .keys = 2900, .d_qk = 32, .d_v = 24, .batch = 2, .heads = 4, .key_heads = 2};
    const auto expect = [&](auto&& change) {
        Problem problem = base;
        change(problem);
        expect_accurate_parts(problem);
    };
    expect([](Problem& p) { p.window = {.left = 1800, .right = 3}; });
    expect([](Problem& p) { p.window = {.left = 1700}, p.causal = true; });
    expect([](Problem& p) { p.top_left = true, p.window.right = 1900; });
    expect([](Problem& p) { p.scale = -0.3; });
    expect([](Problem& p) { p.scale = 0.0; });
    expect([](Problem& p) { p.sink = p.causal = true; });
    expect([](Problem& p) { p.biases[0] = {2, 4, 6, 2900}; });
    for (const NamedProblem& p : score_option_problems(base)) expect_accurate_parts(p.problem);
    for (const std::int64_t queries : {1, 6, 40})
        expect_accurate_parts(problem_with_every_score_option(queries, 1500, 24, 64));
}
TEST_P(DividedKeys, AreAsAccurateAsNaiveForOneQueryOfALongText) {
    const std::int64_t keys = gradtile::test::sanitized ? 8192 : 131072;
    constexpr double gradient = 1000;  // P dO is then a normal number in float16
    expect_accurate_parts({.queries = 1, .keys = keys, .d_qk = 16, .d_v = 16}, gradient);
    expect_accurate_parts(
        {.queries = 1, .keys = keys, .d_qk = 8, .d_v = 8, .alibi = true, .sink = true, .dropout_p = 0.1},
        gradient);
}

/// One key has nearly all the weight.
TEST_P(DividedKeys, PartsWithoutWeightDoNotCount) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 3, .keys = 4096, .d_qk = 64, .d_v = 64, .heads = 2, .key_heads = 1};
    for (const double height : {30.0, 200.0}) {
        const Inputs in = accuracy::sink_inputs(ctx, problem, GetParam(), 3000, height);
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(GetParam(), ctx.device()));
        const Result naive = run(ctx, in, problem.options(Algorithm::naive));
        for_every_kernel(GetParam(), [&] {
            expect_accurate(GetParam(), naive, run(ctx, in, problem.options()), reference);
        });
    }
}

TEST_P(DividedKeys, GiveTheSameBitsForEveryNumberOfThreads) {
    Problem problem = problem_with_every_score_option(5, 3000, 24, 40);
    const Context one(Device::cpu(), 1);
    for (const bool plain : {true, false}) {
        if (plain) problem = {.queries = 5, .keys = 3000, .d_qk = 24, .d_v = 40, .causal = true};
        const Inputs in = random_inputs(one, problem, GetParam());
        for_every_kernel(GetParam(), [&] {
            const Result expected = run(one, in, problem.options());
            for (const int threads : {2, 3, 7})
                EXPECT_EQ(run(Context(Device::cpu(), threads), in, problem.options()), expected)
                    << threads << " threads";
        });
        problem = problem_with_every_score_option(5, 3000, 24, 40);
    }
}

/// A bias hides all keys from row 0, those of the first part from row 1, and those of the last from row 2.
TEST_P(DividedKeys, HiddenKeysHaveNoEffect) {
    const Context ctx(Device::cpu(), 2);
    const std::int64_t keys = 3000;
    Problem problem{.queries = 4, .keys = keys, .d_qk = 16, .d_v = 16, .sink = false};
    problem.biases[0] = {1, 1, 4, keys};
    const double minus_infinity = -infinity;
    Inputs in = random_inputs(ctx, problem, GetParam());
    fill(ctx, in.biases[0].slice(2, 0, 1), minus_infinity);
    fill(ctx, in.biases[0].slice(2, 1, 1).slice(3, 0, 1024), minus_infinity);
    fill(ctx, in.biases[0].slice(2, 2, 1).slice(3, 2048, keys - 2048), minus_infinity);
    const Reference reference = float64_reference(ctx, problem, in, roundoff_of(GetParam(), ctx.device()));
    const Result naive = run(ctx, in, problem.options(Algorithm::naive));
    for_every_kernel(GetParam(), [&] {
        const Result result = run(ctx, in, problem.options());
        EXPECT_EQ(result.lse[0], minus_infinity);
        EXPECT_THAT(std::vector<double>(result.o.begin(), result.o.begin() + 16), ::testing::Each(0.0));
        expect_accurate(GetParam(), naive, result, reference);
    });
}

TEST_P(DividedKeys, ANaNInOnePartMakesEveryRowThatSeesItNaN) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 3, .keys = 3000, .d_qk = 16, .d_v = 16};
    const auto is_nan = ::testing::Each(::testing::Truly([](double e) { return std::isnan(e); }));
    for (Tensor Inputs::*part : {&Inputs::k, &Inputs::v}) {
        const Inputs in = random_inputs(ctx, problem, GetParam());
        fill(ctx, (in.*part).slice(1, 2000, 1), NAN);
        for_every_kernel(GetParam(), [&] {
            const Result result = run(ctx, in, problem.options());
            EXPECT_THAT(result.o, is_nan);
            if (part == &Inputs::k) {
                EXPECT_THAT(result.lse, is_nan);
            }
        });
    }
}

TEST(DividedKeysOfFloat64, AreAsAccurateAsTheDefinition) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : {problem_with_every_score_option(5, 2900, 24, 40),
                                   Problem{.queries = 3, .keys = 2305, .d_qk = 16, .d_v = 16}}) {
        const Inputs single = random_inputs(ctx, problem, DType::f32), in = single.to(ctx, DType::f64);
        const Result naive32 = run(ctx, single, problem.options(Algorithm::naive));
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(DType::f64, ctx.device()));
        expect_float64_accuracy(naive32, run(ctx, in, problem.options()), reference);
    }
}

}  // namespace
}  // namespace gradtile::attention::test
