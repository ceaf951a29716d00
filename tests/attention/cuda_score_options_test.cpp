// Tests softcap, ALiBi, biases, sink, dropout and the gradient with respect to the LSE on the GPU. Every
// algorithm and dtype runs the CPU tests' problems and is compared with float64 on the CPU.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "cuda_fixture.h"

namespace gradtile::attention::test {
namespace {

TEST_P(AttentionCudaDtypes, IsAsAccurateAsNaiveUnderEveryScoreOption) {
    expect_accurate(problems_of_score_options(), GetParam());
}
/// One problem for every instantiation of the kernels that apply score rules.
TEST_P(AttentionCudaDtypes, IsAsAccurateAsNaiveUnderAllScoreOptionsAtAnyHeadDim) {
    for (const std::int64_t d : {1, 32, 64, 96, 128, 192, 256})
        for (const bool deterministic : {false, true})
            expect_accurate(problem_with_every_score_option(140, 135, d, d), GetParam(), deterministic);
}

/// Kernels with wgmma take ALiBi without other rules.
TEST_P(AttentionCudaDtypes, IsAsAccurateAsNaiveUnderAlibiAtAnyHeadDim) {
    for (const std::int64_t d : {32, 64, 96, 128, 192, 256})
        for (const bool deterministic : {false, true}) {
            // At least two row blocks and two key blocks, but small: the float64 reference takes most of the
            // time.
            Problem problem{.queries = 150,
                            .keys = 210,
                            .d_qk = d,
                            .d_v = d,
                            .heads = 2,
                            .key_heads = 1,
                            .alibi = true,
                            .d_lse = true};
            expect_accurate(problem, GetParam(), deterministic);
            problem.causal = problem.sink = true;
            expect_accurate(problem, GetParam(), deterministic);
            problem.window.left = 100;
            problem.scale = 0.01;
            expect_accurate(problem, GetParam(), deterministic);
        }
}

/// Kernels with wgmma for dropout alone, and for any score formula with or without dropout. At least two row
/// blocks and two key blocks, but small: the float64 reference takes most of the time.
std::vector<Problem> problems_of_dropout_and_softcap(std::int64_t d) {
    const Problem base{.queries = 150, .keys = 210, .d_qk = d, .d_v = d, .heads = 2, .key_heads = 1};
    std::vector<Problem> problems;
    const auto add = [&](auto&& change) { change(problems.emplace_back(base)); };
    add([](Problem& p) { p.dropout_p = 0.3, p.batch = 2; });
    add([](Problem& p) { p.dropout_p = 0.1, p.causal = p.sink = p.d_lse = true, p.window.left = 100; });
    add([](Problem& p) { p.softcap = 2, p.causal = true; });
    // Scores far beyond the cap: the derivative is 0 or nearly so.
    add([](Problem& p) { p.softcap = 3, p.scale = 20, p.d_lse = true; });
    add([](Problem& p) { p.softcap = 2, p.dropout_p = 0.25, p.alibi = p.causal = p.sink = true; });
    add([](Problem& p) { p.alibi = true, p.dropout_p = 0.5, p.scale = 0.01; });
    return problems;
}
TEST_P(AttentionCudaDtypes, IsAsAccurateAsNaiveUnderDropoutAndSoftcapUpTo64) {
    for (const std::int64_t d : {32, 40, 64})
        for (const Problem& problem : problems_of_dropout_and_softcap(d))
            for (const bool deterministic : {false, true})
                expect_accurate(problem, GetParam(), deterministic);
}
TEST_P(AttentionCudaDtypes, IsAsAccurateAsNaiveUnderDropoutAndSoftcapAbove64) {
    for (const std::int64_t d : {96, 128, 192, 256})
        for (const Problem& problem : problems_of_dropout_and_softcap(d))
            for (const bool deterministic : {false, true})
                expect_accurate(problem, GetParam(), deterministic);
}

/// Biases with q's dtype and aligned rows are read in tiles, alone or with a key bias.
TEST_P(AttentionCudaDtypes, BiasesReadInTilesAreAsAccurateAsNaive) {
    const Problem base{.queries = 70,
                       .keys = 152,
                       .d_qk = 32,
                       .d_v = 32,
                       .batch = 4,
                       .heads = 4,
                       .key_heads = 2,
                       .biases = {Shape{1, 4, 70, 152}}};
    std::vector<Problem> problems{base};
    const auto add = [&](auto&& change) { change(problems.emplace_back(base)); };
    add([](Problem& p) { p.d_qk = 24, p.d_v = 20; });
    add([](Problem& p) { p.d_qk = p.d_v = 64, p.causal = p.sink = p.d_lse = true; });
    add([](Problem& p) { p.d_qk = 64, p.d_v = 40, p.window.left = 30, p.scale = -0.3; });
    add([](Problem& p) { p.biases = {Shape{4, 1, 1, 152}, Shape{2, 4, 70, 152}}, p.batch_divisor = 2; });
    add([](Problem& p) { p.biases = {Shape{4, 4, 70, 152}, Shape{4, 1, 1, 152}}, p.causal = true; });
    // The bias gradient has so many tiles that one thread block sums each tile. Rows and keys do not fill the
    // last tiles.
    add([](Problem& p) {
        p.queries = 200, p.keys = 264, p.heads = p.key_heads = 16;
        p.biases = {Shape{2, 16, 200, 264}, Shape{4, 1, 1, 264}}, p.batch_divisor = 2;
    });
    add([](Problem& p) {
        p.queries = p.keys = 256, p.heads = 16, p.d_qk = p.d_v = 64, p.batch = 3;
        p.causal = p.top_left = true, p.biases = {Shape{1, 16, 256, 256}};
    });
    // With so many sequences, dQ is computed for one group of sequences after another.
    add([](Problem& p) { p.queries = 9, p.keys = 8, p.batch = 1601, p.biases = {Shape{1, 4, 9, 8}}; });
    for (const Problem& problem : problems)
        for (const bool deterministic : {false, true})
            expect_accurate(problem, GetParam(), deterministic, /*typed_biases=*/true);
}

TEST_P(AttentionCudaDtypes, RowsOfTheLowestScoresGiveNumbers) {
    for (const DType bias_dtype : {DType::f32, GetParam()}) {
        if (bias_dtype != DType::f32 && bias_dtype != DType::bf16) continue;
        for (const Algorithm algorithm : algorithms) {
            SCOPED_TRACE(::testing::Message() << algorithm << ' ' << bias_dtype);
            const Inputs in = inputs_with_lowest_scores(cpu, GetParam(), bias_dtype);
            expect_finite(run_on_gpu(in, problem_with_lowest_scores().options(algorithm)));
        }
    }
}

/// Dropout must drop the same elements on every device.
TEST_P(AttentionCudaDtypes, DropoutDropsTheSameElementsAsOnTheCpu) {
    // In V, column j is 1 at key j and 0 at the others. Scores are equal, so O is not 0 where P is kept.
    const Problem problem{.queries = 77,
                          .keys = 64,
                          .d_qk = 8,
                          .d_v = 64,
                          .batch = 2,
                          .heads = 3,
                          .key_heads = 3,
                          .scale = 0.0,
                          .dropout_p = 0.4};
    Inputs in = random_inputs(cpu, problem, GetParam());
    std::vector<double> identity(static_cast<std::size_t>(in.v.elements()));
    for (std::size_t i = 0; i < identity.size(); ++i) identity[i] = i / (3 * 64) % 64 == i % 64 ? 1 : 0;
    in.v = from_host(cpu, identity, in.v.shape(), GetParam());
    const auto is_kept = [](const std::vector<double>& o) {
        std::vector<bool> kept;
        for (const double x : o) kept.push_back(x != 0);
        return kept;
    };
    const std::vector<bool> expected = is_kept(run(cpu, in, problem.options()).o);
    EXPECT_THAT(expected, ::testing::AllOf(::testing::Contains(true), ::testing::Contains(false)));
    for (const Algorithm algorithm : algorithms)
        EXPECT_EQ(is_kept(run_on_gpu(in, problem.options(algorithm)).o), expected) << algorithm;
}

/// Expects both passes to drop the same elements as on the CPU, for every head dim's kernels, with many
/// blocks and with partial blocks. Q is 0, so that all visible P are equal. V and dO are slices of an
/// identity matrix, so that every O and dV element is one element of P.
TEST_P(AttentionCudaDtypes, BothPassesDropTheSameElementsAsOnTheCpu) {
    const auto is_kept = [](const std::vector<double>& x) {
        std::vector<bool> kept;
        for (const double e : x) kept.push_back(e != 0);
        return kept;
    };
    for (const std::int64_t d : {32, 64, 128, 256})
        for (const double softcap : {0.0, 5.0})
            for (const std::int64_t first : {std::int64_t{0}, 270 - d}) {
                const Problem problem{.queries = 270,
                                      .keys = 270,
                                      .d_qk = d,
                                      .d_v = d,
                                      .batch = 2,
                                      .heads = 2,
                                      .key_heads = 2,
                                      .softcap = softcap,
                                      .dropout_p = 0.4};
                Inputs in = random_inputs(cpu, problem, GetParam());
                const auto columns = static_cast<std::size_t>(d), begin = static_cast<std::size_t>(first);
                std::vector<double> slice(static_cast<std::size_t>(in.v.elements()));
                for (std::size_t i = 0; i < slice.size(); ++i)
                    slice[i] = i / (2 * columns) % 270 == begin + i % columns ? 1 : 0;
                in.v = from_host(cpu, slice, in.v.shape(), GetParam());
                in.d_o = from_host(cpu, slice, in.d_o.shape(), GetParam());
                fill(cpu, in.q, 0);
                const Result expected = run(cpu, in, problem.options());
                EXPECT_THAT(is_kept(expected.d_v),
                            ::testing::AllOf(::testing::Contains(true), ::testing::Contains(false)));
                for (const bool deterministic : {false, true}) {
                    Options options = problem.options();
                    options.deterministic = deterministic;
                    const Result result = run_on_gpu(in, options);
                    EXPECT_EQ(is_kept(result.o), is_kept(expected.o)) << d << ' ' << first;
                    EXPECT_EQ(is_kept(result.d_v), is_kept(expected.d_v)) << d << ' ' << first;
                }
            }
}

/// The dropout and softcap tests would also pass if all calls took the kernels for sm_80.
TEST_F(AttentionCuda, DropoutAndSoftcapTakeTheHopperKernels) {
    Problem problem{.queries = 200, .keys = 200, .d_qk = 64, .d_v = 64, .dropout_p = 0.1};
    const Inputs in = on_gpu(random_inputs(cpu, problem, DType::bf16));
    const auto explain = [&] { return explain_forward(gpu(), in.q, in.k, in.v, problem.options()); };
    const std::string dropout_explanation = explain();
    if (lacks_hopper_kernels(dropout_explanation)) GTEST_SKIP() << dropout_explanation;
    EXPECT_THAT(dropout_explanation,
                ::testing::HasSubstr("Hopper's asynchronous products and copies; head dim 64, "
                                     "with dropout"));
    problem.softcap = 30;
    EXPECT_THAT(explain(), ::testing::HasSubstr("with a formula of the scores"));
    problem.softcap = 300;
    EXPECT_THAT(explain(), ::testing::HasSubstr("the softcap is large"));
}

/// Sinks and slopes are float32, biases may have q's dtype, and all may be strided views.
TEST_P(AttentionCudaDtypes, BiasesOfEveryDtypeAndLayoutGiveTheSameResults) {
    const Problem problem{.queries = 70,
                          .keys = 90,
                          .d_qk = 16,
                          .d_v = 16,
                          .batch = 2,
                          .heads = 2,
                          .key_heads = 2,
                          .biases = {Shape{2, 2, 70, 90}}};
    Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
    in.biases[0] = cast(gpu(), cast(gpu(), in.biases[0], GetParam()), DType::f32);
    const Result expected = run(gpu(), in, problem.options());
    Inputs same = in;
    same.biases[0] = cast(gpu(), in.biases[0], GetParam());
    const Result typed = run(gpu(), same, problem.options());
    EXPECT_EQ(typed.o, expected.o);
    EXPECT_EQ(typed.d_v, expected.d_v);
    const Tensor transposed = empty(gpu(), {2, 2, 90, 70}, DType::f32).transpose(2, 3);
    copy(gpu(), transposed, in.biases[0]);
    same.biases[0] = transposed;
    const Result strided = run(gpu(), same, problem.options());
    EXPECT_EQ(strided.o, expected.o);
    EXPECT_EQ(strided.d_bias_0, expected.d_bias_0);
}

/// A sink far above the scores makes all P tiny. What the factors of the float32 kernels lose then is
/// bounded, as attention.h promises for gradients.
TEST_F(AttentionCuda, ALargeSinkCostsFloat32GradientsNoMoreThanTheBound) {
    const Problem problem{.queries = 70, .keys = 90, .d_qk = 32, .d_v = 32, .sink = true};
    const auto largest = [&](const std::vector<double>& numbers) {
        double most = 0;
        for (const double x : numbers) most = std::max(most, std::abs(x));
        return most;
    };
    for (const double height : {0., 10., 20., 30.}) {
        SCOPED_TRACE(::testing::Message() << "sink " << height);
        Inputs in = random_inputs(cpu, problem, DType::f32);
        in.sink = from_host(cpu, std::vector<double>{height}, {1}, DType::f32);
        const Reference reference =
            float64_reference(cpu, problem, in, roundoff_of(DType::f32, Device::cuda(0)));
        const Result result = run_on_gpu(in, problem.options());
        const double k = largest(to_host(cpu, in.k)), v = largest(to_host(cpu, in.v)),
                     d_o = largest(to_host(cpu, in.d_o));
        const double p_error = 0x1p-50, d_s_error = 0x1p-50 * static_cast<double>(problem.d_v) * v * d_o;
        const auto expect = [&](const char* name, double lost, std::vector<double> Result::*part) {
            const std::vector<double>& value = reference.value.*part;
            // Without the sink's loss a float32 gradient has four correct digits.
            EXPECT_LE(largest_difference(result.*part, value), 1e-4 * largest(value) + lost) << name;
        };
        const double scale = problem.scale_or_default();
        expect("dQ", scale * static_cast<double>(problem.keys) * d_s_error * k, &Result::d_q);
        expect("dK", scale * static_cast<double>(problem.queries) * d_s_error * largest(to_host(cpu, in.q)),
               &Result::d_k);
        expect("dV", static_cast<double>(problem.queries) * p_error * d_o, &Result::d_v);
    }
}

/// The float32 kernels scale dS by the magnitudes of V and dO, but dLSE may be larger or smaller than any of
/// their products.
TEST_F(AttentionCuda, GradientsThroughTheLseMayDominate) {
    const Problem problem{.queries = 70, .keys = 90, .d_qk = 24, .d_v = 40, .causal = true, .d_lse = true};
    for (const int exponent : {-60, 0, 30, 90})
        for (const bool with_d_o : {false, true}) {
            SCOPED_TRACE(::testing::Message() << exponent << with_d_o);
            Inputs in = random_inputs(cpu, problem, DType::f32);
            std::vector<double> d_lse = to_host(cpu, in.d_lse);
            for (double& x : d_lse) x = std::ldexp(x, exponent);
            in.d_lse = from_host(cpu, d_lse, in.d_lse.shape(), DType::f32);
            if (!with_d_o) fill(cpu, in.d_o, 0);
            const Reference reference =
                float64_reference(cpu, problem, in, roundoff_of(DType::f32, Device::cuda(0)));
            const Result naive = run(cpu, in, problem.options(Algorithm::naive));
            const Result result = run_on_gpu(in, problem.options());
            expect_as_accurate_as(naive, result, reference, Factors{.forward = 2, .gradients = 3});
            if (!with_d_o) {
                EXPECT_THAT(result.d_v, ::testing::Each(0.0));
            }
        }
}

TEST_P(AttentionCudaDtypes, RowsWhoseScoresAreAllMinusInfinitySeeNothing) {
    for (const bool with_sink : {false, true})
        for (const Algorithm algorithm : algorithms) {
            SCOPED_TRACE(::testing::Message() << algorithm << " sink " << with_sink);
            const RowsOfMinusInfinity rows(with_sink);
            const Inputs in = rows.inputs(cpu, GetParam());
            rows.expect_zeros(cpu, in, run_on_gpu(in, rows.problem().options(algorithm)), 1e-6);
        }
}

}  // namespace
}  // namespace gradtile::attention::test
