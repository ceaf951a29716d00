// Compares core's CUDA functions with its CPU functions. Without a GPU these tests are skipped; CudaAbsence,
// which tests the error message without a GPU, runs everywhere.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/internal/missing_gpu_code.h>
#include <gradtile/core/internal/tensor_ops_backend.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/cuda_test.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using test::floating_dtypes;

TEST(CudaAbsence, IsOneClearLine) {
    if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
    try {
        const Context ctx(Device::cuda(0));
        FAIL() << "a CUDA context without a CUDA device";
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_THAT(message, testing::HasSubstr("--device cpu"));
        EXPECT_EQ(message.find('\n'), std::string::npos);
    }
    const Context cpu(Device::cpu(), 1);  // a context on the CPU still works
    EXPECT_EQ(item(cpu, from_host(cpu, std::vector<double>{3.0}, {1}, DType::f32)), 3.0);
}

TEST(CudaAbsence, AFunctionWithoutADefinitionThrowsAndIsAFunctionPointer) {
    if (GRADTILE_HAVE_CUDA) GTEST_SKIP() << "this build has the CUDA functions";
    const Context host(Device::cpu(), 1);
    const Tensor x = zeros(host, {2}, DType::f32);
    EXPECT_THROW(cuda::fill(host, x, 1.0), Error);
    const auto chosen = x.defined() ? cuda::fill : cpu::fill;
    EXPECT_THROW(chosen(host, x, 1.0), Error);
    EXPECT_EQ(to_host(host, x), std::vector<double>(2, 0.0));
}

TEST(CudaAbsence, AGpuWithoutCodeIsSentToABuildOrToTheCpu) {
    using cuda::way_out_of_missing_code;
    EXPECT_EQ(way_out_of_missing_code(7, 5), "gradtile supports 8.0 and later; use --device cpu");
    for (const auto& [major, minor, architecture] :
         {std::tuple{8, 0, "80"}, {8, 9, "89"}, {9, 0, "90a"}, {10, 3, "103"}, {12, 0, "120"}})
        EXPECT_EQ(way_out_of_missing_code(major, minor),
                  concat("build it with scripts/build.sh -DCMAKE_CUDA_ARCHITECTURES=", architecture,
                         " or use --device cpu"));
}

class Cuda : public test::CudaTest {};

/// One view with shape [7, 12] for each kind of strides.
std::vector<Tensor> views(const Context& ctx, DType type, std::uint64_t seed) {
    return {randn(ctx, {7, 12}, type, Seed{seed}), randn(ctx, {12, 7}, type, Seed{seed}).transpose(0, 1),
            randn(ctx, {7, 20}, type, Seed{seed}).slice(1, 3, 12),
            randn(ctx, {1, 12}, type, Seed{seed}).expand({7, 12}),
            randn(ctx, {7, 1, 12}, type, Seed{seed}).select(1, 0)};
}

TEST_F(Cuda, RefusesAMissingDevice) {
    EXPECT_THROW(Context(Device::cuda(cuda_device_count())), Error);
}

TEST_F(Cuda, RefusesMoreMemoryThanExistsAndStaysUsable) {
    EXPECT_THROW(empty(gpu(), {std::int64_t{1} << 45}, DType::f32), Error);
    EXPECT_EQ(item(gpu(), zeros(gpu(), {1}, DType::f32)), 0.0);
}

TEST_F(Cuda, DrawsAndReadsTheSameBitsAsTheCpu) {
    for (const DType type : floating_dtypes)
        EXPECT_EQ(to_host(gpu(), randn(gpu(), {1001}, type, Seed{3})),
                  to_host(cpu, randn(cpu, {1001}, type, Seed{3})));
}

TEST_F(Cuda, FromBlobViewsDeviceMemoryOfTheCaller) {
    const Tensor owned = randn(gpu(), {6}, DType::f32, Seed{1});
    const Tensor view = Tensor::from_blob(owned.raw_data(), {2, 3}, DType::f32, gpu().device());
    fill(gpu(), view.select(0, 0), 7);
    EXPECT_EQ(to_host(gpu(), view), to_host(gpu(), owned));
    EXPECT_EQ(to_host(gpu(), owned)[2], 7);
    const std::vector<float> values{1, 2, 3};
    EXPECT_THAT(to_host(gpu(), from_host(gpu(), values, {3}, DType::bf16)), testing::ElementsAre(1, 2, 3));
}

TEST_F(Cuda, CopyConvertsTheSameBitsAsTheCpu) {
    for (const DType to : floating_dtypes)
        for (const DType from : floating_dtypes) {
            const auto sources = views(gpu(), from, 2), expected = views(cpu, from, 2);
            for (std::size_t i = 0; i < sources.size(); ++i)
                EXPECT_EQ(to_host(gpu(), cast(gpu(), sources[i], to)),
                          to_host(cpu, cast(cpu, expected[i], to)))
                    << from << " to " << to << ", view " << i;
        }
}

TEST_F(Cuda, CopyWritesIntoViews) {
    for (std::size_t i = 0; i < 3; ++i) {
        const Tensor target = views(gpu(), DType::f32, 1)[i],
                     source = randn(gpu(), {7, 12}, DType::f32, Seed{2});
        copy(gpu(), target, source);
        EXPECT_EQ(to_host(gpu(), target), to_host(gpu(), source)) << "view " << i;
    }
}

/// The GPU computes a fused multiply-add with one rounding, the CPU rounds twice. So the sums could differ by
/// half a unit in the last place, before each is rounded to y's type.
TEST_F(Cuda, AxpyAgreesToOneRounding) {
    for (const DType to : floating_dtypes)
        for (const DType from : floating_dtypes) {
            const Tensor y = randn(gpu(), {7, 12}, to, Seed{1}), y_cpu = randn(cpu, {7, 12}, to, Seed{1});
            const auto xs = views(gpu(), from, 2), xs_cpu = views(cpu, from, 2);
            // The factor is a power of two, so the product is exact and both devices round once.
            axpy(gpu(), y, -0.5, xs[1]);
            axpy(cpu, y_cpu, -0.5, xs_cpu[1]);
            EXPECT_EQ(to_host(gpu(), y), to_host(cpu, y_cpu)) << to << " += " << from;
        }
}

TEST_F(Cuda, FillWritesViewsAndNothingElse) {
    const Tensor x = zeros(gpu(), {5, 6, 7}, DType::bf16);
    fill(gpu(), x.slice(1, 1, 2).slice(2, 3, 3), 1.5);
    double sum = 0;
    for (const double value : to_host(gpu(), x)) sum += value;
    EXPECT_EQ(sum, 1.5 * 5 * 2 * 3);
}

TEST_F(Cuda, FillReachesEveryElementOfALargeTensor) {
    const Tensor x = empty(gpu(), {(std::int64_t{1} << 22) + 3}, DType::f32);
    fill(gpu(), x, -2.0);
    EXPECT_THAT(to_host(gpu(), x), testing::Each(-2.0));
}

/// Both devices sum k products in the accumulator's type. Each sum has an error of at most k eps / 2 sum
/// |a||b|, so the sums differ by at most k eps sum |a||b| (2 k eps if the products are also rounded). Each
/// device rounds once more when it stores the result.
TEST_F(Cuda, GemmAgreesWithTheCpuWithinTheErrorOfBoth) {
    const std::int64_t batch = 3, m = 37, n = 21, k = 65;
    for (const DType in : floating_dtypes)
        for (const DType out : {in, accumulator_of(in)})
            for (const bool trans_a : {false, true})
                for (const bool trans_b : {false, true})
                    for (const bool accumulate : {false, true})
                        for (const bool with_bias : {false, true}) {
                            const auto product = [&](const Context& ctx, bool magnitudes) {
                                const auto draw = [&](const Shape& shape, DType type, std::uint64_t seed) {
                                    Tensor x = randn(ctx, shape, type, Seed{seed});
                                    if (!magnitudes) return x;
                                    auto values = to_host(ctx, x);
                                    for (double& value : values) value = std::abs(value);
                                    return from_host(ctx, values, shape, type);
                                };
                                const Tensor a =
                                    draw(trans_a ? Shape{batch, k, m} : Shape{batch, m, k}, in, 1);
                                const Tensor b =
                                    draw(trans_b ? Shape{batch, n, k} : Shape{batch, k, n}, in, 2);
                                const Tensor c = draw({batch, m, n}, out, 3);
                                GemmOptions options{.trans_a = trans_a,
                                                    .trans_b = trans_b,
                                                    .accumulate = accumulate,
                                                    .alpha = 0.5};
                                if (with_bias) options.bias = draw({n}, in, 4);
                                gemm(ctx, c, a, b, options);
                                return to_host(ctx, c);
                            };
                            const auto got = product(gpu(), false), expected = product(cpu, false);
                            const auto size = product(cpu, true);
                            const double sum_epsilon = in == DType::f64 ? 0x1p-52 : 0x1p-23;
                            const double out_epsilon = out == DType::f64    ? 0x1p-52
                                                       : out == DType::f32  ? 0x1p-23
                                                       : out == DType::bf16 ? 0x1p-7
                                                                            : 0x1p-10;
                            for (std::size_t i = 0; i < got.size(); ++i)
                                ASSERT_NEAR(got[i], expected[i],
                                            2.0 * k * sum_epsilon * size[i] + 2 * out_epsilon * size[i])
                                    << in << " to " << out << ' ' << trans_a << trans_b << accumulate
                                    << with_bias;
                        }
}

TEST_F(Cuda, ToDeviceCopiesAnyHostView) {
    for (const Tensor& view : views(cpu, DType::bf16, 4)) {
        const Tensor there = to_device(gpu(), view);
        EXPECT_EQ(there.device(), gpu().device());
        EXPECT_EQ(to_host(gpu(), there), to_host(cpu, view));
        EXPECT_EQ(to_device(gpu(), there).raw_data(), there.raw_data());  // itself
    }
    EXPECT_THROW(to_device(cpu, zeros(gpu(), {2}, DType::f32)), Error);
}

// ---- Captured graphs ----

TEST_F(Cuda, AReplayedGraphUsesTheCurrentValues) {
    const Tensor x = zeros(gpu(), {1000}, DType::f32), y = zeros(gpu(), {1000}, DType::f32);
    StepGraph graph;
    EXPECT_THROW(graph.replay(gpu()), Error);
    graph.capture(gpu(), [&] {
        axpy(gpu(), y, 2.0, x);
        copy(gpu(), x, y);
    });
    EXPECT_EQ(graph.nodes(), 2u);
    EXPECT_THAT(to_host(gpu(), y), testing::Each(0.0));  // recorded, not run
    fill(gpu(), x, 1.0);
    for (const double expected : {2.0, 6.0, 18.0}) {
        graph.replay(gpu());
        EXPECT_THAT(to_host(gpu(), x), testing::Each(expected));
    }
}

TEST_F(Cuda, AGraphMayContainMatrixProducts) {
    const Tensor a = randn(gpu(), {64, 96}, DType::bf16, Seed{1}),
                 b = randn(gpu(), {96, 48}, DType::bf16, Seed{2});
    const Tensor eager = empty(gpu(), {64, 48}, DType::bf16), replayed = zeros(gpu(), {64, 48}, DType::bf16);
    gemm(gpu(), eager, a, b);
    StepGraph graph;
    graph.capture(gpu(), [&] { gemm(gpu(), replayed, a, b); });
    graph.replay(gpu());
    EXPECT_EQ(to_host(gpu(), replayed), to_host(gpu(), eager));
}

TEST_F(Cuda, WorkThatCannotBeCapturedIsRefusedAndTheStreamStaysUsable) {
    const Tensor x = zeros(gpu(), {10}, DType::f32);
    StepGraph graph;
    // to_host waits for the device, which a capture forbids.
    EXPECT_THROW(graph.capture(gpu(), [&] { to_host(gpu(), x); }), Error);
    EXPECT_FALSE(graph.captured());
    fill(gpu(), x, 3.0);
    EXPECT_THAT(to_host(gpu(), x), testing::Each(3.0));
    graph.capture(gpu(), [&] { fill(gpu(), x, 4.0); });
    graph.replay(gpu());
    EXPECT_THAT(to_host(gpu(), x), testing::Each(4.0));
}

TEST_F(Cuda, GemmAcceptsStridedViewsTwoBatchAxesAndAnEmptyInnerAxis) {
    const auto run = [](const Context& ctx) {
        const Tensor a = randn(ctx, {2, 9, 3, 16}, DType::f32, Seed{1}).transpose(1, 2);
        const Tensor b = randn(ctx, {2, 1, 16, 5}, DType::f32, Seed{2}).expand({2, 3, 16, 5});
        const Tensor c = zeros(ctx, {2, 3, 9, 5}, DType::f32);
        gemm(ctx, c, a, b);
        gemm(ctx, c.select(0, 0), a.select(0, 0).slice(2, 0, 0), b.select(0, 0).slice(1, 0, 0),
             {.accumulate = true});
        return to_host(ctx, c);
    };
    const auto got = run(gpu()), expected = run(cpu);
    for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i],
                    2 * 16 * 0x1p-23 * 16 * 9);  // |a|, |b| < 4: |a||b| sums to 16 * 9 at most
    const Tensor c = randn(gpu(), {4, 4}, DType::f32, Seed{1});
    gemm(gpu(), c, zeros(gpu(), {4, 0}, DType::f32), zeros(gpu(), {0, 4}, DType::f32));
    EXPECT_THAT(to_host(gpu(), c), testing::Each(0.0));
}

}  // namespace
}  // namespace gradtile
