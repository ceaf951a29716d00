#include <gradtile/layers/learned_factors.h>

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_math.h>

#include <support/error_message.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

using test::message_of;

constexpr std::array<WeightedSum::Term, 3> names{{{"stream", 1.0}, {"x0", 0.0}, {"skip", 0.5}}};

/// The sum of x, a constant and x again as a layer: it has one input, and its last gradient is added to.
struct SumOfThree {
    using Saved = WeightedSum::Saved;
    WeightedSum sum;

    explicit SumOfThree(ParameterStore& store) : sum(store, "mix", names) {}
    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const {
        return sum.forward(ctx, {x, test::numbers(ctx, x.shape(), x.dtype(), 9), x}, saved);
    }
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
        // The last term's gradient is added to the number 1.
        std::array<Tensor, 2> others{Tensor(), empty(ctx, dy.shape(), dy.dtype())};
        fill(ctx, others[1], 1.0);
        const Tensor dx = sum.backward(ctx, cast(ctx, dy, dy.dtype()), saved, others);
        const Tensor one = empty(ctx, {1}, dy.dtype());
        fill(ctx, one, -1.0);
        return add(ctx, add(ctx, dx, others[1]), one);
    }
};

// Roundings: three products and two additions per element; for a factor's gradient, a sum over 16,384
// elements in 32 lanes, and over the parts. The layer around the sum rounds three intermediate results.
constexpr test::LayerSuite suite{
    .width = 37, .operations = 16384 / 32 + 16, .rounded_within = 4, .leading = {}, .strided = false};
test::LayerSuite suite_of_width(std::int64_t width) {
    test::LayerSuite result = suite;
    result.width = width;
    result.leading = {{1}, {2, 3}, {5, 1, 2}, {3, 571}};  // the last one has several partial sums
    return result;
}

TEST(WeightedSum, PassesTheLayerSuite) {
    for (const std::int64_t width : {37, 64})
        test::check_layer([](ParameterStore& store) { return SumOfThree(store); }, suite_of_width(width));
}

/// y, the gradients of all terms, and the factors' gradients, against their definitions.
TEST(WeightedSum, EqualsItsDefinitionForEveryNumberOfTerms) {
    const Context ctx(Device::cpu(), 2);
    for (std::size_t count = 1; count <= WeightedSum::max_terms; ++count) {
        ParameterStore store;
        const WeightedSum sum(store, "mix", std::span(names).first(count));
        store.allocate(ctx, DType::f64);
        store.initialize(ctx, Seed{1});
        std::vector<Tensor> terms;
        for (std::size_t k = 0; k < count; ++k) {
            EXPECT_EQ(item(ctx, sum.factors[k].value()), names[k].first_factor);
            fill(ctx, sum.factors[k].value(), 0.5 + static_cast<double>(k));
            terms.push_back(randn(ctx, {3, 5}, DType::f64, Seed{k}));
        }
        WeightedSum::Saved saved;
        const auto y = to_host(ctx, sum.forward(ctx, terms, saved));
        const Tensor dy = randn(ctx, {3, 5}, DType::f64, Seed{7});
        const auto d = to_host(ctx, dy);
        std::vector<Tensor> others(count - 1);
        const Tensor dx = sum.backward(ctx, dy, saved, others);
        EXPECT_EQ(dx.raw_data(), dy.raw_data());
        for (std::size_t i = 0; i < y.size(); ++i) {
            double expected = 0;
            for (std::size_t k = 0; k < count; ++k)
                expected += (0.5 + static_cast<double>(k)) * terms[k].data<double>()[i];
            EXPECT_NEAR(y[i], expected, 1e-14);
        }
        for (std::size_t k = 0; k < count; ++k) {
            const auto gradient = to_host(ctx, k == 0 ? dx : others[k - 1]), x = to_host(ctx, terms[k]);
            double product = 0;
            for (std::size_t i = 0; i < d.size(); ++i) {
                EXPECT_DOUBLE_EQ(gradient[i], (0.5 + static_cast<double>(k)) * d[i]);
                product += d[i] * x[i];
            }
            EXPECT_NEAR(item(ctx, sum.factors[k].grad()), product, 1e-13);
        }
    }
}

TEST(WeightedSum, AddsToTheGradientsThatExist) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const WeightedSum sum(store, "mix", std::span(names).first(2));
    store.allocate(ctx, DType::f32);
    for (const Parameter& factor : sum.factors) fill(ctx, factor.value(), 2.0);
    WeightedSum::Saved saved;
    const Tensor x = zeros(ctx, {4}, DType::f32), dy = empty(ctx, {4}, DType::f32);
    fill(ctx, dy, 3.0);
    sum.forward(ctx, {x, x}, saved);
    std::array<Tensor, 1> others{empty(ctx, {4}, DType::f32)};
    fill(ctx, others[0], 10.0);
    const void* const memory = others[0].raw_data();
    sum.backward(ctx, dy, saved, others);
    EXPECT_EQ(others[0].raw_data(), memory);
    EXPECT_THAT(to_host(ctx, others[0]), testing::Each(16.0));
    EXPECT_THAT(to_host(ctx, dy), testing::Each(6.0));
}

TEST(WeightedSum, FrozenFactorsGetNoGradient) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const WeightedSum sum(store, "mix", std::span(names).first(1));
    store.allocate(ctx, DType::f32, {.gradients = false});
    fill(ctx, sum.factors[0].value(), 2.0);
    WeightedSum::Saved saved;
    const Tensor x = zeros(ctx, {4}, DType::f32), dy = empty(ctx, {4}, DType::f32);
    fill(ctx, dy, 3.0);
    sum.forward(ctx, {x}, saved);
    EXPECT_THAT(to_host(ctx, sum.backward(ctx, dy, saved, {})), testing::Each(6.0));
}

TEST(WeightedSum, RefusesOperandsThatItDoesNotSupport) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const WeightedSum sum(store, "mix", std::span(names).first(2));
    store.allocate(ctx, DType::f32);
    WeightedSum::Saved saved;
    const Tensor x = zeros(ctx, {4, 6}, DType::f32);
    const auto message = [&](const std::vector<Tensor>& terms) {
        return message_of([&] { sum.forward(ctx, terms, saved); });
    };
    EXPECT_THAT(message({x}), testing::HasSubstr("1 terms; expected 2"));
    EXPECT_THAT(message({x, zeros(ctx, {4, 5}, DType::f32)}), testing::HasSubstr("term 1"));
    EXPECT_THAT(message({x, x.transpose(0, 1)}), testing::HasSubstr("term 1"));
    EXPECT_THAT(message({x, zeros(ctx, {4, 6}, DType::f64)}), testing::HasSubstr("term 1"));
    sum.forward(ctx, {x, x}, saved);
    std::array<Tensor, 1> others{};
    EXPECT_THAT(message_of([&] { sum.backward(ctx, x, saved, others); }),
                testing::HasSubstr("a gradient"));  // it would overwrite a term
    others[0] = zeros(ctx, {4, 6}, DType::f32);
    EXPECT_THAT(message_of([&] { sum.backward(ctx, others[0], saved, others); }),
                testing::HasSubstr("another gradient"));
}

using OnCuda = test::OnCuda;

TEST_F(OnCuda, WeightedSumMatchesTheCpu) {
    for (const std::int64_t width : {37, 64})
        test::check_layer_on_cuda(
            gpu(), [](ParameterStore& store) { return SumOfThree(store); }, suite_of_width(width));
}

}  // namespace
}  // namespace gradtile
