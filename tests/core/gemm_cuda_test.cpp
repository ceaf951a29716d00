// Matrix products on a GPU beyond the contract in gemm.h: fused GELU, graphs, TF32, restored algorithms.
// gemm_test.cpp checks the contract on both devices.
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/core/gemm/internal/gemm_lt.h>
#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/cuda_test.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using cuda::cuda_check;
using cuda::GemmFusion;
using test::epsilon_of;

class GemmOnCuda : public test::CudaTest {
  protected:
    const Context& ctx() const { return gpu(); }
};

/// GPT-2's GELU and its derivative in float64.
struct GeluAt {
    double value, slope, slope_of_tanh;

    explicit GeluAt(double x) {
        const double root = std::sqrt(2 / std::numbers::pi), inner = root * (x + 0.044715 * x * x * x);
        const double t = std::tanh(inner), inner_slope = root * (1 + 3 * 0.044715 * x * x);
        value = 0.5 * x * (1 + t);
        slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner_slope;
        slope_of_tanh = 0.5 + std::abs(x * t) * inner_slope;  // |d slope / d t|
    }
};

/// A sum of n terms, and the sum of their magnitudes.
struct Dot {
    double value = 0, size = 0;
    Dot(std::int64_t n, const std::function<double(std::int64_t)>& term) {
        for (std::int64_t p = 0; p < n; ++p) value += term(p), size += std::abs(term(p));
    }
};

struct FusedCase {
    DType type;
    std::int64_t rows, in, out, padding;
    bool bias;
    bool must_fuse;  // true for shapes that models have; other shapes may fall back to two operators
};

const FusedCase fused_cases[] = {
    {DType::bf16, 256, 128, 512, 0, true, true}, {DType::bf16, 256, 128, 512, 0, false, true},
    {DType::f16, 256, 128, 512, 0, true, true},  {DType::bf16, 200, 96, 384, 8, true, false},
    {DType::bf16, 37, 65, 131, 0, true, false},  {DType::bf16, 37, 65, 131, 3, false, false},
    {DType::f16, 1, 64, 72, 0, true, false},
};

/// The hardware's tanh has relative error 2^-11 (PTX ISA, tanh.approx.f32).
constexpr double tanh_error = 0x1p-11;

/// The bound for hidden: the sum's error, one rounding for the product and one after adding the bias, as in
/// gemm(). The bound for y adds three terms: the bound for hidden times GELU's largest slope, 1.13 (two
/// separate operators would also round hidden); one rounding for y; and tanh's error times |hidden| / 2.
TEST_F(GemmOnCuda, GeluForwardIsAsAccurateAsTwoOperators) {
    for (const auto& [type, rows, in, out, padding, with_bias, must_fuse] : fused_cases) {
        const Tensor x = randn(ctx(), {rows, in + padding}, type, Seed{1}).slice(1, 0, in);
        const Tensor w = randn(ctx(), {out, in + padding}, type, Seed{2}).slice(1, 0, in);
        const Tensor b = randn(ctx(), {out}, type, Seed{3});
        const Tensor y = poisoned({rows, out}, type), h = poisoned({rows, out}, type);
        GemmOptions options{.trans_b = true, .alpha = 1.0};
        if (with_bias) options.bias = b;
        const bool fused =
            cuda::gemm_lt(ctx(), y, x, w, options, {.kind = GemmFusion::Kind::gelu_forward, .hidden = h});
        EXPECT_TRUE(fused || !must_fuse) << type << ' ' << rows << 'x' << out << 'x' << in;
        if (!fused) continue;
        const auto xs = to_host(ctx(), x), ws = to_host(ctx(), w), bs = to_host(ctx(), b);
        const auto ys = to_host(ctx(), y), hs = to_host(ctx(), h);
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t o = 0; o < out; ++o) {
                const Dot dot(in, [&](std::int64_t p) { return xs[r * in + p] * ws[o * in + p]; });
                const double bias = with_bias ? bs[o] : 0.0, hidden = dot.value + bias;
                const double summing = (static_cast<double>(in) + 3) * 0x1p-23 * (dot.size + std::abs(bias));
                const double half = epsilon_of(type) / 2;
                const double rounding =
                    half * std::abs(hidden) + (with_bias ? half * std::abs(dot.value) : 0.0);
                ASSERT_LE(std::abs(hs[r * out + o] - hidden), summing + rounding + 0x1p-24)
                    << type << " at [" << r << ", " << o << ']';
                const double expected = GeluAt(hidden).value;
                ASSERT_LE(std::abs(ys[r * out + o] - expected),
                          1.13 * (summing + rounding) + half * std::abs(expected) +
                              tanh_error / 2 * std::abs(hidden) + 0x1p-24)
                    << type << " at [" << r << ", " << o << "], hidden " << hidden;
            }
    }
}

/// The bound: rounding the product and the result to the 16-bit type, as two separate operators would; the
/// sum's error; and tanh's error times |d slope / d tanh|.
TEST_F(GemmOnCuda, GeluBackwardIsAsAccurateAsTwoOperators) {
    for (const auto& [type, rows, in, out, padding, with_bias, must_fuse] : fused_cases) {
        const Tensor dy = randn(ctx(), {rows, in + padding}, type, Seed{1}).slice(1, 0, in);
        const Tensor w = randn(ctx(), {in, out + padding}, type, Seed{2}).slice(1, 0, out);
        const Tensor h = randn(ctx(), {rows, out}, type, Seed{3});
        const Tensor dh = poisoned({rows, out}, type);
        const bool fused =
            cuda::gemm_lt(ctx(), dh, dy, w, {}, {.kind = GemmFusion::Kind::gelu_backward, .hidden = h});
        EXPECT_TRUE(fused || !must_fuse) << type << ' ' << rows << 'x' << out << 'x' << in;
        if (!fused) continue;
        const auto dys = to_host(ctx(), dy), ws = to_host(ctx(), w), hs = to_host(ctx(), h);
        const auto dhs = to_host(ctx(), dh);
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t o = 0; o < out; ++o) {
                const Dot dot(in, [&](std::int64_t p) { return dys[r * in + p] * ws[p * out + o]; });
                const GeluAt gelu(hs[r * out + o]);
                const double expected = dot.value * gelu.slope;
                const double summing = (static_cast<double>(in) + 3) * 0x1p-23 * dot.size;
                ASSERT_LE(std::abs(dhs[r * out + o] - expected),
                          1.13 * summing + epsilon_of(type) * std::abs(expected) +
                              tanh_error * gelu.slope_of_tanh * std::abs(dot.value) + 0x1p-24)
                    << type << " at [" << r << ", " << o << "], hidden " << hs[r * out + o];
            }
    }
}

/// Captures one product as a graph and replays it. The context has never computed before, so its workspace
/// and handle are created during the capture.
TEST_F(GemmOnCuda, ProductsCanBeCapturedAndReplayed) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
        const Tensor a = randn(ctx(), {256, 192}, type, Seed{1}), b = randn(ctx(), {320, 192}, type, Seed{2});
        const Tensor bias = randn(ctx(), {320}, type, Seed{3});
        const auto product = [&](const Context& on, const Tensor& c) {
            gemm(on, c, a, b, {.trans_b = true, .bias = bias});
        };
        const Context plain = Context(Device::cuda(0), 1).with_deterministic(true);
        const Tensor expected = poisoned({256, 320}, type), c = poisoned({256, 320}, type);
        to_host(ctx(), c);  // waits for the work on ctx's stream
        product(plain, expected);
        const auto bits = to_host(plain, expected);

        const Context fresh(Device::cuda(0), 1);
        const auto stream = static_cast<cudaStream_t>(fresh.stream());
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        product(fresh, c);
        cuda_check(cudaStreamEndCapture(stream, &graph));
        cuda_check(cudaGraphInstantiate(&executable, graph, 0));
        EXPECT_TRUE(std::isnan(to_host(fresh, c)[0])) << "capturing must not compute";
        for (int replay = 0; replay < 2; ++replay) {
            fill(fresh, c, std::numeric_limits<double>::quiet_NaN());
            cuda_check(cudaGraphLaunch(executable, stream));
            EXPECT_EQ(to_host(fresh, c), bits) << type << " replay " << replay;
        }
        cuda_check(cudaGraphExecDestroy(executable));
        cuda_check(cudaGraphDestroy(graph));
    }
}

/// A float32 product has an error of at most k eps / 2 sum |a||b|. TF32 drops 13 bits from each operand, so
/// its error for random operands is several times this bound.
TEST_F(GemmOnCuda, Float32IsFloat32UnlessTf32IsRequested) {
    const std::int64_t m = 256, n = 256, k = 64;
    const Tensor a = randn(ctx(), {m, k}, DType::f32, Seed{1}), b = randn(ctx(), {n, k}, DType::f32, Seed{2});
    const auto as = to_host(ctx(), a), bs = to_host(ctx(), b);
    const auto worst_in_bounds = [&](const Context& on) {
        const Tensor c = empty(on, {m, n}, DType::f32);
        gemm(on, c, a, b, {.trans_b = true});
        const auto cs = to_host(on, c);
        double worst = 0;
        for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
                const Dot dot(k, [&](std::int64_t p) { return as[i * k + p] * bs[j * k + p]; });
                worst = std::max(worst, std::abs(cs[i * n + j] - dot.value) /
                                            (static_cast<double>(k) * 0x1p-24 * dot.size));
            }
        return worst;
    };
    EXPECT_FALSE(ctx().tf32());
    EXPECT_LE(worst_in_bounds(ctx()), 1.0);
    EXPECT_GT(worst_in_bounds(ctx().with_tf32(true)), 4.0);
}

/// An algorithm that was chosen by timing gives the same bits in a deterministic context that restores it.
/// Several algorithms are timed, but a product that accumulates is added to c only once.
TEST_F(GemmOnCuda, ChosenAlgorithmsCanBeCarriedToAnotherContext) {
    const Tensor a = randn(ctx(), {4096, 256}, DType::bf16, Seed{1});
    const Tensor b = randn(ctx(), {4096, 128}, DType::bf16, Seed{2});
    const auto gradient = [&](const Context& on, const Tensor& c) {
        gemm(on, c, a, b, {.trans_a = true, .accumulate = true});
        return to_host(on, c);
    };
    const Tensor timed = zeros(ctx(), {256, 128}, DType::f32);
    const auto first = gradient(ctx(), timed);
    const auto chosen = gemm_algorithms(ctx());
    ASSERT_EQ(chosen.size(), 1u);

    const Context other = Context(Device::cuda(0), 1).with_deterministic(true);
    EXPECT_TRUE(gemm_algorithms(other).empty());
    restore_gemm_algorithms(other, chosen);
    const Tensor restored = zeros(other, {256, 128}, DType::f32);
    EXPECT_EQ(gradient(other, restored), first);
    EXPECT_EQ(gemm_algorithms(other), chosen);
    EXPECT_EQ(refused_gemm_algorithms(other), 0u);

    const auto twice = gradient(other, restored);
    for (std::size_t i = 0; i < twice.size(); ++i)
        ASSERT_NEAR(twice[i], 2 * first[i], 4097 * 0x1p-23 * 4096 * 25);  // |a|, |b| < 5
}

/// A restored algorithm that cannot run this product is replaced without an error.
TEST_F(GemmOnCuda, AnAlgorithmThatCannotRunIsReplaced) {
    const auto square = [&](const Context& on, DType type) {
        const Tensor a = randn(on, {64, 64}, type, Seed{1}), c = empty(on, {64, 64}, DType::f32);
        gemm(on, c, a, a);
        return to_host(on, c);
    };
    const auto expected = square(ctx(), DType::bf16);
    auto chosen = gemm_algorithms(ctx());
    ASSERT_EQ(chosen.size(), 1u);
    const Context single(Device::cuda(0), 1), other(Device::cuda(0), 1);
    square(single, DType::f32);
    ASSERT_EQ(gemm_algorithms(single).size(), 1u);
    chosen[0].algorithm = gemm_algorithms(single)[0].algorithm;
    restore_gemm_algorithms(other, chosen);
    const auto got = square(other, DType::bf16);
    for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], 2 * 64 * 0x1p-23 * 64 * 25);  // |a| < 5
    EXPECT_NE(gemm_algorithms(other), chosen);
    EXPECT_EQ(refused_gemm_algorithms(other), 1u);
}

/// A product with float32 sums over k terms, whose algorithm a file may name.
struct RestoredProduct {
    std::int64_t k;
    std::function<std::vector<double>(const Context&)> compute;
};

std::vector<RestoredProduct> restored_products(const Context& ctx) {
    const Tensor a = randn(ctx, {96, 64}, DType::bf16, Seed{1}),
                 b = randn(ctx, {64, 64}, DType::bf16, Seed{2});
    const Tensor bias = randn(ctx, {64}, DType::f32, Seed{3}),
                 batch = randn(ctx, {3, 32, 32}, DType::f32, Seed{4});
    const Tensor long_a = randn(ctx, {4096, 128}, DType::bf16, Seed{5}),
                 long_b = randn(ctx, {4096, 64}, DType::bf16, Seed{6});
    const auto product = [](std::int64_t k, const Shape& shape, const Tensor& x, const Tensor& y,
                            const GemmOptions& options) {
        return RestoredProduct{k, [=](const Context& on) {
                                   const Tensor c = zeros(on, shape, DType::f32);
                                   gemm(on, c, x, y, options);
                                   return to_host(on, c);
                               }};
    };
    return {product(64, {96, 64}, a, b, {}), product(64, {96, 64}, a, b, {.bias = bias}),
            product(32, {3, 32, 32}, batch, batch, {}),
            // With so many terms, some algorithms split the sum.
            product(4096, {128, 64}, long_a, long_b, {.trans_a = true, .accumulate = true})};
}

/// Changes one bit, one byte, one number, or everything.
void damage(GemmAlgorithm& choice, std::mt19937_64& random) {
    constexpr std::array<std::uint64_t, 6> edges = {0, 1, 0x7fffffff, 0xffffffff, 1ull << 63, ~0ull};
    std::uint64_t& number = choice.algorithm[random() % choice.algorithm.size()];
    const std::uint64_t byte = random() % 8;
    switch (random() % 4) {
        case 0:
            number ^= std::uint64_t{1} << random() % 64;
            break;
        case 1:
            number = (number & ~(std::uint64_t{0xff} << 8 * byte)) | random() % 256 << 8 * byte;
            break;
        case 2:
            number = edges[random() % edges.size()];
            break;
        default:
            for (std::uint64_t& any : choice.algorithm) any = random();
    }
}

/// Whatever bytes a file gives as an algorithm, the product is right, and the algorithm that computed it is
/// either the file's or one that was chosen here after a refusal.
TEST_F(GemmOnCuda, AnyBytesAsAnAlgorithmAreRefusedOrGiveTheRightProduct) {
    constexpr int rounds = 100;
    std::mt19937_64 random(1);
    std::size_t refusals = 0;
    for (const RestoredProduct& product : restored_products(ctx())) {
        const Context timed(Device::cuda(0), 1), on = Context(Device::cuda(0), 1).with_deterministic(true);
        const auto expected = product.compute(timed);
        const auto sound = gemm_algorithms(timed);
        const auto k = static_cast<double>(product.k);
        for (int round = 0; round < rounds; ++round) {
            auto hostile = sound;
            for (GemmAlgorithm& choice : hostile) damage(choice, random);
            const std::size_t before = refused_gemm_algorithms(on);
            ASSERT_EQ(restore_gemm_algorithms(on, hostile), hostile.size());
            const auto got = product.compute(on);
            for (std::size_t i = 0; i < got.size(); ++i)
                ASSERT_NEAR(got[i], expected[i],
                            2 * (k + 1) * 0x1p-23 * (k + 1) * 25);  // factors are below 5
            const bool refused = refused_gemm_algorithms(on) > before;
            refusals += refused ? 1 : 0;
            ASSERT_EQ(gemm_algorithms(on) != hostile, refused) << "round " << round;
        }
        restore_gemm_algorithms(on, sound);
        EXPECT_EQ(product.compute(on), expected);
        EXPECT_EQ(gemm_algorithms(on), sound);
    }
    EXPECT_GT(refusals, 0u);
}

/// Products that no context computes are never looked at, whatever their numbers are.
TEST_F(GemmOnCuda, AnyNumbersAsAProductAreHarmless) {
    std::mt19937_64 random(2);
    const Context on(Device::cuda(0), 1);
    const RestoredProduct product = restored_products(ctx()).front();
    const auto expected = product.compute(on);
    auto hostile = gemm_algorithms(on);
    const GemmAlgorithm sound = hostile.front();
    for (int i = 0; i < 300; ++i) {
        GemmAlgorithm& entry = hostile.emplace_back(sound);
        // The first three numbers name the library and the GPU; entries for others are dropped.
        for (int changes = 0; changes <= i % 4; ++changes)
            entry.problem[3 + random() % (entry.problem.size() - 3)] = static_cast<std::int64_t>(random());
    }
    EXPECT_EQ(restore_gemm_algorithms(on, hostile), hostile.size());
    EXPECT_EQ(product.compute(on), expected);
    EXPECT_EQ(refused_gemm_algorithms(on), 0u);
}

}  // namespace
}  // namespace gradtile
