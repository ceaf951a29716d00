// Memory: results do not depend on uninitialised memory, dry runs predict real runs' memory, and scratch
// memory does not grow with Sq x Sk.
#include <limits>
#include <memory>

#include <gmock/gmock.h>

#include "every_kernel.h"
#include "problems.h"

namespace gradtile::attention::test {
namespace {

/// Few queries against so many keys that the CPU divides the keys.
const Problem divided_keys{.queries = 3, .keys = 2100, .d_qk = 16, .d_v = 24, .causal = true, .sink = true};

TEST(AttentionMemory, ResultsDoNotDependOnUninitialisedMemory) {
    const Context plain(Device::cpu(), 2);
    for (const Problem& problem : {problem_with_every_score_option(130, 90, 40, 24),
                                   {.queries = 150,
                                   .keys = 140,
                                   .d_qk = 40,
                                   .d_v = 24,
                                   .causal = true,
                                   .heads = 2,
                                   .key_heads = 1,
                                   .window = {.left = 70}},
                                   divided_keys,
                                   {.queries = 33, .keys = 7, .causal = true},
                                   {.queries = 7, .keys = 33, .causal = true, .top_left = true}})
        for (const DType dtype : floating_dtypes)
            for_every_algorithm(dtype, [&](Algorithm algorithm) {
                SCOPED_TRACE(::testing::Message() << problem);
                const Inputs in = random_inputs(plain, problem, dtype);
                const Result expected = run(plain, in, problem.options(algorithm));
                constexpr std::int64_t bytes = 16 << 20;
                const Context poisoned = plain.with_allocator(std::make_shared<Arena>(Device::cpu(), bytes));
                fill(poisoned, empty(poisoned, {bytes / 4}, DType::f32),
                     std::numeric_limits<double>::quiet_NaN());
                EXPECT_EQ(run(poisoned, in, problem.options(algorithm)), expected);
            });
}

/// Runs a forward and a backward pass; inputs and gradients are allocated from ctx, too.
void run_passes(const Context& ctx, const Problem& p, DType dtype, Algorithm algorithm) {
    const Inputs in = random_inputs(ctx, p, dtype);
    const Options options = in.with_tensors(p.options(algorithm));
    Saved saved;
    forward(ctx, in.q, in.k, in.v, options, saved);
    backward(ctx, in.d_o, options, saved, in.d_lse);
}

std::size_t planned_bytes(const Context& ctx, const Problem& problem, DType dtype, Algorithm algorithm) {
    const auto plan = Arena::for_planning(Device::cpu());
    run_passes(ctx.plan(plan), problem, dtype, algorithm);
    EXPECT_EQ(plan->bytes_in_use(), 0u);
    return plan->peak_bytes();
}

TEST(AttentionMemory, ADryRunPredictsThePeakMemoryOfARealRun) {
    const Problem plain{
        .queries = 130, .keys = 90, .d_qk = 40, .d_v = 24, .causal = true, .heads = 4, .key_heads = 2};
    for (const Problem& problem : {plain, problem_with_every_score_option(130, 90, 40, 24), divided_keys})
        for (const int threads : {1, 2, 3})
            for (const DType dtype : floating_dtypes)
                for_every_algorithm(dtype, [&](Algorithm algorithm) {
                    SCOPED_TRACE(::testing::Message() << threads << " threads " << problem);
                    const Context ctx(Device::cpu(), threads);
                    const std::size_t planned = planned_bytes(ctx, problem, dtype, algorithm);
                    // An arena with exactly this size, which would refuse one more byte.
                    const auto arena = std::make_shared<Arena>(Device::cpu(), planned);
                    run_passes(ctx.with_allocator(arena), problem, dtype, algorithm);
                    EXPECT_EQ(arena->peak_bytes(), planned);
                    EXPECT_EQ(arena->bytes_in_use(), 0u);
                });
}

/// Bytes that the passes need in addition to inputs and outputs, from a dry run.
struct Scratch {
    std::size_t forward, backward;
};
Scratch scratch_bytes(const Context& ctx, const Problem& p, DType dtype) {
    const auto arena = Arena::for_planning(Device::cpu());
    const Context plan = ctx.plan(arena);
    const Inputs in = random_inputs(plan, p, dtype);
    const Tensor o = empty_like(plan, in.d_o);
    const Gradients into{empty_like(plan, in.q), empty_like(plan, in.k), empty_like(plan, in.v)};
    Saved saved;
    const std::size_t before_forward = arena->bytes_in_use();
    arena->reset_peak();
    forward(plan, in.q, in.k, in.v, p.options(), saved, o);
    const std::size_t forward_bytes = arena->peak_bytes() - before_forward - saved.lse.bytes();
    const std::size_t before_backward = arena->bytes_in_use();
    arena->reset_peak();
    backward(plan, in.d_o, p.options(), saved, into);
    return {.forward = forward_bytes, .backward = arena->peak_bytes() - before_backward};
}

TEST(AttentionMemory, ScratchOfALongSequenceIsAFewMegabytes) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{
        .queries = 4096, .keys = 4096, .d_qk = 64, .d_v = 64, .causal = true, .heads = 12, .key_heads = 12};
    constexpr std::size_t megabyte = 1'000'000;
    const std::size_t float32_d_q = 4096 * 12 * 64 * sizeof(float);
    for (const cpu::FlashKernels<float>* kernels : cpu::usable_kernels<float>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<float> forced(kernels);
        const Scratch scratch = scratch_bytes(ctx, problem, DType::f32);
        EXPECT_LT(scratch.forward, 1 * megabyte);
        EXPECT_LT(scratch.backward, 4 * megabyte);
    }
    const Scratch scratch = scratch_bytes(ctx, problem, DType::bf16);
    EXPECT_LT(scratch.forward, 4 * megabyte);
    EXPECT_LT(scratch.backward, 4 * megabyte + float32_d_q);
}

TEST(AttentionMemory, FlashMemoryGrowsLinearlyWithTheLength) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : floating_dtypes) {
        const auto bytes = [&](std::int64_t length) {
            const Problem problem{.queries = length, .keys = length, .causal = true};
            return static_cast<double>(planned_bytes(ctx, problem, dtype, Algorithm::flash));
        };
        // The kernels' own blocks do not grow with the length, so doubling the length less than doubles the
        // total.
        EXPECT_LT(bytes(1 << 17), 2.0 * bytes(1 << 16)) << dtype;
        EXPECT_LT(bytes(1 << 16), 2.0 * bytes(1 << 15)) << dtype;
    }
}

TEST(AttentionMemory, RunsAtLength65536InTheMemoryThatADryRunPredicts) {
    const Context ctx(Device::cpu(), 2);
    constexpr std::int64_t length = 65'536;
    // P alone would need 17 GB. The window makes the time linear in the length, too.
    const Problem problem{.queries = length, .keys = length, .causal = true, .window = {.left = 200}};
    for (const DType dtype : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(::testing::Message() << dtype);
        const std::size_t planned = planned_bytes(ctx, problem, dtype, Algorithm::flash);
        EXPECT_LT(planned, 32u << 20);
        const Context inside = ctx.with_allocator(std::make_shared<Arena>(Device::cpu(), planned));
        const Inputs in{.q = randn(inside, {1, length, 1, 8}, dtype, Seed{1}),
                        .k = randn(inside, {1, length, 1, 8}, dtype, Seed{2}),
                        .v = randn(inside, {1, length, 1, 8}, dtype, Seed{3}),
                        .d_o = randn(inside, {1, length, 1, 8}, dtype, Seed{4})};
        Saved saved;
        const Tensor o = forward(inside, in.q, in.k, in.v, problem.options(), saved);
        const Gradients gradients = backward(inside, in.d_o, problem.options(), saved);
        // The last rows see only the last keys, so a call with only the end of the sequence gives the same
        // results.
        const auto end = [](const Tensor& x) { return x.slice(1, length - 512, 512); };
        Saved saved_end;
        const Tensor o_end = forward(ctx, end(in.q), end(in.k), end(in.v), problem.options(), saved_end);
        const auto last_rows = [&](const Tensor& x) {
            return to_host(ctx, x.slice(1, x.size(1) - 256, 256));
        };
        const std::vector<double> values = last_rows(o), expected = last_rows(o_end);
        // Block borders may differ between the calls. float32 sums then differ by the roundings of 201 terms.
        // In bfloat16, P (whose rows sum to 1) and O are also rounded, in both calls.
        double largest_v = 0;
        for (const double e : to_host(ctx, end(in.v))) largest_v = std::max(largest_v, std::abs(e));
        const double bound = (201 * 4 * 0x1p-24 + (dtype == DType::f32 ? 0 : 4 * 0x1p-8)) * largest_v;
        EXPECT_THAT(values, ::testing::Pointwise(::testing::DoubleNear(bound), expected));
        for (const Tensor& x : {gradients.q, gradients.k, gradients.v})
            EXPECT_THAT(to_host(ctx, x),
                        ::testing::Each(::testing::Truly([](double e) { return std::isfinite(e); })));
    }
}

}  // namespace
}  // namespace gradtile::attention::test
