// The float32 kernels against float64: every set that this machine can run.
#include <gmock/gmock.h>

#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

void expect_every_kernel_as_accurate_as_naive(const std::vector<Problem>& problems) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : problems) {
        const Inputs in = random_inputs(ctx, problem, DType::f32);
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(DType::f32, ctx.device()));
        const Result naive = run(ctx, in, problem.options(Algorithm::naive));
        for (const cpu::FlashKernels<float>* kernels : cpu::usable_kernels<float>()) {
            SCOPED_TRACE(::testing::Message() << kernels->name << ": " << problem);
            const cpu::ForcedKernels<float> forced(kernels);
            expect_accurate(DType::f32, naive, run(ctx, in, problem.options()), reference);
        }
    }
}

TEST(FlashF32, IsAsAccurateAsNaiveAtAnyLength) {
    expect_every_kernel_as_accurate_as_naive(problems_of_lengths());
}
TEST(FlashF32, IsAsAccurateAsNaiveForLongSequences) {
    expect_every_kernel_as_accurate_as_naive(long_problems());
}
TEST(FlashF32, IsAsAccurateAsNaiveAtAnyHeadDim) {
    expect_every_kernel_as_accurate_as_naive(
        problems_of_head_dims({1, 7, 8, 16, 32, 33, 40, 64, 80, 96, 128, 160, 255, 256}));
}
TEST(FlashF32, IsAsAccurateAsNaiveUnderAnyOption) {
    expect_every_kernel_as_accurate_as_naive(problems_of_options());
}

TEST(FlashF32, HugeScoresGiveFiniteResults) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{
        .queries = 40, .keys = 70, .d_qk = 8, .d_v = 8, .causal = true, .scale = 1e4};  // P is 0 or 1
    const Inputs in = random_inputs(ctx, problem, DType::f32);
    for (const cpu::FlashKernels<float>* kernels : cpu::usable_kernels<float>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<float> forced(kernels);
        const Result result = run(ctx, in, problem.options());
        for (const auto* x : {&result.o, &result.lse, &result.d_q, &result.d_k, &result.d_v})
            EXPECT_THAT(*x, ::testing::Each(::testing::Truly([](double e) { return std::isfinite(e); })));
    }
}

TEST(FlashF32, ResultsDoNotDependOnTheNumberOfThreads) {
    const Problem problem{
        .queries = 700, .keys = 650, .d_qk = 40, .d_v = 33, .causal = true, .heads = 2, .key_heads = 1};
    const Context one(Device::cpu(), 1);
    const Inputs in = random_inputs(one, problem, DType::f32);
    for (const cpu::FlashKernels<float>* kernels : cpu::usable_kernels<float>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<float> forced(kernels);
        const Result expected = run(one, in, problem.options());
        for (const int threads : {2, 3}) {
            const Context ctx(Device::cpu(), threads);
            EXPECT_EQ(run(ctx, in, problem.options()), expected) << threads << " threads";
        }
    }
}

TEST(FlashF32, BlocksOutsideTheMaskAreNeverComputed) {
    const Context ctx(Device::cpu(), 2);
    // NaN * 0 is NaN, even where P = 0. So outputs are finite only if blocks outside the mask are not
    // computed at all. No kernel's blocks are longer than 256.
    const std::int64_t block = 256, length = 4 * block;
    const auto is_finite = ::testing::Each(::testing::Truly([](double e) { return std::isfinite(e); }));
    for (const cpu::FlashKernels<float>* kernels : cpu::usable_kernels<float>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<float> forced(kernels);
        Problem problem{.queries = length, .keys = length, .d_qk = 16, .d_v = 16, .causal = true};
        Inputs in = random_inputs(ctx, problem, DType::f32);
        for (const Tensor& x : {in.q, in.k, in.v, in.d_o}) fill(ctx, x.slice(1, 2 * block, 2 * block), NAN);
        Saved saved;
        const Tensor o = forward(ctx, in.q, in.k, in.v, problem.options(), saved);
        const Gradients causal = backward(ctx, in.d_o, problem.options(), saved);
        EXPECT_THAT(to_host(ctx, o.slice(1, 0, block)), is_finite);
        EXPECT_THAT(to_host(ctx, causal.q.slice(1, 0, block)), is_finite);

        // The test of unused blocks at the left end of a window: no row of the last half sees a key of the
        // first quarter, and no key of the last half is seen by a row of the first quarter.
        problem.window = {.left = block - 1};
        in = random_inputs(ctx, problem, DType::f32);
        for (const Tensor& x : {in.q, in.k, in.v, in.d_o}) fill(ctx, x.slice(1, 0, block), NAN);
        const Tensor o_windowed = forward(ctx, in.q, in.k, in.v, problem.options(), saved);
        const Gradients windowed = backward(ctx, in.d_o, problem.options(), saved);
        for (const Tensor& x : {o_windowed, windowed.q, windowed.k, windowed.v})
            EXPECT_THAT(to_host(ctx, x.slice(1, 3 * block, block)), is_finite);
    }
}

TEST(FlashF32, ANaNInputMakesEveryRowThatSeesItNaN) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 70, .keys = 70, .d_qk = 16, .d_v = 16, .causal = true};
    for (const cpu::FlashKernels<float>* kernels : cpu::usable_kernels<float>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<float> forced(kernels);
        for (Tensor Inputs::*part : {&Inputs::q, &Inputs::k, &Inputs::v}) {
            Inputs in = random_inputs(ctx, problem, DType::f32);
            fill(ctx, (in.*part).slice(1, 20, 1).slice(3, 5, 1), NAN);
            const Result result = run(ctx, in, problem.options());
            const bool in_query = part == &Inputs::q;
            for (std::int64_t i = 20; i < (in_query ? 21 : 70); ++i) {
                const auto row = result.o.begin() + i * 16;
                EXPECT_TRUE(std::any_of(row, row + 16, [](double e) { return std::isnan(e); })) << i;
                EXPECT_TRUE(part == &Inputs::v || std::isnan(result.lse[static_cast<std::size_t>(i)])) << i;
            }
        }
    }
}

TEST(FlashF32, TheFastestKernelsAreTheDefault) {
    EXPECT_EQ(&cpu::chosen_kernels<float>(), cpu::usable_kernels<float>().front());
    EXPECT_EQ(cpu::usable_kernels<float>().back(), &cpu::generic_kernels<float>());
}

}  // namespace
}  // namespace gradtile::attention::test
