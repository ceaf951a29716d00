// The kernel of a decode() call on a GPU and how it divides the call, computed without a GPU.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::test {
namespace {

using attention::ClustersAtOnce;
using attention::DecodeKernel;
using attention::DecodePlan;
using attention::DecodeProblem;
using attention::keys_of_split;
using attention::KeysOfSplit;

/// A call of 32 query heads in bfloat16.
struct Call {
    std::int64_t texts, tokens, kv_heads, head_dim, context;

    DecodeProblem problem() const { return {texts, tokens, 32, kv_heads, head_dim, context, DType::bf16}; }
    DecodePlan plan(const ClustersAtOnce& at_once, bool has_warpgroups) const {
        return DecodePlan::of(problem(), has_warpgroups, at_once);
    }
};
/// Measured on an H200, for kernels of which two and three thread blocks fit on a multiprocessor.
constexpr ClustersAtOnce two_blocks{.of_2 = 132, .of_4 = 62, .of_8 = 30},
    three_blocks{.of_2 = 198, .of_4 = 92, .of_8 = 45};

void expect_division(const Call& call, const ClustersAtOnce& at_once, int splits, int cluster,
                     bool has_warpgroups = false) {
    SCOPED_TRACE(concat(call.texts, " texts, ", call.tokens, " tokens, ", call.kv_heads, " K/V heads with ",
                        call.head_dim, " elements, context ", call.context));
    const DecodePlan plan = call.plan(at_once, has_warpgroups);
    EXPECT_EQ(plan.splits, splits);
    EXPECT_EQ(plan.cluster, cluster);
}

TEST(DecodePlan, AllThreadBlocksRunAtTheSameTime) {
    expect_division({.texts = 2, .tokens = 1, .kv_heads = 32, .head_dim = 128, .context = 8192}, two_blocks,
                    4, 2);
    expect_division({.texts = 8, .tokens = 4, .kv_heads = 8, .head_dim = 128, .context = 8192}, two_blocks, 4,
                    2);
    expect_division({.texts = 16, .tokens = 1, .kv_heads = 8, .head_dim = 64, .context = 8192}, three_blocks,
                    2, 2);
    expect_division({.texts = 1, .tokens = 1, .kv_heads = 4, .head_dim = 128, .context = 8192}, two_blocks,
                    16, 8);
    expect_division({.texts = 1, .tokens = 16, .kv_heads = 4, .head_dim = 128, .context = 8192}, two_blocks,
                    16, 2);
    expect_division({.texts = 256, .tokens = 1, .kv_heads = 8, .head_dim = 64, .context = 8192}, two_blocks,
                    1, 1);
}

TEST(DecodePlan, WarpgroupsLeaveTwoThreadBlocksAMultiprocessor) {
    // 128 queries of a text and K/V head are two thread blocks, 64 queries are one.
    expect_division({.texts = 16, .tokens = 16, .kv_heads = 4, .head_dim = 128, .context = 8192}, two_blocks,
                    2, 2, /*has_warpgroups=*/true);
    expect_division({.texts = 8, .tokens = 16, .kv_heads = 8, .head_dim = 128, .context = 8192}, two_blocks,
                    4, 2, /*has_warpgroups=*/true);
    expect_division({.texts = 1, .tokens = 16, .kv_heads = 8, .head_dim = 64, .context = 8192}, two_blocks,
                    16, 8, /*has_warpgroups=*/true);
}

TEST(DecodePlan, ShortTextsAreInOneCluster) {
    // In eight splits, 256 thread blocks of which two fit on a multiprocessor are not in clusters of 8.
    const Call call{.texts = 1, .tokens = 1, .kv_heads = 32, .head_dim = 64, .context = 2048};
    expect_division(call, two_blocks, 4, 4);
    expect_division(call, three_blocks, 8, 8);
    expect_division({.texts = 1, .tokens = 1, .kv_heads = 32, .head_dim = 64, .context = 64}, two_blocks, 1,
                    1);
    expect_division({.texts = 1, .tokens = 1, .kv_heads = 8, .head_dim = 128, .context = 4096}, two_blocks, 8,
                    8);
}

/// So scratch memory, whose size must not depend on the GPU, is enough.
TEST(DecodePlan, NoGpuHasMoreSplitsThanOneWithoutLimits) {
    for (const bool has_warpgroups : {false, true})
        for (const std::int64_t texts : {1, 2, 3, 8, 50})
            for (const std::int64_t tokens : {1, 4, 16})
                for (const std::int64_t kv_heads : {1, 4, 32})
                    for (const std::int64_t head_dim : {64, 128})
                        for (const std::int64_t context : {64, 700, 1024, 4100, 8192, 100000}) {
                            const Call call{texts, tokens, kv_heads, head_dim, context};
                            const DecodePlan most = call.plan({}, has_warpgroups);
                            for (const ClustersAtOnce& at_once :
                                 {two_blocks, three_blocks, ClustersAtOnce{66, 30, 15},
                                  ClustersAtOnce{0, 0, 0}}) {
                                const DecodePlan plan = call.plan(at_once, has_warpgroups);
                                EXPECT_LE(plan.splits, most.splits);
                                EXPECT_EQ(plan.kernel, most.kernel);
                                EXPECT_EQ(plan.query_sets, most.query_sets);
                                EXPECT_EQ(plan.splits % plan.cluster, 0);
                                DecodePlan divided_later = most;
                                divided_later.divide_keys(call.problem(), at_once);
                                EXPECT_EQ(divided_later.splits, plan.splits);
                                EXPECT_EQ(divided_later.cluster, plan.cluster);
                            }
                        }
}

/// Scratch memory is enough with and without the kernel for warpgroups, also for fewer texts, which may have
/// another kernel.
TEST(DecodePlan, ScratchMemoryIsEnoughForEveryGpu) {
    const Context planning = Context(Device::cpu(), 1).plan(Arena::for_planning(Device::cuda(0)));
    for (const std::int64_t texts : {1, 3, 40})
        for (const std::int64_t tokens : {1, 2, 16})
            for (const std::int64_t kv_heads : {1, 4, 32})
                for (const std::int64_t head_dim : {64, 128}) {
                    const Call call{texts, tokens, kv_heads, head_dim, 8192};
                    const Tensor keys =
                        empty(planning, {texts, call.context, kv_heads, head_dim}, DType::bf16);
                    const attention::DecodeScratch scratch(planning, texts, 32, {keys, keys, {}}, tokens);
                    for (const bool has_warpgroups : {false, true})
                        for (std::int64_t some = 1; some <= texts; ++some) {
                            const DecodePlan plan =
                                Call{some, tokens, kv_heads, head_dim, call.context}.plan({}, has_warpgroups);
                            EXPECT_GE(scratch.counters.elements(), some * kv_heads * plan.query_sets);
                            EXPECT_GE(scratch.o.size(0), some * tokens * 32 * plan.splits);
                        }
                }
}

/// What the kernels' layouts allow, whatever the call.
void expect_plan_has_kernel(const DecodeProblem& problem, const DecodePlan& plan, bool has_warpgroups) {
    const std::int64_t queries = problem.queries(), together = plan.queries_together;
    EXPECT_GE(plan.query_sets * together, queries);
    EXPECT_LT((plan.query_sets - 1) * together, queries);
    switch (plan.kernel) {
        case DecodeKernel::lanes:
            EXPECT_THAT(together, testing::AnyOf(1, 2, 4, 8));
            EXPECT_TRUE(problem.tokens == 1 || together >= 4);
            EXPECT_TRUE(together <= 2 || problem.dtype == DType::f32 || problem.head_dim > 128);
            return;
        case DecodeKernel::tiles:
            EXPECT_NE(problem.dtype, DType::f32);
            EXPECT_LE(problem.head_dim, 128);
            EXPECT_THAT(together, testing::AnyOf(16, 32, 64));
            EXPECT_TRUE(together < 64 || problem.head_dim <= 64);
            return;
        case DecodeKernel::warpgroups:
            EXPECT_TRUE(has_warpgroups);
            EXPECT_NE(problem.dtype, DType::f32);
            EXPECT_GT(problem.head_dim, 32);
            EXPECT_LE(problem.head_dim, 128);
            EXPECT_EQ(together, 64);
            EXPECT_GE(queries, 64);
            return;
    }
    ADD_FAILURE();
}

TEST(DecodePlan, EveryCallHasAKernel) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
        for (const bool has_warpgroups : {false, true})
            for (const std::int64_t head_dim : {8, 32, 40, 64, 72, 128, 136, 256})
                for (const std::int64_t group : {1, 2, 3, 4, 8, 9, 63, 64, 65, 128})
                    for (std::int64_t tokens = 1; tokens <= attention::max_decode_tokens; ++tokens) {
                        const DecodeProblem problem{1, tokens, 2 * group, 2, head_dim, 4096, dtype};
                        SCOPED_TRACE(concat(dtype, ", warpgroups ", has_warpgroups, ", ", tokens,
                                            " tokens, group ", group, ", head dim ", head_dim));
                        expect_plan_has_kernel(problem, DecodePlan::of(problem, has_warpgroups),
                                               has_warpgroups);
                        if (HasFailure()) return;
                    }
}

TEST(DecodePlan, WarpgroupsTakeCallsThatFillThemAndTheGpu) {
    struct Shape {
        std::int64_t tokens, group, head_dim;
        DType dtype = DType::bf16;
        std::int64_t texts = 64, context = 4096;
    };
    const auto kernel_of = [](const Shape& x, bool has_warpgroups = true) {
        return DecodePlan::of({x.texts, x.tokens, x.group, 1, x.head_dim, x.context, x.dtype}, has_warpgroups)
            .kernel;
    };
    EXPECT_EQ(kernel_of({16, 4, 128}), DecodeKernel::warpgroups);
    EXPECT_EQ(kernel_of({16, 4, 64, DType::f16}), DecodeKernel::warpgroups);
    EXPECT_EQ(kernel_of({1, 64, 40}), DecodeKernel::warpgroups);
    EXPECT_EQ(kernel_of({16, 4, 128}, /*has_warpgroups=*/false), DecodeKernel::tiles);
    EXPECT_EQ(kernel_of({9, 7, 128}), DecodeKernel::tiles);  // 63 queries
    EXPECT_EQ(kernel_of({16, 4, 32}), DecodeKernel::tiles);
    EXPECT_EQ(kernel_of({16, 4, 136}), DecodeKernel::lanes);
    EXPECT_EQ(kernel_of({16, 4, 128, DType::f32}), DecodeKernel::lanes);
    // 256 thread blocks, of 512 keys or more each, and one text less.
    EXPECT_EQ(kernel_of({16, 4, 128, DType::bf16, 32, 4096}), DecodeKernel::warpgroups);
    EXPECT_EQ(kernel_of({16, 4, 128, DType::bf16, 31, 4096}), DecodeKernel::tiles);
    EXPECT_EQ(kernel_of({16, 4, 64, DType::bf16, 31, 4096}), DecodeKernel::warpgroups);
    EXPECT_EQ(DecodePlan::of({64, 16, 128, 1, 128, 4096, DType::bf16}, true).query_sets, 32);
}

TEST(DecodePlan, SplitsDivideATextsKeys) {
    constexpr int step_keys = 64, pass_keys = 64;
    for (const int first_key : {0, 128})
        for (const int keys : {1, 63, 64, 65, 300, 511, 512, 513, 1024, 4100, 8192})
            for (const int splits : {1, 2, 4, 8, 16, 24})
                for (const int cheap_splits : {1, 2, 4, 8}) {
                    SCOPED_TRACE(concat(keys, " keys from ", first_key, ", ", splits, " splits, ",
                                        cheap_splits, " cheap"));
                    const auto split_of = [&](int split) {
                        return keys_of_split(first_key, first_key + keys, split, splits, cheap_splits,
                                             step_keys, pass_keys);
                    };
                    const int used = split_of(0).splits;
                    ASSERT_GE(used, 1);
                    ASSERT_LE(used, splits);
                    int end = first_key;
                    for (int split = 0; split < splits; ++split) {
                        const KeysOfSplit part = split_of(split);
                        EXPECT_EQ(part.splits, used);
                        EXPECT_EQ(part.begin < part.end, split < used);
                        if (split >= used) continue;
                        EXPECT_EQ(part.begin, end);
                        EXPECT_EQ((part.begin - first_key) % step_keys, 0);
                        end = part.end;
                    }
                    EXPECT_EQ(end, first_key + keys);
                }
}

TEST(DecodePlan, FewKeysAreDividedIntoSplitsThatMergeAtLowCost) {
    const auto splits_of = [](int keys, int splits, int cheap_splits) {
        return keys_of_split(0, keys, 0, splits, cheap_splits, 64, 64).splits;
    };
    EXPECT_EQ(splits_of(64, 4, 2), 1);
    EXPECT_EQ(splits_of(300, 4, 2), 2);
    EXPECT_EQ(splits_of(1024, 4, 2), 2);  // 512 keys each
    EXPECT_EQ(splits_of(1537, 4, 2), 4);
    EXPECT_EQ(splits_of(300, 8, 8), 5);
    EXPECT_EQ(splits_of(8192, 16, 8), 16);
}

}  // namespace
}  // namespace gradtile::test
