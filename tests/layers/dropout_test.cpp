#include <gradtile/layers/dropout.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

const DropoutKey key = DropoutKey::from_step(7, 3, 5).at(2);

/// Dropout with a fixed key, so that it has a layer's signature.
struct KeyedDropout {
    using Saved = Dropout::Saved;
    Dropout dropout;
    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const {
        return dropout.forward(ctx, x, key, saved);
    }
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
        return dropout.backward(ctx, dy, saved);
    }
};

/// Returns whether an element is kept, according to the definition in dropout.h.
bool kept(const DropoutKey& k, double p, std::int64_t sample, std::int64_t token, std::int64_t column) {
    const Philox::Counter words =
        Philox::draw({static_cast<std::uint32_t>(column / 8), static_cast<std::uint32_t>(token), 0,
                      static_cast<std::uint32_t>(k.first_sample + sample)},
                     philox_key(k.seed));
    const std::uint32_t u = words[static_cast<std::size_t>(column % 8 / 2)] >> (16 * (column % 2)) & 0xffffu;
    return u >= static_cast<std::uint32_t>(std::lround(65536 * p));
}

TEST(Dropout, PassesTheLayerSuite) {
    for (const std::int64_t width : {1, 37, 160})
        test::check_layer([](ParameterStore&) { return KeyedDropout{{.p = 0.3}}; },
                          {.width = width, .operations = 2});
}

TEST(Dropout, DrawsTheMaskThatTheHeaderDefines) {
    const Context ctx(Device::cpu(), 2);
    const Dropout dropout{.p = 0.2};
    Dropout::Saved saved;
    for (const std::int64_t width : {3, 8, 61, 128, 200, 1031}) {
        const Tensor ones = empty(ctx, {2, 9, width}, DType::f64);
        fill(ctx, ones, 1.0);
        const auto y = to_host(ctx, dropout.forward(ctx, ones, key, saved));
        std::size_t i = 0;
        for (std::int64_t sample = 0; sample < 2; ++sample)
            for (std::int64_t token = 0; token < 9; ++token)
                for (std::int64_t c = 0; c < width; ++c, ++i)
                    ASSERT_EQ(y[i], kept(key, 0.2, sample, token, c) ? 65536.0 / (65536 - 13107) : 0.0)
                        << width << ' ' << sample << ' ' << token << ' ' << c;
    }
}

TEST(Dropout, DropsAFractionPOfTheElements) {
    const Context ctx(Device::cpu(), 2);
    const Tensor ones = empty(ctx, {4, 64, 384}, DType::f32);
    fill(ctx, ones, 1.0);
    for (const double p : {0.1, 0.5, 0.9}) {
        Dropout::Saved saved;
        const auto y = to_host(ctx, Dropout{.p = p}.forward(ctx, ones, key, saved));
        const double n = static_cast<double>(y.size());
        const auto dropped = static_cast<double>(std::count(y.begin(), y.end(), 0.0));
        EXPECT_NEAR(dropped, n * p, 5 * std::sqrt(n * p * (1 - p)) + n / 65536)
            << "more than five standard deviations";
    }
}

TEST(Dropout, TheMaskOfASampleDoesNotDependOnTheMicroBatch) {
    const Context ctx(Device::cpu(), 2);
    const Dropout dropout{.p = 0.4};
    Dropout::Saved saved;
    const Tensor ones = empty(ctx, {4, 5, 24}, DType::f32);
    fill(ctx, ones, 1.0);
    const Tensor all = dropout.forward(ctx, ones, key, saved);
    DropoutKey second = key;
    second.first_sample += 2;
    const Tensor half = dropout.forward(ctx, ones.slice(0, 0, 2), second, saved);
    EXPECT_EQ(to_host(ctx, half), to_host(ctx, all.slice(0, 2, 2)));
}

TEST(Dropout, DifferentStepsAndPlacesDrawDifferentMasks) {
    const Context ctx(Device::cpu(), 1);
    const Tensor ones = empty(ctx, {1, 64}, DType::f32);
    fill(ctx, ones, 1.0);
    const auto mask = [&](const DropoutKey& k) {
        Dropout::Saved saved;
        return to_host(ctx, Dropout{.p = 0.5}.forward(ctx, ones, k, saved));
    };
    const auto base = mask(DropoutKey::from_step(1, 2, 3).at(4));
    EXPECT_EQ(base, mask(DropoutKey::from_step(1, 2, 3).at(4)));
    EXPECT_NE(base, mask(DropoutKey::from_step(2, 2, 3).at(4)));
    EXPECT_NE(base, mask(DropoutKey::from_step(1, 3, 3).at(4)));
    EXPECT_NE(base, mask(DropoutKey::from_step(1, 2, 4).at(4)));
    EXPECT_NE(base, mask(DropoutKey::from_step(1, 2, 3).at(5)));
}

/// A CUDA graph replays the same key while its seed tensor's elements change.
TEST(Dropout, AKeyWithASeedTensorDrawsTheMasksOfTheStepInTheTensor) {
    const Context ctx(Device::cpu(), 2);
    const Tensor ones = empty(ctx, {3, 5, 70}, DType::f32);
    fill(ctx, ones, 1.0);
    const Dropout dropout{.p = 0.5};
    const auto masks = [&](const DropoutKey& k) {
        Dropout::Saved saved, saved_deep;
        auto all = to_host(ctx, dropout.forward(ctx, ones, k.at(2), saved));
        for (const double y : to_host(ctx, dropout.forward(ctx, ones, k.at(2).at(0).at(9), saved_deep)))
            all.push_back(y);
        for (const double dx : to_host(ctx, dropout.backward(ctx, ones, saved))) all.push_back(dx);
        return all;
    };
    const Tensor seed_tensor = zeros(ctx, {2}, DType::i32);
    for (const std::int64_t first_sample : {0, 7}) {
        const DropoutKey key_of_tensor = DropoutKey::from_seed_tensor(seed_tensor, first_sample);
        for (const std::int64_t step : {1, 2, 1000}) {
            const auto words = DropoutKey::seed_words(11, step);
            copy(ctx, seed_tensor, from_host(ctx, words, {2}));
            EXPECT_EQ(masks(key_of_tensor), masks(DropoutKey::from_step(11, step, first_sample))) << step;
        }
    }
}

TEST(Dropout, RefusesInvalidSeedTensors) {
    const Context ctx(Device::cpu(), 1);
    EXPECT_THROW(DropoutKey::from_seed_tensor(zeros(ctx, {3}, DType::i32)), Error);
    EXPECT_THROW(DropoutKey::from_seed_tensor(zeros(ctx, {2}, DType::f32)), Error);
    const DropoutKey key_of_tensor = DropoutKey::from_seed_tensor(zeros(ctx, {2}, DType::i32));
    EXPECT_THROW(key_of_tensor.at(1).at(1).at(1).at(1), Error);
}

TEST(Dropout, ReturnsItsInputInEvaluationAndIfPIsZero) {
    const Context ctx(Device::cpu(), 1);
    const Tensor x = randn(ctx, {3, 8}, DType::f32, Seed{1});
    Dropout::Saved saved;
    EXPECT_EQ(Dropout{.p = 0.5}.forward(ctx, x, DropoutKey{}, saved).raw_data(), x.raw_data());
    EXPECT_EQ(Dropout{.p = 0.5}.backward(ctx, x, saved).raw_data(), x.raw_data());
    EXPECT_EQ(Dropout{.p = 0.0}.forward(ctx, x, key, saved).raw_data(), x.raw_data());
    EXPECT_EQ(Dropout{.p = 0.0}.backward(ctx, x, saved).raw_data(), x.raw_data());
}

TEST(Dropout, AddResidualAddsTheDroppedBranchToTheStream) {
    const Context ctx(Device::cpu(), 2);
    for (const double p : {0.0, 0.3}) {
        const Dropout dropout{.p = p};
        Dropout::Saved saved, saved_alone;
        const Tensor x = randn(ctx, {2, 7, 41}, DType::f64, Seed{1});
        const Tensor branch = randn(ctx, {2, 7, 41}, DType::f64, Seed{2});
        const auto dropped = to_host(ctx, dropout.forward(ctx, branch, key, saved_alone));
        const Tensor sum = dropout.add_residual(ctx, x, branch, key, saved);
        EXPECT_EQ(sum.raw_data(), branch.raw_data());
        const auto y = to_host(ctx, sum);
        const auto stream = to_host(ctx, x);
        for (std::size_t i = 0; i < y.size(); ++i)
            ASSERT_NEAR(y[i], stream[i] + dropped[i], 0x1p-52 * (std::abs(stream[i]) + std::abs(dropped[i])));
        EXPECT_EQ(to_host(ctx, dropout.backward(ctx, x, saved)),
                  to_host(ctx, dropout.backward(ctx, x, saved_alone)));
    }
}

TEST(Dropout, RefusesInvalidProbabilities) {
    const Context ctx(Device::cpu(), 1);
    const Tensor x = zeros(ctx, {3, 8}, DType::f32);
    Dropout::Saved saved;
    EXPECT_THROW(Dropout{.p = 1.0}.forward(ctx, x, key, saved), Error);
    EXPECT_THROW(Dropout{.p = -0.1}.forward(ctx, x, key, saved), Error);
    EXPECT_THROW(Dropout{.p = std::nan("")}.forward(ctx, x, key, saved), Error);
}

// ---- On the GPU ----

using test::OnCuda;

TEST_F(OnCuda, DropoutPassesTheLayerSuite) {
    for (const std::int64_t width : {1, 7, 64, 768, 1000})
        test::check_layer_on_cuda(gpu(), [](ParameterStore&) { return KeyedDropout{{.p = 0.3}}; },
                                  {.width = width, .operations = 2});
}

/// Checks both kinds of key, and a seed tensor whose elements change.
TEST_F(OnCuda, DropoutDrawsTheSameMasksAsTheCpu) {
    const Dropout dropout{.p = 0.4};
    const auto words_of = [](std::int64_t step) { return DropoutKey::seed_words(7, step); };
    const Tensor seed_tensor = from_host(gpu(), words_of(1), {2});
    const DropoutKey key_of_tensor = DropoutKey::from_seed_tensor(seed_tensor, 5).at(2).at(1);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
        for (const std::int64_t width : {1, 7, 64, 768, 1000})
            for (const std::int64_t step : {2, 3}) {
                Dropout::Saved saved;
                const auto masked = [&](const Context& ctx, const DropoutKey& k) {
                    return to_host(
                        ctx, dropout.forward(ctx, test::numbers(ctx, {2, 9, width}, dtype, 1), k, saved));
                };
                const DropoutKey fixed = DropoutKey::from_step(7, step, 5).at(2).at(1);
                const auto expected = masked(cpu, fixed);
                EXPECT_EQ(masked(gpu(), fixed), expected) << dtype << ' ' << width;
                copy(gpu(), seed_tensor, from_host(gpu(), words_of(step), {2}));
                EXPECT_EQ(masked(gpu(), key_of_tensor), expected) << dtype << ' ' << width << " seed tensor";
            }
}

/// The bound is one rounding for the sum.
TEST_F(OnCuda, DropoutAddsTheResidual) {
    for (const double p : {0.0, 0.3})
        for (const std::int64_t width : {41, 64}) {
            const Dropout dropout{.p = p};
            Dropout::Saved saved, saved_alone;
            const Tensor x = randn(gpu(), {2, 7, width}, DType::f32, Seed{1});
            const Tensor branch = randn(gpu(), {2, 7, width}, DType::f32, Seed{2});
            const auto dropped = to_host(gpu(), dropout.forward(gpu(), branch, key, saved_alone));
            const Tensor sum = dropout.add_residual(gpu(), x, branch, key, saved);
            EXPECT_EQ(sum.raw_data(), branch.raw_data());
            const auto y = to_host(gpu(), sum), stream = to_host(gpu(), x);
            for (std::size_t i = 0; i < y.size(); ++i)
                ASSERT_NEAR(y[i], stream[i] + dropped[i],
                            0x1p-23 * (std::abs(stream[i]) + std::abs(dropped[i])));
        }
}

}  // namespace
}  // namespace gradtile
