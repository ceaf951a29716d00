// Compares the mask's ranges and coverages with every pair (row, key), for all small sizes.
#include <gradtile/attention/mask.h>

#include <vector>

#include <gtest/gtest.h>

namespace gradtile::attention {
namespace {

/// A mask, and its visible pairs computed from the definition.
struct MaskByDefinition {
    Mask mask;

    bool visible(std::int64_t i, std::int64_t j) const {
        const std::int64_t diagonal = i + mask.offset;
        return (mask.left < 0 || j >= diagonal - mask.left) && (mask.right < 0 || j <= diagonal + mask.right);
    }
    std::int64_t visible_pairs(IndexRange rows, IndexRange keys) const {
        std::int64_t count = 0;
        for (std::int64_t i = rows.begin; i < rows.end; ++i)
            for (std::int64_t j = keys.begin; j < keys.end; ++j) count += visible(i, j);
        return count;
    }
};

std::vector<MaskByDefinition> small_masks() {
    std::vector<MaskByDefinition> cases;
    for (std::int64_t queries = 0; queries <= 6; ++queries)
        for (std::int64_t keys = 0; keys <= 6; ++keys)
            for (const bool top_left : {false, true})
                for (std::int64_t left = -1; left <= 7; ++left)
                    for (std::int64_t right = -1; right <= 7; ++right)
                        cases.push_back({{.queries = queries,
                                          .keys = keys,
                                          .offset = top_left ? 0 : keys - queries,
                                          .left = left,
                                          .right = right}});
    return cases;
}

std::vector<IndexRange> ranges_within(std::int64_t length) {
    std::vector<IndexRange> ranges;
    for (std::int64_t begin = 0; begin < length; ++begin)
        for (std::int64_t end = begin + 1; end <= length; ++end) ranges.push_back({begin, end});
    return ranges;
}

::testing::Message describe(const MaskByDefinition& c, IndexRange rows, IndexRange keys) {
    return ::testing::Message() << c.mask.queries << " x " << c.mask.keys << ", offset " << c.mask.offset
                                << ", window {" << c.mask.left << ", " << c.mask.right << "}, rows "
                                << rows.begin << ".." << rows.end << ", keys " << keys.begin << ".."
                                << keys.end;
}

bool is_in(std::int64_t i, IndexRange range) {
    return i >= range.begin && i < range.end;
}

TEST(Mask, VisibleKeysOfARowMatchTheDefinition) {
    for (const MaskByDefinition& c : small_masks())
        for (std::int64_t i = 0; i < c.mask.queries; ++i)
            for (std::int64_t j = 0; j < c.mask.keys; ++j)
                ASSERT_EQ(is_in(j, c.mask.visible_keys(i)), c.visible(i, j))
                    << describe(c, {i, i + 1}, {j, j + 1});
}

TEST(Mask, VisibleKeysOfABlockOfRowsAreTheUnionOfItsRows) {
    for (const MaskByDefinition& c : small_masks())
        for (const IndexRange rows : ranges_within(c.mask.queries))
            for (std::int64_t j = 0; j < c.mask.keys; ++j)
                ASSERT_EQ(is_in(j, c.mask.visible_keys(rows)), c.visible_pairs(rows, {j, j + 1}) > 0)
                    << describe(c, rows, {j, j + 1});
}

TEST(Mask, SeeingRowsOfABlockOfKeysAreTheRowsThatSeeOneOfThem) {
    for (const MaskByDefinition& c : small_masks())
        for (const IndexRange keys : ranges_within(c.mask.keys))
            for (std::int64_t i = 0; i < c.mask.queries; ++i)
                ASSERT_EQ(is_in(i, c.mask.seeing_rows(keys)), c.visible_pairs({i, i + 1}, keys) > 0)
                    << describe(c, {i, i + 1}, keys);
}

TEST(Mask, CoverageSaysWhetherNoPairOrEveryPairIsVisible) {
    for (const MaskByDefinition& c : small_masks())
        for (const IndexRange rows : ranges_within(c.mask.queries))
            for (const IndexRange keys : ranges_within(c.mask.keys)) {
                const std::int64_t pairs = (rows.end - rows.begin) * (keys.end - keys.begin);
                const std::int64_t visible = c.visible_pairs(rows, keys);
                const Coverage expected = visible == 0       ? Coverage::none
                                          : visible == pairs ? Coverage::full
                                                             : Coverage::partial;
                ASSERT_EQ(c.mask.coverage(rows, keys), expected) << describe(c, rows, keys);
            }
}

// The order in which the CPU adds to dQ depends on this property: the key blocks from a row block's first to
// its last visible key are exactly the key blocks whose seeing_rows() contain a row of the row block.
TEST(Mask, RowBlocksAndKeyBlocksAgreeOnWhichOfThemHaveVisiblePairs) {
    for (const MaskByDefinition& c : small_masks())
        for (const std::int64_t block : {1, 2, 3})
            for (std::int64_t row = 0; row < c.mask.queries; row += block)
                for (std::int64_t key = 0; key < c.mask.keys; key += block) {
                    const IndexRange rows{row, std::min(row + block, c.mask.queries)};
                    const IndexRange keys{key, std::min(key + block, c.mask.keys)};
                    const IndexRange seen = c.mask.visible_keys(rows), seeing = c.mask.seeing_rows(keys);
                    const bool by_rows = seen.begin < seen.end && seen.begin / block <= key / block &&
                                         key / block <= (seen.end - 1) / block;
                    const bool by_keys =
                        seeing.begin < seeing.end && seeing.begin / block <= row / block && row < seeing.end;
                    ASSERT_EQ(by_rows, by_keys) << describe(c, rows, keys);
                }
}

}  // namespace
}  // namespace gradtile::attention
