// How a GPU divides a decode() call, computed without a GPU.
#include <algorithm>

#include <gtest/gtest.h>

#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::test {
namespace {

using attention::ClustersAtOnce;
using attention::DecodePlan;
using attention::keys_of_split;
using attention::KeysOfSplit;

/// A call of 32 query heads in bfloat16.
struct Call {
    std::int64_t texts, tokens, kv_heads, head_dim, context;

    DecodePlan plan(const ClustersAtOnce& at_once) const {
        const Tensor keys = zeros(Context(Device::cpu(), 1), {1, 1, 1, 1}, DType::bf16)
                                .expand({texts, context, kv_heads, head_dim});
        return DecodePlan::of(texts, tokens, 32, {keys, keys}, at_once);
    }
};
/// Measured on an H200, for kernels of which two and three thread blocks fit on a multiprocessor.
constexpr ClustersAtOnce two_blocks{.of_2 = 132, .of_4 = 62, .of_8 = 30},
    three_blocks{.of_2 = 198, .of_4 = 92, .of_8 = 45};

void expect_division(const Call& call, const ClustersAtOnce& at_once, int splits, int cluster) {
    SCOPED_TRACE(concat(call.texts, " texts, ", call.tokens, " tokens, ", call.kv_heads, " K/V heads with ",
                        call.head_dim, " elements, context ", call.context));
    const DecodePlan plan = call.plan(at_once);
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
    for (const std::int64_t texts : {1, 2, 3, 8, 50})
        for (const std::int64_t tokens : {1, 4, 16})
            for (const std::int64_t kv_heads : {1, 4, 32})
                for (const std::int64_t head_dim : {64, 128})
                    for (const std::int64_t context : {64, 700, 1024, 4100, 8192, 100000}) {
                        const Call call{texts, tokens, kv_heads, head_dim, context};
                        const DecodePlan most = call.plan({});
                        for (const ClustersAtOnce& at_once :
                             {two_blocks, three_blocks, ClustersAtOnce{66, 30, 15},
                              ClustersAtOnce{0, 0, 0}}) {
                            const DecodePlan plan = call.plan(at_once);
                            EXPECT_LE(plan.splits, most.splits);
                            EXPECT_EQ(plan.query_sets, most.query_sets);
                            EXPECT_EQ(plan.splits % plan.cluster, 0);
                        }
                    }
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
