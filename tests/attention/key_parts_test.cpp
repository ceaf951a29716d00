// Tests attention with few queries and many keys on the CPU: how the keys are divided into parts, and the
// merged results.
#include <gradtile/attention/cpu/few_queries.h>

#include <gmock/gmock.h>

#include <support/sanitized.h>

#include "every_kernel.h"
#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

using cpu::divide_keys;
using cpu::KeyParts;

/// Lengths near the borders of parts, which are multiples of 256.
constexpr std::int64_t divided_lengths[] = {512, 513, 767, 768, 769, 1279, 1280, 1281, 2305, 4100};

TEST(KeyParts, HoldEveryVisibleKeyOnce) {
    for (const std::int64_t keys : {512, 1025, 1281, 2047, 2048, 2049, 65536, 65537, 131072})
        for (const std::int64_t left : {-1, 0, 1500, 5000})
            for (const std::int64_t tasks : {1, 2, 5, 31, 32, 63}) {
                const Mask mask{.queries = 2, .keys = keys, .offset = keys - 2, .left = left, .right = 0};
                const KeyParts parts = divide_keys(mask, tasks);
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
                EXPECT_LE(parts.count * tasks, 4 * 64 + 63);
            }
}
/// divide_keys() assumes 64 threads, and that a task takes as long as its 256-key blocks plus one more block.
TEST(KeyParts, AreTheFewestWithin95PercentOfTheBestOccupancy) {
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 1024}, 1).count, 4);
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 16384}, 1).count, 64);
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 131072}, 1).count, 64);
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 131072}, 8).count, 8);
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 131072}, 64).count, 1);
    // One task per head, 33 in all, would leave 31 threads without work. With 5 x 33 tasks each thread
    // computes at most three, and the threads are busy for 86% of the time.
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 131072}, 33).count, 5);
    EXPECT_EQ(divide_keys({.queries = 9, .keys = 1024}, 1).count, 2);
    // The keys that a window hides are in no part.
    EXPECT_EQ(divide_keys({.queries = 1, .keys = 65536, .offset = 65535, .left = 4095}, 1).count, 16);
    for (const std::int64_t tasks : {1, 3, 5, 12, 33, 64, 65, 100, 1000})
        for (const std::int64_t keys : {512, 1024, 5000, 131072}) {
            const SplittableWork work{.key_blocks = (keys + 255) / 256,
                                      .tasks_per_split = tasks,
                                      .concurrent_tasks = 64,
                                      .start_up = 1};
            const std::int64_t count = divide_keys({.queries = 1, .keys = keys}, tasks).count;
            SCOPED_TRACE(::testing::Message() << tasks << ' ' << keys);
            double best = 0;
            for (std::int64_t most = 1; most <= work.key_blocks && most * tasks <= 256; ++most)
                best = std::max(best, work.occupancy(work.split(most)));
            EXPECT_GE(work.occupancy(work.split(count)), 0.95 * best);
            if (count > 1) {
                EXPECT_LT(work.occupancy(work.split(count - 1)), 0.95 * best);
            }
        }
}
TEST(KeyParts, LeaveCallsWithEnoughTasksManyQueriesOrFewKeysWhole) {
    EXPECT_TRUE(divide_keys({.queries = 64, .keys = 65536}, 2).divided());
    EXPECT_FALSE(divide_keys({.queries = 65, .keys = 65536}, 2).divided());
    EXPECT_FALSE(divide_keys({.queries = 1, .keys = 65536}, 64).divided());
    EXPECT_FALSE(divide_keys({.queries = 1, .keys = 511}, 1).divided());
    EXPECT_FALSE(divide_keys({.queries = 1, .keys = 65536, .offset = 65535, .left = 500}, 1).divided());
    EXPECT_FALSE(divide_keys({.queries = 0, .keys = 65536}, 0).divided());
    EXPECT_FALSE(divide_keys({.queries = 3, .keys = 0}, 3).divided());
}

TEST(FewQueriesOnTheCpu, PutTheHeadsOfAGroupTogether) {
    EXPECT_EQ(cpu::heads_together(8, 1), 8);
    EXPECT_EQ(cpu::heads_together(8, 8), 8);
    EXPECT_EQ(cpu::heads_together(1, 8), 1);
    EXPECT_EQ(cpu::heads_together(12, 7), 6);  // 12 x 7 rows are more than 64
    EXPECT_EQ(cpu::heads_together(128, 1), 64);
    EXPECT_EQ(cpu::heads_together(67, 1), 1);  // a prime head count
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
        for_every_kernel_of_few_queries(GetParam(), [&] {
            // With more than 8 queries, each part has at least 512 keys.
            if (problem.queries <= 8 || problem.keys > 512) {
                EXPECT_THAT(explain_forward(ctx, in.q, in.k, in.v, problem.options()),
                            ::testing::HasSubstr("merged by their LSE"));
            }
            expect_accurate(GetParam(), naive, run(ctx, in, problem.options()), reference);
        });
    }
};
INSTANTIATE_TEST_SUITE_P(Attention, DividedKeys, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(DividedKeys, AreAsAccurateAsNaiveAtAnyLength) {
    for (const std::int64_t keys : divided_lengths)
        for (const std::int64_t queries : {1, 3, 8, 64})
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
    for (const NamedProblem& p : row_range_problems(base)) expect_accurate_parts(p.problem);
    for (const std::int64_t queries : {1, 6, 40})
        expect_accurate_parts(problem_with_every_score_option(queries, 1500, 24, 64));
}
/// With one head, only one thread would have work if the keys were not divided.
TEST_P(DividedKeys, OfOneHeadAreAsAccurateAsNaiveForUpTo64Queries) {
    for (const std::int64_t queries : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 32, 33, 63, 64})
        for (const std::int64_t keys : {512, 1000, 1024, 4099})
            expect_accurate_parts(
                {.queries = queries, .keys = keys, .d_qk = 40, .d_v = 24, .causal = queries % 2 == 0});
    if (gradtile::test::sanitized) return;
    for (const auto& [queries, keys] : {std::pair{2, 131072}, {8, 16384}, {64, 16384}})
        expect_accurate_parts({.queries = queries, .keys = keys, .d_qk = 8, .d_v = 8, .causal = true},
                              /*gradient=*/1000);
}
TEST_P(DividedKeys, AreAsAccurateAsNaiveAtAnyHeadDim) {
    for (const std::int64_t d : {1, 7, 8, 16, 24, 32, 64, 80, 96, 128, 160, 192, 256})
        for (const std::int64_t queries : {1, 3, 8})
            expect_accurate_parts({.queries = queries,
                                   .keys = 600,
                                   .d_qk = d,
                                   .d_v = d == 192 ? 128 : d,
                                   .causal = true,
                                   .heads = 3,
                                   .key_heads = queries == 3 ? 1 : 3});
}
/// The kernels compute four rows (queries times the group's heads) at a time. The groups' row counts include
/// multiples of four, and counts that leave one, two and three rows.
TEST_P(DividedKeys, AreAsAccurateAsNaiveForAnyGroupOfHeads) {
    for (const std::int64_t group : {1, 2, 3, 5, 6, 8, 11})
        for (const std::int64_t queries : {1, 2, 7})
            expect_accurate_parts({.queries = queries,
                                   .keys = 700,
                                   .d_qk = 16,
                                   .d_v = 16,
                                   .causal = true,
                                   .batch = group < 4 ? 2 : 1,
                                   .heads = group < 4 ? 2 * group : group,
                                   .key_heads = group < 4 ? 2 : 1});
}
TEST_P(DividedKeys, AreAsAccurateAsNaiveOnAverage) {
    const Context ctx(Device::cpu(), 2);
    for (const bool plain : {true, false}) {
        Problem problem{.queries = 8,
                        .keys = 700,
                        .d_qk = 32,
                        .d_v = 48,
                        .causal = true,
                        .batch = 3,
                        .heads = 8,
                        .key_heads = 2};
        if (!plain) problem.alibi = problem.sink = true, problem.dropout_p = 0.1;
        SCOPED_TRACE(::testing::Message() << problem);
        for (const bool offset : {false, true}) {
            const Inputs in =
                offset ? offset_inputs(ctx, problem, GetParam(), 2) : random_inputs(ctx, problem, GetParam());
            const Reference reference =
                float64_reference(ctx, problem, in, roundoff_of(GetParam(), ctx.device()));
            const Result naive = run(ctx, in, problem.options(Algorithm::naive));
            for_every_kernel_of_few_queries(GetParam(), [&] {
                const Result result = run(ctx, in, problem.options());
                expect_accurate(GetParam(), naive, result, reference);
                expect_no_bias(problem, result, reference);
            });
        }
    }
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
        for_every_kernel_of_few_queries(GetParam(), [&] {
            expect_accurate(GetParam(), naive, run(ctx, in, problem.options()), reference);
        });
    }
}

TEST_P(DividedKeys, GiveTheSameBitsForEveryNumberOfThreads) {
    const Context one(Device::cpu(), 1);
    for (const Problem& problem :
         {Problem{.queries = 1, .keys = 3000, .d_qk = 24, .d_v = 40},
          Problem{
              .queries = 5, .keys = 3000, .d_qk = 24, .d_v = 40, .causal = true, .heads = 6, .key_heads = 2},
          Problem{.queries = 40, .keys = 3000, .d_qk = 24, .d_v = 40, .causal = true},
          problem_with_every_score_option(5, 3000, 24, 40)}) {
        const Inputs in = random_inputs(one, problem, GetParam());
        for_every_kernel_of_few_queries(GetParam(), [&] {
            const Result expected = run(one, in, problem.options());
            for (const int threads : {2, 3, 7})
                EXPECT_EQ(run(Context(Device::cpu(), threads), in, problem.options()), expected)
                    << problem << ", " << threads << " threads";
        });
    }
}

/// A bias hides all keys from row 0, the first parts' keys from row 1, and the last parts' keys from row 2.
TEST_P(DividedKeys, HiddenKeysHaveNoEffect) {
    const Context ctx(Device::cpu(), 2);
    const std::int64_t keys = 3000;
    constexpr double minus_infinity = -infinity;
    for (const bool sink : {false, true})
        for (const std::int64_t queries : {4, 20}) {
            Problem problem{.queries = queries, .keys = keys, .d_qk = 16, .d_v = 16, .sink = sink};
            problem.biases[0] = {1, 1, queries, keys};
            Inputs in = random_inputs(ctx, problem, GetParam());
            fill(ctx, in.biases[0].slice(2, 0, 1), minus_infinity);
            fill(ctx, in.biases[0].slice(2, 1, 1).slice(3, 0, 1024), minus_infinity);
            fill(ctx, in.biases[0].slice(2, 2, 1).slice(3, 2048, keys - 2048), minus_infinity);
            const double lse = sink ? to_host(ctx, in.sink)[0] : minus_infinity;
            const Reference reference =
                float64_reference(ctx, problem, in, roundoff_of(GetParam(), ctx.device()));
            const Result naive = run(ctx, in, problem.options(Algorithm::naive));
            for_every_kernel_of_few_queries(GetParam(), [&] {
                const Result result = run(ctx, in, problem.options());
                EXPECT_EQ(result.lse[0], lse);
                EXPECT_THAT(std::vector<double>(result.o.begin(), result.o.begin() + 16),
                            ::testing::Each(0.0));
                expect_accurate(GetParam(), naive, result, reference);
            });
        }
}

/// Windows whose ends lie just after a part's border: the first row sees no key in the last part, or the last
/// row sees no key in the first part.
TEST_P(DividedKeys, PartsThatSomeRowsDoNotSee) {
    for (const std::int64_t queries : {8, 64}) {
        Problem problem{.queries = queries, .keys = 1900, .d_qk = 16, .d_v = 16, .sink = true};
        problem.top_left = true;
        problem.window = {.left = 0, .right = 1279};
        expect_accurate_parts(problem);
        problem.window = {.left = 3, .right = 511};
        expect_accurate_parts(problem);
        problem.top_left = false;
        problem.window = {.left = problem.keys - queries - 252};  // row 0 sees the keys from 252 on
        expect_accurate_parts(problem);
    }
}

TEST_P(DividedKeys, ANaNInOnePartMakesEveryRowThatSeesItNaN) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 3, .keys = 3000, .d_qk = 16, .d_v = 16};
    const auto is_nan = ::testing::Each(::testing::Truly([](double e) { return std::isnan(e); }));
    for (Tensor Inputs::*part : {&Inputs::k, &Inputs::v}) {
        const Inputs in = random_inputs(ctx, problem, GetParam());
        fill(ctx, (in.*part).slice(1, 2000, 1), NAN);
        for_every_kernel_of_few_queries(GetParam(), [&] {
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
