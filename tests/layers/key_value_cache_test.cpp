// The blocks of generation's keys and values.
#include <gradtile/layers/transformer/key_value_cache.h>

#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

#include <support/counted_memory.h>
#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig cached_model() {
    return {.layers = 2, .heads = 2, .width = 8, .context = 1000, .vocabulary = 16};
}

/// A slot's row of the table.
std::vector<double> table_row(const Context& ctx, const KeyValueCache& cache, std::int64_t slot) {
    return to_host(ctx, cache.layer(0).table.slice(0, slot, 1));
}

/// Rows [count, length, 2, 4] whose numbers are first, first + 1, ...
Tensor numbered_rows(const Context& ctx, std::int64_t count, std::int64_t length, double first) {
    std::vector<double> values(static_cast<std::size_t>(count * length * 8));
    std::iota(values.begin(), values.end(), first);
    return from_host(ctx, values, {count, length, 2, 4}, DType::f32);
}

TEST(KeyValueCache, TextsTakeBlocksAsTheyGrowAndReturnThem) {
    const Context ctx(Device::cpu(), 1);
    KeyValueCache cache = KeyValueCache::without_blocks(ctx, cached_model(), DType::f32, 3, 200);
    EXPECT_EQ(cache.blocks(), 0);
    EXPECT_THAT(message_of([&] { cache.resize(0, 1); }),
                HasSubstr("a text of 1 tokens takes 1 blocks; it has 0, and 0 are free"));
    cache.add_blocks(ctx, 5);
    cache.resize(0, 65);
    cache.resize(2, 64);
    EXPECT_EQ(cache.free_blocks(), 2);
    cache.update_table(ctx);
    EXPECT_THAT(table_row(ctx, cache, 0), ElementsAre(0, 1, -1, -1));
    EXPECT_THAT(table_row(ctx, cache, 1), ElementsAre(-1, -1, -1, -1));
    EXPECT_THAT(table_row(ctx, cache, 2), ElementsAre(2, -1, -1, -1));
    // Text 0 cannot have the block after its last one, text 2 can.
    cache.resize(2, 65);
    cache.resize(0, 129);
    cache.resize(0, 192);
    EXPECT_EQ(cache.free_blocks(), 0);
    EXPECT_THAT(message_of([&] { cache.resize(0, 193); }),
                HasSubstr("takes 4 blocks; it has 3, and 0 are free"));
    cache.update_table(ctx);
    EXPECT_THAT(table_row(ctx, cache, 0), ElementsAre(0, 1, 4, -1));
    EXPECT_THAT(table_row(ctx, cache, 2), ElementsAre(2, 3, -1, -1));
    cache.resize(0, 1);
    cache.resize(1, 100);
    cache.update_table(ctx);
    EXPECT_THAT(table_row(ctx, cache, 0), ElementsAre(0, -1, -1, -1));
    EXPECT_THAT(table_row(ctx, cache, 1), ElementsAre(1, 4, -1, -1));
    EXPECT_THAT(message_of([&] { cache.resize(0, 201); }),
                HasSubstr("201 tokens in slot 0; it has 3 slots of at most 200 tokens"));
    EXPECT_THAT(message_of([&] { cache.resize(3, 1); }), HasSubstr("1 tokens in slot 3"));
}

/// A table keeps its address when a text grows, because captured graphs contain it.
TEST(KeyValueCache, RefusesANegativeNumberOfSlots) {
    const Context ctx(Device::cpu(), 1);
    EXPECT_EQ(message_of([&] { KeyValueCache(ctx, cached_model(), DType::f32, -1); }),
              "key/value cache: -1 slots; expected 0 or more");
}

TEST(KeyValueCache, KeepsTheTablesAddressUntilTheCapacityChanges) {
    const Context ctx(Device::cpu(), 1);
    KeyValueCache cache(ctx, cached_model(), DType::f32, 2, 100);
    const void* const table = cache.layer(1).table.raw_data();
    EXPECT_EQ(cache.layer(0).table.raw_data(), table);
    cache.resize(1, 3);
    cache.update_table(ctx);
    EXPECT_EQ(cache.layer(1).table.raw_data(), table);
    EXPECT_THAT(table_row(ctx, cache, 1), ElementsAre(2, -1));
    cache.set_capacity(ctx, 300);
    EXPECT_THAT(table_row(ctx, cache, 1), ElementsAre(2, -1, -1, -1, -1));
}

TEST(KeyValueCache, WithKeysOfThePreviousTokenATextHasARowMore) {
    const Context ctx(Device::cpu(), 1);
    ModelConfig config = cached_model();
    config.key_offset = true;
    const KeyValueCache cache(ctx, config, DType::f32, 1, 128);
    EXPECT_EQ(cache.blocks(), 3);
    EXPECT_EQ(cache.blocks_of_text(127), 2);
    EXPECT_EQ(cache.blocks_of_text(0), 0);
}

/// Texts that grew in turn have no neighbouring blocks. Those that grew one after the other have.
TEST(KeyValueCache, ReturnsTheRowsThatWereWrittenAlsoWhenThePoolGrows) {
    const Context ctx(Device::cpu(), 2);
    for (const bool in_turn : {false, true}) {
        SCOPED_TRACE(in_turn);
        KeyValueCache cache = KeyValueCache::without_blocks(ctx, cached_model(), DType::f32, 3, 300);
        cache.add_blocks(ctx, 12);
        for (const std::int64_t tokens :
             in_turn ? std::vector<std::int64_t>{64, 128, 192, 200} : std::vector<std::int64_t>{200})
            for (const std::int64_t slot : {0, 1, 2}) cache.resize(slot, tokens);
        EXPECT_EQ(cache.first_row(1, 200), in_turn ? -1 : 256);
        EXPECT_EQ(cache.first_row(1, 64), in_turn ? 64 : 256);
        const EqualTexts both{.first = {.slot = 1}, .count = 2}, one{.first = {.slot = 0}, .count = 1};
        const Tensor rows = numbered_rows(ctx, 2, 190, 0), other = numbered_rows(ctx, 1, 200, 5000);
        const auto columns = [&] { return cache.layer(1).k.slice(3, 1, 2); };
        cache.write(ctx, cache.layer(1).k, one, 0, other);
        cache.write(ctx, columns(), both, 10, rows.slice(3, 1, 2));
        const auto expect_rows = [&](bool is_view) {
            EXPECT_EQ(to_host(ctx, cache.read(ctx, columns(), both, 10, 190)),
                      to_host(ctx, rows.slice(3, 1, 2)));
            EXPECT_EQ(to_host(ctx, cache.read(ctx, columns(), both, 63, 2)),
                      to_host(ctx, rows.slice(3, 1, 2).slice(1, 53, 2)));
            const Tensor read = cache.read(ctx, cache.layer(1).k, one, 0, 200);
            EXPECT_EQ(to_host(ctx, read), to_host(ctx, other));
            EXPECT_EQ(read.raw_data() == cache.layer(1).k.raw_data(), is_view);
        };
        expect_rows(!in_turn);
        // A larger pool has each text's blocks side by side, and one free block after each.
        cache.add_blocks(ctx, 3);
        expect_rows(true);
        EXPECT_THAT(table_row(ctx, cache, 1), ElementsAre(5, 6, 7, 8, -1));
        for (const std::int64_t slot : {2, 1, 0}) cache.resize(slot, 300);
        for (const std::int64_t slot : {0, 1, 2}) EXPECT_EQ(cache.first_row(slot, 300), 64 * 5 * slot);
        expect_rows(true);
        for (const std::int64_t slot : {0, 1, 2}) cache.resize(slot, 200);
        EXPECT_THAT(message_of([&] { cache.write(ctx, cache.layer(1).k, one, 60, other); }),
                    HasSubstr("rows 60 to 259 of slot 0, whose text has 4 blocks"));
    }
}

/// One attention call computes texts together if they have no cached tokens, or if no copy is needed.
TEST(KeyValueCache, EqualTextsAreThoseWhoseBlocksLieAtEqualDistances) {
    const Context ctx(Device::cpu(), 1);
    KeyValueCache cache = KeyValueCache::without_blocks(ctx, cached_model(), DType::f32, 4, 300);
    cache.add_blocks(ctx, 16);
    for (const std::int64_t slot : {0, 1, 2, 3}) cache.resize(slot, slot == 2 ? 130 : 100);
    const auto sizes = [&](std::int64_t start, std::int64_t length) {
        std::vector<PackedTexts::Text> texts;
        for (std::int64_t slot = 0; slot < 4; ++slot) texts.push_back({slot, start, length});
        std::vector<std::int64_t> counts;
        for (const EqualTexts& group : equal_texts(texts, cache)) counts.push_back(group.count);
        return counts;
    };
    EXPECT_THAT(sizes(0, 100), ElementsAre(4));
    EXPECT_THAT(sizes(99, 1), ElementsAre(3, 1));  // text 2 has 3 blocks, so text 3 begins later
    cache.resize(0, 200);
    EXPECT_THAT(sizes(99, 1), ElementsAre(3, 1));
    EXPECT_THAT(sizes(129, 1), ElementsAre(1, 1, 1, 1));  // texts 1 and 3 do not have these rows
}

/// The pool's layers grow one after the other, so that the old ones take no memory beside all new ones.
TEST(KeyValueCache, MemoryFollowsTheBlocks) {
    const auto memory = std::make_shared<test::CountedMemory>();
    const Context ctx = Context(Device::cpu(), 1).with_allocator(memory);
    KeyValueCache cache = KeyValueCache::without_blocks(ctx, cached_model(), DType::f32, 64, 1000);
    const std::size_t block = 64 * 8 * sizeof(float), table = 64 * 16 * sizeof(std::int32_t);
    EXPECT_EQ(memory->held, table);
    cache.add_blocks(ctx, 20);
    EXPECT_EQ(memory->held, table + 4 * 20 * block);
    memory->peak = memory->held;
    cache.add_blocks(ctx, 10);
    EXPECT_EQ(memory->held, table + 4 * 30 * block);
    EXPECT_EQ(memory->peak, table + 4 * 30 * block + 20 * block);
    EXPECT_EQ(KeyValueCache::bytes_of_text(cached_model(), DType::f32, 65),
              static_cast<double>(2 * 4 * block));
}

}  // namespace
}  // namespace gradtile
