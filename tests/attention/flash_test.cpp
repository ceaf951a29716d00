// Compares the portable flash kernels and the naive algorithm with the reference, in float64 and float16.
// Tests for every dtype that results depend on the inputs only.
#include <gmock/gmock.h>

#include <support/sanitized.h>

#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

void expect_float64_matches_reference(const Context& ctx, const Problem& problem) {
    SCOPED_TRACE(::testing::Message() << problem);
    const Inputs single = random_inputs(ctx, problem, DType::f32), in = single.to(ctx, DType::f64);
    const Result naive32 = run(ctx, single, problem.options(Algorithm::naive));
    const Reference reference = float64_reference(ctx, problem, in, roundoff_of(DType::f64, ctx.device()));
    for (const Algorithm algorithm : algorithms) {
        SCOPED_TRACE(::testing::Message() << algorithm);
        expect_float64_accuracy(naive32, run(ctx, in, problem.options(algorithm)), reference);
    }
}

TEST(Attention, Float64MatchesTheReferenceAtAnyLength) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : problems_of_lengths()) expect_float64_matches_reference(ctx, problem);
}

TEST(Attention, Float64MatchesTheReferenceAtAnyHeadDim) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : problems_of_head_dims({1, 7, 8, 33, 64, 160, 256}))
        expect_float64_matches_reference(ctx, problem);
}

TEST(Attention, Float64MatchesTheReferenceUnderAnyOption) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : problems_of_options()) expect_float64_matches_reference(ctx, problem);
}

TEST(Flash, Float16IsAsAccurateAsNaiveFloat16) {
    const Context ctx(Device::cpu(), 2);
    std::vector<Problem> problems = problems_of_head_dims({1, 7, 8, 16, 33, 40, 80, 128, 255, 256});
    for (const auto& more : {problems_of_lengths(), problems_of_options()})
        problems.insert(problems.end(), more.begin(), more.end());
    for (const Problem& problem : problems) {
        SCOPED_TRACE(::testing::Message() << problem);
        const Inputs in = random_inputs(ctx, problem, DType::f16);
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(DType::f16, ctx.device()));
        expect_accurate(DType::f16, run(ctx, in, problem.options(Algorithm::naive)),
                        run(ctx, in, problem.options()), reference);
    }
}

TEST(Attention, ResultsDoNotDependOnTheNumberOfThreadsOrTheRun) {
    const std::int64_t rows = gradtile::test::sanitized ? 300 : 700;
    const Problem one_head{.queries = rows, .keys = rows - 50, .d_qk = 24, .d_v = 16, .causal = true};
    const Problem several{.queries = 150,
                          .keys = 170,
                          .d_qk = 16,
                          .d_v = 16,
                          .batch = 2,
                          .heads = 4,
                          .key_heads = 2,
                          .window = {.left = 60, .right = 20}};
    const Context one(Device::cpu(), 1);
    for (const Problem& problem : {one_head, several})
        for (const DType dtype : floating_dtypes)
            for (const Algorithm algorithm : algorithms) {
                SCOPED_TRACE(::testing::Message() << problem << ' ' << dtype << ' ' << algorithm);
                const Inputs in = random_inputs(one, problem, dtype);
                const Result expected = run(one, in, problem.options(algorithm));
                for (const int threads : {1, 2, 3, 2, 3}) {
                    const Context ctx(Device::cpu(), threads);
                    EXPECT_EQ(run(ctx, in, problem.options(algorithm)), expected) << threads << " threads";
                }
            }
}

}  // namespace
}  // namespace gradtile::attention::test
