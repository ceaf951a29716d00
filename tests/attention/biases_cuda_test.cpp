// Tests biases in the 16-bit GPU kernels that read them in tiles: a query-key matrix, key biases, and both.
// Results are compared with float64 on the CPU.
#include <limits>

#include <gmock/gmock.h>

#include "cuda_fixture.h"

namespace gradtile::attention::test {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

class AttentionCudaBiases : public AttentionCudaDtypes {
  protected:
    using Change = void(const Problem&, Inputs&);
    static void keep(const Problem&, Inputs&) {}

    /// Compares flash2 with float64, with biases in q's dtype and in float32.
    void expect_accurate_flash(const Problem& problem, Change* change = keep) const {
        const DType dtype = GetParam();
        for (const bool typed : {true, false}) {
            Inputs in = random_inputs(cpu, problem, dtype);
            change(problem, in);
            for (Tensor& bias : in.biases)
                if (typed && bias.defined()) bias = cast(cpu, bias, dtype);
            const Result naive = run(cpu, in, problem.options(Algorithm::naive));
            const Reference reference =
                float64_reference(cpu, problem, in, roundoff_of(dtype, Device::cuda(0)));
            for (const bool deterministic : {false, true}) {
                SCOPED_TRACE(::testing::Message()
                             << problem << (typed ? " biases of q's dtype" : " float32 biases")
                             << (deterministic ? " deterministic" : ""));
                Options options = problem.options();
                options.deterministic = deterministic;
                expect_as_accurate_as(naive, run_on_gpu(in, options), reference, factors_of(dtype));
            }
        }
    }
};
INSTANTIATE_TEST_SUITE_P(Bits16, AttentionCudaBiases, testing::Values(DType::bf16, DType::f16));

/// An Evoformer's sequences: they share the matrix, and each has a key bias.
Problem sequences(std::int64_t count, std::int64_t length) {
    return {.queries = length,
            .keys = length,
            .d_qk = 32,
            .d_v = 32,
            .batch = count,
            .heads = 2,
            .key_heads = 2,
            .biases = {Shape{count, 1, 1, length}, Shape{1, 2, length, length}}};
}

TEST_P(AttentionCudaBiases, OneTileIsAccurate) {
    expect_accurate_flash(sequences(1, 64));
}
TEST_P(AttentionCudaBiases, OneTaskForEachSequenceIsAccurate) {
    expect_accurate_flash(sequences(3, 128));
}
/// Tiles end beyond the matrix.
TEST_P(AttentionCudaBiases, SharedMatricesAreAccurate) {
    expect_accurate_flash(sequences(9, 200));
    Problem problem = sequences(7, 136);
    problem.d_qk = problem.d_v = 64;
    expect_accurate_flash(problem);
    problem.d_qk = 40, problem.d_v = 20;
    expect_accurate_flash(problem);
}
/// More keys than the tiles in shared memory have.
TEST_P(AttentionCudaBiases, LongMatricesAreAccurate) {
    Problem problem = sequences(2, 130);
    problem.keys = 648;
    problem.biases = {Shape{2, 1, 1, 648}, Shape{1, 2, 130, 648}};
    expect_accurate_flash(problem);
}
TEST_P(AttentionCudaBiases, EachBiasAloneIsAccurate) {
    Problem problem = sequences(3, 200);
    problem.biases = {Shape{1, 2, 200, 200}};
    expect_accurate_flash(problem);
    problem.biases = {Shape{3, 1, 1, 200}};
    expect_accurate_flash(problem);
    problem.biases = {Shape{3, 2, 1, 200}, Shape{1, 2, 1, 1}};  // two key biases
    expect_accurate_flash(problem);
    problem = sequences(3, 201);  // this matrix's rows are not aligned
    expect_accurate_flash(problem);
    problem.biases = {Shape{3, 1, 1, 201}};
    expect_accurate_flash(problem);
}
TEST_P(AttentionCudaBiases, OtherBroadcastsAreAccurate) {
    Problem problem = sequences(4, 144);
    problem.heads = 4;  // two heads share keys
    problem.batch_divisor = 2;
    problem.biases = {Shape{2, 4, 144, 144}, Shape{4, 4, 1, 144}};
    expect_accurate_flash(problem);
    problem.batch_divisor = 1;
    problem.biases = {Shape{4, 1, 144, 144}};
    expect_accurate_flash(problem);
    problem.biases = {Shape{1, 1, 144, 144}, Shape{1, 1, 1, 144}};
    expect_accurate_flash(problem);
    problem.biases = {Shape{4, 4, 144, 144}};
    expect_accurate_flash(problem);
}
TEST_P(AttentionCudaBiases, MasksAreAccurate) {
    Problem problem = sequences(2, 264);
    problem.causal = problem.sink = problem.d_lse = true;
    expect_accurate_flash(problem);
    problem.causal = false;
    problem.window = {.left = 70, .right = 13};
    expect_accurate_flash(problem);
    problem.window = {};
    problem.queries = 152, problem.causal = true;
    problem.biases = {Shape{2, 1, 1, 264}, Shape{1, 2, 152, 264}};
    expect_accurate_flash(problem);
    problem.queries = 264, problem.keys = 152;  // the first rows see nothing
    problem.biases = {Shape{2, 1, 1, 152}, Shape{1, 2, 264, 152}};
    expect_accurate_flash(problem);
}
TEST_P(AttentionCudaBiases, SingleQueriesAndKeysAreAccurate) {
    for (const auto& [queries, keys] : {std::pair{1, 1}, {1, 72}, {72, 1}, {2, 8}, {200, 8}}) {
        Problem problem = sequences(5, 1);
        problem.queries = queries, problem.keys = keys;
        problem.biases = {Shape{5, 1, 1, keys}, Shape{1, 2, queries, keys}};
        expect_accurate_flash(problem);
    }
}
/// -inf in the key bias hides a whole sequence and another sequence's last keys; -inf in the matrix hides
/// single pairs and whole rows.
TEST_P(AttentionCudaBiases, MinusInfinityHidesPairs) {
    Change* const hide = [](const Problem& problem, Inputs& in) {
        const Context ctx{Device::cpu()};
        fill(ctx, in.biases[0].slice(0, 1, 1), minus_infinity);
        fill(ctx, in.biases[0].slice(0, 2, 1).slice(3, 100, problem.keys - 100), minus_infinity);
        for (const std::int64_t row : {0, 65, 199}) fill(ctx, in.biases[1].slice(2, row, 1), minus_infinity);
        fill(ctx, in.biases[1].slice(2, 30, 5).slice(3, 60, 80), minus_infinity);
    };
    Problem problem = sequences(4, 200);
    expect_accurate_flash(problem, hide);
    problem.d_qk = problem.d_v = 64;
    expect_accurate_flash(problem, hide);
}

/// A thread block computes several tasks, whose results do not depend on each other.
TEST_P(AttentionCudaBiases, SequencesDoNotDependOnOthers) {
    const Problem together = sequences(150, 136), alone = sequences(1, 136);
    const Inputs in = on_gpu(random_inputs(cpu, together, GetParam()));
    const Result all = run(gpu(), in, together.options());
    const std::size_t elements = all.o.size() / 150;
    for (const std::int64_t n : {0, 1, 74, 149}) {
        Inputs sequence_inputs = in;
        for (Tensor* x : {&sequence_inputs.q, &sequence_inputs.k, &sequence_inputs.v, &sequence_inputs.d_o,
                          &sequence_inputs.biases[0]})
            *x = x->slice(0, n, 1);
        const Result one = run(gpu(), sequence_inputs, alone.options());
        const auto first = static_cast<std::ptrdiff_t>(elements * static_cast<std::size_t>(n));
        const auto part = [&](const std::vector<double>& x) {
            return std::vector<double>(x.begin() + first,
                                       x.begin() + first + static_cast<std::ptrdiff_t>(elements));
        };
        EXPECT_EQ(part(all.o), one.o) << n;
        EXPECT_EQ(part(all.d_k), one.d_k) << n;
        EXPECT_EQ(part(all.d_v), one.d_v) << n;
    }
}

TEST_P(AttentionCudaBiases, GradientsOfBiasesAreRepeatable) {
    // Many sequences for each thread block that computes the matrix's gradient, whose ring is short at head
    // dim 64.
    for (const std::int64_t d : {32, 64}) {
        Problem problem = sequences(100, 264);
        problem.d_qk = problem.d_v = d;
        const Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
        for (const bool deterministic : {false, true}) {
            SCOPED_TRACE(::testing::Message() << problem << (deterministic ? " deterministic" : ""));
            Options options = problem.options();
            options.deterministic = deterministic;
            const Result first = run(gpu(), in, options);
            for (int repeat = 0; repeat < 5; ++repeat) {
                const Result again = run(gpu(), in, options);
                EXPECT_TRUE(again.o == first.o);
                EXPECT_TRUE(again.d_bias_1 == first.d_bias_1);
                EXPECT_TRUE(again.d_k == first.d_k);
                if (deterministic) {
                    EXPECT_TRUE(again.d_q == first.d_q);
                }
            }
        }
    }
}
/// Many one-tile sequences at head dim 64, for each thread block that computes the matrix's gradient.
TEST_P(AttentionCudaBiases, SumsOverManySequencesAreAccurate) {
    Problem problem = sequences(300, 64);
    expect_accurate_flash(problem);
    problem.d_qk = problem.d_v = 64;
    expect_accurate_flash(problem);
}

TEST_P(AttentionCudaBiases, StridesSelectTheKernels) {
    const Problem problem = sequences(3, 136);
    Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
    const auto explain = [&](const Inputs& x) {
        return explain_forward(gpu(), x.q, x.k, x.v, x.with_tensors(problem.options()));
    };
    constexpr const char* hopper =
        "; backward: Hopper's asynchronous products and copies; head dim 32, with biases";
    if (explain(in).find(hopper) == std::string::npos) GTEST_SKIP() << explain(in);
    EXPECT_THAT(
        explain(in),
        ::testing::HasSubstr("no Hopper kernels, because with biases the kernel for all GPUs is as fast"));
    Inputs same = in;
    const Tensor wide = empty(gpu(), {1, 2, 136, 137}, DType::f32);
    same.biases[1] = wide.slice(3, 1, 136);
    copy(gpu(), same.biases[1], in.biases[1]);
    EXPECT_THAT(explain(same), ::testing::EndsWith("no Hopper kernels, because TMA cannot read the strides "
                                                   "of a bias"));
    // Stride 0 along an axis.
    Inputs expanded = in, full = in;
    expanded.biases[1] = in.biases[1].slice(1, 0, 1).expand({1, 2, 136, 136});
    full.biases[1] = empty(gpu(), {1, 2, 136, 136}, DType::f32);
    copy(gpu(), full.biases[1], expanded.biases[1]);
    EXPECT_THAT(explain(expanded), ::testing::HasSubstr(hopper));
    const Result expanded_result = run(gpu(), expanded, problem.options()),
                 full_result = run(gpu(), full, problem.options());
    EXPECT_EQ(expanded_result.o, full_result.o);
    EXPECT_EQ(expanded_result.d_k, full_result.d_k);
}

}  // namespace
}  // namespace gradtile::attention::test
