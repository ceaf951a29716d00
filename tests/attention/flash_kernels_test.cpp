// Compares the float32 and bfloat16 kernels with float64: every kernel set that this machine can run, and the
// AMX kernels on emulated tiles.
#include <gmock/gmock.h>

#include <support/sanitized.h>

#include "every_kernel.h"
#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

const auto is_finite = testing::Each(testing::Truly([](double x) { return std::isfinite(x); }));

class FlashKernels : public testing::TestWithParam<DType> {
  protected:
    void expect_as_accurate_as_naive(const std::vector<Problem>& problems, double spread = 1.0) const {
        for (const Problem& problem : problems) {
            SCOPED_TRACE(testing::Message() << problem);
            const Inputs in = random_inputs(ctx_, problem, GetParam());
            axpy(ctx_, in.q, spread - 1.0, in.q);
            const Reference reference =
                float64_reference(ctx_, problem, in, roundoff_of(GetParam(), ctx_.device()));
            const Result naive = run(ctx_, in, problem.options(Algorithm::naive));
            for_every_kernel(GetParam(), [&] {
                expect_accurate(GetParam(), naive, run(ctx_, in, problem.options()), reference);
            });
        }
    }
    const Context ctx_{Device::cpu(), 2};
};
INSTANTIATE_TEST_SUITE_P(Attention, FlashKernels, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(FlashKernels, AreAsAccurateAsNaiveAtAnyLength) {
    expect_as_accurate_as_naive(problems_of_lengths());
}
TEST_P(FlashKernels, AreAsAccurateAsNaiveForLongSequences) {
    expect_as_accurate_as_naive(long_problems());
    if (gradtile::test::sanitized) return;
    expect_as_accurate_as_naive({{.queries = 100, .keys = 4200, .d_qk = 64, .d_v = 64, .causal = true},
                                 {.queries = 400, .keys = 399, .d_qk = 256, .d_v = 40, .causal = true},
                                 {.queries = 2100, .keys = 2100, .d_qk = 32, .d_v = 32, .causal = true}});
}
TEST_P(FlashKernels, AreAsAccurateAsNaiveAtAnyHeadDim) {
    expect_as_accurate_as_naive(
        problems_of_head_dims({1, 7, 8, 16, 32, 33, 40, 64, 80, 96, 128, 160, 255, 256}));
}
TEST_P(FlashKernels, AreAsAccurateAsNaiveAtAnyHeadDimOfShortSequences) {
    std::vector<Problem> problems;
    for (const std::int64_t length : {1, 2, 5, 17, 64})
        for (const auto& [d_qk, d_v] : {std::pair{1, 1}, {7, 33}, {33, 7}, {40, 24}, {64, 128}, {255, 255}})
            for (const bool causal : {false, true})
                problems.push_back({.queries = length,
                                    .keys = length,
                                    .d_qk = d_qk,
                                    .d_v = d_v,
                                    .causal = causal,
                                    .batch = 2,
                                    .heads = 4,
                                    .key_heads = 2});
    expect_as_accurate_as_naive(problems);
}
TEST_P(FlashKernels, AreAsAccurateAsNaiveUnderAnyOption) {
    expect_as_accurate_as_naive(problems_of_options());
    std::vector<Problem> grouped;
    for (const std::int64_t key_heads : {1, 2, 3, 6})
        grouped.push_back({.queries = 150,
                           .keys = 170,
                           .d_qk = 32,
                           .d_v = 48,
                           .causal = true,
                           .heads = 6,
                           .key_heads = key_heads});
    expect_as_accurate_as_naive(grouped);
}
/// The scores are in the thousands, so all but a few probabilities underflow.
TEST_P(FlashKernels, AreAsAccurateAsNaiveForLargeScores) {
    expect_as_accurate_as_naive({{.queries = 70, .keys = 90, .d_qk = 64, .d_v = 64, .causal = true}}, 300);
}

TEST_P(FlashKernels, HugeScoresGiveFiniteResults) {
    const Problem problem{
        .queries = 40, .keys = 70, .d_qk = 8, .d_v = 8, .causal = true, .scale = 1e4};  // P is 0 or 1
    const Inputs in = random_inputs(ctx_, problem, GetParam());
    for_every_kernel(GetParam(), [&] {
        const Result result = run(ctx_, in, problem.options());
        for (const auto* x : {&result.o, &result.lse, &result.d_q, &result.d_k, &result.d_v})
            EXPECT_THAT(*x, is_finite);
    });
}

TEST_P(FlashKernels, GiveTheSameBitsForEveryNumberOfThreads) {
    for (const auto& [d_qk, d_v, heads] : {std::tuple{40, 33, 2}, {64, 40, 4}}) {
        const Problem problem{.queries = 700,
                              .keys = 650,
                              .d_qk = d_qk,
                              .d_v = d_v,
                              .causal = true,
                              .heads = heads,
                              .key_heads = heads / 2};
        const Context one(Device::cpu(), 1);
        const Inputs in = random_inputs(one, problem, GetParam());
        for_every_kernel(GetParam(), [&] {
            const Result expected = run(one, in, problem.options());
            for (const int threads : {2, 3})
                EXPECT_EQ(run(Context(Device::cpu(), threads), in, problem.options()), expected) << threads;
        });
    }
}

TEST_P(FlashKernels, BlocksOutsideTheMaskAreNeverComputed) {
    // NaN * 0 is NaN, even where P = 0. So outputs are finite only if blocks outside the mask are not
    // computed at all. No block is longer than 512.
    const std::int64_t block = 512, length = 4 * block;
    for_every_kernel(GetParam(), [&] {
        Problem problem{.queries = length, .keys = length, .d_qk = 16, .d_v = 16, .causal = true};
        Inputs in = random_inputs(ctx_, problem, GetParam());
        for (const Tensor& x : {in.q, in.k, in.v, in.d_o}) fill(ctx_, x.slice(1, 2 * block, 2 * block), NAN);
        Saved saved;
        const Tensor o = forward(ctx_, in.q, in.k, in.v, problem.options(), saved);
        const Gradients causal = backward(ctx_, in.d_o, problem.options(), saved);
        EXPECT_THAT(to_host(ctx_, o.slice(1, 0, block)), is_finite);
        EXPECT_THAT(to_host(ctx_, causal.q.slice(1, 0, block)), is_finite);

        // Tests unused blocks at a window's left end: rows in the last half see no key in the first quarter,
        // and rows in the first quarter see no key in the last half.
        problem.window = {.left = block - 1};
        in = random_inputs(ctx_, problem, GetParam());
        for (const Tensor& x : {in.q, in.k, in.v, in.d_o}) fill(ctx_, x.slice(1, 0, block), NAN);
        const Tensor o_windowed = forward(ctx_, in.q, in.k, in.v, problem.options(), saved);
        const Gradients windowed = backward(ctx_, in.d_o, problem.options(), saved);
        for (const Tensor& x : {o_windowed, windowed.q, windowed.k, windowed.v})
            EXPECT_THAT(to_host(ctx_, x.slice(1, 3 * block, block)), is_finite);
    });
}

TEST_P(FlashKernels, ANaNInputMakesEveryRowThatSeesItNaN) {
    const Problem problem{.queries = 70, .keys = 70, .d_qk = 16, .d_v = 16, .causal = true};
    for_every_kernel(GetParam(), [&] {
        for (Tensor Inputs::*part : {&Inputs::q, &Inputs::k, &Inputs::v}) {
            const Inputs in = random_inputs(ctx_, problem, GetParam());
            fill(ctx_, (in.*part).slice(1, 20, 1).slice(3, 5, 1), NAN);
            const Result result = run(ctx_, in, problem.options());
            const bool in_query = part == &Inputs::q;
            for (std::int64_t i = 20; i < (in_query ? 21 : 70); ++i) {
                const auto row = result.o.begin() + i * 16;
                EXPECT_TRUE(std::any_of(row, row + 16, [](double e) { return std::isnan(e); })) << i;
                EXPECT_TRUE(part == &Inputs::v || std::isnan(result.lse[static_cast<std::size_t>(i)])) << i;
            }
        }
    });
}

TEST_P(FlashKernels, RowsWithoutVisibleKeysHaveZeroOutputsAndGradients) {
    const Problem problem{
        .queries = 300, .keys = 100, .d_qk = 40, .d_v = 24, .causal = true, .heads = 2, .key_heads = 1};
    const Inputs in = random_inputs(ctx_, problem, GetParam());
    for_every_kernel(GetParam(), [&] {
        const Result result = run(ctx_, in, problem.options());
        const std::size_t rows_without_keys = 200;  // rows 0..199 lie above the bottom-right diagonal
        const auto first = [](const std::vector<double>& x, std::size_t n) {
            return std::vector<double>(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
        };
        EXPECT_THAT(first(result.o, rows_without_keys * 2 * 24), testing::Each(0.0));
        EXPECT_THAT(first(result.d_q, rows_without_keys * 2 * 40), testing::Each(0.0));
        EXPECT_THAT(first(result.lse, rows_without_keys), testing::Each(-infinity));
        EXPECT_THAT(result.d_k, is_finite);
    });
}

/// Every output lies inside a wider tensor whose other elements are 7.
TEST_P(FlashKernels, WriteNothingOutsideTheOutputs) {
    const Problem problem{
        .queries = 37, .keys = 50, .d_qk = 40, .d_v = 24, .causal = true, .heads = 2, .key_heads = 2};
    const Inputs in = random_inputs(ctx_, problem, GetParam());
    const auto wider = [&](Shape shape) {
        shape[3] += 16;
        const Tensor x = empty(ctx_, shape, GetParam());
        fill(ctx_, x, 7);
        return x;
    };
    const auto middle = [](const Tensor& x) { return x.slice(3, 8, x.size(3) - 16); };
    for_every_kernel(GetParam(), [&] {
        const Options options = problem.options();
        const Result expected = run(ctx_, in, options);
        const Tensor o = wider(in.d_o.shape()), d_q = wider(in.q.shape()), d_k = wider(in.k.shape()),
                     d_v = wider(in.v.shape());
        Saved saved;
        forward(ctx_, in.q, in.k, in.v, options, saved, middle(o));
        backward(ctx_, in.d_o, options, saved, {.q = middle(d_q), .k = middle(d_k), .v = middle(d_v)});
        EXPECT_EQ(to_host(ctx_, middle(o)), expected.o);
        EXPECT_EQ(to_host(ctx_, middle(d_q)), expected.d_q);
        EXPECT_EQ(to_host(ctx_, middle(d_k)), expected.d_k);
        EXPECT_EQ(to_host(ctx_, middle(d_v)), expected.d_v);
        for (const Tensor& x : {o, d_q, d_k, d_v}) {
            EXPECT_THAT(to_host(ctx_, x.slice(3, 0, 8)), testing::Each(7.0));
            EXPECT_THAT(to_host(ctx_, x.slice(3, x.size(3) - 8, 8)), testing::Each(7.0));
        }
    });
}

TEST(FlashKernelSets, TheFastestKernelsAreTheDefault) {
    EXPECT_EQ(&cpu::chosen_kernels<float>(), cpu::usable_kernels<float>().front());
    EXPECT_EQ(cpu::usable_kernels<float>().back(), &cpu::generic_kernels<float>());
    EXPECT_EQ(&cpu::chosen_kernels<bfloat16>(), cpu::usable_kernels<bfloat16>().front());
    EXPECT_EQ(cpu::usable_kernels<bfloat16>().back(), &cpu::generic_kernels<bfloat16>());
}

}  // namespace
}  // namespace gradtile::attention::test
