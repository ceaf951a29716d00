// Matrix products with fused operations on a GPU, compared with float64 on the CPU.
#include <cmath>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/linear_activation.h>

#include <support/floating_dtypes.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

using test::epsilon_of;

class ProductsOnCuda : public test::CudaTest {
  protected:
    /// Returns the values in float64 on the CPU.
    Tensor exact(const Tensor& x) const { return from_host(cpu, to_host(gpu(), x), x.shape(), DType::f64); }
    Tensor magnitudes(const Tensor& x) const {
        auto values = to_host(gpu(), x);
        for (double& value : values) value = std::abs(value);
        return from_host(cpu, values, x.shape(), DType::f64);
    }
};

struct Sizes {
    std::int64_t rows, in, out;
};
constexpr Sizes all_sizes[] = {{7, 5, 13}, {256, 128, 512}, {200, 96, 384}};
constexpr DType all_types[] = {DType::f32, DType::bf16, DType::f16};
constexpr Activation plain_activations[] = {Activation::gelu_tanh, Activation::gelu};

/// tanh's relative error: 16-bit GELU may use the hardware's tanh, whose error is 2^-11; float32 uses a
/// polynomial that is accurate to a few units in the last place.
double tanh_error(DType type) {
    return type == DType::f32 ? 0x1p-20 : 0x1p-11;
}

/// The bound for hidden: (in + 3) eps32 sum |x||w| for the sum, one rounding for the product and one after
/// adding the bias. The bound for y: the bound for hidden times the largest slope 1.13, one rounding, and
/// tanh's error times |hidden| / 2.
TEST_F(ProductsOnCuda, LinearActivationForwardErrorsAreWithinRoundingBounds) {
    for (const DType type : all_types)
        for (const Activation activation : plain_activations)
            for (const auto& [rows, in, out] : all_sizes)
                for (const bool with_bias : {false, true}) {
                    const Tensor x = randn(gpu(), {rows, in}, type, Seed{1});
                    const Tensor w = randn(gpu(), {out, in}, type, Seed{2});
                    const Tensor b = with_bias ? randn(gpu(), {out}, type, Seed{3}) : Tensor();
                    const Tensor y = poisoned({rows, out}, type), hidden = poisoned({rows, out}, type);
                    linear_activation_forward(gpu(), y, hidden, x, w, b, activation);

                    const Tensor y64 = empty(cpu, {rows, out}, DType::f64), h64 = empty_like(cpu, y64);
                    const Tensor product = empty_like(cpu, y64), size = empty_like(cpu, y64);
                    linear_activation_forward(cpu, y64, h64, exact(x), exact(w),
                                              with_bias ? exact(b) : Tensor(), activation);
                    gemm(cpu, product, exact(x), exact(w), {.trans_b = true});
                    gemm(cpu, size, magnitudes(x), magnitudes(w), {.trans_b = true});
                    const auto ys = to_host(gpu(), y), hs = to_host(gpu(), hidden);
                    const auto ys64 = to_host(cpu, y64), hs64 = to_host(cpu, h64);
                    const auto products = to_host(cpu, product), sizes = to_host(cpu, size);
                    const double half = epsilon_of(type) / 2;
                    for (std::size_t i = 0; i < ys.size(); ++i) {
                        const double hidden_bound = static_cast<double>(in + 3) * 0x1p-23 * (sizes[i] + 6) +
                                                    half * (std::abs(hs64[i]) + std::abs(products[i])) +
                                                    0x1p-24;
                        ASSERT_LE(std::abs(hs[i] - hs64[i]), hidden_bound) << type << ' ' << rows << " rows";
                        ASSERT_LE(std::abs(ys[i] - ys64[i]), 1.13 * hidden_bound + half * std::abs(ys64[i]) +
                                                                 tanh_error(type) / 2 * std::abs(hs64[i]) +
                                                                 0x1p-24)
                            << type << ' ' << rows << " rows, hidden " << hs64[i];
                    }
                }
}

/// The bound: rounding the product and the result, and tanh's error times the slope's derivative with respect
/// to tanh, at most 1/2 + |x| * 0.8 (1 + 0.134 x^2).
TEST_F(ProductsOnCuda, LinearActivationBackwardErrorsAreWithinRoundingBounds) {
    for (const DType type : all_types)
        for (const Activation activation : plain_activations)
            for (const auto& [rows, in, out] : all_sizes) {
                const Tensor dy = randn(gpu(), {rows, in}, type, Seed{1});
                const Tensor w = randn(gpu(), {in, out}, type, Seed{2});
                const Tensor hidden = randn(gpu(), {rows, out}, type, Seed{3});
                const Tensor dh = poisoned({rows, out}, type);
                linear_activation_backward(gpu(), dh, dy, w, hidden, activation);
                const SummedGradient summed{poisoned({rows, out}, type), empty_column_sums(gpu(), dh)};
                linear_activation_backward(gpu(), summed, dy, w, hidden, activation);
                test::expect_column_sums(gpu(), summed);

                const Tensor dh64 = empty(cpu, {rows, out}, DType::f64);
                const Tensor product = empty_like(cpu, dh64), size = empty_like(cpu, dh64);
                linear_activation_backward(cpu, dh64, exact(dy), exact(w), exact(hidden), activation);
                gemm(cpu, product, exact(dy), exact(w));
                gemm(cpu, size, magnitudes(dy), magnitudes(w));
                const auto got = to_host(gpu(), summed.dy), expected = to_host(cpu, dh64);
                const auto hs = to_host(gpu(), hidden), products = to_host(cpu, product);
                const auto sizes = to_host(cpu, size);
                for (std::size_t i = 0; i < got.size(); ++i) {
                    const double x = std::abs(hs[i]);
                    ASSERT_LE(
                        std::abs(got[i] - expected[i]),
                        1.13 * static_cast<double>(in + 3) * 0x1p-23 * sizes[i] +
                            epsilon_of(type) * std::abs(expected[i]) +
                            tanh_error(type) * (0.5 + 0.8 * x * (1 + 0.134 * x * x)) * std::abs(products[i]) +
                            0x1p-24)
                        << type << ' ' << rows << " rows, hidden " << hs[i];
                }
            }
}

/// The bound: a logit's gradient, g = p or p - 1, has the error d = |g| (eps / 2 for storing g + 2 (C + 3)
/// eps32 sum |x||w| for the logit's error + 2 eps / 2 |logit| for rounding it to 16 bits) + 8 eps32 for exp
/// and sum. The products multiply d, add in float32, and round dx once.
TEST_F(ProductsOnCuda, PaddingOfAnOddVocabularyDoesNotChangeTheHeadsResults) {
    const std::int64_t rows = 96, vocabulary = 203, width = 64;
    for (const DType type : all_types) {
        ParameterStore store;
        const CrossEntropyHead head(store, "head", vocabulary, width, 0.3);
        store.allocate(gpu(), type);
        store.initialize(gpu(), Seed{1});
        const Tensor x = randn(gpu(), {rows, width}, type, Seed{2});
        std::vector<std::int32_t> targets(rows);
        for (std::int64_t r = 0; r < rows; ++r)
            targets[r] = static_cast<std::int32_t>(r % 9 == 4 ? -1 : r * 37 % vocabulary);
        CrossEntropyHead::Saved saved;
        const Tensor on_gpu = from_host(gpu(), targets, {rows});
        const double loss = item(gpu(), head.forward(gpu(), x, on_gpu, saved, 2.0));

        const auto xs = to_host(gpu(), x), ws = to_host(gpu(), head.weight.value());
        std::vector<double> dx(rows * width), dw(vocabulary * width), dx_bound(dx), dw_bound(dw);
        // Logits are float32 sums over 64 terms of size about 1. They are rounded once more if the type has
        // 16 bits.
        const double rounding = is_16_bit(type) ? epsilon_of(type) / 2 : 0.0;
        double expected_loss = 0, loss_bound = 1e-4, counted = 0;
        for (const std::int32_t target : targets) counted += target >= 0;
        for (std::int64_t r = 0; r < rows; ++r) {
            if (targets[r] < 0) continue;
            std::vector<double> p(vocabulary), logits(vocabulary);
            double size = 0, sum = 0;
            for (std::int64_t v = 0; v < vocabulary; ++v) {
                double logit = 0, magnitude = 0;
                for (std::int64_t c = 0; c < width; ++c) {
                    logit += xs[r * width + c] * ws[v * width + c];
                    magnitude += std::abs(xs[r * width + c] * ws[v * width + c]);
                }
                size = std::max(size, magnitude);
                logits[v] = logit;
                sum += p[v] = std::exp(logit);
            }
            const double target_logit = logits[targets[r]];
            expected_loss += (std::log(sum) - target_logit) / counted;
            double largest = 0, mean = std::abs(target_logit);  // logit magnitudes
            for (std::int64_t v = 0; v < vocabulary; ++v) {
                largest = std::max(largest, std::abs(logits[v]));
                mean += p[v] / sum * std::abs(logits[v]);
            }
            loss_bound += rounding * mean / counted;
            const double p_off =
                std::expm1(2 * rounding * largest) + 2 * static_cast<double>(width + 3) * 0x1p-23 * size;
            for (std::int64_t v = 0; v < vocabulary; ++v) {
                const double scale = 2.0 / counted, d = (p[v] / sum - (v == targets[r])) * scale;
                const double off = std::abs(d) * epsilon_of(type) / 2 + p[v] / sum * scale * p_off +
                                   scale * 8 * 0x1p-23 + 0x1p-24;
                for (std::int64_t c = 0; c < width; ++c) {
                    dx[r * width + c] += d * ws[v * width + c];
                    dw[v * width + c] += d * xs[r * width + c];
                    dx_bound[r * width + c] +=
                        (off + std::abs(d) * vocabulary * 0x1p-23) * std::abs(ws[v * width + c]);
                    dw_bound[v * width + c] +=
                        (off + std::abs(d) * rows * 0x1p-23) * std::abs(xs[r * width + c]);
                }
            }
        }
        EXPECT_NEAR(loss, expected_loss, loss_bound) << type;
        const auto got_dx = to_host(gpu(), head.backward(gpu(), saved));
        const auto got_dw = to_host(gpu(), head.weight.grad());
        for (std::size_t i = 0; i < dx.size(); ++i)
            ASSERT_LE(std::abs(got_dx[i] - dx[i]),
                      dx_bound[i] + epsilon_of(type) / 2 * std::abs(dx[i]) + 0x1p-24)
                << type << " dx " << i;
        for (std::size_t i = 0; i < dw.size(); ++i)
            ASSERT_LE(std::abs(got_dw[i] - dw[i]), dw_bound[i] + 0x1p-30) << type << " dw " << i;
        const Tensor padded = head.weight.padded_grad();
        ASSERT_GT(padded.size(0), vocabulary);
        EXPECT_THAT(to_host(gpu(), padded.slice(0, vocabulary, padded.size(0) - vocabulary)),
                    testing::Each(0.0));
        const auto sums = to_host(gpu(), head.loss(gpu(), x, on_gpu));
        EXPECT_NEAR(sums[0] / sums[1], expected_loss, 1e-4);
    }
}

}  // namespace
}  // namespace gradtile
