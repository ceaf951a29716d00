#include <gradtile/train/shared_sequences.h>

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

#include <support/error_message.h>
#include <support/silent_pair.h>

namespace gradtile {
namespace {

using test::message_of;
using test::SilentPair;
using testing::ElementsAre;
using testing::HasSubstr;

/// Rank 1 of 2, which holds chunks 1 and 2 of 4.
class SharedSequencesOfTwo : public testing::Test {
  protected:
    Tensor numbers(const Shape& shape) const {
        std::vector<std::int32_t> values(static_cast<std::size_t>(shape.elements()));
        std::iota(values.begin(), values.end(), 100);
        return from_host(ctx_, values, shape);
    }
    const Context ctx_{Device::cpu(), 1};
    const SilentPair pair_;
    const SharedSequences shared_{ctx_, pair_, 2, 16};
};

TEST_F(SharedSequencesOfTwo, HaveTheMiddleOfEachRow) {
    EXPECT_EQ(shared_.groups(), 1);
    EXPECT_EQ(shared_.group(), 0);
    EXPECT_FALSE(shared_.is_first());
    const Batch part = shared_.part_of(ctx_, {numbers({2, 8}), numbers({2, 8})});
    EXPECT_THAT(to_host(ctx_, part.tokens), ElementsAre(102, 103, 104, 105, 110, 111, 112, 113));
    EXPECT_EQ(to_host(ctx_, part.targets), to_host(ctx_, part.tokens));
    EXPECT_THAT(to_host(ctx_, part.documents.positions), ElementsAre(2, 3, 4, 5, 2, 3, 4, 5));
    EXPECT_EQ(part.documents.end_position(), 8);
}

TEST_F(SharedSequencesOfTwo, HaveRowsOfFourChunks) {
    EXPECT_EQ(shared_.row_length(5), 8);
    EXPECT_EQ(shared_.row_length(8), 8);
    EXPECT_THAT(message_of([&] {
                    shared_.part_of(ctx_, {numbers({1, 6}), numbers({1, 6})});
                }),
                HasSubstr("expected a multiple of 4"));
    EXPECT_THAT(message_of([&] {
                    shared_.part_of(ctx_, {numbers({1, 20}), numbers({1, 20})});
                }),
                HasSubstr("rows of 20 tokens; expected at most 16"));
    EXPECT_THAT(message_of([&] { SharedSequences(ctx_, pair_, 3, 16); }), HasSubstr("3 of 2 processes"));
}

TEST_F(SharedSequencesOfTwo, AreWholeRowsForGroupsOfOne) {
    const SharedSequences alone(ctx_, pair_, 1, 16);
    EXPECT_EQ(alone.groups(), 2);
    EXPECT_EQ(alone.group(), 1);
    EXPECT_TRUE(alone.is_first());
    EXPECT_EQ(alone.row_length(5), 5);
    const Tensor tokens = numbers({2, 6});
    EXPECT_EQ(alone.part_of(ctx_, {tokens, tokens}).tokens.raw_data(), tokens.raw_data());
}

/// A row sees a key if both are in one document and the key is not after it.
TEST_F(SharedSequencesOfTwo, PackedRowsSeeTheirDocuments) {
    constexpr std::int64_t rows = 2, length = 8, part = 4;
    const std::vector<std::int32_t> offsets{0, 3, 8, 8, 9, 14, 16};
    const auto document_of = [&](std::int64_t token) {
        return std::ranges::upper_bound(offsets, token) - offsets.begin();
    };
    Batch batch{numbers({rows, length}), numbers({rows, length})};
    batch.documents.positions = zeros(ctx_, {rows, length}, DType::i32);
    batch.documents.offsets = from_host(ctx_, offsets, {std::ssize(offsets)});
    EXPECT_THAT(message_of([&] { shared_.part_of(ctx_, batch); }), HasSubstr("document offsets"));
    const Tensor ranges = shared_.part_of(ctx_, shared_.with_row_ranges(ctx_, batch)).documents.row_ranges;
    ASSERT_EQ(ranges.shape(), (Shape{2 * rows, 1, part, 4}));
    const std::int64_t own_chunks[] = {2, 4};
    for (int source = 0; source < 2; ++source) {
        const auto chunks = attention::zigzag_chunks(length, source, 2);
        for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t key = 0; key < part; ++key) {
                const std::int32_t* const r =
                    ranges.data<std::int32_t>() + 4 * ((source * rows + row) * part + key);
                const std::int64_t key_token = row * length + chunks[key < 2 ? 0 : 1] + key % 2;
                for (std::int64_t i = 0; i < part; ++i) {
                    const std::int64_t token = row * length + own_chunks[i / 2] + i % 2;
                    const bool sees = (r[0] <= i && i < r[1]) || (r[2] <= i && i < r[3]);
                    EXPECT_EQ(sees, key_token <= token && document_of(key_token) == document_of(token))
                        << "token " << token << ", key " << key_token;
                }
            }
    }
    std::vector<std::int32_t> too_few(8);
    EXPECT_THAT(message_of([&] { shared_.write_row_ranges(offsets, length, too_few); }),
                HasSubstr("memory for 8 numbers"));
}

}  // namespace
}  // namespace gradtile
