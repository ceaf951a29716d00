// Softcap, ALiBi, biases, sink, dropout and the gradient with respect to the LSE, on the CPU.
#include <cmath>

#include <gmock/gmock.h>

#include <gradtile/attention/score_rule.h>
#include <gradtile/core/gradcheck.h>

#include <support/error_message.h>

#include "every_kernel.h"
#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

using gradtile::test::message_of;
using testing::HasSubstr;

TEST(ScoreOptions, Float64IsTheDefinition) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : problems_of_score_options()) {
        SCOPED_TRACE(::testing::Message() << problem);
        const Inputs single = random_inputs(ctx, problem, DType::f32), in = single.to(ctx, DType::f64);
        const Result naive32 = run(ctx, single, problem.options(Algorithm::naive));
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(DType::f64, ctx.device()));
        for (const Algorithm algorithm : algorithms) {
            SCOPED_TRACE(::testing::Message() << algorithm);
            expect_float64_accuracy(naive32, run(ctx, in, problem.options(algorithm)), reference);
        }
    }
}

/// Tests with every dtype for q, k and v. Sinks and biases are always float32.
class IsAsAccurateAsNaive : public testing::TestWithParam<DType> {
  protected:
    void expect_every_kernel_accurate(const std::vector<Problem>& problems) const {
        const Context ctx(Device::cpu(), 2);
        for (const Problem& problem : problems) {
            SCOPED_TRACE(::testing::Message() << problem);
            const Inputs in = random_inputs(ctx, problem, GetParam());
            const Reference reference =
                float64_reference(ctx, problem, in, roundoff_of(GetParam(), ctx.device()));
            const Result naive = run(ctx, in, problem.options(Algorithm::naive));
            for_every_algorithm(GetParam(), [&](Algorithm algorithm) {
                if (algorithm != Algorithm::naive)
                    expect_accurate(GetParam(), naive, run(ctx, in, problem.options(algorithm)), reference);
            });
        }
    }
};

TEST_P(IsAsAccurateAsNaive, UnderEveryScoreOption) {
    expect_every_kernel_accurate(problems_of_score_options());
}
TEST_P(IsAsAccurateAsNaive, UnderScoreOptionsAtAnyShape) {
    expect_every_kernel_accurate(problems_of_score_option_shapes());
}
INSTANTIATE_TEST_SUITE_P(ScoreOptions, IsAsAccurateAsNaive,
                         testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// Attention as a function of q, k, v and the option tensors.
struct BiasedOperator {
    Options options;
    Tensor d_lse;
    Saved saved = {};

    Tensor forward(const Context& ctx, const std::vector<Tensor>& x) {
        return attention::forward(ctx, x[0], x[1], x[2], with(x), saved);
    }
    std::vector<Tensor> backward(const Context& ctx, const std::vector<Tensor>& x, const Tensor& d_o) {
        const Gradients g = attention::backward(ctx, d_o, with(x), saved);
        return {g.q, g.k, g.v, g.biases[0], g.biases[1]};
    }

  private:
    Options with(const std::vector<Tensor>& x) const {
        Options all = options;
        all.biases = {x[3], x[4]};
        return all;
    }
};

struct StandardMath {
    static double tanh(double x) { return std::tanh(x); }
    static double quotient(double x, double y) { return x / y; }
    static double abs(double x) { return std::abs(x); }
};

// Hopper's kernels apply the formula to scores that are divided by the scale.
TEST(ScoreOptions, AFormulaHasTheUnitsOfItsScores) {
    const ScoreFormula<double> formula{.softcap = 1.5, .alibi_slope = 0.375};
    // With a parameter more, this line does not compile. The parameter then needs a value above.
    const auto& [softcap, alibi_slope] = formula;
    ASSERT_TRUE(softcap != 0 && alibi_slope != 0);
    constexpr double factor = 0.25;  // a power of two, so that both sides round equally
    const ScoreFormula<double> converted = formula.in_units(factor);
    for (const double x : {-7.0, -0.3, 0.0, 1.1, 20.0}) {
        const Score<double> score = formula.transform_product<StandardMath>(x),
                            other = converted.transform_product<StandardMath>(factor * x);
        EXPECT_EQ(other.value, factor * score.value) << x;
        EXPECT_EQ(other.derivative, score.derivative) << x;
        EXPECT_EQ(converted.add_distance_terms<StandardMath>(factor * x, 9.0),
                  factor * formula.add_distance_terms<StandardMath>(x, 9.0))
            << x;
    }
}

TEST(ScoreOptions, GradientsAreThoseOfFiniteDifferences) {
    const Context ctx(Device::cpu(), 2);
    Problem problem = score_option_problems({.queries = 40,
                                             .keys = 70,
                                             .causal = true,
                                             .batch = 4,
                                             .heads = 4,
                                             .key_heads = 2,
                                             .batch_divisor = 2})
                          .back()
                          .problem;
    problem.biases[1] = {2, 4, 40, 70};
    const Inputs in = random_inputs(ctx, problem, DType::f64);
    for (const Algorithm algorithm : algorithms) {
        SCOPED_TRACE(::testing::Message() << algorithm);
        const Options options = in.with_tensors(problem.options(algorithm));
        const GradientReport report = gradient_check(
            ctx, BiasedOperator{options, {}},
            {in.q, in.k, in.v, cast(ctx, in.biases[0], DType::f64), cast(ctx, in.biases[1], DType::f64)},
            {.elements = 32, .names = {"q", "k", "v", "mask bias", "pair bias"}});
        EXPECT_TRUE(report.ok()) << report;
    }
}

/// gradient_check() cannot change a sink, which is float32, nor use the LSE, which is a second output. So
/// this test computes central differences from float64 runs itself.
TEST(ScoreOptions, GradientsOfTheSinkAndThroughTheLseAreThoseOfFiniteDifferences) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 20,
                          .keys = 70,
                          .d_qk = 8,
                          .d_v = 8,
                          .batch = 2,
                          .heads = 2,
                          .key_heads = 1,
                          .softcap = 2,
                          .sink = true,
                          .d_lse = true};
    const Inputs in = random_inputs(ctx, problem, DType::f64);
    const auto loss = [&](const Inputs& inputs) {
        Options options = problem.options();
        options.sink = inputs.sink;
        Saved saved;
        const std::vector<double> o =
            to_host(ctx, forward(ctx, inputs.q, inputs.k, inputs.v, options, saved));
        const std::vector<double> lse = to_host(ctx, saved.lse), d_o = to_host(ctx, in.d_o),
                                  d_lse = to_host(ctx, in.d_lse);
        double sum = 0;
        for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * d_o[i];
        for (std::size_t i = 0; i < lse.size(); ++i) sum += lse[i] * d_lse[i];
        return sum;
    };
    const Result result = run(ctx, in, problem.options());
    const auto difference = [&](Tensor Inputs::*tensor, std::size_t element, double step) {
        double sides[2];
        for (const int side : {0, 1}) {
            Inputs moved = in;
            std::vector<double> numbers = to_host(ctx, in.*tensor);
            numbers[element] += side == 0 ? step : -step;
            moved.*tensor = from_host(ctx, numbers, (in.*tensor).shape(), (in.*tensor).dtype());
            sides[side] = loss(moved);
        }
        return (sides[0] - sides[1]) / (2 * step);
    };
    constexpr double step = 0x1p-10;  // truncation step^2, rounding 2^-53 / step
    for (const std::size_t head : {0u, 1u})
        EXPECT_NEAR(difference(&Inputs::sink, head, step), result.d_sink[head],
                    1e-5 * (1 + std::abs(result.d_sink[head])));
    for (const std::size_t element : {0u, 17u, 100u, 319u}) {
        EXPECT_NEAR(difference(&Inputs::q, element, step), result.d_q[element], 1e-5);
        EXPECT_NEAR(difference(&Inputs::k, element, step), result.d_k[element], 1e-5);
    }
}

TEST(ScoreOptions, RowsOfTheLowestScoresGiveNumbers) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : floating_dtypes)
        for_every_algorithm(dtype, [&](Algorithm algorithm) {
            const Inputs in = inputs_with_lowest_scores(ctx, dtype, DType::f32);
            expect_finite(run(ctx, in, problem_with_lowest_scores().options(algorithm)));
        });
}

/// Keys with bias -inf are the keys that a mask hides.
TEST(ScoreOptions, ABiasOfMinusInfinityHidesKeys) {
    const Context ctx(Device::cpu(), 2);
    const Problem causal{
        .queries = 70, .keys = 70, .d_qk = 16, .d_v = 16, .causal = true, .heads = 2, .key_heads = 2};
    Problem hidden = causal;
    hidden.causal = false;
    hidden.biases[0] = {1, 1, 70, 70};
    std::vector<double> bias(70 * 70);
    for (std::size_t i = 0; i < 70; ++i)
        for (std::size_t j = 0; j < 70; ++j) bias[i * 70 + j] = j > i ? -infinity : 0;
    for (const DType dtype : floating_dtypes)
        for_every_algorithm(dtype, [&](Algorithm algorithm) {
            Inputs in = random_inputs(ctx, causal, dtype);
            const Reference reference = float64_reference(ctx, causal, in, roundoff_of(dtype, ctx.device()));
            const Result naive = run(ctx, in, causal.options(Algorithm::naive));
            in.biases[0] = from_host(ctx, bias, {1, 1, 70, 70}, DType::f32);
            Result result = run(ctx, in, hidden.options(algorithm));
            for (std::size_t i = 0; i < bias.size(); ++i)
                EXPECT_TRUE(std::isfinite(result.d_bias_0[i]) && (bias[i] == 0 || result.d_bias_0[i] == 0))
                    << i;
            result.d_bias_0.clear();
            if (algorithm == Algorithm::naive) {
                expect_as_accurate_as(naive, result, reference, factors_of(DType::f32));
            } else {
                expect_accurate(dtype, naive, result, reference);
            }
        });
}

TEST(ScoreOptions, RowsWhoseScoresAreAllMinusInfinitySeeNothing) {
    const Context ctx(Device::cpu(), 2);
    for (const bool with_sink : {false, true})
        for (const DType dtype : floating_dtypes)
            for_every_algorithm(dtype, [&](Algorithm algorithm) {
                SCOPED_TRACE(::testing::Message() << "sink " << with_sink);
                const RowsOfMinusInfinity rows(with_sink);
                const Inputs in = rows.inputs(ctx, dtype);
                rows.expect_zeros(ctx, in, run(ctx, in, rows.problem().options(algorithm)),
                                  /*lse_error=*/0);
            });
}

std::vector<double> row_of(const std::vector<double>& rows, std::size_t row, std::size_t columns) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(row * columns);
    return {begin, begin + static_cast<std::ptrdiff_t>(columns)};
}
const auto all_nan = testing::Each(testing::Truly([](double x) { return std::isnan(x); }));

/// In the NaN's row, O, LSE, dQ and the bias gradient become NaN, and so do dK and dV at the keys that this
/// row sees. All other elements stay equal to the bit.
TEST(ScoreOptions, ANaNInABiasReachesItsRowAlone) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 80,
                          .keys = 80,
                          .d_qk = 8,
                          .d_v = 8,
                          .causal = true,
                          .softcap = 3,
                          .sink = true,
                          .biases = {Shape{1, 1, 80, 80}}};
    // Row 0 sees only one key, so its maximum is the NaN itself.
    for (const std::size_t bad : {0u, 37u})
        for (const DType dtype : floating_dtypes)
            for_every_algorithm(dtype, [&](Algorithm algorithm) {
                Inputs in = random_inputs(ctx, problem, dtype);
                const Result expected = run(ctx, in, problem.options(algorithm));
                std::vector<double> bias = to_host(ctx, in.biases[0]);
                bias[bad * 80 + bad / 2] = std::nan("");
                in.biases[0] = from_host(ctx, bias, {1, 1, 80, 80}, DType::f32);
                const Result result = run(ctx, in, problem.options(algorithm));
                EXPECT_TRUE(std::isnan(result.lse[bad]));
                for (std::size_t row = 0; row < 80; ++row) {
                    SCOPED_TRACE(row);
                    for (std::vector<double> Result::*part :
                         {&Result::o, &Result::d_q, &Result::d_k, &Result::d_v}) {
                        const bool is_of_key = part == &Result::d_k || part == &Result::d_v;
                        if (is_of_key ? row <= bad : row == bad) {
                            EXPECT_THAT(row_of(result.*part, row, 8), all_nan);
                        } else {
                            EXPECT_EQ(row_of(result.*part, row, 8), row_of(expected.*part, row, 8));
                        }
                    }
                    if (row == bad) {
                        for (std::size_t j = 0; j < 80; ++j)
                            EXPECT_EQ(std::isnan(result.d_bias_0[bad * 80 + j]), j <= bad) << j;
                    } else {
                        EXPECT_EQ(result.lse[row], expected.lse[row]);
                        EXPECT_EQ(row_of(result.d_bias_0, row, 80), row_of(expected.d_bias_0, row, 80));
                    }
                }
            });
}

/// Calls without any score option use separate kernels. With a softcap, the calls with and without a sink use
/// the same kernel.
TEST(ScoreOptions, AnExtremeSinkTakesAllOrNothing) {
    const Context ctx(Device::cpu(), 2);
    const Problem without{
        .queries = 80, .keys = 150, .d_qk = 8, .d_v = 8, .causal = true, .softcap = 3, .d_lse = true};
    Problem with = without;
    with.sink = true;
    for (const DType dtype : floating_dtypes)
        for_every_algorithm(dtype, [&](Algorithm algorithm) {
            Inputs in = random_inputs(ctx, without, dtype);
            const Result expected = run(ctx, in, without.options(algorithm));
            in.sink = from_host(ctx, std::vector<double>{-1e30}, {1}, DType::f32);
            Result nothing = run(ctx, in, with.options(algorithm));
            EXPECT_EQ(nothing.d_sink, std::vector<double>{0});
            nothing.d_sink.clear();
            EXPECT_EQ(nothing, expected);

            in.sink = from_host(ctx, std::vector<double>{1e30}, {1}, DType::f32);
            const Result all = run(ctx, in, with.options(algorithm));
            EXPECT_THAT(all.lse, testing::Each(to_host(ctx, in.sink)[0]));
            for (const auto* numbers : {&all.o, &all.d_q, &all.d_k, &all.d_v})
                EXPECT_THAT(*numbers, testing::Each(0));
            EXPECT_TRUE(std::isfinite(all.d_sink[0]));
        });
}

/// A bias in q's dtype is not rounded, and its gradient is a float32 sum that is rounded once.
TEST(ScoreOptions, ABiasMayHaveTheDtypeOfTheInputs) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 70,
                          .keys = 90,
                          .d_qk = 8,
                          .d_v = 8,
                          .batch = 2,
                          .heads = 2,
                          .key_heads = 1,
                          .biases = {Shape{1, 2, 70, 90}, Shape{2, 1, 1, 90}}};
    for (const DType dtype : {DType::bf16, DType::f16})
        for_every_algorithm(dtype, [&](Algorithm algorithm) {
            Inputs in = random_inputs(ctx, problem, dtype);
            for (Tensor& bias : in.biases) bias = cast(ctx, bias, dtype);
            const Result result = run(ctx, in, problem.options(algorithm));
            for (Tensor& bias : in.biases) bias = cast(ctx, bias, DType::f32);
            Result expected = run(ctx, in, problem.options(algorithm));
            for (auto* sums : {&expected.d_bias_0, &expected.d_bias_1}) {
                const Tensor exact = from_host(ctx, *sums, {std::ssize(*sums)}, DType::f32);
                *sums = to_host(ctx, cast(ctx, exact, dtype));
            }
            EXPECT_EQ(result, expected);
        });
}

TEST(ScoreOptions, ABiasMayHaveAnyStrides) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 70,
                          .keys = 90,
                          .d_qk = 8,
                          .d_v = 8,
                          .causal = true,
                          .heads = 2,
                          .key_heads = 1,
                          .biases = {Shape{1, 2, 70, 90}, Shape{1, 1, 70, 90}}};
    for (const DType dtype : floating_dtypes)
        for_every_algorithm(dtype, [&](Algorithm algorithm) {
            Inputs in = random_inputs(ctx, problem, dtype);
            const Result expected = run(ctx, in, problem.options(algorithm));
            // Two layouts: keys on the outermost axis; every second element in rows that are twice as long.
            const Tensor keys_outermost = zeros(ctx, {1, 90, 70, 2}, DType::f32).transpose(1, 3);
            const Tensor every_second = zeros(ctx, {1, 1, 70, 90, 2}, DType::f32).select(4, 1);
            copy(ctx, keys_outermost, in.biases[0]);
            copy(ctx, every_second, in.biases[1]);
            in.biases = {keys_outermost, every_second};
            EXPECT_EQ(run(ctx, in, problem.options(algorithm)), expected);
        });
}

/// A bias with stride 0 along an axis gets the same gradient as a bias whose axis has length 1.
TEST(ScoreOptions, ABiasMayBeAnExpandedView) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 40,
                          .keys = 70,
                          .d_qk = 8,
                          .d_v = 8,
                          .batch = 3,
                          .heads = 2,
                          .key_heads = 2,
                          .biases = {Shape{1, 2, 40, 70}}};
    Inputs in = random_inputs(ctx, problem, DType::f32);
    const Result narrow = run(ctx, in, problem.options());
    in.biases[0] = in.biases[0].expand({3, 2, 40, 70});
    Saved saved;
    Options options = problem.options();
    options.biases = in.biases;
    forward(ctx, in.q, in.k, in.v, options, saved);
    const Gradients wide = backward(ctx, in.d_o, options, saved);
    EXPECT_EQ(wide.biases[0].shape(), Shape({3, 2, 40, 70}));
    EXPECT_EQ(wide.biases[0].stride(0), 0);
    EXPECT_EQ(to_host(ctx, wide.biases[0].slice(0, 0, 1)), narrow.d_bias_0);
}

TEST(ScoreOptions, OnlyRequestedGradientsAreComputed) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 40,
                          .keys = 70,
                          .d_qk = 8,
                          .d_v = 8,
                          .sink = true,
                          .biases = {Shape{1, 1, 40, 70}, Shape{1, 1, 1, 70}}};
    const Inputs in = random_inputs(ctx, problem, DType::f32);
    const Result all = run(ctx, in, problem.options());
    Options options = problem.options();
    options.biases = in.biases;
    options.sink = in.sink;
    Saved saved;
    forward(ctx, in.q, in.k, in.v, options, saved);
    const Gradients into{.q = empty_like(ctx, in.q),
                         .k = empty_like(ctx, in.k),
                         .v = empty_like(ctx, in.v),
                         .biases = {Tensor(), empty_like(ctx, in.biases[1])}};
    backward(ctx, in.d_o, options, saved, into);
    EXPECT_EQ(to_host(ctx, into.q), all.d_q);
    EXPECT_EQ(to_host(ctx, into.biases[1]), all.d_bias_1);
}

TEST(ScoreOptions, ResultsDoNotDependOnTheNumberOfThreads) {
    const Context one(Device::cpu(), 1);
    for (const Problem& problem : problems_of_score_options())
        for (const DType dtype : {DType::f32, DType::bf16}) {
            SCOPED_TRACE(::testing::Message() << problem << ' ' << dtype);
            const Inputs in = random_inputs(one, problem, dtype);
            for_every_algorithm(dtype, [&](Algorithm algorithm) {
                const Result expected = run(one, in, problem.options(algorithm));
                for (const int threads : {2, 3})
                    EXPECT_EQ(run(Context(Device::cpu(), threads), in, problem.options(algorithm)), expected)
                        << threads;
            });
        }
}

/// Nothing is dropped with the default key (as in evaluation) or with probability 0. Another step or sample
/// gives another mask.
TEST(ScoreOptions, DropoutFollowsItsKey) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 40, .keys = 70, .d_qk = 8, .d_v = 8};
    const Inputs in = random_inputs(ctx, problem, DType::f64);
    const auto output = [&](double p, const DropoutKey& key) {
        Options options = problem.options();
        options.dropout_p = p;
        options.dropout_key = key;
        return run(ctx, in, options).o;
    };
    const auto plain = run(ctx, in, problem.options()).o;
    EXPECT_EQ(output(0.5, {}), plain);
    EXPECT_EQ(output(0, DropoutKey::from_step(1, 2)), plain);
    const auto dropped = output(0.5, DropoutKey::from_step(1, 2));
    EXPECT_NE(dropped, plain);
    EXPECT_EQ(output(0.5, DropoutKey::from_step(1, 2)), dropped);
    EXPECT_NE(output(0.5, DropoutKey::from_step(1, 3)), dropped);
    EXPECT_NE(output(0.5, DropoutKey::from_step(1, 2, /*first_sample=*/1)), dropped);
    const auto words = DropoutKey::seed_words(1, 2);
    const Tensor seed_tensor = from_host(ctx, std::vector<std::int32_t>(words.begin(), words.end()), {2});
    EXPECT_EQ(output(0.5, DropoutKey::from_seed_tensor(seed_tensor)), dropped);
}

TEST(ScoreOptions, TheLimitsOfSoftcapGiveTheLimitsOfTheFormula) {
    const Context ctx(Device::cpu(), 2);
    const Problem plain{.queries = 40, .keys = 70, .d_qk = 8, .d_v = 8};
    for (const DType dtype : floating_dtypes) {
        SCOPED_TRACE(::testing::Message() << dtype);
        const Inputs in = random_inputs(ctx, plain, dtype);
        const Reference reference = float64_reference(ctx, plain, in, roundoff_of(dtype, ctx.device()));
        const Result naive = run(ctx, in, plain.options(Algorithm::naive));
        Problem problem = plain;
        problem.softcap = 1e20;  // tanh(x) = x
        expect_as_accurate_as(naive, run(ctx, in, problem.options()), reference, factors_of(dtype));
        problem.softcap = 1e-20;  // all scores are 0
        for (const double lse : run(ctx, in, problem.options()).lse) EXPECT_NEAR(lse, std::log(70.0), 1e-5);
    }
}

TEST(ScoreOptions, WrongOptionsAreRefusedByName) {
    const Context ctx(Device::cpu(), 1);
    const Problem problem{
        .queries = 4, .keys = 6, .d_qk = 8, .d_v = 8, .batch = 4, .heads = 2, .key_heads = 2};
    const Inputs in = random_inputs(ctx, problem, DType::f32);
    const auto message = [&](const Options& options) {
        return message_of([&] {
            Saved saved;
            forward(ctx, in.q, in.k, in.v, options, saved);
        });
    };
    const auto make = [&](const Shape& shape, DType dtype = DType::f32) { return zeros(ctx, shape, dtype); };
    for (const double softcap : {-1.0, 1e-50, 1e300, infinity, std::nan("")})
        EXPECT_THAT(message({.softcap = softcap}), HasSubstr("; expected 0 (none) or 1e-20 to 1e+20"));
    EXPECT_THAT(message({.biases = {make({4, 3, 4, 6})}}), HasSubstr("does not broadcast to [4, 2, 4, 6]"));
    EXPECT_THAT(message({.biases = {make({2, 2, 4, 6})}}), HasSubstr("with batch_divisor 1"));
    EXPECT_EQ(message({.biases = {make({2, 2, 4, 6})}, .batch_divisor = 2}), "no error");
    EXPECT_THAT(message({.biases = {make({4, 6})}}), HasSubstr("expected rank 4"));
    EXPECT_THAT(message({.biases = {make({1, 1, 4, 6}, DType::bf16)}}), HasSubstr("float32 or float32"));
    EXPECT_THAT(
        message({.biases = {make({2, 2, 4, 6})}, .batch_divisor = std::numeric_limits<std::int64_t>::max()}),
        HasSubstr("does not broadcast"));
    EXPECT_THAT(message({.batch_divisor = 0}), HasSubstr("batch_divisor 0; expected at least 1"));
    EXPECT_THAT(message({.alibi_slopes = make({3})}), HasSubstr("alibi_slopes is"));
    EXPECT_THAT(message({.sink = make({2}, DType::f64)}), HasSubstr("sink is"));
    EXPECT_THAT(message({.dropout_p = 1.0, .dropout_key = DropoutKey::from_step(1, 1)}),
                HasSubstr("attention: dropout probability 1 is not in [0, 1)"));
    EXPECT_THAT(message({.dropout_p = 0.999999, .dropout_key = DropoutKey::from_step(1, 1)}),
                HasSubstr("would drop all elements"));
}

}  // namespace
}  // namespace gradtile::attention::test
