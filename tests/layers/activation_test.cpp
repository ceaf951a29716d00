#include <gradtile/layers/gelu.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/swiglu.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

TEST(Gelu, TanhFormPassesTheLayerSuite) {
    for (const std::int64_t width : {1, 37, 160})
        test::check_layer([](ParameterStore&) { return Gelu{Gelu::Form::tanh}; },
                          {.width = width, .operations = 20});
}

TEST(Gelu, ExactFormPassesTheLayerSuite) {
    for (const std::int64_t width : {1, 37, 160})
        test::check_layer([](ParameterStore&) { return Gelu{Gelu::Form::exact}; },
                          {.width = width, .operations = 20});
}

TEST(SwiGlu, PassesTheLayerSuite) {
    for (const std::int64_t width : {2, 74, 160})
        test::check_layer([](ParameterStore&) { return SwiGlu(); }, {.width = width, .operations = 12});
}

std::vector<double> gelu_of(Gelu::Form form, const std::vector<double>& x, DType dtype) {
    const Context ctx(Device::cpu(), 1);
    Gelu::Saved saved;
    return to_host(
        ctx, Gelu{form}.forward(ctx, from_host(ctx, x, {static_cast<std::int64_t>(x.size())}, dtype), saved));
}

TEST(Gelu, HasTheDefinitionsValues) {
    const std::vector<double> xs = {-3, -1, -0.25, 0, 0.5, 2};
    const auto exact = gelu_of(Gelu::Form::exact, xs, DType::f64),
               tanh = gelu_of(Gelu::Form::tanh, xs, DType::f64);
    for (std::size_t i = 0; i < xs.size(); ++i) {
        const double x = xs[i];
        EXPECT_NEAR(exact[i], x * 0.5 * std::erfc(-x / std::sqrt(2.0)), 1e-15);
        EXPECT_NEAR(tanh[i], 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))),
                    1e-15);
    }
}

TEST(Gelu, StaysFiniteAtTheEndsOfTheRange) {
    for (const Gelu::Form form : {Gelu::Form::tanh, Gelu::Form::exact}) {
        const auto y = gelu_of(form, {-3e38, -200, 200, 3e38}, DType::f32);
        EXPECT_EQ(y[0], 0.0);
        EXPECT_EQ(y[1], 0.0);
        EXPECT_EQ(y[2], 200.0);
        EXPECT_FLOAT_EQ(static_cast<float>(y[3]), 3e38f);
        EXPECT_TRUE(std::isnan(gelu_of(form, {std::nan("")}, DType::f32)[0]));

        const Context ctx(Device::cpu(), 1);
        const Tensor x = from_host(ctx, std::vector<double>{-3e38, -200, 200, 3e38}, {4}, DType::f32);
        const Tensor dy = from_host(ctx, std::vector<double>{1, 1, 1, 1}, {4}, DType::f32);
        const auto dx = to_host(ctx, Gelu{form}.backward(ctx, dy, {x}));
        EXPECT_EQ(dx, (std::vector<double>{0, 0, 1, 1}));
    }
}

TEST(Gelu, WorksInPlace) {
    const Context ctx(Device::cpu(), 2);
    const Gelu gelu;
    Gelu::Saved saved;
    const Tensor x = randn(ctx, {9, 33}, DType::f32, Seed{1}), dy = randn(ctx, {9, 33}, DType::f32, Seed{2});
    const auto y = to_host(ctx, gelu.forward(ctx, x, saved)),
               dx = to_host(ctx, gelu.backward(ctx, dy, saved));
    gelu.backward_into(ctx, dy, dy, x);
    EXPECT_EQ(to_host(ctx, dy), dx);
    gelu.forward_into(ctx, x, x);
    EXPECT_EQ(to_host(ctx, x), y);
}

TEST(SwiGlu, WritesItsGradientOverItsInput) {
    const Context ctx(Device::cpu(), 2);
    const SwiGlu swiglu;
    SwiGlu::Saved saved;
    const Tensor x = randn(ctx, {9, 66}, DType::f32, Seed{1}), dy = randn(ctx, {9, 33}, DType::f32, Seed{2});
    swiglu.forward(ctx, x, saved);
    const auto dx = to_host(ctx, swiglu.backward(ctx, dy, saved));
    swiglu.backward_into(ctx, x, dy, x);
    EXPECT_EQ(to_host(ctx, x), dx);
}

// ---- On the GPU ----

using test::OnCuda;

TEST_F(OnCuda, GeluPassesTheLayerSuite) {
    for (const Gelu::Form form : {Gelu::Form::tanh, Gelu::Form::exact})
        for (const std::int64_t width : {1, 7, 64, 768, 1000})
            test::check_layer_on_cuda(gpu(), [&](ParameterStore&) { return Gelu{form}; },
                                      {.width = width, .operations = 20});
}

TEST_F(OnCuda, SwiGluPassesTheLayerSuite) {
    for (const std::int64_t width : {2, 14, 128, 1536, 2000})
        test::check_layer_on_cuda(gpu(), [](ParameterStore&) { return SwiGlu(); },
                                  {.width = width, .operations = 12});
}

TEST_F(OnCuda, GeluStaysFiniteAtTheEndsOfTheRange) {
    const Tensor x =
        from_host(gpu(), std::vector<double>{-3e38, -200, 200, 3e38, std::nan("")}, {5}, DType::f32);
    const Tensor dy = from_host(gpu(), std::vector<double>(5, 1.0), {5}, DType::f32);
    for (const Gelu::Form form : {Gelu::Form::tanh, Gelu::Form::exact}) {
        Gelu::Saved saved;
        const auto y = to_host(gpu(), Gelu{form}.forward(gpu(), x, saved));
        const auto dx = to_host(gpu(), Gelu{form}.backward(gpu(), dy, saved));
        const double values[] = {0, 0, 200, static_cast<float>(3e38)}, slopes[] = {0, 0, 1, 1};
        for (std::size_t i = 0; i < 4; ++i) {
            EXPECT_EQ(y[i], values[i]);
            EXPECT_EQ(dx[i], slopes[i]);
        }
        EXPECT_TRUE(std::isnan(y[4]));
        EXPECT_TRUE(std::isnan(dx[4]));
    }
}

TEST_F(OnCuda, GeluBackwardSumsTheColumnsOfWhatItStores) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
        for (const Gelu::Form form : {Gelu::Form::tanh, Gelu::Form::exact})
            for (const std::int64_t width : {1, 7, 64, 776})
                for (const std::int64_t rows : {1, 130, 600}) {
                    SCOPED_TRACE(concat(dtype, ", ", rows, " rows of ", width));
                    const Tensor x = randn(gpu(), {rows, width}, dtype, Seed{1});
                    const Tensor dy = randn(gpu(), {rows, width}, dtype, Seed{2});
                    const Tensor dx = empty_like(gpu(), x);
                    cuda::gelu_backward(gpu(), dx, dy, x, form);
                    const SummedGradient summed(empty_like(gpu(), x), room_for_column_sums(gpu(), x));
                    cuda::gelu_backward_summed(gpu(), summed, dy, x, form);
                    EXPECT_EQ(to_host(gpu(), dx), to_host(gpu(), summed.dy));
                    test::expect_column_sums(gpu(), summed);
                }
}

TEST_F(OnCuda, ActivationsMayOverwriteTheirInputs) {
    for (const std::int64_t width : {33, 64}) {
        const Tensor x = randn(gpu(), {9, 2 * width}, DType::f32, Seed{1});
        const Tensor dy = randn(gpu(), {9, width}, DType::f32, Seed{2});
        SwiGlu::Saved saved;
        SwiGlu{}.forward(gpu(), x, saved);
        const auto dx = to_host(gpu(), SwiGlu{}.backward(gpu(), dy, saved));
        SwiGlu{}.backward_into(gpu(), x, dy, x);
        EXPECT_EQ(to_host(gpu(), x), dx);

        const Tensor z = randn(gpu(), {9, width}, DType::f32, Seed{3});
        Gelu::Saved saved_gelu;
        const auto y = to_host(gpu(), Gelu{}.forward(gpu(), z, saved_gelu));
        const auto dz = to_host(gpu(), Gelu{}.backward(gpu(), dy, saved_gelu));
        Gelu{}.backward_into(gpu(), dy, dy, z);
        EXPECT_EQ(to_host(gpu(), dy), dz);
        Gelu{}.forward_into(gpu(), z, z);
        EXPECT_EQ(to_host(gpu(), z), y);
    }
}

}  // namespace
}  // namespace gradtile
