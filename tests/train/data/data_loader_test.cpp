#include <gradtile/core/text/json_reader.h>
#include <gradtile/train/data/data_loader.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/vocabulary.h>
#include <gradtile/train/data/permutation.h>
#include <gradtile/train/data/token_file.h>

#include <support/error_message.h>

#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using test::message_of;

/// Tokens 0 to n - 1: each id is its position, so that a test can check which positions were visited.
TokenSequence numbered_tokens(std::int64_t n) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
    std::iota(ids.begin(), ids.end(), 0);
    return TokenSequence(std::move(ids), "numbers");
}

struct Row {
    std::vector<std::int32_t> tokens, targets;
    bool operator==(const Row&) const = default;
};

std::vector<Row> take(DataLoader& loader, std::int64_t batches, std::int64_t rows) {
    const auto context = static_cast<std::size_t>(loader.context());
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows) * context), targets(tokens.size());
    std::vector<Row> taken;
    for (std::int64_t b = 0; b < batches; ++b) {
        loader.next(tokens, targets);
        for (std::size_t r = 0; r < tokens.size(); r += context) {
            const auto row_of = [&](const std::vector<std::int32_t>& v) {
                return std::vector<std::int32_t>(v.begin() + std::ptrdiff_t(r),
                                                 v.begin() + std::ptrdiff_t(r + context));
            };
            taken.push_back({row_of(tokens), row_of(targets)});
        }
    }
    return taken;
}

TEST(Permutation, VisitsEveryElementOnce) {
    for (const std::uint64_t n : {1, 2, 3, 15, 16, 17, 255, 256, 257, 5000}) {
        std::vector<int> visits(n, 0);
        const Permutation order(n, 7);
        for (std::uint64_t i = 0; i < n; ++i) ++visits[order(i)];
        EXPECT_EQ(std::ranges::count(visits, 1), std::int64_t(n)) << n;
    }
}

TEST(Permutation, EveryOrderOfFourIsAboutEquallyLikely) {
    constexpr int draws = 24000;
    std::map<std::vector<std::uint64_t>, int> counts;
    for (std::uint64_t seed = 0; seed < draws; ++seed) {
        const Permutation order(4, mix_seed(seed, 1));
        ++counts[{order(0), order(1), order(2), order(3)}];
    }
    ASSERT_EQ(counts.size(), 24u);
    double chi_squared = 0;
    for (const auto& [order, count] : counts) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
    EXPECT_LT(chi_squared, 49.7);  // the 99.9% quantile for 23 degrees of freedom
}

TEST(DataLoader, AnEpochShowsEveryTokenAsATargetExactlyOnce) {
    for (const std::int64_t n : {9, 16, 17, 100, 257})
        for (const std::int64_t context : {1, 2, 7, 8}) {
            DataLoader loader(numbered_tokens(n), {.context = context, .seed = {3}});
            for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
                std::vector<int> visits(std::size_t(n), 0);
                while (loader.epoch() == epoch)
                    for (const Row& row : take(loader, 1, 1))
                        for (std::size_t t = 0; t < row.targets.size(); ++t) {
                            if (row.targets[t] == ignored_target) continue;
                            EXPECT_EQ(row.targets[t], row.tokens[t] + 1);
                            ++visits[std::size_t(row.targets[t])];
                        }
                EXPECT_EQ(visits[0], 0);  // nothing precedes the first token
                EXPECT_EQ(std::ranges::count(visits, 1), n - 1) << n << " tokens, context " << context;
            }
        }
}

TEST(DataLoader, EpochsDifferInOrderAndPhase) {
    DataLoader loader(numbered_tokens(1000), {.context = 10, .seed = {1}});
    std::set<std::int32_t> phases;
    std::vector<std::int32_t> first_tokens;
    for (int epoch = 0; epoch < 20; ++epoch) {
        first_tokens.push_back(0);
        const std::int64_t windows = loader.windows();
        for (const Row& row : take(loader, windows, 1))
            if (row.tokens[0] != 0) {
                phases.insert(row.tokens[0] % 10);
                first_tokens.back() = row.tokens[0];
            }
    }
    // 20 draws from 10 phases give fewer than 6 different ones with probability below 1e-4.
    EXPECT_GE(phases.size(), 6u);
    EXPECT_GT(std::set(first_tokens.begin(), first_tokens.end()).size(), 10u);
}

TEST(DataLoader, ResumesExactlyAtEveryPosition) {
    const DataLoaderOptions options{.context = 8, .seed = {5}};
    DataLoader straight(numbered_tokens(100), options);
    const std::vector<Row> all = take(straight, 60, 1);
    DataLoader walker(numbered_tokens(100), options);
    for (std::size_t done = 0; done < 50; ++done) {
        DataLoader resumed(numbered_tokens(100), options);
        resumed.restore(parse_json(walker.state().dump(), "test"));
        EXPECT_EQ(resumed.epoch(), walker.epoch());
        EXPECT_EQ(take(resumed, 10, 1), std::vector<Row>(all.begin() + std::ptrdiff_t(done),
                                                         all.begin() + std::ptrdiff_t(done + 10)));
        take(walker, 1, 1);
    }
}

TEST(DataLoader, TheOrderDoesNotDependOnTheBatchSize) {
    const DataLoaderOptions options{.context = 8, .seed = {5}};
    DataLoader by_one(numbered_tokens(100), options), by_six(numbered_tokens(100), options),
        mixed(numbered_tokens(100), options);
    const std::vector<Row> expected = take(by_one, 60, 1);
    EXPECT_EQ(take(by_six, 10, 6), expected);
    std::vector<Row> taken = take(mixed, 4, 3);
    const std::vector<Row> rest = take(mixed, 12, 4);
    taken.insert(taken.end(), rest.begin(), rest.end());
    EXPECT_EQ(taken, expected);
}

TEST(DataLoader, SeedsGiveDifferentOrders) {
    DataLoader a(numbered_tokens(500), {.context = 8, .seed = {1}}),
        b(numbered_tokens(500), {.context = 8, .seed = {2}});
    EXPECT_NE(take(a, 20, 1), take(b, 20, 1));
}

TEST(DataLoader, RanksShareOneOrder) {
    DataLoader alone(numbered_tokens(200), {.context = 8, .seed = {9}});
    const std::vector<Row> expected = take(alone, 60, 1);
    for (const std::int64_t ranks : {2, 3}) {
        std::vector<std::vector<Row>> rank_rows;
        JsonValue state;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
            DataLoader loader(numbered_tokens(200),
                              {.context = 8, .seed = {9}, .rank = rank, .ranks = ranks});
            rank_rows.push_back(take(loader, 5, 60 / 5 / ranks));
            if (rank > 0) {
                EXPECT_EQ(loader.state(), state);
            }
            state = loader.state();
        }
        // In each batch, rank 0's rows come before rank 1's.
        const std::size_t rows = 60 / 5 / std::size_t(ranks), batch_rows = rows * std::size_t(ranks);
        for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_EQ(rank_rows[i % batch_rows / rows][i / batch_rows * rows + i % rows], expected[i]);
    }
}

TEST(DataLoader, AnotherNumberOfRanksContinuesTheSameOrder) {
    DataLoader alone(numbered_tokens(200), {.context = 8, .seed = {9}});
    const std::vector<Row> expected = take(alone, 24, 1);
    DataLoader first(numbered_tokens(200), {.context = 8, .seed = {9}, .rank = 1, .ranks = 4});
    take(first, 3, 1);
    DataLoader second(numbered_tokens(200), {.context = 8, .seed = {9}, .rank = 1, .ranks = 2});
    second.restore(first.state());
    const std::vector<Row> rows = take(second, 1, 6);
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(rows[i], expected[12 + 6 + i]);
}

TEST(DataLoader, IgnoredTokensAreNoTargetsButStayInputs) {
    std::vector<std::int32_t> ids(50);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = std::int32_t(i % 5);
    DataLoader loader(TokenSequence(ids, "ids"), {.context = 7, .seed = {1}, .ignore_token = 3});
    std::map<std::int32_t, int> targets;
    int inputs = 0;
    while (loader.epoch() == 0)
        for (const Row& row : take(loader, 1, 1)) {
            for (const std::int32_t target : row.targets) ++targets[target];
            inputs += int(std::ranges::count(row.tokens, 3));
        }
    EXPECT_EQ(targets.count(3), 0u);
    EXPECT_EQ(targets[1], 10);
    EXPECT_EQ(inputs, 10);
}

TEST(DataLoader, FillsTensors) {
    const Context ctx(Device::cpu(), 1);
    DataLoader loader(numbered_tokens(100), {.context = 8, .seed = {1}}), same = loader;
    const Batch batch = empty_batch(ctx, 3, 8);
    loader.next(batch);
    const std::vector<Row> rows = take(same, 1, 3);
    EXPECT_TRUE(std::equal(rows[2].tokens.begin(), rows[2].tokens.end(),
                           batch.tokens.select(0, 2).data<std::int32_t>()));
    EXPECT_TRUE(std::equal(rows[2].targets.begin(), rows[2].targets.end(),
                           batch.targets.select(0, 2).data<std::int32_t>()));
    EXPECT_THROW(loader.next(empty_batch(ctx, 3, 9)), Error);
}

TEST(DataLoader, RefusesATextShorterThanAContextNamingBothNumbers) {
    EXPECT_EQ(message_of([] { DataLoader(numbered_tokens(8), {.context = 8}); }),
              "numbers: 8 tokens to train on; context 8 needs at least 9");
    EXPECT_EQ(DataLoader(numbered_tokens(9), {.context = 8, .seed = {4}}).epoch(), 0);
}

TEST(DataLoader, RefusesAStateOfOtherData) {
    const DataLoader loader(numbered_tokens(100), {.context = 8, .seed = {1}});
    DataLoader other_data(numbered_tokens(101), {.context = 8, .seed = {1}});
    DataLoader other_context(numbered_tokens(100), {.context = 9, .seed = {1}});
    DataLoader other_seed(numbered_tokens(100), {.context = 8, .seed = {2}});
    EXPECT_EQ(message_of([&] { other_data.restore(loader.state()); }),
              "numbers: 101 tokens to train on, but the run was made with 100");
    EXPECT_THROW(other_context.restore(loader.state()), Error);
    EXPECT_THROW(other_seed.restore(loader.state()), Error);
    DataLoader same = loader;
    for (const char* broken : {"null", "{}", "[1]", R"({"epoch":0,"position":"x"})"})
        EXPECT_THROW(same.restore(parse_json(broken, "test")), Error) << broken;
    JsonValue beyond = loader.state();
    beyond.set("position", 1000);
    EXPECT_THROW(same.restore(beyond), Error);
}

TEST(SequentialLoader, CoversTheWholeSplitOnceInOrder) {
    for (const std::int64_t n : {2, 8, 9, 10, 17, 100})
        for (const std::int64_t rows : {1, 3}) {
            SequentialLoader loader(numbered_tokens(n), 8);
            std::vector<std::int32_t> tokens(std::size_t(rows * 8)), targets(tokens.size()), seen;
            std::int64_t counted = 0;
            while (!loader.done()) {
                counted += loader.next(tokens, targets);
                for (std::size_t i = 0; i < targets.size(); ++i) {
                    if (targets[i] == ignored_target) continue;
                    EXPECT_EQ(targets[i], tokens[i] + 1);
                    seen.push_back(targets[i]);
                }
            }
            std::vector<std::int32_t> expected(std::size_t(n - 1));
            std::iota(expected.begin(), expected.end(), 1);
            EXPECT_EQ(seen, expected);
            EXPECT_EQ(counted, n - 1);
            loader.rewind();
            EXPECT_FALSE(loader.done());
        }
}

TEST(SequentialLoader, WithAStrideEveryTargetCountsOnceAfterEnoughTokens) {
    for (const std::int64_t n : {2, 8, 9, 10, 17, 18, 19, 100})
        for (const std::int64_t stride : {1, 3, 7, 8}) {
            SequentialLoader loader(numbered_tokens(n), 8, {.stride = stride});
            std::vector<std::int32_t> tokens(3 * 8), targets(tokens.size()), seen;
            std::int64_t counted = 0, windows = 0;
            while (!loader.done()) {
                counted += loader.next(tokens, targets);
                for (std::size_t i = 0; i < targets.size(); ++i) {
                    if (targets[i] == ignored_target) continue;
                    const std::int32_t first = tokens[i / 8 * 8];
                    EXPECT_EQ(targets[i], tokens[i] + 1);
                    EXPECT_TRUE(first == 0 || targets[i] - first > 8 - stride);
                    seen.push_back(targets[i]);
                }
                windows += 3;
            }
            std::vector<std::int32_t> expected(std::size_t(n - 1));
            std::iota(expected.begin(), expected.end(), 1);
            EXPECT_EQ(seen, expected) << n << ", " << stride;
            EXPECT_EQ(counted, n - 1);
            EXPECT_LT(windows - loader.windows(), 3);
        }
    EXPECT_THROW(SequentialLoader(numbered_tokens(20), 8, {.stride = 9}), Error);
    EXPECT_THROW(SequentialLoader(numbered_tokens(20), 8, {.stride = -1}), Error);
    EXPECT_THROW(SequentialLoader(numbered_tokens(20), 8,
                                  {.packing = {{DocumentRule::Kind::separator, 3}, 2}, .stride = 4}),
                 Error);
}

TEST(SequentialLoader, BatchesAreAsSmallAsTheirWindows) {
    const Context ctx(Device::cpu(), 1);
    SequentialLoader loader(numbered_tokens(22), 8);
    EXPECT_EQ(loader.longest_window(), 8);
    EXPECT_EQ(loader.next_shape(2), (Shape{2, 8}));
    EXPECT_THAT(test::message_of([&] { loader.next(empty_batch(ctx, 2, 7)); }),
                testing::HasSubstr("rows of 7 tokens; expected at least 8"));
    loader.next(empty_batch(ctx, 2, 8));
    EXPECT_EQ(loader.next_shape(2), (Shape{1, 5}));
    const Batch last = empty_batch(ctx, 1, 5);
    EXPECT_EQ(loader.next(last), 5);
    EXPECT_EQ(to_host(ctx, last.tokens), (std::vector<double>{16, 17, 18, 19, 20}));
    EXPECT_EQ(to_host(ctx, last.targets), (std::vector<double>{17, 18, 19, 20, 21}));
    EXPECT_TRUE(loader.done());

    // Lengths above 8 are rounded up by less than an eighth, but never beyond the context.
    EXPECT_EQ(SequentialLoader(numbered_tokens(101), 16'777'216).next_shape(12), (Shape{1, 104}));
    EXPECT_EQ(SequentialLoader(numbered_tokens(101), 100).next_shape(12), (Shape{1, 100}));
    // With a stride, the last window's first targets also belong to the previous window.
    SequentialLoader strided(numbered_tokens(15), 8, {.stride = 7});
    strided.next(empty_batch(ctx, 1, 8));
    EXPECT_EQ(strided.next_shape(1), (Shape{1, 7}));
    EXPECT_EQ(strided.next(empty_batch(ctx, 1, 7)), 6);
}

TEST(DataLoader, DataWithoutATargetAreRefused) {
    const auto refusal = [](std::vector<std::int32_t> ids, std::int64_t context, const Packing& packing) {
        const TokenSequence tokens(std::move(ids), "ids");
        const std::string train = test::message_of(
            [&] { DataLoader(tokens, {.context = context, .ignore_token = 7, .packing = packing}); });
        const std::string validate = test::message_of(
            [&] { SequentialLoader(tokens, context, {.ignore_token = 7, .packing = packing}); });
        const bool is_refused = train != "no error";
        EXPECT_EQ(is_refused, validate != "no error");
        if (is_refused) {
            EXPECT_EQ(train, "ids: has no target to train on: all are ignored");
            EXPECT_EQ(validate, "ids: has no target to validate on: all are ignored");
        }
        return is_refused;
    };
    std::vector<std::int32_t> ids(100, 7);
    EXPECT_TRUE(refusal(ids, 8, {}));
    ids.front() = 3;  // the first token is no target
    EXPECT_TRUE(refusal(ids, 8, {}));
    EXPECT_FALSE(refusal({7, 7, 7, 7, 3, 7}, 2, {}));
    EXPECT_FALSE(refusal({7, 7, 7, 7, 7, 3}, 2, {}));
    EXPECT_FALSE(refusal({7, 7, 3}, 2, {}));
    // With one document in a window, the targets after the next separator, 9, do not count.
    const auto packed = [](std::int64_t documents) {
        return Packing{{DocumentRule::Kind::separator, 9}, documents};
    };
    EXPECT_TRUE(refusal({9, 7, 7, 7, 7, 7, 7}, 6, packed(1)));
    EXPECT_FALSE(refusal({7, 7, 9, 3, 3, 3}, 5, packed(1)));  // the separator counts
}

TEST(DataLoader, EveryRankCountsTheTargetsOfAll) {
    std::vector<std::int32_t> ids(200);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 7);
    for (const std::int64_t ignore_token : {-1, 2}) {
        constexpr std::int64_t ranks = 3, rows = 2, context = 9;
        std::vector<DataLoader> loaders;
        for (std::int64_t rank = 0; rank < ranks; ++rank)
            loaders.emplace_back(TokenSequence(ids, "ids"), DataLoaderOptions{.context = context,
                                                                              .seed = {1},
                                                                              .rank = rank,
                                                                              .ranks = ranks,
                                                                              .ignore_token = ignore_token});
        for (int step = 0; step < 9; ++step) {  // more than two epochs
            std::vector<std::int64_t> told;
            std::int64_t counted = 0;
            for (DataLoader& loader : loaders) {
                std::vector<std::int32_t> tokens(rows * context), targets(rows * context);
                told.push_back(loader.next(tokens, targets));
                counted += std::ranges::count_if(targets, [](std::int32_t t) { return t != ignored_target; });
            }
            EXPECT_EQ(told, std::vector<std::int64_t>(ranks, counted)) << "step " << step;
        }
    }
}

/// A 40 kB token file whose ids are their positions, and its sequence.
struct PlacesOnDisk {
    PlacesOnDisk() {
        std::vector<std::int32_t> ids(20'000);
        std::iota(ids.begin(), ids.end(), 0);
        write_token_file(path, TokenFormat::headerless, ids);
        tokens = open_token_file(path).tokens;
    }
    /// Restores the file's second half.
    void mend() const {
        const std::string full_contents = contents;
        std::fstream(path, std::ios::binary | std::ios::in | std::ios::out)
            .write(full_contents.data(), std::ssize(full_contents));
    }
    void cut() {
        contents = test::contents_of(path);
        ASSERT_EQ(truncate(path.c_str(), 20'000), 0);
    }

    test::TemporaryDirectory place;
    std::string path = place / "numbers.bin";
    TokenSequence tokens;
    std::string contents;
};

TEST(DataLoader, ReadsFilesLikeMemory) {
    const PlacesOnDisk disk;
    for (const std::int64_t context : {1, 8, 1024, 9000}) {
        const DataLoaderOptions options{.context = context, .seed = {3}};
        DataLoader file_loader(disk.tokens, options), memory_loader(numbered_tokens(20'000), options);
        EXPECT_EQ(take(file_loader, 30, 2), take(memory_loader, 30, 2));
        EXPECT_EQ(file_loader.state(), memory_loader.state());
    }
}

TEST(DataLoader, KeepsItsPositionWhenAFileIsTruncated) {
    PlacesOnDisk disk;
    const DataLoaderOptions options{.context = 16, .seed = {1}};
    DataLoader loader(disk.tokens, options), reference(numbered_tokens(20'000), options);
    take(loader, 3, 5);
    take(reference, 3, 5);
    disk.cut();
    const JsonValue before = loader.state();
    std::string message;
    while ((message = message_of([&] { take(loader, 1, 20); })) == "no error") take(reference, 1, 20);
    EXPECT_EQ(message, disk.path + ": ends at byte 20000; expected 40000 (it was changed while it was read)");
    EXPECT_EQ(loader.state(), reference.state());
    disk.mend();  // the next call continues as if no error had happened
    EXPECT_EQ(take(loader, 10, 20), take(reference, 10, 20));
}

TEST(DataLoader, AFileChangedInPlaceIsDetectedAtTheEndOfTheEpoch) {
    PlacesOnDisk disk;
    const DataLoaderOptions options{.context = 100, .seed = {1}};
    DataLoader loader(disk.tokens, options);
    disk.cut();
    disk.contents[11] ^= 1;  // the id stays in the vocabulary, and the length stays the same
    disk.mend();
    JsonValue before;
    std::string message = "no error";
    for (int i = 0; i < 300 && message == "no error"; ++i) {
        before = loader.state();
        message = message_of([&] { take(loader, 1, 1); });
    }
    EXPECT_THAT(message, testing::HasSubstr("numbers.bin: holds sha256:"));
    EXPECT_EQ(loader.state(), before);
    EXPECT_EQ(loader.epoch(), 0);
    EXPECT_EQ(loader.position(), loader.windows() - 1);
}

TEST(SequentialLoader, KeepsItsPositionWhenAFileIsTruncated) {
    PlacesOnDisk disk;
    SequentialLoader loader(disk.tokens, 16), reference(numbered_tokens(20'000), 16);
    std::vector<std::int32_t> tokens(16 * 100), targets(16 * 100), expected = tokens,
                                                                   expected_targets = targets;
    disk.cut();
    std::string message;
    while ((message = message_of([&] { loader.next(tokens, targets); })) == "no error")
        reference.next(expected, expected_targets);
    EXPECT_EQ(message, disk.path + ": ends at byte 20000; expected 40000 (it was changed while it was read)");
    EXPECT_EQ(message_of([&] { loader.rewind(); }), message);
    disk.mend();
    EXPECT_EQ(loader.next(tokens, targets), reference.next(expected, expected_targets));
    EXPECT_EQ(tokens, expected);
    loader.rewind();
    EXPECT_EQ(loader.next(tokens, targets), 1600);
    EXPECT_EQ(targets[0], 1);
}

}  // namespace
}  // namespace gradtile
