// Tests memory_efficient and flash1 in every dtype, on the flash kernels' problems and within the same
// bounds, and tests how they differ from flash2. Other tests in this folder also run both algorithms.
#include <limits>

#include <gmock/gmock.h>

#include "long_problems.h"
#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

class TiledAlgorithm : public testing::TestWithParam<std::tuple<Algorithm, DType>> {
  protected:
    Algorithm algorithm() const { return std::get<0>(GetParam()); }
    DType dtype() const { return std::get<1>(GetParam()); }
    Result result_of(const Problem& problem, const Inputs& in) const {
        return run(ctx_, in, problem.options(algorithm()));
    }
    Reference reference_of(const Problem& problem, const Inputs& in) const {
        return float64_reference(ctx_, problem, in, roundoff_of(dtype(), ctx_.device()));
    }
    void expect_as_accurate_as_naive(const Problem& problem, const Inputs& in) const {
        SCOPED_TRACE(::testing::Message() << problem);
        const Result naive = run(ctx_, in, problem.options(Algorithm::naive));
        expect_accurate(dtype(), naive, result_of(problem, in), reference_of(problem, in));
    }
    void expect_as_accurate_as_naive(const std::vector<Problem>& problems) const {
        for (const Problem& problem : problems)
            expect_as_accurate_as_naive(problem, random_inputs(ctx_, problem, dtype()));
    }
    Context ctx_{Device::cpu(), 2};
};
INSTANTIATE_TEST_SUITE_P(Tiled, TiledAlgorithm,
                         testing::Combine(testing::ValuesIn(tiled_algorithms),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& info) {
                             return concat(std::get<0>(info.param), '_', name_of(std::get<1>(info.param)));
                         });

TEST_P(TiledAlgorithm, IsAsAccurateAsNaiveAtAnyLength) {
    expect_as_accurate_as_naive(problems_of_lengths());
}
TEST_P(TiledAlgorithm, IsAsAccurateAsNaiveForLongSequences) {
    expect_as_accurate_as_naive(long_problems());
}
TEST_P(TiledAlgorithm, IsAsAccurateAsNaiveAtAnyHeadDim) {
    expect_as_accurate_as_naive(problems_of_head_dims({1, 7, 8, 16, 33, 64, 80, 128, 255, 256}));
}
TEST_P(TiledAlgorithm, IsAsAccurateAsNaiveUnderAnyOption) {
    expect_as_accurate_as_naive(problems_of_options());
}
TEST_P(TiledAlgorithm, IsAccurateInSpiteOfADominatingTerm) {
    for (const LongSum& sum : long_sums()) {
        SCOPED_TRACE(sum.name);
        expect_as_accurate_as_naive(sum.problem, sum.inputs(ctx_, dtype()));
    }
}

/// Errors are as likely positive as negative, also where D is much larger than dP - D.
TEST_P(TiledAlgorithm, HasNoBias) {
    const Problem problem{
        .queries = 150, .keys = 170, .d_qk = 32, .d_v = 48, .batch = 2, .heads = 4, .key_heads = 2};
    for (const Inputs& in :
         {random_inputs(ctx_, problem, dtype()), offset_inputs(ctx_, problem, dtype(), 2)}) {
        expect_as_accurate_as_naive(problem, in);
        expect_no_bias(problem, result_of(problem, in), reference_of(problem, in));
    }
}

TEST_P(TiledAlgorithm, MemoryGrowsLinearlyWithTheLength) {
    const auto bytes = [&](std::int64_t length) {
        const auto arena = Arena::for_planning(Device::cpu());
        const Context plan = ctx_.plan(arena);
        const Tensor q = empty(plan, {1, length, 1, 8}, dtype());
        Saved saved;
        const Options options{.algorithm = algorithm()};
        forward(plan, q, q, q, options, saved);
        backward(plan, q, options, saved);
        return static_cast<double>(arena->peak_bytes());
    };
    // The fast memory does not grow, so doubling the length less than doubles the total.
    EXPECT_LT(bytes(1 << 17), 2.0 * bytes(1 << 16));
}

/// NaN * 0 is NaN, so outputs are finite only if blocks outside the mask are not computed.
TEST_P(TiledAlgorithm, BlocksOutsideTheMaskAreNeverComputed) {
    constexpr std::int64_t length = 2048, half = length / 2;
    const Problem problem{.queries = length, .keys = length, .d_qk = 8, .d_v = 8, .causal = true};
    const Inputs in = random_inputs(ctx_, problem, dtype());
    for (const Tensor& x : {in.q, in.k, in.v, in.d_o})
        fill(ctx_, x.slice(1, half, half), std::numeric_limits<double>::quiet_NaN());
    Saved saved;
    const Options options = problem.options(algorithm());
    const Tensor o = forward(ctx_, in.q, in.k, in.v, options, saved);
    const Gradients gradients = backward(ctx_, in.d_o, options, saved);
    for (const Tensor& x : {o, gradients.q})
        EXPECT_THAT(to_host(ctx_, x.slice(1, 0, half)),
                    testing::Each(testing::Truly([](double e) { return std::isfinite(e); })));
}

TEST(Flash1, SavesTheMaximumAndTheSumOfEveryRow) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 90, .keys = 300, .d_qk = 8, .d_v = 8, .heads = 2, .key_heads = 1};
    const Inputs in = random_inputs(ctx, problem, DType::f64);
    Saved saved;
    forward(ctx, in.q, in.k, in.v, problem.options(Algorithm::flash1), saved);
    const std::vector<double> m = to_host(ctx, saved.row_max), l = to_host(ctx, saved.row_sum),
                              lse = to_host(ctx, saved.lse), q = to_host(ctx, in.q), k = to_host(ctx, in.k);
    for (std::size_t h = 0; h < 2; ++h)
        for (std::size_t i = 0; i < 90; ++i) {
            double maximum = -infinity;
            for (std::size_t j = 0; j < 300; ++j) {
                double product = 0;
                for (std::size_t c = 0; c < 8; ++c) product += q[(i * 2 + h) * 8 + c] * k[j * 8 + c];
                maximum = std::max(maximum, product * problem.scale_or_default());
            }
            const std::size_t row = h * 90 + i;
            EXPECT_NEAR(m[row], maximum, 16 * 0x1p-53 * std::abs(maximum));  // 8 products, 8 sums
            EXPECT_GE(l[row], 1);
            EXPECT_LE(l[row], 300);
            EXPECT_DOUBLE_EQ(lse[row], m[row] + std::log(l[row]));
        }
}

/// Only flash1 keeps m and l.
TEST(Flash1, OtherAlgorithmsSaveTheLseAlone) {
    const Context ctx(Device::cpu(), 1);
    const Problem problem{.queries = 3, .keys = 4};
    const Inputs in = random_inputs(ctx, problem, DType::f32);
    for (const Algorithm algorithm : algorithms) {
        Saved saved;
        forward(ctx, in.q, in.k, in.v, problem.options(algorithm), saved);
        EXPECT_TRUE(saved.lse.defined());
        EXPECT_EQ(saved.row_max.defined(), algorithm == Algorithm::flash1) << algorithm;
        EXPECT_EQ(saved.row_sum.defined(), algorithm == Algorithm::flash1) << algorithm;
    }
}

}  // namespace
}  // namespace gradtile::attention::test
