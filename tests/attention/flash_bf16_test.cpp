// The bf16 kernels against float64: every set that this machine can run, and the AMX kernels on emulated
// tiles.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/attention.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/sanitized.h>

#include "every_kernel.h"

namespace gradtile::attention {
namespace {

using Bf16Kernels = cpu::FlashKernels<bfloat16>;

struct Case {
    std::int64_t queries, keys, d_qk, d_v;
    bool causal = false;
    std::int64_t batch = 1, heads = 2, key_heads = 1;
    double spread = 1.0;  ///< standard deviation of q
    std::optional<double> scale = {};
    Window window = {};
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
    out << c.queries << " x " << c.keys << ", head dims " << c.d_qk << " and " << c.d_v << ", heads "
        << c.heads << " over " << c.key_heads << (c.causal ? ", causal" : "") << ", spread " << c.spread;
    if (c.scale) out << ", scale " << *c.scale;
    if (c.window.left >= 0) out << ", window left " << c.window.left;
    return out;
}

struct Inputs {
    Tensor q, k, v, d_o;
    Inputs(const Context& ctx, const Case& c)
        : q(randn(ctx, {c.batch, c.queries, c.heads, c.d_qk}, DType::f32, Seed{1})),
          k(randn(ctx, {c.batch, c.keys, c.key_heads, c.d_qk}, DType::bf16, Seed{2})),
          v(randn(ctx, {c.batch, c.keys, c.key_heads, c.d_v}, DType::bf16, Seed{3})),
          d_o(randn(ctx, {c.batch, c.queries, c.heads, c.d_v}, DType::bf16, Seed{4})) {
        axpy(ctx, q, c.spread - 1.0, q);
        q = cast(ctx, q, DType::bf16);
    }
};

struct Result {
    std::vector<double> o, lse, d_q, d_k, d_v;
};

Options options_of(const Case& c, Algorithm algorithm) {
    return {.algorithm = algorithm, .scale = c.scale, .causal = c.causal, .window = c.window};
}

Result compute(const Context& ctx, const Case& c, const Inputs& in, Algorithm algorithm, DType dtype) {
    const auto as = [&](const Tensor& x) { return x.dtype() == dtype ? x : cast(ctx, x, dtype); };
    const Options options = options_of(c, algorithm);
    Saved saved;
    const Tensor o = forward(ctx, as(in.q), as(in.k), as(in.v), options, saved);
    const Gradients gradients = backward(ctx, as(in.d_o), options, saved);
    return {.o = to_host(ctx, o),
            .lse = to_host(ctx, saved.lse),
            .d_q = to_host(ctx, gradients.q),
            .d_k = to_host(ctx, gradients.k),
            .d_v = to_host(ctx, gradients.v)};
}

double largest(const std::vector<double>& x) {
    double value = 0;
    for (const double e : x)
        if (std::isfinite(e)) value = std::max(value, std::abs(e));
    return value;
}

/// The largest |a - b|; equal infinities differ by 0, NaN differs from every number by infinity.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
    EXPECT_EQ(a.size(), b.size());
    double value = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i] == b[i]) continue;
        const double difference = std::abs(a[i] - b[i]);
        value =
            std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(value, difference);
    }
    return value;
}

constexpr double bf16_roundoff = 1.0 / 256;       // 8 significant bits, rounded to nearest
constexpr double f32_roundoff = 1.0 / (1 << 24);  // 24 significant bits

/// Expects an error of at most the naive form's error, plus one rounding of the result to bf16 (both forms
/// round it), plus `floor`.
void expect_within(const char* what, const std::vector<double>& flash, const std::vector<double>& naive,
                   const std::vector<double>& reference, double floor = 0) {
    EXPECT_LE(distance(flash, reference),
              distance(naive, reference) + bf16_roundoff * largest(reference) + floor)
        << what;
}

/// The part of flash's error that the naive form does not have. Flash computes D = rowsum(dO * O) from the
/// rounded O instead of rowsum(P * dP). In row i this makes D wrong by up to e_i = u sum_d |dO_id O_id|, dQ
/// by scale * e_i * sum_j P_ij |k_j|, and dK by scale * sum_i P_ij e_i |q_i|. The sum of P_ij e_i over i is
/// the dV of a dO whose rows are e_i.
struct FloorOfDelta {
    double d_q = 0, d_k = 0;
    FloorOfDelta(const Context& ctx, const Case& c, const Inputs& in, const Result& reference) {
        const std::vector<double> d_o = to_host(ctx, in.d_o);
        std::vector<double> errors(d_o.size());
        const auto columns = static_cast<std::size_t>(c.d_v);
        const double roundoff = bf16_roundoff + static_cast<double>(c.d_v) * f32_roundoff;
        for (std::size_t row = 0; row < d_o.size(); row += columns) {
            double error = 0;
            for (std::size_t d = 0; d < columns; ++d)
                error += roundoff * std::abs(d_o[row + d] * reference.o[row + d]);
            std::fill_n(errors.begin() + static_cast<std::ptrdiff_t>(row), columns, error);
        }
        Inputs inputs_with_errors = in;
        inputs_with_errors.d_o = from_host(ctx, errors, in.d_o.shape(), DType::f64);
        const double scale = std::abs(c.scale.value_or(1 / std::sqrt(static_cast<double>(c.d_qk))));
        d_q = scale * largest(errors) * largest(to_host(ctx, in.k));
        d_k = scale * largest(compute(ctx, c, inputs_with_errors, Algorithm::naive, DType::f64).d_v) *
              largest(to_host(ctx, in.q));
    }
};

void expect_as_accurate_as_naive(const Context& ctx, const Case& c) {
    const Inputs in(ctx, c);
    const Result reference = compute(ctx, c, in, Algorithm::naive, DType::f64);
    const Result naive = compute(ctx, c, in, Algorithm::naive, DType::bf16);
    const FloorOfDelta floor_of_delta(ctx, c, in, reference);
    for (const Bf16Kernels* kernels : test::every_kernel<bfloat16>()) {
        SCOPED_TRACE(testing::Message() << kernels->name << ": " << c);
        const cpu::ForcedKernels<bfloat16> forced(kernels);
        const Result flash = compute(ctx, c, in, Algorithm::flash, DType::bf16);
        expect_within("O", flash.o, naive.o, reference.o);
        expect_within("dQ", flash.d_q, naive.d_q, reference.d_q, floor_of_delta.d_q);
        expect_within("dK", flash.d_k, naive.d_k, reference.d_k, floor_of_delta.d_k);
        expect_within("dV", flash.d_v, naive.d_v, reference.d_v);
        // LSE is computed in float32. Its errors come from a sum of d_qk products, from 2^x (3e-6), from a
        // sum of `keys` terms, and from a few operations on the result.
        const double scale = std::abs(c.scale.value_or(1 / std::sqrt(static_cast<double>(c.d_qk))));
        const double products =
            static_cast<double>(c.d_qk) * scale * largest(to_host(ctx, in.q)) * largest(to_host(ctx, in.k));
        const double floor = f32_roundoff * (static_cast<double>(c.d_qk) * products +
                                             static_cast<double>(c.keys) + 8 * largest(reference.lse)) +
                             3e-6;
        EXPECT_LE(distance(flash.lse, reference.lse), floor) << "LSE";
    }
}

TEST(FlashBf16, ShortSequencesAreAsAccurateAsNaive) {
    const Context ctx(Device::cpu(), 2);
    for (const std::int64_t length : {1, 2, 5, 17, 64})
        for (const auto& [d_qk, d_v] : {std::pair{8, 8},
                                        {1, 1},
                                        {7, 33},
                                        {33, 7},
                                        {255, 255},
                                        {32, 32},
                                        {40, 40},
                                        {64, 64},
                                        {80, 80},
                                        {128, 128},
                                        {256, 256},
                                        {64, 128},
                                        {40, 24}})
            for (const bool causal : {false, true})
                expect_as_accurate_as_naive(ctx, {.queries = length,
                                                  .keys = length,
                                                  .d_qk = d_qk,
                                                  .d_v = d_v,
                                                  .causal = causal,
                                                  .batch = 2,
                                                  .heads = 4,
                                                  .key_heads = 2});
}

TEST(FlashBf16, UnequalLengthsAreAsAccurateAsNaive) {
    const Context ctx(Device::cpu(), 2);
    std::vector<std::pair<int, int>> head_dims = {{40, 40}, {24, 72}, {128, 128}};
    if (!gradtile::test::sanitized)
        head_dims.insert(head_dims.end(), {{8, 8}, {32, 32}, {64, 64}, {80, 80}, {256, 256}});
    for (const auto& [queries, keys] : {std::pair{113, 203}, {203, 113}, {799, 3}, {3, 799}})
        for (const auto& [d_qk, d_v] : head_dims)
            for (const bool causal : {false, true})
                expect_as_accurate_as_naive(
                    ctx, {.queries = queries, .keys = keys, .d_qk = d_qk, .d_v = d_v, .causal = causal});
}

TEST(FlashBf16, SequencesOfSeveralBlocksAreAsAccurateAsNaive) {
    const Context ctx(Device::cpu(), 2);
    expect_as_accurate_as_naive(
        ctx, {.queries = 100, .keys = 4200, .d_qk = 64, .d_v = 64, .causal = true, .heads = 1});
    expect_as_accurate_as_naive(
        ctx, {.queries = 1024, .keys = 1023, .d_qk = 40, .d_v = 32, .causal = true, .heads = 1});
    if (gradtile::test::sanitized) return;
    for (const bool causal : {false, true}) {
        expect_as_accurate_as_naive(ctx,
                                    {.queries = 1023, .keys = 1024, .d_qk = 64, .d_v = 64, .causal = causal});
        expect_as_accurate_as_naive(
            ctx, {.queries = 1024, .keys = 1023, .d_qk = 256, .d_v = 40, .causal = causal, .heads = 1});
    }
    expect_as_accurate_as_naive(
        ctx, {.queries = 2100, .keys = 2100, .d_qk = 32, .d_v = 32, .causal = true, .heads = 1});
}

TEST(FlashBf16, GroupedHeadsAreAsAccurateAsNaive) {
    const Context ctx(Device::cpu(), 2);
    for (const std::int64_t key_heads : {1, 2, 3, 6})
        expect_as_accurate_as_naive(ctx, {.queries = 150,
                                          .keys = 170,
                                          .d_qk = 32,
                                          .d_v = 48,
                                          .causal = true,
                                          .heads = 6,
                                          .key_heads = key_heads});
}

TEST(FlashBf16, AnyScaleIsAsAccurateAsNaive) {
    const Context ctx(Device::cpu(), 2);
    for (const double scale : {-0.3, 0.0, 1.0})
        expect_as_accurate_as_naive(
            ctx, {.queries = 70, .keys = 90, .d_qk = 16, .d_v = 16, .causal = true, .scale = scale});
    // The scores are in the thousands, so all but a few probabilities underflow.
    expect_as_accurate_as_naive(
        ctx, {.queries = 70, .keys = 90, .d_qk = 64, .d_v = 64, .causal = true, .spread = 300});
}

TEST(FlashBf16, RowsWithoutVisibleKeysHaveZeroOutputsAndGradients) {
    const Context ctx(Device::cpu(), 2);
    const Case c{.queries = 300, .keys = 100, .d_qk = 40, .d_v = 24, .causal = true};
    const Inputs in(ctx, c);
    for (const Bf16Kernels* kernels : test::every_kernel<bfloat16>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<bfloat16> forced(kernels);
        const Result result = compute(ctx, c, in, Algorithm::flash, DType::bf16);
        const std::size_t rows_without_keys = 200;  // rows 0..199 lie above the bottom-right diagonal
        const auto first = [](const std::vector<double>& x, std::size_t n) {
            return std::vector<double>(x.begin(), x.begin() + n);
        };
        EXPECT_THAT(first(result.o, rows_without_keys * 2 * 24), testing::Each(0.0));
        EXPECT_THAT(first(result.d_q, rows_without_keys * 2 * 40), testing::Each(0.0));
        EXPECT_THAT(first(result.lse, rows_without_keys),
                    testing::Each(-std::numeric_limits<double>::infinity()));
        EXPECT_THAT(result.d_k, testing::Each(testing::Truly([](double x) { return std::isfinite(x); })));
    }
}

TEST(FlashBf16, ResultsDoNotDependOnTheNumberOfThreads) {
    const Case c{
        .queries = 700, .keys = 650, .d_qk = 64, .d_v = 40, .causal = true, .heads = 4, .key_heads = 2};
    for (const Bf16Kernels* kernels : test::every_kernel<bfloat16>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<bfloat16> forced(kernels);
        const Context one(Device::cpu(), 1);
        const Inputs in(one, c);
        const Result expected = compute(one, c, in, Algorithm::flash, DType::bf16);
        for (const int threads : {2, 3}) {
            const Context ctx(Device::cpu(), threads);
            const Result result = compute(ctx, c, in, Algorithm::flash, DType::bf16);
            EXPECT_EQ(result.o, expected.o) << threads;
            EXPECT_EQ(result.lse, expected.lse) << threads;
            EXPECT_EQ(result.d_q, expected.d_q) << threads;
            EXPECT_EQ(result.d_k, expected.d_k) << threads;
            EXPECT_EQ(result.d_v, expected.d_v) << threads;
        }
    }
}

TEST(FlashBf16, ResultsDoNotDependOnUninitialisedMemory) {
    for (const Case& c : {Case{.queries = 150, .keys = 140, .d_qk = 40, .d_v = 24, .causal = true},
                          Case{.queries = 33, .keys = 7, .d_qk = 8, .d_v = 8}}) {
        const Context plain(Device::cpu(), 2);
        const Inputs in(plain, c);
        for (const Bf16Kernels* kernels : test::every_kernel<bfloat16>()) {
            SCOPED_TRACE(testing::Message() << kernels->name << ": " << c);
            const cpu::ForcedKernels<bfloat16> forced(kernels);
            const Result expected = compute(plain, c, in, Algorithm::flash, DType::bf16);
            // Outputs and scratch memory come from an arena full of NaN.
            constexpr std::int64_t bytes = 32 << 20;
            const Context poisoned = plain.with_allocator(std::make_shared<Arena>(Device::cpu(), bytes));
            fill(poisoned, empty(poisoned, {bytes / 4}, DType::f32),
                 std::numeric_limits<double>::quiet_NaN());
            const Result result = compute(poisoned, c, in, Algorithm::flash, DType::bf16);
            EXPECT_EQ(result.o, expected.o);
            EXPECT_EQ(result.lse, expected.lse);
            EXPECT_EQ(result.d_q, expected.d_q);
            EXPECT_EQ(result.d_k, expected.d_k);
            EXPECT_EQ(result.d_v, expected.d_v);
        }
    }
}

TEST(FlashBf16, NothingIsWrittenOutsideTheOutputs) {
    const Context ctx(Device::cpu(), 2);
    const Case c{
        .queries = 37, .keys = 50, .d_qk = 40, .d_v = 24, .causal = true, .heads = 2, .key_heads = 2};
    const Inputs in(ctx, c);
    // Every output is a slice of a wider tensor whose other elements are 7.
    const auto within = [&](const Shape& shape) {
        Shape wider = shape;
        wider[3] += 16;
        const Tensor x = empty(ctx, wider, DType::bf16);
        fill(ctx, x, 7);
        return x;
    };
    for (const Bf16Kernels* kernels : test::every_kernel<bfloat16>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<bfloat16> forced(kernels);
        const Result expected = compute(ctx, c, in, Algorithm::flash, DType::bf16);
        const Tensor o = within(in.d_o.shape()), d_q = within(in.q.shape()), d_k = within(in.k.shape()),
                     d_v = within(in.v.shape());
        const auto middle = [](const Tensor& x) { return x.slice(3, 8, x.size(3) - 16); };
        const Options options = options_of(c, Algorithm::flash);
        Saved saved;
        forward(ctx, in.q, in.k, in.v, options, saved, middle(o));
        backward(ctx, in.d_o, options, saved, {.q = middle(d_q), .k = middle(d_k), .v = middle(d_v)});
        EXPECT_EQ(to_host(ctx, middle(o)), expected.o);
        EXPECT_EQ(to_host(ctx, middle(d_q)), expected.d_q);
        EXPECT_EQ(to_host(ctx, middle(d_k)), expected.d_k);
        EXPECT_EQ(to_host(ctx, middle(d_v)), expected.d_v);
        for (const Tensor& x : {o, d_q, d_k, d_v}) {
            EXPECT_THAT(to_host(ctx, x.slice(3, 0, 8)), testing::Each(7.0));
            EXPECT_THAT(to_host(ctx, x.slice(3, x.size(3) - 8, 8)), testing::Each(7.0));
        }
    }
}

TEST(FlashBf16, PackedQkvGivesTheSameResultsAsSeparateTensors) {
    const Context ctx(Device::cpu(), 2);
    const Case c{.queries = 90,
                 .keys = 90,
                 .d_qk = 32,
                 .d_v = 32,
                 .causal = true,
                 .batch = 2,
                 .heads = 3,
                 .key_heads = 3};
    const Inputs in(ctx, c);
    const Tensor packed = empty(ctx, {c.batch, c.queries, 3, c.heads, c.d_qk}, DType::bf16);
    Inputs views = in;
    for (const auto& [view, source, index] :
         {std::tuple{&views.q, &in.q, 0}, {&views.k, &in.k, 1}, {&views.v, &in.v, 2}}) {
        *view = packed.select(2, index);
        copy(ctx, *view, *source);
    }
    for (const Bf16Kernels* kernels : test::every_kernel<bfloat16>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<bfloat16> forced(kernels);
        const Result expected = compute(ctx, c, in, Algorithm::flash, DType::bf16);
        const Result result = compute(ctx, c, views, Algorithm::flash, DType::bf16);
        EXPECT_EQ(result.o, expected.o);
        EXPECT_EQ(result.d_q, expected.d_q);
        EXPECT_EQ(result.d_k, expected.d_k);
        EXPECT_EQ(result.d_v, expected.d_v);
    }
}

TEST(FlashBf16, TheFastestKernelsAreTheDefault) {
    EXPECT_EQ(&cpu::chosen_kernels<bfloat16>(), cpu::usable_kernels<bfloat16>().front());
    EXPECT_STREQ(cpu::usable_kernels<bfloat16>().back()->name, cpu::generic_kernels<bfloat16>().name);
}

}  // namespace
}  // namespace gradtile::attention
