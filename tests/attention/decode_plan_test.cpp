// How a GPU divides a decode() call, computed without a GPU.
#include <algorithm>

#include <gtest/gtest.h>

#include <gradtile/attention/internal/decode_backend.h>

namespace gradtile::test {
namespace {

using attention::DecodePlan;
using attention::keys_of_split;
using attention::KeysOfSplit;

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
