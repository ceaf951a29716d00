#include <gradtile/core/philox.h>
#include <gradtile/layers/embedding.h>
#include <support/on_cuda.h>

#include <gmock/gmock.h>

namespace gradtile {
namespace {

std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocabulary) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < count; ++i)
        tokens.push_back(static_cast<std::int32_t>(mix_seed(3, static_cast<std::uint64_t>(i)) %
                                                   static_cast<std::uint64_t>(vocabulary)));
    return tokens;
}

TEST(Embedding, GradientMatchesFiniteDifferences) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore store;
    const Embedding embedding(store, "tokens", 11, 5);
    store.allocate(ctx, DType::f64);
    store.initialize(ctx, Seed{1});
    const Tensor tokens = from_host(ctx, some_tokens(24, 11), {4, 6});
    Embedding::Saved saved;
    using Tensors = Differentiable::Tensors;
    const Differentiable function{
        [&](const Context& c, const Tensors&) { return Tensors{embedding.forward(c, tokens, saved)}; },
        [&](const Context& c, const Tensors&, const Tensors& grads) {
            embedding.backward(c, grads[0], saved);
            return Tensors{};
        }};
    const auto report = gradient_check(ctx, function, {}, store.parameters());
    EXPECT_TRUE(report.ok()) << report;
}

/// Returns weight.grad() after `passes` backward passes.
std::vector<double> weight_gradient(int threads, std::int64_t count, std::int64_t vocabulary,
                                    std::int64_t width, DType dtype, int passes = 1) {
    const Context ctx(Device::cpu(), threads);
    ParameterStore store;
    const Embedding embedding(store, "tokens", vocabulary, width);
    store.allocate(ctx, dtype);
    store.initialize(ctx, Seed{1});
    const Tensor tokens = from_host(ctx, some_tokens(count, vocabulary), {count});
    Embedding::Saved saved;
    embedding.forward(ctx, tokens, saved);
    const Tensor dy = randn(ctx, {count, width}, dtype, Seed{2});
    for (int i = 0; i < passes; ++i) embedding.backward(ctx, dy, saved);
    return to_host(ctx, embedding.weight.grad());
}

TEST(Embedding, AddsTheRowsOfATokenInOrderOfPosition) {
    const std::int64_t widths[] = {1, 7, 40, 130};
    for (const std::int64_t vocabulary : {1, 3, 65, 5000}) {
        for (const std::int64_t width : widths) {
            const std::int64_t count = 700;
            const Context ctx(Device::cpu(), 1);
            const auto tokens = some_tokens(count, vocabulary);
            const auto dy = to_host(ctx, randn(ctx, {count, width}, DType::f32, Seed{2}));
            std::vector<float> expected(static_cast<std::size_t>(vocabulary * width));
            for (std::int64_t i = 0; i < count; ++i)
                for (std::int64_t c = 0; c < width; ++c)
                    expected[static_cast<std::size_t>(tokens[static_cast<std::size_t>(i)] * width + c)] +=
                        static_cast<float>(dy[static_cast<std::size_t>(i * width + c)]);
            const std::vector<double> reference(expected.begin(), expected.end());
            for (const int threads : {1, 2, 3})
                ASSERT_EQ(weight_gradient(threads, count, vocabulary, width, DType::f32), reference)
                    << vocabulary << ' ' << width << ' ' << threads;
        }
    }
}

TEST(Embedding, SecondBackwardAddsToTheGradient) {
    const auto once = weight_gradient(2, 300, 50, 8, DType::f64);
    const auto twice = weight_gradient(2, 300, 50, 8, DType::f64, 2);
    double largest = 0;
    for (const double g : once) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 300 * 0x1p-53 * largest);
}

TEST(Embedding, GathersRowsOfEveryDtype) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        ParameterStore store;
        const Embedding embedding(store, "tokens", 9, 3);
        store.allocate(ctx, dtype);
        store.initialize(ctx, Seed{1});
        Embedding::Saved saved;
        const Tensor y =
            embedding.forward(ctx, from_host(ctx, std::vector<std::int32_t>{8, 0, 4, 4}, {2, 2}), saved);
        EXPECT_EQ(y.shape(), (Shape{2, 2, 3}));
        const auto weight = to_host(ctx, embedding.weight.value()), values = to_host(ctx, y);
        const std::size_t rows[] = {8, 0, 4, 4};
        for (std::size_t i = 0; i < 4; ++i)
            for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(values[i * 3 + c], weight[rows[i] * 3 + c]);
    }
}

TEST(Embedding, RefusesATokenOutsideTheVocabularyByName) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore store;
    const Embedding embedding(store, "tokens", 9, 3);
    store.allocate(ctx, DType::f32);
    Embedding::Saved saved;
    for (const std::int32_t bad : {9, -1}) {
        try {
            embedding.forward(ctx, from_host(ctx, std::vector<std::int32_t>{8, 0, bad}, {3}), saved);
            FAIL();
        } catch (const Error& error) {
            EXPECT_THAT(error.what(),
                        testing::AllOf(testing::HasSubstr(concat("token ", bad)),
                                       testing::HasSubstr("position 2"), testing::HasSubstr("9")));
        }
    }
}

TEST(PositionEmbedding, PassesTheLayerSuite) {
    for (const std::int64_t width : {1, 37})
        test::check_layer(
            [&](ParameterStore& store) { return PositionEmbedding(store, "positions", 171, width); },
            {.width = width, .operations = 1, .leading = {{2, 3}, {5, 1}, {3, 171}}, .rank_2 = false});
}

TEST(PositionEmbedding, StartShiftsTheRows) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore store;
    const PositionEmbedding positions(store, "positions", 10, 4);
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    PositionEmbedding::Saved saved;
    const Tensor x = zeros(ctx, {1, 3, 4}, DType::f32);
    EXPECT_EQ(to_host(ctx, positions.forward(ctx, x, saved, 6)),
              to_host(ctx, positions.weight.value().slice(0, 6, 3)));
    positions.backward(ctx, positions.forward(ctx, x, saved, 6), saved);
    EXPECT_EQ(to_host(ctx, positions.weight.grad().slice(0, 6, 3)),
              to_host(ctx, positions.weight.value().slice(0, 6, 3)));
    EXPECT_EQ(to_host(ctx, positions.weight.grad().slice(0, 0, 6)), std::vector<double>(24, 0.0));
    EXPECT_THROW(positions.forward(ctx, x, saved, 8), Error);
    EXPECT_THROW(positions.forward(ctx, x, saved, -1), Error);
}

// ---- On the GPU ----

using test::OnCuda;

struct EmbeddingPass {
    std::vector<double> y, gradient;
    bool operator==(const EmbeddingPass&) const = default;
};

struct PassOptions {
    bool strided = false;  // whether dy has strided rows
    bool start_token_sort = false;
    int backward_passes = 1;
};

EmbeddingPass embedding_pass(const Context& ctx, const std::vector<std::int32_t>& ids,
                             std::int64_t vocabulary, std::int64_t width, DType dtype,
                             const PassOptions& options = {}) {
    ParameterStore store;
    const Embedding embedding(store, "tokens", vocabulary, width);
    store.allocate(ctx, dtype);
    copy(ctx, store.values(), randn(ctx, store.values().shape(), DType::bf16, Seed{11}));
    const auto count = std::ssize(ids);
    Embedding::Saved saved;
    const Tensor y = embedding.forward(ctx, from_host(ctx, ids, {count}), saved);
    if (options.start_token_sort) embedding.start_token_sort(ctx, saved);
    const Tensor numbers = test::numbers(ctx, {count, width}, dtype, 2);
    const Tensor dy = options.strided ? test::strided_copy(ctx, numbers) : numbers;
    for (int i = 0; i < options.backward_passes; ++i) embedding.backward(ctx, dy, saved);
    return {to_host(ctx, y), to_host(ctx, embedding.weight.grad())};
}

struct EmbeddingCase {
    std::int64_t count, vocabulary, width;
};

/// Expects the float64 results from the CPU, and the same bits whether tokens are sorted after forward or in
/// backward.
void expect_gathered_and_added(const Context& cpu, const Context& gpu, const std::vector<std::int32_t>& ids,
                               std::int64_t vocabulary, std::int64_t width) {
    const EmbeddingPass exact = embedding_pass(cpu, ids, vocabulary, width, DType::f64);
    std::vector<double> uses(static_cast<std::size_t>(vocabulary));
    for (const std::int32_t id : ids) uses[static_cast<std::size_t>(id)] += 1;
    const double longest = *std::max_element(uses.begin(), uses.end());
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
        for (const bool strided : {false, true}) {
            SCOPED_TRACE(
                concat(ids.size(), ' ', vocabulary, ' ', width, ' ', dtype, strided ? " strided" : ""));
            const PassOptions options{.strided = strided},
                sorted_early{.strided = strided, .start_token_sort = true};
            const EmbeddingPass pass = embedding_pass(gpu, ids, vocabulary, width, dtype, options);
            test::expect_accurate(pass.y, exact.y, dtype, 1, "y");
            test::expect_accurate(pass.gradient, exact.gradient, accumulator_of(dtype), longest, "gradient");
            EXPECT_TRUE(pass == embedding_pass(gpu, ids, vocabulary, width, dtype, sorted_early))
                << "two runs";
        }
}

/// Covers few and many tokens, short and long runs of equal tokens, one to three sort digits, several sort
/// tiles, and rows that are narrower and wider than a warp processes at once.
TEST_F(OnCuda, EmbeddingGathersRowsAndAddsTheirGradients) {
    const EmbeddingCase embedding_cases[] = {
        {1, 1, 1},      {700, 1, 7},     {700, 3, 64},     {700, 65, 768},
        {33, 1, 8},     {32, 1, 8},      {5000, 300, 40},  {700, 5000, 1000},
        {9000, 7, 130}, {20000, 65, 16}, {3000, 70000, 8}, {70000, 50257, 8},
        {4096, 2, 768}, {3000, 65, 384}, {700, 40, 1600},  {70000, 1, 8}};
    for (const auto& [count, vocabulary, width] : embedding_cases)
        expect_gathered_and_added(cpu, gpu(), some_tokens(count, vocabulary), vocabulary, width);
}

/// Covers lengths just below and above those at which runs are cut, runs that begin at any place in a window,
/// and a token at every second position.
TEST_F(OnCuda, EmbeddingAddsLongRunsInPieces) {
    const int lengths[] = {1,  31, 32, 33, 64,  65,  5,   95,  96,  97,  32, 32, 33, 33,  30,
                           34, 7,  8,  9,  127, 128, 129, 255, 256, 257, 1,  2,  33, 400, 1};
    std::vector<std::int32_t> runs, halves;
    for (std::int32_t token = 0; token < std::ssize(lengths); ++token)
        runs.insert(runs.end(), static_cast<std::size_t>(lengths[token]), token);
    std::vector<std::int32_t> shuffled(runs.size());
    constexpr std::size_t stride = 601;  // a prime number, so every place is filled once
    for (std::size_t i = 0; i < runs.size(); ++i) shuffled[i * stride % runs.size()] = runs[i];
    for (std::int32_t i = 0; i < 6000; ++i) halves.push_back(i % 2 == 0 ? 300 : i % 500);
    for (const std::int64_t width : {8, 13, 768}) {
        expect_gathered_and_added(cpu, gpu(), shuffled, std::ssize(lengths), width);
        expect_gathered_and_added(cpu, gpu(), halves, 500, width);
    }
}

/// The kernel must reset its counts of finished pieces, because a second pass uses them again.
TEST_F(OnCuda, EmbeddingBackwardMayUseSortedPositionsTwice) {
    const auto ids = some_tokens(9000, 7);
    for (const std::int64_t width : {13, 768, 4096}) {
        const PassOptions twice{.start_token_sort = true, .backward_passes = 2};
        const auto pass = embedding_pass(gpu(), ids, 7, width, DType::f32, twice);
        const auto exact = embedding_pass(cpu, ids, 7, width, DType::f64, twice);
        test::expect_accurate(pass.gradient, exact.gradient, DType::f32, 2 * 9000.0 / 7, "gradient");
    }
}

TEST_F(OnCuda, EmbeddingFreesSortedPositionsThatBackwardDidNotUse) {
    const Context ctx = gpu().with_allocator(std::make_shared<Arena>(Device::cuda(0), 8 << 20));
    ParameterStore store;
    const Embedding embedding(store, "tokens", 50000, 8);
    store.allocate(ctx, DType::f32);
    const Tensor tokens = from_host(ctx, some_tokens(20000, 50000), {20000});
    for (int round = 0; round < 20; ++round) {
        {
            Embedding::Saved saved{tokens};
            embedding.start_token_sort(ctx, saved);
        }
        const Tensor after = zeros(ctx, {500000}, DType::f32);  // includes the sorted positions' memory
        EXPECT_THAT(to_host(ctx, after), ::testing::Each(0.0));
    }
}

TEST_F(OnCuda, EmbeddingWithoutTokensDoesNotChangeTheGradient) {
    const auto pass = embedding_pass(gpu(), {}, 9, 8, DType::f32);
    EXPECT_TRUE(pass.y.empty());
    EXPECT_EQ(pass.gradient, std::vector<double>(9 * 8, 0.0));
}

TEST_F(OnCuda, EmbeddingRowsOfTokensOutsideTheVocabularyAreNaNAndHaveNoGradient) {
    for (const std::int64_t width : {3, 8}) {
        const auto pass =
            embedding_pass(gpu(), {8, 9, -1, 0, 2147483647, -2147483647 - 1}, 9, width, DType::f32);
        const auto known = embedding_pass(gpu(), {8, 0, 0, 0, 0, 0}, 9, width, DType::f32);
        const auto dy = to_host(gpu(), test::numbers(gpu(), {6, width}, DType::f32, 2));
        for (std::size_t c = 0; c < static_cast<std::size_t>(width); ++c) {
            const auto w = static_cast<std::size_t>(width);
            EXPECT_EQ(pass.y[c], known.y[c]);
            EXPECT_EQ(pass.y[3 * w + c], known.y[w + c]);
            for (const std::size_t bad : {1, 2, 4, 5}) EXPECT_TRUE(std::isnan(pass.y[bad * w + c]));
            for (std::size_t token = 0; token < 9; ++token) {
                const double expected = token == 8 ? dy[c] : token == 0 ? dy[3 * w + c] : 0.0;
                EXPECT_EQ(pass.gradient[token * w + c], expected);
            }
        }
    }
}

/// Covers sums over samples by one to eight threads, with several rounds per thread.
TEST_F(OnCuda, PositionEmbeddingPassesTheLayerSuite) {
    for (const std::int64_t width : {1, 7, 64, 768, 1000, 1001})
        test::check_layer_on_cuda(
            gpu(), [&](ParameterStore& store) { return PositionEmbedding(store, "positions", 171, width); },
            {.width = width,
             .operations = 1,
             .leading = {{2, 3}, {5, 1}, {3, 171}, {70, 4}},
             .rank_2 = false});
}

}  // namespace
}  // namespace gradtile
