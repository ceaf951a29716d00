// Biases of packed sequences that hide keys and rows, and biases that are refused. packed_problems() has the
// broadcasts of both forms, which packed_test.cpp compares with float64 and with dense calls.
#include <limits>

#include <gmock/gmock.h>

#include <support/error_message.h>

#include "devices.h"
#include "packed_problems.h"

namespace gradtile::attention::test {
namespace {

using gradtile::test::message_of;
using testing::HasSubstr;

class PackedBiases : public EveryDevice {
  protected:
    /// Compares every implementation with float64.
    void expect_accurate(const PackedProblem& problem,
                         const std::function<void(PackedInputs& in)>& change) const {
        const DType coarse = dtype() == DType::f64 ? DType::f32 : dtype();
        PackedInputs coarse_inputs = random_inputs(cpu, problem, coarse);
        change(coarse_inputs);
        const PackedInputs in = coarse_inputs.to(cpu, dtype());
        const Result naive = run_each(cpu, problem, coarse_inputs, Algorithm::naive);
        const Reference reference = float64_reference(cpu, problem, in, roundoff_of(dtype(), ctx().device()));
        for_every_packed_implementation([&](Algorithm algorithm) {
            const Result result = run(ctx(), in.on(ctx()), problem.each.options(algorithm));
            if (dtype() == DType::f64) {
                expect_float64_accuracy(naive, result, reference);
            } else if (algorithm == Algorithm::naive) {
                expect_as_accurate_as(naive, result, reference, factors_of(DType::f32));
            } else {
                expect_as_accurate_as(naive, result, reference, factors_of(dtype()));
            }
        });
    }
};
INSTANTIATE_TEST_SUITE_P(Devices, PackedBiases, testing::ValuesIn(devices_and_dtypes()), name_of_place);

/// The first sequence's keys are all hidden, the second's all masked by a finite number, and one key of the
/// third outweighs all others.
TEST_P(PackedBiases, KeysThatAreHiddenMaskedOrDominantAreAccurate) {
    PackedProblem problem{
        {.d_qk = 16, .d_v = 16, .causal = true, .heads = 4, .key_heads = 2, .top_left = true},
        {30, 70, 0, 140},
        {30, 70, 5, 140}};
    problem.each.biases[0] = {4, problem.key_count()};
    expect_accurate(problem, [&](PackedInputs& in) {
        const Tensor& bias = in.in.biases[0];
        fill(cpu, bias.slice(1, 0, 30), -infinity);
        fill(cpu, bias.slice(1, 30, 70), -1e9);
        fill(cpu, bias.slice(1, 105, 1), 100.0);
    });
}

/// Rows without a mask, rows with a hidden part, rows of -1e9 and rows of -inf, in each sequence's own bias.
TEST_P(PackedBiases, RowsThatAreHiddenOrMaskedAreAccurate) {
    PackedProblem problem{{.d_qk = 24, .d_v = 16, .heads = 2, .key_heads = 1}, {70, 9, 130}, {65, 140, 130}};
    problem.each.biases[1] = {3, 2, 130, 140};
    expect_accurate(problem, [&](PackedInputs& in) {
        for (std::int64_t row = 0; row < 130; ++row) {
            const Tensor of_row = in.in.biases[1].slice(2, row, 1);
            if (row % 4 == 1) fill(cpu, of_row.slice(3, row / 2, 40), -infinity);
            if (row % 4 == 2) fill(cpu, of_row, -1e9);
            if (row % 4 == 3) fill(cpu, of_row, -infinity);
        }
    });
}

/// A NaN in a key that an -inf bias hides from all rows changes no other key's results.
TEST_P(PackedBiases, HiddenKeysMayHoldNaN) {
    PackedProblem problem{{.d_qk = 16, .d_v = 16, .heads = 2, .key_heads = 1}, {40, 70}, {40, 70}};
    problem.each.biases[0] = {1, problem.key_count()};
    PackedInputs in = random_inputs(cpu, problem, dtype());
    fill(cpu, in.in.biases[0].slice(1, 50, 3), -infinity);
    PackedInputs bad = in;
    for (Tensor* x : {&bad.in.k, &bad.in.v}) {
        *x = from_host(cpu, to_host(cpu, *x), x->shape(), dtype());
        fill(cpu, x->slice(0, 50, 3), std::numeric_limits<double>::quiet_NaN());
    }
    const auto expect_finite = [](const std::vector<double>& x) {
        for (const double e : x) ASSERT_TRUE(std::isfinite(e));
    };
    for_every_packed_implementation([&](Algorithm algorithm) {
        const Options options = problem.each.options(algorithm);
        const Result expected = run(ctx(), in.on(ctx()), options),
                     result = run(ctx(), bad.on(ctx()), options);
        for (const auto* x : {&result.o, &result.lse, &result.d_q, &result.d_k, &result.d_v})
            expect_finite(*x);
        expect_finite(result.d_bias_0);
        if (ctx().device().is_cuda()) return;  // the repaired call sums in another order
        EXPECT_EQ(result.o, expected.o);
        EXPECT_EQ(result.d_v, expected.d_v);
        EXPECT_EQ(result.d_bias_0, expected.d_bias_0);
    });
}

/// The gradient is 0 after the last sequence, and in rows and keys that a sequence lacks.
TEST_P(PackedBiases, GradientsAreZeroWhereNoSequenceHasAPair) {
    PackedProblem problem{{.d_qk = 8, .d_v = 8, .heads = 2, .key_heads = 2},
                          {3, 20},
                          {5, 9},
                          /*unused_rows=*/4,
                          /*unused_keys=*/6};
    problem.each.biases = {Shape{2, problem.key_count()}, Shape{2, 1, 21, 12}};
    const PackedInputs in = random_inputs(cpu, problem, dtype());
    for_every_packed_implementation([&](Algorithm algorithm) {
        const Result result = run(ctx(), in.on(ctx()), problem.each.options(algorithm));
        for (std::size_t i = 0; i < result.d_bias_0.size(); ++i)
            EXPECT_EQ(result.d_bias_0[i] == 0, i % 20 >= 14) << i;
        for (std::size_t i = 0; i < result.d_bias_1.size(); ++i) {
            const std::size_t s = i / (21 * 12), row = i / 12 % 21, key = i % 12;
            const bool exists = row < (s == 0 ? 3u : 20u) && key < (s == 0 ? 5u : 9u);
            EXPECT_EQ(result.d_bias_1[i] != 0, exists) << i;
        }
    });
}

TEST(PackedBiasesOnTheCpu, ResultsDoNotDependOnTheNumberOfThreads) {
    PackedProblem problem{{.d_qk = 16, .d_v = 16, .causal = true, .heads = 4, .key_heads = 2},
                          {200, 7, 90, 300, 64, 64},
                          {200, 7, 90, 300, 64, 64}};
    problem.each.batch_divisor = 3;
    problem.each.biases = {Shape{1, problem.key_count()}, Shape{2, 1, 300, 300}};
    const Context one(Device::cpu(), 1);
    const PackedInputs in = random_inputs(one, problem, DType::f32);
    const Result expected = run(one, in, problem.each.options());
    for (const int threads : {2, 3})
        EXPECT_TRUE(run(Context(Device::cpu(), threads), in, problem.each.options()) == expected) << threads;
}

TEST(PackedBiasesOnTheCpu, WrongShapesAndLongerSequencesAreRefused) {
    const Context ctx(Device::cpu(), 2);
    const Tensor x = zeros(ctx, {10, 2, 8}, DType::f32);
    const Tensor offsets = from_host(ctx, std::vector<std::int32_t>{0, 4, 10}, {3});
    for (const Algorithm algorithm : packed_algorithms) {
        const auto message = [&](const Shape& bias, std::int64_t divisor = 1, DType dtype = DType::f32) {
            return message_of([&] {
                Saved saved;
                forward(ctx, x, x, x,
                        {.algorithm = algorithm,
                         .biases = {zeros(ctx, bias, dtype)},
                         .batch_divisor = divisor,
                         .cumulative_q = offsets,
                         .cumulative_k = offsets},
                        saved);
            });
        };
        for (const Shape& good : {Shape{2, 10}, Shape{1, 10}, Shape{2, 1}, Shape{2, 2, 6, 6},
                                  Shape{1, 1, 6, 7}, Shape{2, 1, 1, 6}, Shape{1, 2, 9, 1}, Shape{1, 1, 1, 1}})
            EXPECT_EQ(message(good), "no error") << good;
        EXPECT_EQ(message({1, 2, 6, 6}, 2), "no error");
        EXPECT_THAT(message({2, 9}), HasSubstr("does not broadcast to [2, 10]"));
        EXPECT_THAT(message({3, 10}), HasSubstr("does not broadcast to [2, 10]"));
        EXPECT_THAT(message({3, 2, 6, 6}), HasSubstr("does not broadcast to [2, 2, rows, keys]"));
        EXPECT_THAT(message({2, 3, 6, 6}), HasSubstr("does not broadcast to [2, 2, rows, keys]"));
        EXPECT_THAT(message({1, 2, 10}), HasSubstr("expected rank 2 or 4"));
        EXPECT_THAT(message({2, 10}, 1, DType::bf16), HasSubstr("float32 or float32"));
        EXPECT_THAT(message({2, 2, 5, 6}), HasSubstr("sequence 1 has 6 rows; expected at most 5"));
        EXPECT_THAT(message({2, 2, 6, 5}), HasSubstr("sequence 1 has 6 keys; expected at most 5"));
    }
    EXPECT_THAT(message_of([&] {
                    Saved saved;
                    const Tensor dense = zeros(ctx, {1, 10, 2, 8}, DType::f32);
                    forward(ctx, dense, dense, dense, {.biases = {zeros(ctx, {2, 10}, DType::f32)}}, saved);
                }),
                HasSubstr("expected rank 4"));
}

}  // namespace
}  // namespace gradtile::attention::test
