#include <gradtile/layers/fused_linear.h>
#include <gradtile/layers/linear.h>

#include <algorithm>
#include <array>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/norm.h>
#include <support/error_message.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

struct LinearFixture {
    Context ctx{Device::cpu(), 2};
    ParameterStore parameters;
    Linear linear;

    LinearFixture(std::int64_t in, std::int64_t out, bool bias, DType dtype = DType::f64, int threads = 2)
        : ctx(Device::cpu(), threads),
          linear(parameters, "linear", in, out, {.bias = bias, .init = Init::normal(0.5)}) {
        parameters.allocate(ctx, dtype);
        parameters.initialize(ctx, Seed{1});
        if (bias) copy(ctx, linear.bias.value(), randn(ctx, {out}, dtype, Seed{2}));
    }
};

TEST(Linear, WithoutParametersThrows) {
    const Context cpu(Device::cpu(), 1);
    const Linear none;
    Linear::Saved saved{.x = zeros(cpu, {2, 3}, DType::f32)};
    const Tensor x = saved.x;
    const std::function<void()> calls[] = {
        [&] { none.forward(cpu, x, saved); }, [&] { none.backward(cpu, x, saved); },
        [&] { none.accumulate_gradients(cpu, x, saved); }, [&] { none.in_features(); }};
    for (const auto& call : calls)
        EXPECT_THAT(test::message_of(call), testing::HasSubstr("parameter: undefined"));
    // A layer whose store is not allocated has no values either.
    ParameterStore store;
    const Linear declared(store, "l", 3, 4);
    EXPECT_THAT(test::message_of([&] { declared.forward(cpu, x, saved); }),
                testing::HasSubstr("parameter l.weight: has no dtype; its store is not allocated"));
}

TEST(Linear, BackwardNeedsWhatForwardSaved) {
    const LinearFixture layer(3, 4, true, DType::f32);
    const Tensor dy = zeros(layer.ctx, {2, 4}, DType::f32);
    const std::function<void()> calls[] = {[&] { layer.linear.backward(layer.ctx, dy, {}); },
                                           [&] { layer.linear.accumulate_gradients(layer.ctx, dy, {}); }};
    for (const auto& call : calls)
        EXPECT_THAT(test::message_of(call),
                    testing::HasSubstr("linear linear.weight: backward needs the x that forward saved"));
}

/// An element of y sums `in` products and the bias; an element of dx sums `out` products.
TEST(Linear, PassesTheLayerSuite) {
    for (const auto& [in, out] : {std::array<std::int64_t, 2>{1, 1}, {7, 40}, {48, 5}})
        for (const bool bias : {false, true})
            test::check_layer(
                [=, in = in, out = out](ParameterStore& store) {
                    return Linear(store, "linear", in, out, {.bias = bias});
                },
                {.width = in, .operations = static_cast<double>(std::max(in, out) + 1)});
}

TEST(Linear, AccumulateGradientsWritesTheSameGradientsAsBackward) {
    LinearFixture full(7, 5, true), parameters_only(7, 5, true);
    const Tensor x = randn(full.ctx, {9, 7}, DType::f64, Seed{3});
    const Tensor dy = randn(full.ctx, {9, 5}, DType::f64, Seed{4});
    full.linear.backward(full.ctx, dy, {x});
    parameters_only.linear.accumulate_gradients(parameters_only.ctx, dy, {x});
    EXPECT_EQ(to_host(full.ctx, full.parameters.gradients()),
              to_host(full.ctx, parameters_only.parameters.gradients()));
}

/// The attached sums differ from dy's column sums, which shows that backward does not sum the columns again.
TEST(Linear, UsesAttachedColumnSums) {
    LinearFixture f(7, 5, true);
    const Tensor x = randn(f.ctx, {9, 7}, DType::f64, Seed{3});
    const Tensor dy = randn(f.ctx, {9, 5}, DType::f64, Seed{4});
    const Tensor parts =
        from_host(f.ctx, std::vector<double>{1, 2, 3, 4, 5, 10, 20, 30, 40, 50}, {2, 5}, DType::f64);
    f.linear.backward(f.ctx, {dy, parts}, {x});
    EXPECT_EQ(to_host(f.ctx, f.linear.bias.grad()), (std::vector<double>{11, 22, 33, 44, 55}));
    f.linear.backward(f.ctx, dy, {x});
    const auto sums = to_host(f.ctx, f.linear.bias.grad()), elements = to_host(f.ctx, dy);
    for (std::size_t c = 0; c < 5; ++c) {
        double sum = 11.0 * static_cast<double>(c + 1);
        for (std::size_t r = 0; r < 9; ++r) sum += elements[r * 5 + c];
        EXPECT_NEAR(sums[c], sum, 20 * 0x1p-53 * (std::abs(sum) + 60));
    }
    EXPECT_THROW(f.linear.backward(f.ctx, {dy, zeros(f.ctx, {2, 4}, DType::f64)}, {x}), Error);
}

/// The shapes give several blocks in every product and in the column sums.
TEST(Linear, BitsDoNotDependOnTheNumberOfThreads) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        std::vector<double> expected;
        for (const int threads : {1, 2, 3}) {
            LinearFixture f(96, 320, true, dtype, threads);
            const Tensor x = randn(f.ctx, {400, 96}, dtype, Seed{3});
            Linear::Saved saved;
            const Tensor y = f.linear.forward(f.ctx, x, saved);
            std::vector<double> all = to_host(f.ctx, f.linear.backward(f.ctx, y, saved));
            for (const double g : to_host(f.ctx, f.parameters.gradients())) all.push_back(g);
            if (threads == 1) {
                expected = all;
            } else {
                EXPECT_EQ(all, expected) << threads << " threads";
            }
        }
    }
}

TEST(Linear, RefusesOtherShapesAndDtypesByName) {
    LinearFixture f(4, 6, true);
    Linear::Saved saved;
    EXPECT_THROW(f.linear.forward(f.ctx, zeros(f.ctx, {3, 5}, DType::f64), saved), Error);
    EXPECT_THROW(f.linear.forward(f.ctx, zeros(f.ctx, {3, 4}, DType::f32), saved), Error);
    f.linear.forward(f.ctx, zeros(f.ctx, {3, 4}, DType::f64), saved);
    EXPECT_THROW(f.linear.backward(f.ctx, zeros(f.ctx, {3, 4}, DType::f64), saved), Error);
    EXPECT_THROW(f.linear.backward(f.ctx, zeros(f.ctx, {2, 6}, DType::f64), saved), Error);
    // Column sums require contiguous rows.
    const Tensor transposed = zeros(f.ctx, {6, 3}, DType::f64).transpose(0, 1);
    EXPECT_THROW(f.linear.backward(f.ctx, transposed, saved), Error);
}

/// The stream's sum with a product, whatever computes the addition; a branch without a backward pass is the
/// same on a CPU.
TEST(Linear, AddsItsProductToTheResidualStream) {
    const LinearFixture f(6, 4, true);
    const Tensor x = randn(f.ctx, {2, 3, 6}, DType::f64, Seed{4});
    const Dropout dropout{0.4};
    for (const DropoutKey& key : {DropoutKey{}, DropoutKey::from_step(1, 2, 3)})
        for (const bool inference : {false, true}) {
            Residual stream{randn(f.ctx, {2, 3, 4}, DType::f64, Seed{5}), {}, dropout, key};
            stream.inference = inference;
            Linear::Saved saved, same;
            const Residual sum = f.linear.forward_onto(f.ctx, stream, x, saved);
            Dropout::Saved unused;
            const Tensor expected =
                dropout.add_residual(f.ctx, stream.x, f.linear.forward(f.ctx, x, same), key, unused);
            EXPECT_EQ(to_host(f.ctx, sum.sum(f.ctx)), to_host(f.ctx, expected));
            EXPECT_EQ(sum.inference, inference);
        }
    const Residual twice{x, x};
    Linear::Saved saved;
    EXPECT_THAT(test::message_of([&] { f.linear.forward_onto(f.ctx, twice, x, saved); }),
                testing::HasSubstr("already has a branch"));
}

// ---- On the GPU ----

using test::OnCuda;

/// One kernel computes few rows without a backward pass, a norm before the product included. A product with
/// dropout, an adapter, more rows or a backward pass is computed in steps, with the same result up to
/// rounding.
TEST_F(OnCuda, ProductsAreFusedForFewRowsInInferenceOnly) {
    ParameterStore store;
    Linear linear(store, "l", 64, 40);
    LayerNorm norm(store, "n", 64, /*bias=*/true);
    store.allocate(gpu(), DType::f32);
    store.initialize(gpu(), Seed{1});
    const NormParameters parameters{.weight = norm.weight.value(), .bias = norm.bias.value()};
    for (const std::int64_t rows : {1, 8, 9}) {
        const Tensor x = randn(gpu(), {1, rows, 64}, DType::f32, Seed{2}),
                     residual = randn(gpu(), {1, rows, 40}, DType::f32, Seed{3});
        const Normed few(x, parameters, /*in_inference=*/true), saved_for(x, parameters, false);
        EXPECT_EQ(linear.forward_in_one_kernel(gpu(), few).has_value(), rows <= max_fused_rows);
        EXPECT_FALSE(linear.forward_in_one_kernel(gpu(), saved_for).has_value());
        Linear::Saved saved;
        const auto in_steps = to_host(gpu(), linear.forward(gpu(), saved_for, saved));
        const auto fused = to_host(gpu(), linear.forward(gpu(), few, saved));
        // Normalised values below 5, 64 products with weights below 0.1, and the norm's 42 roundings.
        for (std::size_t i = 0; i < fused.size(); ++i)
            ASSERT_NEAR(fused[i], in_steps[i], (64 + 42) * 0x1p-24 * 64 * 5 * 0.1);
        Residual stream{residual, {}, Dropout{0.5}, DropoutKey::from_step(1, 1)};
        stream.inference = true;
        EXPECT_TRUE(linear.forward_onto(gpu(), stream, x, saved).branch.defined()) << "dropout";
        stream.key = {};
        EXPECT_EQ(linear.forward_onto(gpu(), stream, x, saved).branch.defined(), rows > max_fused_rows);
    }
    ParameterStore adapters;
    linear.add_adapter(adapters, {.rank = 2, .alpha = 2});
    adapters.allocate(gpu(), DType::f32);
    adapters.initialize(gpu(), Seed{4});
    const Normed one(randn(gpu(), {1, 64}, DType::f32, Seed{2}), {}, /*in_inference=*/true);
    EXPECT_FALSE(linear.forward_in_one_kernel(gpu(), one).has_value());
}

TEST_F(OnCuda, ColumnSumsAreAddedToThePreviousTotals) {
    for (const std::int64_t columns : {1, 7, 64, 768, 1000})
        for (const std::int64_t rows : {1, 127, 129, 5000})
            for (const bool strided : {false, true}) {
                const auto run = [&](const Context& ctx, DType dtype, bool magnitudes = false) {
                    const auto draw = [&](const Shape& shape, DType type, std::uint64_t seed) {
                        const Tensor drawn = test::numbers(ctx, shape, type, seed);
                        if (!magnitudes) return drawn;
                        auto values = to_host(ctx, drawn);
                        for (double& value : values) value = std::abs(value);
                        return from_host(ctx, values, shape, type);
                    };
                    const Tensor dense = draw({rows, columns}, dtype, 1);
                    const Tensor x = strided ? test::strided_copy(ctx, dense) : dense;
                    const Tensor sums = draw({columns}, accumulator_of(dtype), 2);
                    add_column_sums(ctx, {sums}, x);
                    return to_host(ctx, sums);
                };
                const auto exact = run(cpu, DType::f64);
                const auto sizes = run(cpu, DType::f64, /*magnitudes=*/true);
                // Nested additions: 16 rows per thread, 8 threads per block, 1/32 of all blocks, 32 such
                // sums, and the previous total.
                const double nested = 16 + 8 + static_cast<double>(rows) / (128 * 32) + 32 + 2;
                for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
                    SCOPED_TRACE(concat(rows, " x ", columns, ' ', dtype, strided ? " strided" : ""));
                    const auto sums = run(gpu(), dtype);
                    const double rounding = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
                    for (std::size_t c = 0; c < sums.size(); ++c)
                        ASSERT_NEAR(sums[c], exact[c], nested * rounding * sizes[c]) << c;
                    EXPECT_EQ(sums, run(gpu(), dtype)) << "two runs";
                }
            }
}

}  // namespace
}  // namespace gradtile
