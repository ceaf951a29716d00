#include <gradtile/core/gemm/gemm.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using test::epsilon_of;

struct InAndOut {
    DType in, out;
    Device device = Device::cpu();
};
void PrintTo(const InAndOut& types, std::ostream* out) {
    *out << types.in << "_to_" << types.out << (types.device.is_cpu() ? "" : "_cuda");
}

constexpr InAndOut all_pairs[] = {{DType::f64, DType::f64},   {DType::f32, DType::f32},
                                  {DType::bf16, DType::bf16}, {DType::bf16, DType::f32},
                                  {DType::f16, DType::f16},   {DType::f16, DType::f32}};

std::vector<InAndOut> all_pairs_on(Device device) {
    std::vector<InAndOut> types(std::begin(all_pairs), std::end(all_pairs));
    for (InAndOut& each : types) each.device = device;
    return types;
}

/// Returns normally distributed numbers [.., rows, columns], with `padding` unused elements after each row.
Tensor operand(const Context& ctx, Shape shape, DType type, std::uint64_t seed, std::int64_t padding = 0) {
    Shape padded = shape;
    padded[-1] += padding;
    return randn(ctx, padded, type, Seed{seed}).slice(-1, 0, shape[-1]);
}

/// Compares c with the float64 product of a and b (and c0). The bound: k products, summed in any order, have
/// an error of at most k * eps / 2 * sum |a||b| to first order (Higham, Accuracy and Stability, 3.1). alpha,
/// c and the bias add three roundings, and storing c adds one in c's dtype. The bound has eps instead of eps
/// / 2, because some instructions do not round to nearest. Products of 16-bit numbers are exact in float32.
void expect_product(const Context& ctx, const Tensor& c, const Tensor& c0, const Tensor& a, const Tensor& b,
                    const GemmOptions& options) {
    const Tensor left = options.trans_a ? a.transpose(-1, -2) : a;
    const Tensor right = options.trans_b ? b.transpose(-1, -2) : b;
    const auto as = to_host(ctx, left), bs = to_host(ctx, right), before = to_host(ctx, c0);
    const auto got = to_host(ctx, c);
    const auto bias = options.bias.defined() ? to_host(ctx, options.bias) : std::vector<double>{};
    const auto m = static_cast<std::size_t>(c.size(-2)), n = static_cast<std::size_t>(c.size(-1)),
               k = static_cast<std::size_t>(left.size(-1));
    const double sum_epsilon = epsilon_of(accumulator_of(a.dtype()));
    for (std::size_t e = 0; e < got.size(); ++e) {
        const std::size_t batch = e / (m * n), i = e / n % m, j = e % n;
        double sum = 0, size = 0;
        for (std::size_t p = 0; p < k; ++p) {
            const double product = as[(batch * m + i) * k + p] * bs[(batch * k + p) * n + j];
            sum += product;
            size += std::abs(product);
        }
        double expected = options.alpha * sum;
        size *= std::abs(options.alpha);
        if (options.accumulate) expected += before[e], size += std::abs(before[e]);
        if (!bias.empty()) expected += bias[j], size += std::abs(bias[j]);
        double bound = (static_cast<double>(k) + 3) * sum_epsilon * size +
                       // f16's subnormal numbers have a spacing of 2^-24.
                       epsilon_of(c.dtype()) / 2 * std::abs(expected) + 0x1p-24;
        if (ctx.device().is_cuda() && is_16_bit(c.dtype())) {
            // The old c and the bias may be added to the product one by one, in any order, and each sum may
            // be rounded to c's type.
            const double half = epsilon_of(c.dtype()) / 2, product = options.alpha * sum;
            if (options.accumulate || !bias.empty()) bound += half * std::abs(product);
            if (options.accumulate && !bias.empty())
                bound += half * std::max({std::abs(before[e] + bias[j]), std::abs(product + before[e]),
                                          std::abs(product + bias[j])});
        }
        ASSERT_LE(std::abs(got[e] - expected), bound)
            << "at [" << batch << ", " << i << ", " << j << "] of " << c << " = " << a << " * " << b;
    }
}

class GemmOfTypes : public testing::TestWithParam<InAndOut> {
  protected:
    void SetUp() override {
        if (GetParam().device.is_cuda() && cuda_device_count() == 0)
            GTEST_SKIP() << "no usable CUDA device on this machine";
    }
    Context ctx{cuda_device_count() > 0 ? GetParam().device : Device::cpu(), 2};

    /// Checks one [m, k] x [k, n] product. All operands have padded rows.
    void run(std::int64_t m, std::int64_t n, std::int64_t k, GemmOptions options, std::int64_t padding = 3) {
        const auto [in, out, device] = GetParam();
        const Tensor a = operand(ctx, options.trans_a ? Shape{k, m} : Shape{m, k}, in, 1, padding);
        const Tensor b = operand(ctx, options.trans_b ? Shape{n, k} : Shape{k, n}, in, 2, padding);
        const Tensor c = operand(ctx, {m, n}, out, 3, padding);
        const Tensor before = cast(ctx, c, out);
        gemm(ctx, c, a, b, options);
        expect_product(ctx, c, before, a, b, options);
    }
};

TEST_P(GemmOfTypes, OddShapesAndTransposes) {
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1},
                                  {1, 17, 5},
                                  {17, 1, 33},
                                  {3, 5, 7},
                                  {31, 33, 65},
                                  {64, 64, 64},
                                  {113, 203, 97},
                                  {129, 47, 530}})
        for (const bool trans_a : {false, true})
            for (const bool trans_b : {false, true}) run(m, n, k, {.trans_a = trans_a, .trans_b = trans_b});
}

TEST_P(GemmOfTypes, AlignedShapesOfATransformer) {
    run(512, 768, 256, {.trans_b = true}, 0);
    run(512, 256, 768, {}, 0);
    run(256, 768, 512, {.trans_a = true, .accumulate = true}, 0);
    // Rows with odd length on aligned addresses, like logits for an odd vocabulary.
    run(128, 1003, 64, {.trans_b = true}, 5);
    run(128, 64, 1003, {}, 5);
}

TEST_P(GemmOfTypes, ShapesThatAreCutIntoSeveralBlocks) {
    run(300, 260, 70, {.trans_b = true}, 0);
    run(1200, 40, 90, {.trans_a = true});
    run(40, 1200, 90, {});
}

TEST_P(GemmOfTypes, AccumulatesScalesAndAddsBias) {
    const DType in = GetParam().in;
    const Tensor bias = randn(ctx, {150}, in, Seed{4});
    const Tensor wide_bias = randn(ctx, {150}, accumulator_of(in), Seed{5});
    run(130, 150, 60, {.accumulate = true});
    run(130, 150, 60, {.alpha = -0.375});
    run(130, 150, 60, {.bias = bias});
    run(130, 150, 60, {.trans_a = true, .accumulate = true, .alpha = 1.7, .bias = wide_bias});
    run(130, 150, 60, {.trans_b = true, .accumulate = true, .bias = bias});
}

TEST_P(GemmOfTypes, EmptyInnerAxisGivesZeroOrLeavesC) {
    run(20, 30, 0, {});
    run(20, 30, 0, {.accumulate = true});
    run(20, 30, 0, {.bias = randn(ctx, {30}, GetParam().in, Seed{4})});
}

TEST_P(GemmOfTypes, AcceptsZeroRowsOrColumns) {
    run(0, 30, 4, {});
    run(20, 0, 4, {});
}

TEST_P(GemmOfTypes, BatchesWithAnyStridesStrideZeroIncluded) {
    const auto [in, out, device] = GetParam();
    const std::int64_t batch = 2, heads = 3, m = 37, n = 21, k = 16;
    const Tensor a = randn(ctx, {batch, m, heads, k}, in, Seed{1}).transpose(1, 2);  // packed heads
    const Tensor shared = randn(ctx, {batch, 1, k, n}, in, Seed{2}).expand({batch, heads, k, n});
    const Tensor c = zeros(ctx, {batch, heads, m, n}, out);
    gemm(ctx, c, a, shared);
    expect_product(ctx, c, c, a, shared, {});

    const Tensor transposed = randn(ctx, {heads, n, k}, in, Seed{3});
    const Tensor c_heads = zeros(ctx, {m, heads, n}, out).transpose(0, 1);  // rows interleaved over the batch
    const GemmOptions options{.trans_b = true, .accumulate = true};
    gemm(ctx, c_heads, a.select(0, 1), transposed, options);
    expect_product(ctx, c_heads, zeros(ctx, {heads, m, n}, out), a.select(0, 1), transposed, options);
}

TEST_P(GemmOfTypes, TransposedViewsNeedNoFlag) {
    const auto [in, out, device] = GetParam();
    const Tensor a = randn(ctx, {40, 50}, in, Seed{1}).transpose(0, 1);
    const Tensor b = randn(ctx, {30, 40}, in, Seed{2}).transpose(0, 1);
    const Tensor c = zeros(ctx, {50, 30}, out);
    gemm(ctx, c, a, b);
    expect_product(ctx, c, c, a, b, {});
}

TEST_P(GemmOfTypes, BitsDoNotDependOnTheNumberOfThreads) {
    const auto [in, out, device] = GetParam();
    if (device.is_cuda()) GTEST_SKIP() << "a GPU's products use no threads of ours";
    const Tensor a = randn(ctx, {300, 190}, in, Seed{1}), b = randn(ctx, {700, 190}, in, Seed{2});
    std::vector<double> one_thread;
    for (const int threads : {1, 2, 3, 5}) {
        const Context some(Device::cpu(), threads);
        const Tensor c = empty(some, {300, 700}, out);
        gemm(some, c, a, b, {.trans_b = true});
        const Tensor gradient = zeros(some, {190, 190}, accumulator_of(in));
        gemm(some, gradient, a, a, {.trans_a = true, .accumulate = true});
        auto bits = to_host(some, c);
        const auto more = to_host(some, gradient);
        bits.insert(bits.end(), more.begin(), more.end());
        if (threads == 1) one_thread = bits;
        EXPECT_EQ(bits, one_thread) << threads << " threads";
    }
}

INSTANTIATE_TEST_SUITE_P(Gemm, GemmOfTypes, testing::ValuesIn(all_pairs_on(Device::cpu())),
                         [](const auto& info) { return testing::PrintToString(info.param); });
INSTANTIATE_TEST_SUITE_P(GemmOnCuda, GemmOfTypes, testing::ValuesIn(all_pairs_on(Device::cuda(0))),
                         [](const auto& info) { return testing::PrintToString(info.param); });

TEST(Gemm, NonFiniteInputsReachTheResultAndAnOverwrittenNanDoesNot) {
    const Context ctx(Device::cpu(), 1);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const auto& [in, out, device] : all_pairs) {
        const Tensor a = zeros(ctx, {2, 2}, in), b = zeros(ctx, {2, 2}, in), c = empty(ctx, {2, 2}, out);
        fill(ctx, c, nan);
        fill(ctx, a.select(0, 1), nan);
        gemm(ctx, c, a, b);
        const auto got = to_host(ctx, c);
        EXPECT_EQ(got[0], 0) << in;
        EXPECT_EQ(got[1], 0) << in;
        EXPECT_TRUE(std::isnan(got[2]) && std::isnan(got[3])) << in;
    }
}

TEST(Gemm, RefusesMismatchedOperandsInOneLine) {
    const Context ctx(Device::cpu(), 1);
    const auto f32 = [&](const Shape& shape) { return zeros(ctx, shape, DType::f32); };
    const auto message = [&](const Tensor& c, const Tensor& a, const Tensor& b, GemmOptions options = {}) {
        try {
            gemm(ctx, c, a, b, options);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    using testing::HasSubstr;
    EXPECT_THAT(message(f32({2, 3}), f32({2, 4}), f32({5, 3})), HasSubstr("[2, 4]"));
    EXPECT_THAT(message(f32({2, 3}), f32({2, 4}), f32({3, 4})), HasSubstr("[3, 4]"));
    EXPECT_EQ(message(f32({2, 3}), f32({2, 4}), f32({3, 4}), {.trans_b = true}), "accepted");
    EXPECT_THAT(message(f32({1, 2, 3}), f32({2, 4}), f32({4, 3})), HasSubstr("rank"));
    EXPECT_THAT(message(f32({2, 2, 3}), f32({2, 2, 4}), f32({1, 4, 3})), HasSubstr("batch"));
    EXPECT_THAT(message(zeros(ctx, {2, 3}, DType::bf16), f32({2, 4}), f32({4, 3})), HasSubstr("dtypes"));
    EXPECT_THAT(message(f32({3, 2}).transpose(0, 1), f32({2, 4}), f32({4, 3})), HasSubstr("strides"));
    EXPECT_THAT(message(f32({1, 3}).expand({2, 3}), f32({2, 4}), f32({4, 3})), HasSubstr("overlap"));
    EXPECT_THAT(message(f32({2, 3}), f32({2, 4}), f32({4, 3}), {.bias = f32({2})}), HasSubstr("bias"));
    EXPECT_THAT(message(f32({1, 2, 3}).expand({5, 2, 3}), f32({5, 2, 4}), f32({5, 4, 3})),
                HasSubstr("must not overlap"));
    // If a batch's matrices have no elements, its strides are 0.
    EXPECT_EQ(message(f32({5, 0, 3}), f32({5, 0, 4}), f32({5, 4, 3})), "accepted");
    const Tensor x = f32({3});
    const Tensor on_gpu(nullptr, x.raw_data(), Device::cuda(0), DType::f32, x.shape(), x.strides());
    EXPECT_THAT(message(f32({2, 3}), f32({2, 4}), f32({4, 3}), {.bias = on_gpu}), HasSubstr("devices"));
}

TEST(Gemm, PlansWithoutTouchingMemory) {
    const auto arena = Arena::for_planning(Device::cpu());
    const Context ctx = Context(Device::cpu(), 1).plan(arena);
    const Tensor a = empty(ctx, {20, 30}, DType::f32), c = empty(ctx, {20, 20}, DType::f32);
    gemm(ctx, c, a, a, {.trans_b = true});
    EXPECT_GE(arena->peak_bytes(), (20 * 30 + 20 * 20) * sizeof(float));
}

TEST(Gemm, NamesItsMatrixLibrary) {
    EXPECT_THAT(cpu_matrix_library(),
                testing::AnyOf(testing::StartsWith("oneDNN "), testing::StartsWith("OpenBLAS ")));
}

}  // namespace
}  // namespace gradtile
