// Tests calls whose biases mask keys by large finite numbers, in parts of rows and in whole rows, and calls
// with large scores, in which the backward pass must recompute exactly the forward scores.
#include <algorithm>
#include <limits>

#include <gradtile/attention/cpu/few_queries.h>

#include "devices.h"

namespace gradtile::attention::test {
namespace {

void expect_finite_gradients(const Result& result) {
    for (const auto* part : {&result.o, &result.d_q, &result.d_k, &result.d_v, &result.d_bias_0})
        EXPECT_TRUE(std::ranges::all_of(*part, [](double x) { return std::isfinite(x); }));
}

// ---- Masks ----

/// The numbers by which models mark hidden keys: one per sequence.
std::vector<double> mask_numbers(DType bias_dtype) {
    const double lowest = bias_dtype == DType::f16    ? -65504
                          : bias_dtype == DType::bf16 ? -0x1.fep127
                                                      : -std::numeric_limits<float>::max();
    return {-1e4, -1e6, -1e9, -1e30, lowest};
}
constexpr std::int64_t mask_count = 5;

/// A key bias hides some keys from all rows in the first half of the sequences, and all keys in the second
/// half. A pair bias has rows without a mask, rows with a partial mask, and rows whose keys are all masked.
enum class MaskKind : std::uint8_t { key_bias, pair_bias };

Problem masked_problem(MaskKind kind, std::int64_t queries, std::int64_t head_dim) {
    // With few queries there are so many keys that the keys are divided into parts, whose lengths differ.
    Problem p{.queries = queries,
              .keys = queries <= 16 ? 700 : 77,
              .d_qk = head_dim,
              .d_v = head_dim,
              .batch = kind == MaskKind::key_bias ? 2 * mask_count : mask_count};
    p.biases[0] = kind == MaskKind::key_bias ? Shape{p.batch, 1, 1, p.keys}
                                             : Shape{p.batch, p.heads, p.queries, p.keys};
    return p;
}

Tensor mask_bias(const Context& ctx, const Problem& p, MaskKind kind, DType bias_dtype) {
    const std::vector<double> masks = mask_numbers(bias_dtype);
    std::vector<double> bias(static_cast<std::size_t>(p.biases[0].elements()));
    for (std::int64_t index = 0; index < std::ssize(bias); ++index) {
        const std::int64_t key = index % p.keys, row = index / p.keys;
        const std::int64_t sequence = kind == MaskKind::key_bias ? row : row / (p.heads * p.queries);
        const double mask = masks[static_cast<std::size_t>(sequence % mask_count)];
        const bool full = kind == MaskKind::key_bias ? sequence >= mask_count : row % 3 == 1;
        const bool part = kind == MaskKind::key_bias || row % 3 == 2;
        if (full || (part && (key * 7 + row) % 5 < 3)) bias[static_cast<std::size_t>(index)] = mask;
    }
    return from_host(ctx, bias, p.biases[0], bias_dtype);
}

class MaskedRows : public EveryDevice {
  protected:
    void expect_accurate_masks(MaskKind kind, std::int64_t queries) const {
        // Other head dimensions have other kernels on a GPU only.
        const std::vector<std::int64_t> head_dims = ctx().device().is_cpu()
                                                        ? std::vector<std::int64_t>{64, 256}
                                                        : std::vector<std::int64_t>{32, 64, 128, 256};
        for (const std::int64_t head_dim : head_dims)
            for (const bool typed : {false, true}) {
                const DType bias_dtype = typed ? dtype() : DType::f32;
                if (typed && dtype() == DType::f32) continue;  // the same biases again
                const Problem problem = masked_problem(kind, queries, head_dim);
                SCOPED_TRACE(::testing::Message() << problem << ", biases in " << bias_dtype);
                // The bound for float64 results is derived from the same problem's float32 error.
                const DType coarse = dtype() == DType::f64 ? DType::f32 : dtype();
                Inputs coarse_inputs = random_inputs(cpu, problem, coarse);
                coarse_inputs.biases[0] =
                    mask_bias(cpu, problem, kind, bias_dtype == DType::f64 ? DType::f32 : bias_dtype);
                Inputs in = coarse_inputs.to(cpu, dtype());
                in.biases[0] = cast(cpu, in.biases[0], bias_dtype);
                const Result naive = run(cpu, coarse_inputs, problem.options(Algorithm::naive));
                const Reference reference =
                    float64_reference(cpu, problem, in, roundoff_of(dtype(), ctx().device()));
                const auto expect_of = [&](Algorithm algorithm) {
                    const Result result = run(ctx(), on_device(in), problem.options(algorithm));
                    expect(algorithm, naive, result, reference);
                };
                for_every_implementation(head_dim, expect_of);
                if (ctx().device().is_cpu() && queries <= cpu::max_queries_of_few_rows)
                    for_every_kernel_of_few_queries(dtype(), [&] { expect_of(Algorithm::flash); });
            }
    }

  private:
    void expect(Algorithm algorithm, const Result& naive, const Result& result,
                const Reference& reference) const {
        if (dtype() == DType::f64) return expect_float64_accuracy(naive, result, reference);
        if (is_16_bit(dtype()) && algorithm == Algorithm::naive) {
            // naive rounds S to the dtype, in which a row's masked keys differ less, or are hidden.
            return expect_finite_gradients(result);
        }
        if (!is_16_bit(dtype())) expect_as_accurate_as(naive, result, reference, factors_of(dtype()));
        for (const Finding& finding :
             root_mean_square_errors(naive, result, reference, average_factors_of(dtype())))
            EXPECT_TRUE(finding.ok()) << finding;
    }
};

TEST_P(MaskedRows, OfKeysAreAsAccurateAsOthersFor1Row) {
    expect_accurate_masks(MaskKind::key_bias, 1);
}
TEST_P(MaskedRows, OfKeysAreAsAccurateAsOthersFor16Rows) {
    expect_accurate_masks(MaskKind::key_bias, 16);
}
TEST_P(MaskedRows, OfKeysAreAsAccurateAsOthersFor128Rows) {
    expect_accurate_masks(MaskKind::key_bias, 128);
}
TEST_P(MaskedRows, OfKeysAreAsAccurateAsOthersFor300Rows) {
    expect_accurate_masks(MaskKind::key_bias, 300);
}
TEST_P(MaskedRows, OfPairsAreAsAccurateAsOthersFor3Rows) {
    expect_accurate_masks(MaskKind::pair_bias, 3);
}
TEST_P(MaskedRows, OfPairsAreAsAccurateAsOthersFor16Rows) {
    expect_accurate_masks(MaskKind::pair_bias, 16);
}
TEST_P(MaskedRows, OfPairsAreAsAccurateAsOthersFor128Rows) {
    expect_accurate_masks(MaskKind::pair_bias, 128);
}
TEST_P(MaskedRows, OfPairsAreAsAccurateAsOthersFor300Rows) {
    expect_accurate_masks(MaskKind::pair_bias, 300);
}

INSTANTIATE_TEST_SUITE_P(Devices, MaskedRows, testing::ValuesIn(devices_and_dtypes()), name_of_place);

// ---- Large scores ----

/// Inputs whose scores are about size^2, from random products. With dO = 1, dV summed over the keys equals P
/// summed over the keys and the rows.
Inputs inputs_with_large_scores(const Context& ctx, const Problem& problem, DType dtype, double size) {
    Inputs in = random_inputs(ctx, problem, DType::f64);
    for (Tensor* x : {&in.q, &in.k}) axpy(ctx, *x, size - 1, *x);
    fill(ctx, in.d_o, 1);
    return in.to(ctx, dtype);
}

/// Expects that each row's probabilities add up to 1 in the backward pass. `p_error` bounds the relative
/// error of each P and the roundings of the dV sum.
void expect_sums_of_one(const Problem& problem, const Result& result, double p_error) {
    expect_finite_gradients(result);
    const auto rows = static_cast<double>(problem.queries * problem.heads / problem.key_heads);
    const std::int64_t columns = problem.key_heads * problem.d_v;
    for (std::int64_t b = 0; b < problem.batch; ++b)
        for (std::int64_t column = 0; column < columns; ++column) {
            double sum = 0;
            for (std::int64_t j = 0; j < problem.keys; ++j)
                sum += result.d_v[static_cast<std::size_t>((b * problem.keys + j) * columns + column)];
            EXPECT_NEAR(sum / rows, 1, p_error) << b << ' ' << column;
        }
}

class LargeScores : public testing::TestWithParam<DType> {
  protected:
    /// With one row, dV is P itself.
    void expect(const Problem& problem, double size) const {
        SCOPED_TRACE(::testing::Message() << problem << ", scores of " << size * size);
        const Inputs in = inputs_with_large_scores(ctx, problem, GetParam(), size);
        // P, dV and the sums are rounded. The LSE's error and the error in 2^x change all P in a row alike.
        const Roundoff roundoff = roundoff_of(GetParam(), ctx.device());
        const std::int64_t terms = problem.queries * problem.heads / problem.key_heads;
        const double p_error = roundoff.storage + roundoff.factors + 2 * roundoff.exponential +
                               roundoff.sum_error(terms) + 2 * roundoff.sum_error(problem.keys) +
                               32 * roundoff.arithmetic;
        const auto expect_of = [&](Algorithm algorithm) {
            expect_sums_of_one(problem, run(ctx, in, problem.options(algorithm)), p_error);
        };
        for_every_algorithm(GetParam(), [&](Algorithm algorithm) {
            // naive stores S in 16 bits, in which such scores are infinite.
            if (algorithm == Algorithm::naive && GetParam() == DType::f16 && size > 100) return;
            expect_of(algorithm);
        });
        if (problem.queries <= cpu::max_queries_of_few_rows)
            for_every_kernel_of_few_queries(GetParam(), [&] { expect_of(Algorithm::flash); });
    }
    const Context ctx{Device::cpu(), 2};
};

TEST_P(LargeScores, GiveProbabilitiesThatAddUpToOne) {
    for (const std::int64_t queries : {1, 4, 8, 16, 70})
        for (const double size : {1.0, 30.0, 300.0, 3000.0, 30000.0}) {
            if (GetParam() == DType::f16 && size > 1000) continue;  // q and k would not fit float16
            expect({.queries = queries,
                    .keys = 600,
                    .d_qk = 64,
                    .d_v = 8,
                    .batch = 3,
                    .heads = 2,
                    .key_heads = queries % 8 == 0 ? 1 : 2},
                   size);
        }
}
TEST_P(LargeScores, GiveProbabilitiesThatAddUpToOneUnderScoreOptions) {
    for (const std::int64_t queries : {1, 5, 70})
        for (const double size : {30.0, 300.0, 30000.0}) {
            if (GetParam() == DType::f16 && size > 1000) continue;
            const Problem base{.queries = queries,
                               .keys = 150,
                               .d_qk = 24,
                               .d_v = 8,
                               .batch = 2,
                               .heads = 2,
                               .key_heads = 1};
            const auto expect_with = [&](auto&& change) {
                Problem problem = base;
                change(problem);
                expect(problem, size);
            };
            expect_with([](Problem& p) { p.alibi = true; });
            expect_with([](Problem& p) { p.scale = -0.3; });
            expect_with([](Problem& p) { p.causal = p.alibi = true, p.scale = -0.3; });
            expect_with([](Problem& p) { p.biases = {Shape{2, 1, 1, 150}, Shape{1, 2, p.queries, 150}}; });
            expect_with([](Problem& p) { p.softcap = 1e7, p.alibi = true; });
        }
}
INSTANTIATE_TEST_SUITE_P(OnTheCpu, LargeScores, testing::ValuesIn(floating_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace gradtile::attention::test
