#include <gradtile/train/parallel/shard_layout.h>

#include <map>

#include <gtest/gtest.h>

namespace gradtile::test {
namespace {

/// A GPT-like model: embeddings, blocks with matrices and vectors, a norm, a head.
void declare_model(ParameterStore& store, int blocks, std::int64_t width) {
    store.add("wte", {100, width}, Init::ones());
    for (int i = 0; i < blocks; ++i) {
        const std::string block = "h." + std::to_string(i);
        store.add(block + ".norm", {width}, Init::ones());
        store.add(block + ".qkv", {3 * width, width}, Init::ones());
        store.add(block + ".bias", {3 * width}, Init::ones());
        store.add(block + ".proj", {width, width}, Init::ones());
        store.add(block + ".fc", {4 * width, width}, Init::ones());
        store.add(block + ".back", {width, 4 * width}, Init::ones());
        store.add(block + ".end", {width}, Init::ones());
    }
    store.add("norm", {width}, Init::ones());
    store.add("head", {100, width}, Init::ones());
}

double elements_in_blocks(const Parameter& parameter) {
    const bool is_block_matrix = parameter.name().starts_with("h.") && parameter.shape().rank() == 2;
    return is_block_matrix ? static_cast<double>(parameter.shape().elements()) : 0.0;
}

class ShardLayout : public testing::TestWithParam<int> {
  protected:
    const int processes_ = GetParam();
};

TEST_P(ShardLayout, GivesEveryElementOneOwner) {
    for (const std::int64_t width : {1, 7, 16, 64}) {
        ParameterStore store;
        declare_model(store, 3, width);
        const std::int64_t elements = store.flat_elements();
        for (const BucketRule& rule : {BucketRule{1}, {1000}, {1'000'000}, {1000, true}, {1'000'000, true}}) {
            std::int64_t end = 0;
            for (const ShardBucket& bucket :
                 shard_buckets(store.parameters(), elements, rule, processes_, elements_in_blocks)) {
                EXPECT_EQ(bucket.range.begin, end);
                EXPECT_GT(bucket.range.length, 0);
                for (const OwnedRange& part : bucket.parts) {
                    EXPECT_EQ(part.range.begin, end);
                    EXPECT_EQ(part.range.begin % parameter_alignment, 0);
                    EXPECT_GE(part.owner, 0);
                    EXPECT_LT(part.owner, processes_);
                    end = part.range.end();
                }
                EXPECT_EQ(bucket.range.end(), end);
                EXPECT_EQ(bucket.equal_range().end(), bucket.other_range().begin);
                EXPECT_EQ(bucket.other_range().end(), end);
                if (bucket.equal_parts == 0) continue;
                ASSERT_EQ(bucket.equal_parts, processes_);
                ASSERT_GE(std::ssize(bucket.parts), processes_);
                for (int r = 0; r < processes_; ++r) {
                    const OwnedRange& part = bucket.parts[static_cast<std::size_t>(r)];
                    EXPECT_EQ(part.owner, r);
                    EXPECT_EQ(part.range.length * processes_, bucket.equal_range().length);
                }
                EXPECT_LT(bucket.other_range().length, parameter_alignment * processes_);
            }
            EXPECT_EQ(end, elements);
        }
    }
}

TEST_P(ShardLayout, KeepsCostlyParametersWholeAndBalancesTheirCosts) {
    ParameterStore store;
    declare_model(store, 8, 64);
    std::map<int, double> loads;
    double sum = 0.0, largest = 0.0;
    const auto buckets =
        shard_buckets(store.parameters(), store.flat_elements(), {50'000}, processes_, elements_in_blocks);
    for (const Parameter& parameter : store.parameters()) {
        const double cost = elements_in_blocks(parameter);
        if (cost == 0.0) continue;
        int holders = 0;
        for (const ShardBucket& bucket : buckets)
            for (const auto& [range, owner] : bucket.parts) {
                if (range.begin >= parameter.offset() + parameter.shape().elements() ||
                    range.end() <= parameter.offset())
                    continue;
                ++holders;
                loads[owner] += cost;
            }
        EXPECT_EQ(holders, 1) << parameter.name();
        sum += cost;
        largest = std::max(largest, cost);
    }
    // Graham's bound for any order; it holds for decreasing cost too.
    for (const auto& [owner, load] : loads) EXPECT_LE(load, sum / processes_ + largest) << owner;
}

TEST_P(ShardLayout, SplitsEquallyWithoutCostlyParameters) {
    ParameterStore store;
    declare_model(store, 3, 16);
    const std::int64_t elements = store.flat_elements();
    const auto buckets = shard_buckets(store.parameters(), elements, {1000}, processes_);
    std::vector<FlatRange> ranges;
    for (const ShardBucket& bucket : buckets) {
        EXPECT_LT(bucket.other_range().length, parameter_alignment * processes_);
        ranges.push_back(bucket.range);
    }
    EXPECT_EQ(ranges, cut_into_buckets(store.parameters(), {0, elements}, {1000}));
    const std::int64_t remainders = std::ssize(buckets) * parameter_alignment * processes_;
    EXPECT_LE(largest_shard(buckets, processes_), elements / processes_ + remainders);
}

INSTANTIATE_TEST_SUITE_P(Processes, ShardLayout, testing::Values(1, 2, 3, 4, 7, 64),
                         testing::PrintToStringParamName());

TEST(ShardLayoutOrder, KeepsBucketsInTheOrderOfUse) {
    ParameterStore store;
    store.add("wte", {4, 64}, Init::ones());
    store.add("h.0", {1, 128}, Init::ones());
    store.add("bias", {64}, Init::ones());
    store.add("h.1", {1, 192}, Init::ones());
    store.add("head", {2, 64}, Init::ones());
    const auto block_cost = [](const Parameter& p) { return p.name().starts_with("h.") ? 1.0 : 0.0; };
    const auto buckets = shard_buckets(store.parameters(), 768, {128}, 2, block_cost);
    ASSERT_EQ(buckets.size(), 4u);
    EXPECT_EQ(buckets[0].range, (FlatRange{0, 256}));
    EXPECT_EQ(buckets[0].equal_parts, 2);
    EXPECT_EQ(buckets[1].parts, (std::vector<OwnedRange>{{{256, 128}, 0}}));
    EXPECT_EQ(buckets[2].parts, (std::vector<OwnedRange>{{{384, 64}, 0}, {{448, 192}, 1}}));
    EXPECT_EQ(buckets[3].range, (FlatRange{640, 128}));
    EXPECT_EQ(buckets[3].equal_parts, 2);
}

/// The last process owns what does not divide into equal parts, also of a bucket that is too short for any.
TEST(ShardLayoutOrder, GivesRemaindersToTheLastProcess) {
    ParameterStore store;
    store.add("long", {320}, Init::ones());
    store.add("short", {64}, Init::ones());
    const auto buckets = shard_buckets(store.parameters(), 384, {1}, 2);
    ASSERT_EQ(buckets.size(), 2u);
    EXPECT_EQ(buckets[0].parts, (std::vector<OwnedRange>{{{0, 128}, 0}, {{128, 128}, 1}, {{256, 64}, 1}}));
    EXPECT_EQ(buckets[0].equal_range(), (FlatRange{0, 256}));
    EXPECT_EQ(buckets[0].other_range(), (FlatRange{256, 64}));
    EXPECT_EQ(buckets[1].parts, (std::vector<OwnedRange>{{{320, 64}, 1}}));
    EXPECT_EQ(buckets[1].equal_parts, 0);
    EXPECT_EQ(buckets[1].other_range(), buckets[1].range);
}

TEST(ShardLayoutOrder, EndsBucketsWithStagesOnRequest) {
    ParameterStore store;
    store.add("a", {64}, Init::ones());
    store.begin_stage();
    store.add("b", {64}, Init::ones());
    store.add("c", {64}, Init::ones());
    store.begin_stage();
    store.begin_stage();
    store.add("d", {64}, Init::ones());
    const auto cut = [&](const BucketRule& rule) {
        return cut_into_buckets(store.parameters(), {0, store.flat_elements()}, rule);
    };
    EXPECT_EQ(cut({1000, true}), (std::vector<FlatRange>{{0, 64}, {64, 128}, {192, 64}}));
    EXPECT_EQ(cut({1000}), (std::vector<FlatRange>{{0, 256}}));
    const auto first_cost = [](const Parameter& p) { return p.name() == "b" ? 1.0 : 0.0; };
    const auto buckets = shard_buckets(store.parameters(), 256, {1000, true}, 2, first_cost);
    std::vector<FlatRange> ranges;
    for (const ShardBucket& bucket : buckets) ranges.push_back(bucket.range);
    EXPECT_EQ(ranges, (std::vector<FlatRange>{{0, 64}, {64, 64}, {128, 64}, {192, 64}}));
}

}  // namespace
}  // namespace gradtile::test
