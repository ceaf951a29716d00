#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/layers/norm.h>

#include <support/error_message.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

// Rounding errors from two sums over the width (32 lanes, combined in 5 steps) and from about ten other
// operations. The sums' errors are multiplied by a normalised value, which is at most sqrt(width).
double operations(std::int64_t width) {
    return (static_cast<double>(width) / 32 + 5) * 2 + 10;
}

TEST(LayerNorm, PassesTheLayerSuite) {
    for (const std::int64_t width : {2, 37, 96})  // with width 2, dx is 0 except for the effect of eps
        for (const bool bias : {false, true})
            test::check_layer([&](ParameterStore& store) { return LayerNorm(store, "norm", width, bias); },
                              {.width = width, .operations = operations(width), .dx_cancels = width == 2});
}

TEST(RMSNorm, PassesTheLayerSuite) {
    for (const std::int64_t width : {1, 37, 96})
        test::check_layer([&](ParameterStore& store) { return RMSNorm(store, "norm", width); },
                          {.width = width, .operations = operations(width), .dx_cancels = width == 1});
}

TEST(Norms, WithAnOffsetPassTheLayerSuite) {
    test::check_layer([](ParameterStore& store) { return RMSNorm(store, "norm", 96, 1e-5, 1.0); },
                      {.width = 96, .operations = operations(96) + 1});
    test::check_layer([](ParameterStore& store) { return LayerNorm(store, "norm", 37, true, 1e-5, 1.0); },
                      {.width = 37, .operations = operations(37) + 1});
}

/// y and dx of a norm with the offset 1 and the weight w are those of a norm with the weight 1 + w. Eighths
/// are exact in both.
TEST(Norms, AddTheOffsetToTheWeight) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore store;
    const RMSNorm offset(store, "offset", 24, 1e-5, 1.0), plain(store, "plain", 24);
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    EXPECT_THAT(to_host(ctx, offset.weight.value()), testing::Each(0.0));
    EXPECT_THAT(to_host(ctx, plain.weight.value()), testing::Each(1.0));
    for (std::int64_t i = 0; i < 24; ++i) {
        offset.weight.value().data<float>()[i] = static_cast<float>(i) / 8 - 1;
        plain.weight.value().data<float>()[i] = static_cast<float>(i) / 8;
    }
    const Tensor x = randn(ctx, {5, 24}, DType::f32, Seed{2}), dy = randn(ctx, {5, 24}, DType::f32, Seed{3});
    const auto passes_of = [&](const RMSNorm& norm) {
        RMSNorm::Saved saved;
        std::vector<double> all = to_host(ctx, norm.forward(ctx, x, saved));
        for (const double value : to_host(ctx, norm.backward(ctx, dy, saved))) all.push_back(value);
        for (const double value : to_host(ctx, norm.weight.grad())) all.push_back(value);
        return all;
    };
    EXPECT_EQ(passes_of(offset), passes_of(plain));
}

TEST(LayerNorm, RowsHaveMeanZeroAndVarianceOne) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore store;
    const LayerNorm norm(store, "norm", 200, true, 0.0);
    store.allocate(ctx, DType::f64);
    store.initialize(ctx, Seed{1});
    LayerNorm::Saved saved;
    Tensor x = randn(ctx, {7, 200}, DType::f64, Seed{2});
    for (std::int64_t i = 0; i < x.elements(); ++i) x.data<double>()[i] = 1000 + 3 * x.data<double>()[i];
    const auto y = to_host(ctx, norm.forward(ctx, x, saved));
    for (std::size_t r = 0; r < 7; ++r) {
        double sum = 0, squares = 0;
        for (std::size_t i = 0; i < 200; ++i) {
            sum += y[r * 200 + i];
            squares += y[r * 200 + i] * y[r * 200 + i];
        }
        EXPECT_NEAR(sum / 200, 0, 1000 * 200 * 0x1p-53);
        EXPECT_NEAR(squares / 200, 1, 1000 * 200 * 0x1p-53);
    }
}

TEST(LayerNorm, BackwardAddAddsTheGradientToDx) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore store;
    const LayerNorm norm(store, "norm", 48, true);
    store.allocate(ctx, DType::f64);
    store.initialize(ctx, Seed{1});
    LayerNorm::Saved saved;
    const Tensor x = randn(ctx, {3, 5, 48}, DType::f64, Seed{2});
    const Tensor dy = randn(ctx, {3, 5, 48}, DType::f64, Seed{3});
    const Tensor stream = randn(ctx, {3, 5, 48}, DType::f64, Seed{4});
    norm.forward(ctx, x, saved);
    const auto alone = to_host(ctx, norm.backward(ctx, dy, saved)), before = to_host(ctx, stream);
    norm.backward_add(ctx, dy, saved, stream);
    const auto sum = to_host(ctx, stream);
    for (std::size_t i = 0; i < sum.size(); ++i)
        EXPECT_NEAR(sum[i], before[i] + alone[i], 0x1p-52 * (std::abs(before[i]) + std::abs(alone[i])));
}

TEST(LayerNorm, DoesNotComputeColumnSumsOnTheCpu) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const LayerNorm norm(store, "norm", 8, true);
    store.allocate(ctx, DType::f32);
    LayerNorm::Saved saved;
    const Tensor x = randn(ctx, {3, 8}, DType::f32, Seed{1}), stream = zeros(ctx, {3, 8}, DType::f32);
    norm.forward(ctx, x, saved);
    const SummedGradient dx = norm.backward_add(ctx, x, saved, stream, ColumnSums::compute);
    EXPECT_EQ(dx.dy.raw_data(), stream.raw_data());
    EXPECT_FALSE(dx.column_sums.defined());
}

TEST(RMSNorm, NormalisesTheHeadsOfAPackedProjection) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore store;
    const RMSNorm norm(store, "q_norm", 16);
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    const Tensor packed = randn(ctx, {2, 5, 3 * 4 * 16}, DType::f32, Seed{2});
    const Tensor keys = packed.slice(-1, 64, 64).reshape({2, 5, 4, 16});
    RMSNorm::Saved saved, saved_dense;
    const Tensor y = norm.forward(ctx, keys, saved);
    EXPECT_EQ(to_host(ctx, y), to_host(ctx, norm.forward(ctx, cast(ctx, keys, DType::f32), saved_dense)));
}

TEST(LayerNorm, RefusesOtherShapesDtypesAndStrides) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const LayerNorm norm(store, "norm", 8, true);
    store.allocate(ctx, DType::f32);
    LayerNorm::Saved saved;
    EXPECT_THROW(norm.forward(ctx, zeros(ctx, {4, 9}, DType::f32), saved), Error);
    EXPECT_THROW(norm.forward(ctx, zeros(ctx, {4, 8}, DType::f64), saved), Error);
    EXPECT_THROW(norm.forward(ctx, zeros(ctx, {8, 8}, DType::f32).transpose(0, 1), saved), Error);
    EXPECT_THAT(test::message_of([&] { norm.forward(ctx, Tensor(), saved); }),
                testing::HasSubstr("layer_norm: x no tensor; expected [.., 8]"));
}

TEST(Norm, BackwardNeedsWhatForwardSaved) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const LayerNorm layer_norm(store, "layer_norm", 8, true);
    const RMSNorm rms_norm(store, "rms_norm", 8);
    store.allocate(ctx, DType::f32);
    const Tensor x = zeros(ctx, {4, 8}, DType::f32), others = zeros(ctx, {3}, DType::f32);
    const auto expect_refused = [&](const auto& norm, const auto& saved) {
        EXPECT_THAT(test::message_of([&] { norm.backward(ctx, x, saved); }),
                    testing::HasSubstr("backward needs what forward saved"));
    };
    LayerNorm::Saved saved;
    layer_norm.forward(ctx, x, saved);
    expect_refused(layer_norm, LayerNorm::Saved{x, saved.mean, {}});
    expect_refused(layer_norm, LayerNorm::Saved{x, others, saved.rstd});
    expect_refused(layer_norm, RMSNorm::Saved{x, {}, saved.rstd});
    expect_refused(rms_norm, RMSNorm::Saved{x, {}, {}});
    expect_refused(rms_norm, RMSNorm::Saved{x, {}, others});
    expect_refused(rms_norm, saved);
}

/// Expects a norm with a residual to give the same bits as computing the sum first and normalising it
/// afterwards.
template <class Norm>
void expect_residual_is_summed_first(const Context& ctx, DType dtype, std::int64_t width, double p) {
    SCOPED_TRACE(concat(dtype, ", width ", width, ", dropout ", p));
    ParameterStore store;
    const Norm norm = [&] {
        if constexpr (std::is_same_v<Norm, LayerNorm>)
            return LayerNorm(store, "norm", width, true);
        else
            return RMSNorm(store, "norm", width);
    }();
    store.allocate(ctx, dtype);
    copy(ctx, store.values(), randn(ctx, store.values().shape(), dtype, Seed{1}));
    const DropoutKey key = DropoutKey::from_step(1, 2, 4);
    // Tests strided rows, like those in a slice of a wider tensor.
    const auto stream = [&](std::uint64_t seed) {
        return randn(ctx, {3, 11, width + 8}, dtype, Seed{seed}).slice(-1, 0, width);
    };
    const Tensor x = stream(2), branch = stream(3), same_branch = stream(3);
    const Tensor sum = Residual{x, branch, {.p = p}, key}.sum(ctx);
    typename Norm::Saved saved, saved_together;
    const Tensor y = norm.forward(ctx, sum, saved);
    const Tensor together = norm.forward(ctx, Residual{x, same_branch, {.p = p}, key}, saved_together);
    EXPECT_EQ(to_host(ctx, together), to_host(ctx, y));
    EXPECT_EQ(to_host(ctx, saved_together.x), to_host(ctx, sum));
    EXPECT_EQ(saved_together.x.raw_data(), same_branch.raw_data());
    EXPECT_EQ(to_host(ctx, saved_together.rstd), to_host(ctx, saved.rstd));
}

TEST(Norm, AddsAResidualBeforeItNormalises) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
        for (const double p : {0.0, 0.3}) {
            expect_residual_is_summed_first<LayerNorm>(ctx, dtype, 37, p);
            expect_residual_is_summed_first<RMSNorm>(ctx, dtype, 64, p);
        }
}

TEST(Norm, RefusesABranchOfAnotherShape) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const RMSNorm norm(store, "norm", 4);
    store.allocate(ctx, DType::f32);
    RMSNorm::Saved saved;
    const Tensor x = zeros(ctx, {3, 4}, DType::f32), branch = zeros(ctx, {2, 4}, DType::f32);
    EXPECT_THROW(norm.forward(ctx, Residual{x, branch}, saved), Error);
}

// ---- On the GPU ----

using test::OnCuda;

// Tests rows that a partial warp, a warp or a block holds in registers, longer rows, and rows without whole
// vectors.
constexpr std::int64_t cuda_widths[] = {1, 7, 64, 384, 768, 1000, 1024, 1280, 2056, 4096, 8192, 9001};

TEST_F(OnCuda, LayerNormPassesTheLayerSuite) {
    for (const std::int64_t width : cuda_widths)
        for (const bool bias : {false, true})
            test::check_layer_on_cuda(
                gpu(), [&](ParameterStore& store) { return LayerNorm(store, "norm", width, bias); },
                {.width = width,
                 .operations = operations(width),
                 .leading = {{1}, {2, 3}, {3, width < 2000 ? 171 : 19}},
                 .dx_cancels = width == 1});
}

TEST_F(OnCuda, RMSNormPassesTheLayerSuite) {
    for (const std::int64_t width : cuda_widths)
        test::check_layer_on_cuda(gpu(), [&](ParameterStore& store) { return RMSNorm(store, "norm", width); },
                                  {.width = width,
                                   .operations = operations(width),
                                   .leading = {{1}, {5, 1, 2}, {3, width < 2000 ? 171 : 19}},
                                   .dx_cancels = width == 1});
}

/// Weights in registers, in memory, and of rows that no team holds.
TEST_F(OnCuda, NormsWithAnOffsetPassTheLayerSuite) {
    for (const std::int64_t width : {64, 768, 1000, 9001}) {
        const test::LayerSuite layer{.width = width, .operations = operations(width) + 1};
        test::check_layer_on_cuda(
            gpu(), [&](ParameterStore& store) { return RMSNorm(store, "norm", width, 1e-5, 1.0); }, layer);
        test::check_layer_on_cuda(
            gpu(), [&](ParameterStore& store) { return LayerNorm(store, "norm", width, true, 1e-5, 1.0); },
            layer);
    }
}

TEST_F(OnCuda, NormAddsAResidualBeforeItNormalises) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
        for (const double p : {0.0, 0.3})
            for (const std::int64_t width : {16, 37, 384, 768, 1024, 1280, 1600, 4096, 20000}) {
                expect_residual_is_summed_first<LayerNorm>(gpu(), dtype, width, p);
                expect_residual_is_summed_first<RMSNorm>(gpu(), dtype, width, p);
            }
}

/// Tests more rows than a launch's blocks process at the same time, and more than a team prefetches.
TEST_F(OnCuda, LayerNormPassesTheLayerSuiteWithManyRows) {
    for (const std::int64_t width : {8, 128, 768})
        test::check_layer_on_cuda(
            gpu(), [&](ParameterStore& store) { return LayerNorm(store, "norm", width, true); },
            {.width = width, .operations = operations(width), .leading = {{width == 8 ? 70000 : 5000}}});
}

TEST_F(OnCuda, NormBackwardAddAddsTheGradientToDx) {
    for (const std::int64_t width : {48, 77}) {
        ParameterStore store;
        const LayerNorm norm(store, "norm", width, true);
        store.allocate(gpu(), DType::f32);
        store.initialize(gpu(), Seed{1});
        LayerNorm::Saved saved;
        const Tensor x = randn(gpu(), {3, 5, width}, DType::f32, Seed{2});
        const Tensor dy = randn(gpu(), {3, 5, width}, DType::f32, Seed{3});
        const Tensor stream = randn(gpu(), {3, 5, width}, DType::f32, Seed{4});
        norm.forward(gpu(), x, saved);
        const auto alone = to_host(gpu(), norm.backward(gpu(), dy, saved)), before = to_host(gpu(), stream);
        norm.backward_add(gpu(), dy, saved, stream);
        const auto sum = to_host(gpu(), stream);
        for (std::size_t i = 0; i < sum.size(); ++i)
            EXPECT_NEAR(sum[i], before[i] + alone[i], 0x1p-23 * (std::abs(before[i]) + std::abs(alone[i])));
    }
}

/// Expects that backward_add with column sums gives the same dx bits as without, and correct column sums.
template <class Norm>
void expect_summed_backward_add(const Context& gpu, const Norm& norm, ParameterStore& store, DType dtype,
                                std::int64_t rows, std::int64_t width) {
    SCOPED_TRACE(concat(dtype, ", ", rows, " rows of ", width));
    store.allocate(gpu, dtype);
    store.initialize(gpu, Seed{1});
    typename Norm::Saved saved;
    const Tensor x = randn(gpu, {rows, width}, dtype, Seed{2}),
                 dy = randn(gpu, {rows, width}, dtype, Seed{3});
    const auto stream = [&] { return randn(gpu, {rows, width}, dtype, Seed{4}); };
    norm.forward(gpu, x, saved);
    const SummedGradient plain = norm.backward_add(gpu, dy, saved, stream());
    const SummedGradient summed = norm.backward_add(gpu, dy, saved, stream(), ColumnSums::compute);
    EXPECT_FALSE(plain.column_sums.defined());
    EXPECT_EQ(to_host(gpu, plain.dy), to_host(gpu, summed.dy));
    test::expect_column_sums(gpu, summed);
}

TEST_F(OnCuda, NormBackwardAddComputesTheColumnSumsOfItsResult) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
        for (const std::int64_t width : cuda_widths)
            for (const std::int64_t rows : {1, 19, width == 384 ? 4500 : width <= 1280 ? 2300 : 600}) {
                ParameterStore layer_store, rms_store;
                const LayerNorm layer_norm(layer_store, "norm", width, true);
                const RMSNorm rms_norm(rms_store, "norm", width);
                expect_summed_backward_add(gpu(), layer_norm, layer_store, dtype, rows, width);
                if (rows == 19) expect_summed_backward_add(gpu(), rms_norm, rms_store, dtype, rows, width);
            }
}

TEST_F(OnCuda, RMSNormNormalisesTheHeadsOfAPackedProjection) {
    ParameterStore store;
    const RMSNorm norm(store, "q_norm", 16);
    store.allocate(gpu(), DType::f32);
    store.initialize(gpu(), Seed{1});
    const Tensor packed = randn(gpu(), {2, 5, 3 * 4 * 16}, DType::f32, Seed{2});
    const Tensor keys = packed.slice(-1, 64, 64).reshape({2, 5, 4, 16});
    RMSNorm::Saved saved, saved_dense;
    const Tensor y = norm.forward(gpu(), keys, saved);
    EXPECT_EQ(to_host(gpu(), y),
              to_host(gpu(), norm.forward(gpu(), cast(gpu(), keys, DType::f32), saved_dense)));
}

}  // namespace
}  // namespace gradtile
