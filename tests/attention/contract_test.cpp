// What attention.h promises in special cases: zero lengths, rows without visible keys, keys that no row sees,
// refused arguments.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include <gradtile/attention/decode.h>

#include <support/error_message.h>

#include "reference.h"

namespace gradtile::attention::test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

template <class Body>
void for_every_dtype_and_algorithm(Body&& body) {
    for (const DType dtype : floating_dtypes)
        for (const Algorithm algorithm : algorithms) {
            SCOPED_TRACE(::testing::Message() << dtype << ' ' << algorithm);
            body(dtype, algorithm);
        }
}

/// The elements with index [begin, begin + length) along an axis.
std::vector<double> part(const Context& ctx, const Tensor& x, int axis, std::int64_t begin,
                         std::int64_t length) {
    return to_host(ctx, x.slice(axis, begin, length));
}

TEST(AttentionContract, Float16OnAGpuIsRefusedByNameInBuildsWithoutItsKernels) {
    const Device gpu = Device::cuda(0);
    if (supports(gpu, DType::f16)) GTEST_SKIP() << "this build has the kernels";
    const Context plan = Context(Device::cpu(), 1).plan(Arena::for_planning(gpu));
    const Tensor q = empty(plan, {1, 8, 2, 64}, DType::f16);
    Saved saved;
    const std::string because = "float16 on a GPU needs a build with -DGRADTILE_FLOAT16=ON";
    EXPECT_THAT(gradtile::test::message_of([&] { forward(plan, q, q, q, {}, saved); }), HasSubstr(because));
    const Tensor row = empty(plan, {1, 1, 2, 64}, DType::f16), kept = empty(plan, {1, 4, 2, 64}, DType::f16),
                 index = empty(plan, {1}, DType::i32);
    const DecodeCache cache{kept, kept};
    const DecodeScratch scratch(plan, 1, 2, cache);
    EXPECT_THAT(gradtile::test::message_of([&] {
                    decode(plan, row, {.q = row, .k = row, .v = row, .slots = index, .positions = index},
                           cache, {.causal = true}, scratch);
                }),
                HasSubstr(because));
    EXPECT_TRUE(supports(gpu, DType::bf16));
    EXPECT_TRUE(supports(Device::cpu(), DType::f16));
}

TEST(AttentionContract, WithoutKeysOutputsAndGradientsAreZero) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 5, .keys = 0, .causal = true, .batch = 2, .heads = 2, .key_heads = 1};
    for_every_dtype_and_algorithm([&](DType dtype, Algorithm algorithm) {
        const Result result = run(ctx, random_inputs(ctx, problem, dtype), problem.options(algorithm));
        EXPECT_THAT(result.o, Each(0.0));
        EXPECT_THAT(result.lse, Each(-infinity));
        EXPECT_THAT(result.d_q, Each(0.0));
        EXPECT_THAT(result.d_k, IsEmpty());
        EXPECT_THAT(result.d_v, IsEmpty());
    });
}

/// The CPU backward pass once divided by the number of key blocks or heads over which it sums such a
/// gradient.
TEST(AttentionContract, WithoutKeysOrHeadsTheGradientOfABiasThatIsBroadcastOverThemIsZero) {
    const Context ctx(Device::cpu(), 2);
    const Problem without_keys{
        .queries = 5, .keys = 0, .batch = 2, .heads = 2, .key_heads = 2, .biases = {Shape{2, 2, 5, 1}}},
        without_heads{
            .queries = 5, .keys = 6, .batch = 2, .heads = 0, .key_heads = 0, .biases = {Shape{2, 1, 5, 6}}};
    for_every_dtype_and_algorithm([&](DType dtype, Algorithm algorithm) {
        for (const Problem& problem : {without_keys, without_heads}) {
            SCOPED_TRACE(::testing::Message() << problem);
            const Result result = run(ctx, random_inputs(ctx, problem, dtype), problem.options(algorithm));
            EXPECT_EQ(result.d_bias_0.size(), static_cast<std::size_t>(problem.biases[0].elements()));
            EXPECT_THAT(result.d_bias_0, Each(0.0));
        }
    });
}

TEST(AttentionContract, WithoutQueriesTheGradientsOfKeysAndValuesAreZero) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 0, .keys = 5, .causal = true, .batch = 2, .heads = 2, .key_heads = 1};
    for_every_dtype_and_algorithm([&](DType dtype, Algorithm algorithm) {
        const Result result = run(ctx, random_inputs(ctx, problem, dtype), problem.options(algorithm));
        EXPECT_THAT(result.o, IsEmpty());
        EXPECT_THAT(result.lse, IsEmpty());
        EXPECT_THAT(result.d_q, IsEmpty());
        EXPECT_THAT(result.d_k, Each(0.0));
        EXPECT_THAT(result.d_v, Each(0.0));
        EXPECT_EQ(result.d_k.size(), 80u);
    });
}

TEST(AttentionContract, AnEmptyBatchAndZeroHeadsAreValid) {
    const Context ctx(Device::cpu(), 2);
    for_every_dtype_and_algorithm([&](DType dtype, Algorithm algorithm) {
        for (const Problem& problem : {Problem{.queries = 3, .keys = 4, .batch = 0},
                                       {.queries = 3, .keys = 4, .heads = 0, .key_heads = 0}})
            EXPECT_THAT(run(ctx, random_inputs(ctx, problem, dtype), problem.options(algorithm)).o,
                        IsEmpty());
    });
}

TEST(AttentionContract, ASingleKeyGivesItsValue) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 1, .keys = 1};
    for_every_dtype_and_algorithm([&](DType dtype, Algorithm algorithm) {
        const Inputs in = random_inputs(ctx, problem, dtype);
        const Result result = run(ctx, in, problem.options(algorithm));
        EXPECT_EQ(result.o, to_host(ctx, in.v));
        EXPECT_EQ(result.d_v.size(), 8u);
    });
}

TEST(AttentionContract, RowsWithoutVisibleKeysHaveZeroOutputsAndGradients) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{
        .queries = 150, .keys = 50, .d_qk = 16, .d_v = 24, .causal = true, .heads = 2, .key_heads = 1};
    constexpr std::int64_t rows_without_keys = 100;  // the rows above the bottom-right diagonal
    for_every_dtype_and_algorithm([&](DType dtype, Algorithm algorithm) {
        const Inputs in = random_inputs(ctx, problem, dtype);
        Saved saved;
        const Tensor o = forward(ctx, in.q, in.k, in.v, problem.options(algorithm), saved);
        const Gradients all = backward(ctx, in.d_o, problem.options(algorithm), saved);
        EXPECT_THAT(part(ctx, o, 1, 0, rows_without_keys), Each(0.0));
        EXPECT_THAT(part(ctx, saved.lse, 2, 0, rows_without_keys), Each(-infinity));
        EXPECT_THAT(part(ctx, all.q, 1, 0, rows_without_keys), Each(0.0));

        // The problem without these rows gives the other rows the same O.
        const auto seeing = [&](const Tensor& x) {
            return x.slice(1, rows_without_keys, problem.queries - rows_without_keys);
        };
        Saved saved_seeing;
        const Tensor o_seeing =
            forward(ctx, seeing(in.q), in.k, in.v, problem.options(algorithm), saved_seeing);
        EXPECT_EQ(to_host(ctx, seeing(o)), to_host(ctx, o_seeing));
    });
}

TEST(AttentionContract, InputsOfRowsWithoutVisibleKeysDoNotChangeResults) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 150, .keys = 50, .d_qk = 16, .d_v = 24, .causal = true};
    for_every_dtype_and_algorithm([&](DType dtype, Algorithm algorithm) {
        const Inputs in = random_inputs(ctx, problem, dtype);
        const Result expected = run(ctx, in, problem.options(algorithm));
        fill(ctx, in.q.slice(1, 0, 100), 3);
        fill(ctx, in.d_o.slice(1, 0, 100), -1000);
        EXPECT_EQ(run(ctx, in, problem.options(algorithm)), expected);
    });
}

TEST(AttentionContract, KeysThatNoRowSeesHaveZeroGradients) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{
        .queries = 30, .keys = 150, .d_qk = 16, .d_v = 24, .causal = true, .top_left = true};
    for_every_dtype_and_algorithm([&](DType dtype, Algorithm algorithm) {
        const Inputs in = random_inputs(ctx, problem, dtype);
        Saved saved;
        forward(ctx, in.q, in.k, in.v, problem.options(algorithm), saved);
        const Gradients gradients = backward(ctx, in.d_o, problem.options(algorithm), saved);
        EXPECT_THAT(part(ctx, gradients.k, 1, 30, 120), Each(0.0));
        EXPECT_THAT(part(ctx, gradients.v, 1, 30, 120), Each(0.0));
    });
}

TEST(AttentionContract, TheDefaultScaleIsOneOverTheRootOfTheHeadDim) {
    const Context ctx(Device::cpu(), 2);
    Problem problem{.queries = 9, .keys = 11, .d_qk = 40, .d_v = 8};
    const Inputs in = random_inputs(ctx, problem, DType::f64);
    const Result expected = run(ctx, in, problem.options());
    problem.scale = 1 / std::sqrt(40.0);
    EXPECT_EQ(run(ctx, in, problem.options()), expected);
}

/// In this problem rows 0 to 39 see no key.
TEST(AttentionContract, AScaleBelowTheNormalNumbersOfFloat32ActsAsZero) {
    const Context ctx(Device::cpu(), 2);
    Problem none{.queries = 110, .keys = 70, .causal = true};
    none.scale = 0.0;
    Problem tiny = none;
    tiny.scale = 1e-50;
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Inputs in = random_inputs(ctx, none, dtype);
        EXPECT_EQ(run(ctx, in, tiny.options()), run(ctx, in, none.options())) << dtype;
    }
}

TEST(AttentionContract, CausalEqualsAWindowWithRightSideZero) {
    const Context ctx(Device::cpu(), 2);
    Problem causal{.queries = 70, .keys = 90, .causal = true, .window = {.left = 20, .right = 30}};
    const Problem window{.queries = 70, .keys = 90, .window = {.left = 20, .right = 0}};
    const Inputs in = random_inputs(ctx, causal, DType::f32);
    EXPECT_EQ(run(ctx, in, causal.options()), run(ctx, in, window.options()));
    // A window whose sides are longer than any sequence hides nothing, and no sum overflows.
    const Problem all{.queries = 70, .keys = 90};
    constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max();
    const Problem wide{.queries = 70, .keys = 90, .window = {.left = far, .right = far}};
    EXPECT_EQ(run(ctx, in, wide.options()), run(ctx, in, all.options()));
}

TEST(AttentionContract, ANaNInputMakesEveryRowThatSeesItNaN) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 70, .keys = 70, .d_qk = 16, .d_v = 16, .causal = true};
    constexpr std::int64_t place = 20;
    for_every_dtype_and_algorithm([&](DType dtype, Algorithm algorithm) {
        for (Tensor Inputs::*poisoned : {&Inputs::q, &Inputs::k, &Inputs::v}) {
            Inputs in = random_inputs(ctx, problem, dtype);
            fill(ctx, (in.*poisoned).slice(1, place, 1).slice(3, 5, 1), std::nan(""));
            const Result result = run(ctx, in, problem.options(algorithm));
            const std::int64_t end = poisoned == &Inputs::q ? place + 1 : problem.queries;
            for (std::int64_t i = place; i < end; ++i)
                EXPECT_TRUE(std::isnan(result.o[static_cast<std::size_t>(i * problem.d_v + 5)])) << i;
        }
    });
}

/// Returns the call's Error message; empty if the call throws none.
template <class Call>
std::string refusal(Call&& call) {
    try {
        call();
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

class AttentionRefuses : public ::testing::Test {
  protected:
    Context ctx{Device::cpu(), 1};
    Inputs in = random_inputs(ctx, {.queries = 4, .keys = 6, .heads = 4, .key_heads = 2}, DType::f32);

    std::string forward_refusal(const Tensor& q, const Tensor& k, const Tensor& v,
                                const Options& options = {}) const {
        return refusal([&] {
            Saved saved;
            forward(ctx, q, k, v, options, saved);
        });
    }
    Tensor make(const Shape& shape, DType dtype = DType::f32) const { return zeros(ctx, shape, dtype); }
};

TEST_F(AttentionRefuses, PackedSequencesWithTheAlgorithmsThatLackThem) {
    const Tensor offsets = make({2}, DType::i32);
    for (const Algorithm algorithm : tiled_algorithms) {
        const auto names_both = [&](const char* option) {
            return ::testing::AllOf(HasSubstr(concat("algorithm ", algorithm)), HasSubstr(option));
        };
        EXPECT_THAT(
            forward_refusal(in.q, in.k, in.v,
                            {.algorithm = algorithm, .cumulative_q = offsets, .cumulative_k = offsets}),
            names_both("cumulative_q"));
        EXPECT_THAT(forward_refusal(in.q, in.k, in.v, {.algorithm = algorithm, .cumulative_k = offsets}),
                    names_both("cumulative_k"));
    }
}

/// flash1's backward pass needs m and l, which other algorithms do not save.
TEST_F(AttentionRefuses, BackwardOfFlash1WithoutItsStatistics) {
    Saved saved;
    forward(ctx, in.q, in.k, in.v, {}, saved);
    EXPECT_THAT(refusal([&] { backward(ctx, in.d_o, {.algorithm = Algorithm::flash1}, saved); }),
                HasSubstr("saved row_max"));
}

TEST(AttentionAlgorithm, HasANameAndFlashIsFlash2) {
    EXPECT_EQ(Algorithm::flash, Algorithm::flash2);
    EXPECT_EQ(algorithm_named("flash", "--algorithm"), Algorithm::flash2);
    EXPECT_EQ(concat(Algorithm::flash), "flash2");
    for (const Algorithm algorithm : algorithms)
        EXPECT_EQ(algorithm_named(concat(algorithm), "--algorithm"), algorithm);
    EXPECT_EQ(refusal([] { algorithm_named("flash3", "--algorithm"); }),
              "--algorithm: 'flash3' is unknown; expected flash2, naive, memory_efficient or flash1");
}

/// With the largest allowed scale, and products so small that the scores are usual numbers, P is finite.
TEST(AttentionContract, TheLargestScaleGivesNumbers) {
    const Context ctx(Device::cpu(), 2);
    const auto expect_numbers = [&](DType dtype, double scale) {
        for (const std::int64_t queries : {1, 12, 70})
            for (const Algorithm algorithm : algorithms) {
                Problem problem{.queries = queries, .keys = 70, .d_qk = 32, .d_v = 32};
                problem.scale = scale;
                Inputs in = random_inputs(ctx, problem, DType::f64);
                for (const Tensor* x : {&in.q, &in.k}) axpy(ctx, *x, 1 / std::sqrt(std::abs(scale)) - 1, *x);
                const Result result = run(ctx, in.to(ctx, dtype), problem.options(algorithm));
                for (const auto* part : {&result.o, &result.d_q, &result.d_k, &result.d_v})
                    EXPECT_TRUE(std::ranges::all_of(*part, [](double x) { return std::isfinite(x); }))
                        << dtype << ' ' << algorithm << ", " << queries << " queries, scale " << scale;
            }
    };
    for (const double part : {0.5, -0.5}) {
        for (const DType dtype : {DType::f32, DType::bf16})
            expect_numbers(dtype, part * std::numeric_limits<float>::max());
        expect_numbers(DType::f64, part * std::numeric_limits<double>::max());
    }
}

TEST_F(AttentionRefuses, ScalesBeyondFloat32AndNegativeWindows) {
    EXPECT_THAT(forward_refusal(in.q, in.k, in.v, {.scale = std::nan("")}), HasSubstr("scale"));
    EXPECT_THAT(forward_refusal(in.q, in.k, in.v, {.scale = infinity}), HasSubstr("scale"));
    EXPECT_THAT(forward_refusal(in.q, in.k, in.v, {.scale = -1e39}), HasSubstr("scale -1e+39; expected"));
    EXPECT_THAT(forward_refusal(in.q, in.k, in.v, {.scale = 2e38}), HasSubstr("scale 2e+38; expected"));
    EXPECT_THAT(forward_refusal(in.q, in.k, in.v, {.window = {.left = -2}}), HasSubstr("window {-2, -1}"));
    EXPECT_THAT(forward_refusal(in.q, in.k, in.v, {.window = {.right = -7}}), HasSubstr("window {-1, -7}"));
}

TEST_F(AttentionRefuses, ShapesThatDoNotMatch) {
    const auto expect_refused = [&](const Tensor& q, const Tensor& k, const Tensor& v, const char* message) {
        EXPECT_THAT(forward_refusal(q, k, v),
                    ::testing::AllOf(StartsWith("attention: "), HasSubstr(message)));
    };
    expect_refused(make({4, 4, 8}), in.k, in.v, "must be [batch, length, heads, head_dim]");
    expect_refused(in.q, make({2, 6, 2, 8}), make({2, 6, 2, 8}), "batch sizes differ");
    expect_refused(make({2, 4, 4, 8}), make({2, 6, 2, 8}), in.v, "batch sizes differ");
    expect_refused(in.q, make({1, 5, 2, 8}), in.v, "k and v must agree in length and heads");
    expect_refused(in.q, in.k, make({1, 6, 4, 8}), "k and v must agree in length and heads");
    expect_refused(make({1, 4, 3, 8}), in.k, in.v, "3 query heads are not a multiple of 2 key/value heads");
    expect_refused(make({1, 4, 0, 8}), in.k, in.v, "0 query heads are not a multiple of 2 key/value heads");
    expect_refused(make({1, 4, 4, 16}), in.k, in.v, "head_dim of q is 16, of k 8");
    expect_refused(make({1, 4, 4, 257}), make({1, 6, 2, 257}), in.v, "head_dim 257 is not in 1..256");
    expect_refused(in.q, in.k, make({1, 6, 2, 257}), "head_dim 257 is not in 1..256");
    expect_refused(in.q, in.k, make({1, 6, 2, 0}), "head_dim 0 is not in 1..256");
}

TEST_F(AttentionRefuses, DtypesThatDifferOrAreNotFloatingPoint) {
    EXPECT_THAT(forward_refusal(in.q, in.k, cast(ctx, in.v, DType::f64)), HasSubstr("one floating dtype"));
    const Tensor integers = make({1, 4, 2, 8}, DType::i32);
    EXPECT_THAT(forward_refusal(integers, integers, integers), HasSubstr("one floating dtype"));
}

TEST_F(AttentionRefuses, OutputsAndGradientsOfAnotherShapeOrDtype) {
    Saved saved;
    EXPECT_THAT(refusal([&] {
                    forward(ctx, in.q, in.k, in.v, {}, saved, make({1, 4, 4, 16}));
                }),
                HasSubstr("attention: o is"));
    forward(ctx, in.q, in.k, in.v, {}, saved);
    EXPECT_THAT(refusal([&] {
                    backward(ctx, make({1, 4, 4, 8}, DType::f64), {}, saved);
                }),
                HasSubstr("attention: d_o is"));
    EXPECT_THAT(refusal([&] { backward(ctx, Tensor(), {}, saved); }), HasSubstr("attention: d_o is"));
    const Gradients valid{empty_like(ctx, in.q), empty_like(ctx, in.k), empty_like(ctx, in.v)};
    const auto refusal_into = [&](const Gradients& into) {
        return refusal([&] { backward(ctx, in.d_o, {}, saved, into); });
    };
    EXPECT_EQ(refusal_into(valid), "");
    EXPECT_THAT(refusal_into({in.k, valid.k, valid.v}), HasSubstr("attention: gradient of q is"));
    EXPECT_THAT(refusal_into({valid.q, in.q, valid.v}), HasSubstr("attention: gradient of k is"));
    EXPECT_THAT(refusal_into({valid.q, valid.k, Tensor()}), HasSubstr("attention: gradient of v is"));
}

}  // namespace
}  // namespace gradtile::attention::test
