// What the GPU kernels read from row ranges, compared with every pair (row, key). These tests need no GPU:
// they run the functions that the kernels call.
#include <gradtile/attention/cuda/common/row_ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace gradtile::attention::cuda {
namespace {

constexpr int queries = 37, keys = 12;

/// The definition, with the values as the caller passed them.
bool sees(const KeyRows& key, int row) {
    return row >= 0 && row < queries &&
           ((key.ranges[0].begin <= row && row < key.ranges[0].end) ||
            (key.ranges[1].begin <= row && row < key.ranges[1].end));
}

/// Key blocks with rows that shrink, grow, jump, do not exist or are not numbers of rows at all.
std::vector<std::vector<KeyRows>> key_blocks() {
    std::mt19937 random(5);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const auto range = [&](int kind) -> RowRange {
        const int a = below(queries + 1), b = below(queries + 1);
        switch (kind) {
            case 0:
                return {std::min(a, b), std::max(a, b)};
            case 1:
                return {a, std::min(queries, a + below(5))};  // short
            case 2:
                return {std::max(a, b), std::min(a, b)};  // empty
            case 3:
                return {-below(100), below(2) == 0 ? INT_MAX : a};
            case 4:
                return {INT_MIN, b};
            default:
                return {below(2) == 0 ? INT_MAX : INT_MIN, below(2) == 0 ? INT_MAX : INT_MIN};
        }
    };
    std::vector<std::vector<KeyRows>> blocks{std::vector<KeyRows>(keys, KeyRows{{{0, queries}, {0, 0}}}),
                                             std::vector<KeyRows>(keys, KeyRows{{{0, 0}, {0, 0}}}),
                                             std::vector<KeyRows>(keys, KeyRows{{{30, 35}, {2, 5}}}),
                                             {}};
    for (int n = 0; n < 3000; ++n) {
        const int first = below(6), second = below(6), size = 1 + below(keys);
        std::vector<KeyRows>& block = blocks.emplace_back();
        for (int key = 0; key < size; ++key) block.push_back({{range(first), range(second)}});
    }
    return blocks;
}

KeyBlockRows rows_of(const std::vector<KeyRows>& block) {
    KeyBlockRows result;
    for (const KeyRows& key : block) {
        const KeyRows clipped = clipped_rows(key, queries);
        result.add({.some = clipped, .all = clipped});
    }
    return result;
}

bool any_pair(const std::vector<KeyRows>& block, int row, int end_row) {
    return std::ranges::any_of(block, [&](const KeyRows& key) {
        for (int i = row; i < end_row; ++i)
            if (sees(key, i)) return true;
        return false;
    });
}
bool all_pairs(const std::vector<KeyRows>& block, int row, int end_row) {
    return std::ranges::all_of(block, [&](const KeyRows& key) {
        for (int i = row; i < end_row; ++i)
            if (!sees(key, i)) return false;
        return true;
    });
}

TEST(KeyBlockRows, ClippedRowsAndTheirBitsAreThePairsOfTheDefinition) {
    for (const std::vector<KeyRows>& block : key_blocks())
        for (const KeyRows& key : block) {
            const KeyRows clipped = clipped_rows(key, queries);
            for (int row = 0; row < queries; ++row) {
                ASSERT_EQ(clipped.contain(row), sees(key, row));
                const std::uint32_t bits_16 = row_bits<16>(clipped, row),
                                    bits_32 = row_bits<32>(clipped, row);
                for (int n = 0; n < 32; ++n) {
                    ASSERT_EQ(bits_32 >> n & 1u, sees(key, row + n) ? 1u : 0u) << row << ' ' << n;
                    ASSERT_EQ(bits_16 >> n & 1u, n < 16 && sees(key, row + n) ? 1u : 0u) << row << ' ' << n;
                }
            }
        }
}

TEST(KeyBlockRows, KeyBlocksSkipNoVisiblePairAndTestNoFullBlock) {
    std::int64_t skipped = 0, hidden = 0, full = 0, filled = 0;
    for (const std::vector<KeyRows>& block : key_blocks()) {
        const KeyBlockRows rows = rows_of(block);
        for (int row = 0; row < queries; ++row)
            for (const int end : {row + 1, std::min(row + 8, queries)}) {
                const bool is_seen = any_pair(block, row, end), is_full = all_pairs(block, row, end);
                ASSERT_TRUE(rows.see_some(row, end) || !is_seen);
                ASSERT_TRUE(!rows.see_all(row, end) || is_full);
                skipped += rows.see_some(row, end) ? 0 : 1;
                hidden += is_seen ? 0 : 1;
                full += rows.see_all(row, end) && is_seen ? 1 : 0;
                filled += is_full && is_seen ? 1 : 0;
            }
    }
    // Hulls cannot see every gap, but random ranges leave them few.
    EXPECT_GT(static_cast<double>(skipped), 0.5 * static_cast<double>(hidden));
    EXPECT_GT(static_cast<double>(full), 0.5 * static_cast<double>(filled));
}

template <int rows>
void expect_runs_cover(const std::vector<KeyRows>& block, RowRange limits) {
    const KeyBlockRows summary = rows_of(block);
    const auto runs = RowRuns<rows>::of(summary, limits);
    std::vector<int> visited;
    if (!runs.is_empty())
        for (int row = runs.runs[0].begin; row >= 0; row = runs.after(row)) {
            ASSERT_EQ(row % rows, 0);
            ASSERT_TRUE(visited.empty() || visited.back() < row);
            ASSERT_LT(row, limits.end);
            ASSERT_GT(row + rows, limits.begin);
            ASSERT_TRUE(summary.see_some(row, row + rows));
            visited.push_back(row);
        }
    ASSERT_EQ(runs.blocks(), static_cast<int>(visited.size()));
    for (int row = limits.begin / rows * rows; row < limits.end; row += rows) {
        const bool is_seen = any_pair(block, std::max(row, limits.begin), std::min(row + rows, limits.end));
        ASSERT_TRUE(!is_seen || std::ranges::find(visited, row) != visited.end()) << row;
    }
}
TEST(KeyBlockRows, RunsVisitEachRowBlockWithAPairOnceAndInOrder) {
    for (const std::vector<KeyRows>& block : key_blocks())
        for (const RowRange limits :
             {RowRange{0, queries}, RowRange{8, 30}, RowRange{5, 6}, RowRange{16, 16}, RowRange{20, 4}}) {
            expect_runs_cover<4>(block, limits);
            expect_runs_cover<16>(block, limits);
            expect_runs_cover<64>(block, limits);
        }
}

/// The place of each block in a stable sort by decreasing work.
std::vector<int> places_in_sorted_order(const std::vector<int>& work) {
    std::vector<int> order(work.size()), places(work.size());
    std::iota(order.begin(), order.end(), 0);
    const auto work_of = [&](int block) { return work[static_cast<std::size_t>(block)]; };
    std::ranges::stable_sort(order, std::greater<>{}, work_of);
    for (std::size_t place = 0; place < order.size(); ++place)
        places[static_cast<std::size_t>(order[place])] = static_cast<int>(place);
    return places;
}
/// Follows sm90/block_order.cuh for one head: each key block marks where its runs begin and end.
template <int rows>
void expect_order_of_row_blocks(std::span<const std::vector<KeyRows>> blocks, RowRange limits) {
    constexpr std::size_t row_blocks = (queries + rows - 1) / rows;
    std::vector<int> work(row_blocks + 1), expected(row_blocks);
    for (const std::vector<KeyRows>& block : blocks) {
        const auto runs = RowRuns<rows>::of(rows_of(block), limits);
        runs.for_each_change([&](int at, int change) { work[static_cast<std::size_t>(at)] += change; });
        if (!runs.is_empty())
            for (int row = runs.runs[0].begin; row >= 0; row = runs.after(row))
                ++expected[static_cast<std::size_t>(row / rows)];
    }
    std::partial_sum(work.begin(), work.end(), work.begin());
    ASSERT_EQ(work.back(), 0);
    work.pop_back();
    ASSERT_EQ(work, expected);
    const std::vector<int> places = places_in_sorted_order(expected);
    for (std::size_t block = 0; block < row_blocks; ++block)
        ASSERT_EQ(rank_by_work(work.data(), row_blocks, static_cast<int>(block)), places[block]) << block;
}
TEST(KeyBlockRows, RowBlocksThatSeeTheMostKeyBlocksComeFirst) {
    const std::vector<std::vector<KeyRows>> blocks = key_blocks();
    constexpr std::size_t heads_key_blocks = 40;
    for (std::size_t n = 0; n < blocks.size(); n += heads_key_blocks) {
        const auto own = std::span(blocks).subspan(n, std::min(heads_key_blocks, blocks.size() - n));
        for (const RowRange limits : {RowRange{0, queries}, RowRange{8, 30}, RowRange{20, 4}}) {
            expect_order_of_row_blocks<4>(own, limits);
            expect_order_of_row_blocks<16>(own, limits);
            expect_order_of_row_blocks<64>(own, limits);
        }
    }
}
TEST(KeyBlockRows, OrdersFollowTheRangesInScratchMemory) {
    std::mt19937 random(9);
    const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
    for (int trial = 0; trial < 1000; ++trial) {
        const std::int64_t batch = 1 + below(3), heads = 1 + below(5), rows = below(1000),
                           columns = below(1000);
        const RowRanges ranges{.batch_stride = below(2), .head_stride = below(2)};
        const std::int64_t count = heads_with_row_ranges(ranges, batch, heads), block_tokens = 64 << below(2),
                           blocks = (std::max(rows, columns) + block_tokens - 1) / block_tokens,
                           order = count *
                                   (padded_keys_of_ranges(columns) * key_rows_bytes +
                                    key_blocks_of_ranges(columns, {}, block_tokens) * key_block_rows_bytes),
                           end = order + 4 * (1 + count * blocks);
        ASSERT_LE(end, 4 * row_ranges_elements(ranges, batch, heads, rows, columns, {}));
    }
}

/// Heads that see a key block in different rows: kernels that prepare the next head's rule need every head.
TEST(KeyBlockRows, RowBlocksOfAGroupVisitEveryHeadIfOneSeesTheBlock) {
    constexpr int rows = 8, group = 3, block_keys = 16;
    const std::vector<std::vector<KeyRows>> blocks = key_blocks();
    for (std::size_t n = 0; n + group <= blocks.size(); n += group)
        for (const bool visits_all : {false, true}) {
            // [head, key]: one key block each.
            std::vector<KeyRows> key_rows(group * block_keys);
            std::vector<KeyBlockRows> block_rows;
            for (int head = 0; head < group; ++head)
                block_rows.push_back(rows_of(blocks[n + static_cast<std::size_t>(head)]));
            const DeviceRowRanges ranges{.keys = key_rows.data(),
                                         .blocks = block_rows.data(),
                                         .padded_keys = block_keys,
                                         .block_count = 1,
                                         .head_step = 1,
                                         .block_keys = block_keys};
            const RangedRowBlocks<rows> row_blocks{.ranges = ranges,
                                                   .limits = {8, queries},
                                                   .batch = 0,
                                                   .end_head = group,
                                                   .first_key = 0,
                                                   .sequence = 0,
                                                   .block = 0,
                                                   .visits_all = visits_all};
            std::vector<int> visits(group);
            int last_head = 0, last_row = -1, count = 0;
            for (auto position = row_blocks.first(0); position.head < group;
                 position = row_blocks.after(position)) {
                if (position.head == last_head) {
                    ASSERT_GT(position.row, last_row);
                } else {
                    ASSERT_EQ(position.head, last_head + 1);
                }
                last_head = position.head;
                last_row = position.row;
                ++visits[static_cast<std::size_t>(position.head)];
                ++count;
            }
            ASSERT_EQ(row_blocks.count(0), count);
            ASSERT_TRUE(count == 0 || std::ranges::find(visits, 0) == visits.end());
            if (visits_all) {
                ASSERT_EQ(visits, std::vector<int>(group, 4));
            }
            for (std::size_t head = 0; head < group; ++head)
                ASSERT_GE(visits[head], any_pair(blocks[n + head], 8, queries) ? 1 : 0);
        }
}

/// A sequence's blocks begin after those of the sequences before it, whatever their lengths are.
TEST(KeyBlockRows, BlocksOfPackedSequencesDoNotOverlap) {
    std::mt19937 random(7);
    for (int trial = 0; trial < 1000; ++trial) {
        const int block_keys = 16 << trial % 4;
        int first_key = 0, end_slot = 0, sequence = 0;
        for (; sequence < 12; ++sequence) {
            const int length = static_cast<int>(random() % 3 == 0 ? 0 : random() % 200),
                      first = DeviceRowRanges::first_block(first_key, sequence, block_keys);
            ASSERT_GE(first, end_slot);
            end_slot = first + (length + block_keys - 1) / block_keys;
            first_key += length;
        }
        PackedSequences packed;
        packed.count = sequence - 1;
        ASSERT_LE(end_slot, key_blocks_of_ranges(first_key, packed, block_keys));
    }
}

}  // namespace
}  // namespace gradtile::attention::cuda
