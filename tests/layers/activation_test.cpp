#include <gradtile/layers/activation.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

/// Calls check(make, suite) for every activation and every y width; suite.width is x's width.
template <class Check>
void for_every_activation(const std::vector<std::int64_t>& widths, Check&& check) {
    for (const ActivationTraits& traits : activation_table)
        for (const std::int64_t width : widths) {
            SCOPED_TRACE(concat(traits.name, ", width ", width));
            check([&traits](ParameterStore&) { return ActivationLayer{traits.activation}; },
                  test::LayerSuite{.width = traits.gated ? 2 * width : width,
                                   .operations = static_cast<double>(traits.roundings)});
        }
}

TEST(Activation, EveryActivationPassesTheLayerSuite) {
    for_every_activation({1, 37},
                         [](auto make, const test::LayerSuite& suite) { test::check_layer(make, suite); });
}

std::vector<double> activated(Activation activation, const std::vector<double>& x, DType dtype) {
    const Context ctx(Device::cpu(), 1);
    ActivationLayer::Saved saved;
    return to_host(ctx, ActivationLayer{activation}.forward(
                            ctx, from_host(ctx, x, {static_cast<std::int64_t>(x.size())}, dtype), saved));
}

TEST(Gelu, EqualsItsDefinition) {
    const std::vector<double> xs = {-3, -1, -0.25, 0, 0.5, 2};
    const auto exact = activated(Activation::gelu, xs, DType::f64),
               tanh = activated(Activation::gelu_tanh, xs, DType::f64);
    for (std::size_t i = 0; i < xs.size(); ++i) {
        const double x = xs[i];
        EXPECT_NEAR(exact[i], x * 0.5 * std::erfc(-x / std::sqrt(2.0)), 1e-15);
        EXPECT_NEAR(tanh[i], 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))),
                    1e-15);
    }
}

TEST(Relu2, EqualsItsDefinitionAndKeepsNaN) {
    EXPECT_EQ(activated(Activation::relu2, {-3, -0.25, 0, 0.5, 3}, DType::f32),
              (std::vector<double>{0, 0, 0, 0.25, 9}));
    EXPECT_TRUE(std::isnan(activated(Activation::relu2, {std::nan("")}, DType::f32)[0]));
}

TEST(Gelu, IsFiniteForTheLargestInputs) {
    for (const Activation activation : {Activation::gelu_tanh, Activation::gelu}) {
        const auto y = activated(activation, {-3e38, -200, 200, 3e38}, DType::f32);
        EXPECT_EQ(y[0], 0.0);
        EXPECT_EQ(y[1], 0.0);
        EXPECT_EQ(y[2], 200.0);
        EXPECT_FLOAT_EQ(static_cast<float>(y[3]), 3e38f);
        EXPECT_TRUE(std::isnan(activated(activation, {std::nan("")}, DType::f32)[0]));

        const Context ctx(Device::cpu(), 1);
        const Tensor x = from_host(ctx, std::vector<double>{-3e38, -200, 200, 3e38}, {4}, DType::f32);
        const Tensor dy = from_host(ctx, std::vector<double>{1, 1, 1, 1}, {4}, DType::f32);
        const auto dx = to_host(ctx, ActivationLayer{activation}.backward(ctx, dy, {x}));
        EXPECT_EQ(dx, (std::vector<double>{0, 0, 1, 1}));
    }
}

TEST(Gelu, OutputsMayOverwriteInputs) {
    const Context ctx(Device::cpu(), 2);
    const ActivationLayer gelu;
    ActivationLayer::Saved saved;
    const Tensor x = randn(ctx, {9, 33}, DType::f32, Seed{1}), dy = randn(ctx, {9, 33}, DType::f32, Seed{2});
    const auto y = to_host(ctx, gelu.forward(ctx, x, saved)),
               dx = to_host(ctx, gelu.backward(ctx, dy, saved));
    gelu.backward_into(ctx, dy, dy, x);
    EXPECT_EQ(to_host(ctx, dy), dx);
    gelu.forward_into(ctx, x, x);
    EXPECT_EQ(to_host(ctx, x), y);
}

TEST(SwiGlu, GradientMayOverwriteTheInput) {
    const Context ctx(Device::cpu(), 2);
    const ActivationLayer swiglu{Activation::swiglu};
    ActivationLayer::Saved saved;
    const Tensor x = randn(ctx, {9, 66}, DType::f32, Seed{1}), dy = randn(ctx, {9, 33}, DType::f32, Seed{2});
    swiglu.forward(ctx, x, saved);
    const auto dx = to_host(ctx, swiglu.backward(ctx, dy, saved));
    swiglu.backward_into(ctx, x, dy, x);
    EXPECT_EQ(to_host(ctx, x), dx);
}

// ---- On the GPU ----

using test::OnCuda;

TEST_F(OnCuda, EveryActivationPassesTheLayerSuite) {
    for_every_activation({1, 7, 64, 768, 1000}, [&](auto make, const test::LayerSuite& suite) {
        test::check_layer_on_cuda(gpu(), make, suite);
    });
}

TEST_F(OnCuda, GeluIsFiniteForTheLargestInputs) {
    const Tensor x =
        from_host(gpu(), std::vector<double>{-3e38, -200, 200, 3e38, std::nan("")}, {5}, DType::f32);
    const Tensor dy = from_host(gpu(), std::vector<double>(5, 1.0), {5}, DType::f32);
    for (const Activation activation : {Activation::gelu_tanh, Activation::gelu}) {
        ActivationLayer::Saved saved;
        const auto y = to_host(gpu(), ActivationLayer{activation}.forward(gpu(), x, saved));
        const auto dx = to_host(gpu(), ActivationLayer{activation}.backward(gpu(), dy, saved));
        const double values[] = {0, 0, 200, static_cast<float>(3e38)}, slopes[] = {0, 0, 1, 1};
        for (std::size_t i = 0; i < 4; ++i) {
            EXPECT_EQ(y[i], values[i]);
            EXPECT_EQ(dx[i], slopes[i]);
        }
        EXPECT_TRUE(std::isnan(y[4]));
        EXPECT_TRUE(std::isnan(dx[4]));
    }
}

TEST_F(OnCuda, GeluBackwardComputesTheColumnSumsOfItsResult) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
        for (const Activation activation : {Activation::gelu_tanh, Activation::gelu})
            for (const std::int64_t width : {1, 7, 64, 776})
                for (const std::int64_t rows : {1, 130, 600}) {
                    SCOPED_TRACE(concat(dtype, ", ", rows, " rows of ", width));
                    const Tensor x = randn(gpu(), {rows, width}, dtype, Seed{1});
                    const Tensor dy = randn(gpu(), {rows, width}, dtype, Seed{2});
                    const Tensor dx = empty_like(gpu(), x);
                    cuda::activation_backward(gpu(), dx, dy, x, activation);
                    const SummedGradient summed(empty_like(gpu(), x), empty_column_sums(gpu(), x));
                    cuda::activation_backward_summed(gpu(), summed, dy, x, activation);
                    EXPECT_EQ(to_host(gpu(), dx), to_host(gpu(), summed.dy));
                    test::expect_column_sums(gpu(), summed);
                }
}

TEST_F(OnCuda, ActivationsMayOverwriteTheirInputs) {
    for (const std::int64_t width : {33, 64}) {
        const Tensor x = randn(gpu(), {9, 2 * width}, DType::f32, Seed{1});
        const Tensor dy = randn(gpu(), {9, width}, DType::f32, Seed{2});
        ActivationLayer::Saved saved;
        ActivationLayer{Activation::swiglu}.forward(gpu(), x, saved);
        const auto dx = to_host(gpu(), ActivationLayer{Activation::swiglu}.backward(gpu(), dy, saved));
        ActivationLayer{Activation::swiglu}.backward_into(gpu(), x, dy, x);
        EXPECT_EQ(to_host(gpu(), x), dx);

        const Tensor z = randn(gpu(), {9, width}, DType::f32, Seed{3});
        ActivationLayer::Saved saved_gelu;
        const auto y = to_host(gpu(), ActivationLayer{}.forward(gpu(), z, saved_gelu));
        const auto dz = to_host(gpu(), ActivationLayer{}.backward(gpu(), dy, saved_gelu));
        ActivationLayer{}.backward_into(gpu(), dy, dy, z);
        EXPECT_EQ(to_host(gpu(), dy), dz);
        ActivationLayer{}.forward_into(gpu(), z, z);
        EXPECT_EQ(to_host(gpu(), z), y);
    }
}

}  // namespace
}  // namespace gradtile
