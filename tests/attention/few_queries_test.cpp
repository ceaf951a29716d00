// Tests attention with few queries and many keys on the GPU: the plan, which needs no GPU, and the results
// from the plan's kernels.
#include <gmock/gmock.h>

#include <gradtile/attention/cuda/common/few_queries.h>

#include "cuda_fixture.h"

namespace gradtile::attention::test {
namespace {

using cuda::F32FewQueriesTiles, cuda::FewQueriesShape, cuda::FewQueriesTiles, cuda::max_runs,
    cuda::plan_few_queries, cuda::work_of;

constexpr int shared_bytes = 227 * 1024, processors = 132;
const FewQueriesShape one_query{.batch = 1,
                                .queries = 1,
                                .keys = 8192,
                                .heads = 32,
                                .group = 4,
                                .head_dim = 128,
                                .rule_of_each_head = false};

TEST(FewQueriesPlan, PutsTheHeadsOfAGroupTogether) {
    FewQueriesShape shape = one_query;
    EXPECT_EQ(plan_few_queries(shape, processors, shared_bytes).heads_together, 4);
    EXPECT_EQ(plan_few_queries(shape, processors, shared_bytes).blocks_per_split, 8);
    shape.queries = 17;  // 4 x 17 rows do not fit
    EXPECT_EQ(plan_few_queries(shape, processors, shared_bytes).heads_together, 2);
    shape.queries = 64;
    EXPECT_EQ(plan_few_queries(shape, processors, shared_bytes).heads_together, 1);
    shape.queries = 1, shape.rule_of_each_head = true;
    EXPECT_EQ(plan_few_queries(shape, processors, shared_bytes).heads_together, 1);
}
TEST(FewQueriesPlan, LeavesOtherCallsToTheUsualKernels) {
    FewQueriesShape shape = one_query;
    shape.queries = 65;
    EXPECT_FALSE(plan_few_queries(shape, processors, shared_bytes));
    shape = one_query, shape.keys = 511;
    EXPECT_FALSE(plan_few_queries(shape, processors, shared_bytes));
    shape = one_query;
    EXPECT_FALSE(plan_few_queries(shape, processors, /*shared_bytes=*/48 * 1024));
}
/// The plan uses the fewest splits that reach 95% of the best occupancy, and every split has keys.
TEST(FewQueriesPlan, SplitsAsLittleAsFullOccupancyAllows) {
    for (const std::int64_t batch : {1, 3, 8, 33, 200})
        for (const std::int64_t keys : {512, 1000, 8192, 131072})
            for (const std::int64_t heads : {1, 8, 12, 32}) {
                SCOPED_TRACE(::testing::Message() << batch << ' ' << keys << ' ' << heads);
                FewQueriesShape shape = one_query;
                shape.batch = batch, shape.keys = keys, shape.heads = heads, shape.group = 1;
                const FewQueriesPlan plan = plan_few_queries(shape, processors, shared_bytes);
                ASSERT_TRUE(plan);
                EXPECT_EQ(plan.keys_per_split % FewQueriesTiles::keys, 0);
                EXPECT_GE(std::int64_t{plan.splits} * plan.keys_per_split, keys);
                EXPECT_LT(std::int64_t{plan.splits - 1} * plan.keys_per_split, keys);
                EXPECT_LE(plan.splits * batch * heads, std::max(max_runs * plan.concurrent_blocks, 6400));
                const std::int64_t key_blocks = (keys + 63) / 64;
                if (batch * heads * key_blocks <= plan.concurrent_blocks) {
                    EXPECT_EQ(plan.splits, key_blocks);  // more concurrent thread blocks than key blocks
                }
                // Fewer splits would leave more than 5% of this plan's concurrent thread blocks idle.
                if (plan.splits == 1) continue;
                const SplittableWork work = work_of(plan, keys);
                EXPECT_LT(work.occupancy(work.split(plan.splits - 1)),
                          work.occupancy(work.split(plan.splits)));
            }
    // 8 x 32 blocks, at most 264 at the same time, each with four key blocks.
    EXPECT_EQ(plan_few_queries(one_query, processors, shared_bytes).splits, 32);
    FewQueriesShape full = one_query;
    full.batch = 33;  // 264 thread blocks
    EXPECT_EQ(plan_few_queries(full, processors, shared_bytes).splits, 1);
}

TEST(FewQueriesPlan, F32TakesUpTo16Rows) {
    FewQueriesShape shape = one_query;
    shape.is_f32 = true;
    EXPECT_EQ(plan_few_queries(shape, processors, shared_bytes).heads_together, 4);
    shape.queries = 5;  // 4 x 5 rows do not fit
    EXPECT_EQ(plan_few_queries(shape, processors, shared_bytes).heads_together, 2);
    shape.queries = 16;
    EXPECT_EQ(plan_few_queries(shape, processors, shared_bytes).rows, 16);
    shape.queries = 17;
    EXPECT_FALSE(plan_few_queries(shape, processors, shared_bytes));
    // Thread blocks that share a multiprocessor fit its 228 KB; each thread block reserves 1 KB.
    for (const int head_dim : {32, 64, 128, 256})
        for (const int rows : {1, 4, 8, 16}) {
            const F32FewQueriesTiles tiles{head_dim, rows};
            const int own_arrays = 3 * 1024;
            EXPECT_LE(tiles.blocks_per_sm() * (tiles.shared_bytes() + own_arrays + 1024), 228 * 1024)
                << head_dim << ' ' << rows;
        }
}

class AttentionCudaFewQueries : public AttentionCudaDtypes {};

TEST_P(AttentionCudaFewQueries, IsAsAccurateAsNaive) {
    for (const std::int64_t queries : {1, 2, 5, 16, 17, 33, 64})
        for (const std::int64_t keys : {512, 1000, 4100})
            expect_accurate({.queries = queries,
                             .keys = keys,
                             .d_qk = 64,
                             .d_v = 64,
                             .causal = queries % 2 == 0,
                             .batch = 2,
                             .heads = 4,
                             .key_heads = queries % 3 == 0 ? 4 : 1},
                            GetParam());
    // Thread blocks with a single row: one query, and no head shares a K/V head.
    expect_accurate({.queries = 1, .keys = 1500, .d_qk = 64, .d_v = 64, .heads = 2, .key_heads = 2},
                    GetParam());
}
TEST_P(AttentionCudaFewQueries, IsAsAccurateAsNaiveAtAnyHeadDim) {
    for (const std::int64_t d : {1, 24, 32, 80, 96, 128, 160, 192, 256})
        for (const std::int64_t queries : {1, 3, 8, 20, 50})
            expect_accurate({.queries = queries,
                             .keys = 700,
                             .d_qk = d,
                             .d_v = d == 192 ? 128 : d,
                             .causal = true,
                             .heads = 2,
                             .key_heads = 1},
                            GetParam());
}
TEST_P(AttentionCudaFewQueries, IsAsAccurateAsNaiveUnderEveryOption) {
    const Problem base{
        .queries = 6, .keys = 900, .d_qk = 32, .d_v = 24, .batch = 2, .heads = 4, .key_heads = 2};
    const auto expect = [&](auto&& change) {
        Problem problem = base;
        change(problem);
        expect_accurate(problem, GetParam());
    };
    expect([](Problem& p) { p.window = {.left = 700, .right = 3}; });
    expect([](Problem& p) { p.window = {.left = 600}, p.causal = true; });
    expect([](Problem& p) { p.top_left = true, p.window.right = 800; });
    expect([](Problem& p) { p.scale = -0.3; });
    expect([](Problem& p) { p.sink = p.causal = true; });
    for (const NamedProblem& p : score_option_problems(base)) expect_accurate(p.problem, GetParam());
    for (const NamedProblem& p : row_range_problems(base)) expect_accurate(p.problem, GetParam());
    for (const std::int64_t queries : {1, 6, 60})
        expect_accurate(problem_with_every_score_option(queries, 900, 64, 64), GetParam());
}
/// More than 32 rows have a separate kernel on Hopper.
TEST_P(AttentionCudaFewQueries, IsAsAccurateAsNaiveFrom33To64Rows) {
    for (const std::int64_t d : {100, 128})
        for (const std::int64_t queries : {33, 47, 64})
            for (const std::int64_t keys : {64, 900, 5000}) {
                const Problem base{
                    .queries = queries, .keys = keys, .d_qk = d, .d_v = d - 8, .batch = 2, .heads = 2};
                const auto expect = [&](auto&& change) {
                    Problem problem = base;
                    change(problem);
                    expect_accurate(problem, GetParam());
                };
                expect([](Problem&) {});
                expect([](Problem& p) { p.sink = p.causal = true; });
                expect([](Problem& p) { p.window = {.left = 70, .right = 3}; });
                expect([](Problem& p) { p.top_left = p.causal = true; });
            }
    for (const std::int64_t queries : {9, 12, 16})
        expect_accurate({.queries = queries,
                         .keys = 3000,
                         .d_qk = 128,
                         .d_v = 128,
                         .causal = true,
                         .batch = 2,
                         .heads = 8,
                         .key_heads = 2,
                         .sink = true},
                        GetParam());
}
/// Two keys dominate, in different splits.
TEST_P(AttentionCudaFewQueries, SplitsWithoutWeightDoNotCount) {
    const Problem problem{.queries = 3, .keys = 4096, .d_qk = 64, .d_v = 64, .heads = 2, .key_heads = 1};
    const Inputs in = accuracy::sink_inputs(cpu, problem, GetParam(), 3000, 200);
    const Result result = run_on_gpu(in, problem.options()), expected = run(cpu, in, problem.options());
    for (std::size_t i = 0; i < result.o.size(); ++i) ASSERT_NEAR(result.o[i], expected.o[i], 0.02);
    for (std::size_t i = 0; i < result.lse.size(); ++i)
        ASSERT_NEAR(result.lse[i], expected.lse[i], 1e-5 * std::abs(expected.lse[i]));
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, AttentionCudaFewQueries, testing::ValuesIn(floating_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace gradtile::attention::test
