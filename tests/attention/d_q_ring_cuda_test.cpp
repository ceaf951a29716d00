// dQ from the 16-bit Hopper backward pass. The float32 dQ accumulator exists only for the heads that are
// being computed, in a ring of slots. With a small ring, many heads use each slot also in small problems.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gradtile/core/cuda/step_graph.h>

#include "cuda_fixture.h"

namespace gradtile::attention::test {
namespace {

/// Limits the ring to one-head sets, with two slots.
constexpr KernelChoice small_ring{.set_heads = 1, .more_slots = 1};
Options with_small_ring(Options options) {
    options.kernels = small_ring;
    return options;
}

class AttentionCudaDqRing : public AttentionCudaDtypes {
  protected:
    void expect_accurate_flash(const Problem& problem) const {
        SCOPED_TRACE(::testing::Message() << problem << ' ' << GetParam());
        const Inputs in = random_inputs(cpu, problem, GetParam());
        const Result naive = run(cpu, in, problem.options(Algorithm::naive));
        const Reference reference =
            float64_reference(cpu, problem, in, roundoff_of(GetParam(), Device::cuda(0)));
        for (const bool small : {true, false}) {
            SCOPED_TRACE(small ? "small ring" : "ring of the usual size");
            Options options = problem.options(Algorithm::flash);
            if (small) options = with_small_ring(options);
            expect_as_accurate_as(naive, run_on_gpu(in, options), reference, factors_of(GetParam()));
        }
    }
    /// Inputs for several backward passes on the GPU, and what their common forward pass saved.
    struct Passes {
        Inputs in;
        Options options;
        Saved saved;
    };
    Passes forward_pass(const Context& ctx, const Problem& problem, bool small) const {
        Options options = problem.options();
        if (small) options = with_small_ring(options);
        Passes passes{on_gpu(random_inputs(cpu, problem, GetParam())), options, {}};
        forward(ctx, passes.in.q, passes.in.k, passes.in.v, passes.options, passes.saved);
        return passes;
    }
    /// The order in which terms are added to dQ differs from run to run. If one of the few key blocks were
    /// added twice or not at all, dQ would change far more than by rounding.
    void expect_same_but_for_rounding(const std::vector<double>& a, const std::vector<double>& b) const {
        double largest = 0;
        for (const double e : b) largest = std::max(largest, std::abs(e));
        ASSERT_LE(largest_difference(a, b), 4 * (GetParam() == DType::f16 ? 0x1p-11 : 0x1p-8) * largest);
    }
};

Problem many_heads(std::int64_t d) {
    return {.queries = 200,
            .keys = 290,
            .d_qk = d,
            .d_v = d,
            .causal = true,
            .batch = 2,
            .heads = 6,
            .key_heads = 6};
}

TEST_P(AttentionCudaDqRing, IsAccurateWhenManyHeadsShareASlot) {
    for (const std::int64_t d : {24, 32, 64, 72, 128}) expect_accurate_flash(many_heads(d));
}

TEST_P(AttentionCudaDqRing, IsAccurateWhenOneHeadHasAllSlots) {
    for (const std::int64_t d : {32, 64, 128})
        expect_accurate_flash({.queries = 300, .keys = 301, .d_qk = d, .d_v = d, .heads = 1, .key_heads = 1});
}

TEST_P(AttentionCudaDqRing, IsAccurateUnderAnyMask) {
    for (const std::int64_t d : {32, 64, 128}) {
        Problem p = many_heads(d);
        p.heads = 3;
        p.key_heads = 3;
        Problem rows_without_keys = p, keys_without_rows = p, window = p, full = p;
        rows_without_keys.queries = 300;  // the first 150 rows see no key
        rows_without_keys.keys = 150;
        keys_without_rows.queries = 100;  // no row sees the last keys
        keys_without_rows.top_left = true;
        window.window = {.left = 70};
        full.causal = false;
        Problem both_sides = full, beside_the_keys = full;
        both_sides.window = {.left = 20, .right = 150};
        beside_the_keys.queries = 400;  // the last rows see no key
        beside_the_keys.keys = 140;
        beside_the_keys.top_left = true;
        beside_the_keys.window = {.left = 100, .right = 10};
        for (const Problem& problem :
             {rows_without_keys, keys_without_rows, window, full, both_sides, beside_the_keys})
            expect_accurate_flash(problem);
    }
}

TEST_P(AttentionCudaDqRing, IsAccurateWithAlibi) {
    for (const std::int64_t d : {32, 64}) {
        Problem problem = many_heads(d);
        problem.alibi = true;
        expect_accurate_flash(problem);
    }
}

TEST_P(AttentionCudaDqRing, IsAccurateWithDropoutAndSoftcap) {
    for (const std::int64_t d : {32, 64})
        for (const double softcap : {0.0, 2.0}) {
            Problem problem = many_heads(d);
            problem.dropout_p = 0.2;
            problem.softcap = softcap;
            expect_accurate_flash(problem);
        }
}

TEST_P(AttentionCudaDqRing, TakesMemoryForTheHeadsInFlightOnly) {
    const Problem problem = many_heads(64);
    const Inputs host = random_inputs(cpu, problem, GetParam());
    const auto peak_bytes = [&](const Context& ctx, Arena& arena, const Options& options) {
        const auto zeros_like = [&](const Tensor& x) { return zeros(ctx, x.shape(), x.dtype()); };
        const Inputs in{zeros_like(host.q), zeros_like(host.k), zeros_like(host.v), zeros_like(host.d_o)};
        Saved saved;
        forward(ctx, in.q, in.k, in.v, options, saved);
        backward(ctx, in.d_o, options, saved);
        return arena.peak_bytes();
    };
    const Inputs in = on_gpu(host);
    const std::string explanation = explain_forward(gpu(), in.q, in.k, in.v, problem.options());
    if (explanation.find("Hopper's asynchronous products") == std::string::npos)
        GTEST_SKIP() << "no Hopper kernels: " << explanation;
    const auto plan = Arena::for_planning(Device::cuda(0));
    const std::size_t planned = peak_bytes(gpu().plan(plan), *plan, problem.options());
    const auto arena = std::make_shared<Arena>(Device::cuda(0), planned);
    const std::size_t peak =
        peak_bytes(gpu().with_allocator(arena), *arena, with_small_ring(problem.options()));
    // 2 * 6 heads with 200 rows each, which are padded to 256 rows. A dry run counts the dQ accumulators for
    // all heads; the ring has 2 slots.
    constexpr std::size_t bytes_of_head = 256 * 64 * sizeof(float);
    EXPECT_EQ(planned - peak, (2 * 6 - 2) * bytes_of_head);
}

TEST_P(AttentionCudaDqRing, IsAccurateWhenQueryHeadsShareKeys) {
    for (const std::int64_t d : {32, 64, 128})
        for (const std::int64_t key_heads : {1, 2, 3}) {
            Problem p = many_heads(d);
            p.key_heads = key_heads;
            expect_accurate_flash(p);
            p.causal = false;
            p.queries = 70;
            expect_accurate_flash(p);
        }
}

TEST_P(AttentionCudaDqRing, ManyRunsGiveTheSameGradients) {
    for (const std::int64_t d : {32, 64, 128})
        for (const bool small : {true, false}) {
            SCOPED_TRACE(::testing::Message() << "head dim " << d << (small ? ", small ring" : ""));
            Problem problem = many_heads(d);
            problem.queries = problem.keys = 700;
            problem.batch = 8;
            const Passes passes = forward_pass(gpu(), problem, small);
            const auto gradients = [&] {
                return backward(gpu(), passes.in.d_o, passes.options, passes.saved);
            };
            const Gradients first = gradients();
            const std::vector<double> d_q = to_host(gpu(), first.q), d_k = to_host(gpu(), first.k);
            for (int round = 1; round < rounds(20); ++round) {
                const Gradients again = gradients();
                expect_same_but_for_rounding(to_host(gpu(), again.q), d_q);
                ASSERT_EQ(to_host(gpu(), again.k), d_k) << round;
            }
        }
}

TEST_P(AttentionCudaDqRing, ReplayedGraphsGiveTheSameGradients) {
    const Passes passes = forward_pass(gpu(), many_heads(64), /*small=*/true);
    Gradients gradients;
    const auto step = [&] { gradients = backward(gpu(), passes.in.d_o, passes.options, passes.saved); };
    step();
    const std::vector<double> d_q = to_host(gpu(), gradients.q), d_k = to_host(gpu(), gradients.k);
    StepGraph graph;
    graph.capture(gpu(), step);
    ASSERT_TRUE(graph.captured());
    for (int round = 0; round < 5; ++round) {
        fill(gpu(), gradients.q, std::numeric_limits<double>::quiet_NaN());
        graph.replay(gpu());
        expect_same_but_for_rounding(to_host(gpu(), gradients.q), d_q);
        EXPECT_EQ(to_host(gpu(), gradients.k), d_k);
    }
}

TEST_P(AttentionCudaDqRing, PassesOnTwoStreamsDoNotDisturbEachOther) {
    const std::array contexts{Context(Device::cuda(0), 1), Context(Device::cuda(0), 1)};
    std::vector<Passes> passes;
    std::vector<std::vector<double>> expected;
    for (const std::int64_t d : {64, 128}) {
        passes.push_back(forward_pass(gpu(), many_heads(d), /*small=*/true));
        expected.push_back(to_host(
            gpu(), backward(gpu(), passes.back().in.d_o, passes.back().options, passes.back().saved).q));
    }
    for (int round = 0; round < rounds(10); ++round) {
        std::array<Gradients, 2> gradients;
        for (int i = 0; i < 2; ++i) {
            const Passes& pass = passes[static_cast<std::size_t>(i)];
            gradients[static_cast<std::size_t>(i)] =
                backward(contexts[static_cast<std::size_t>(i)], pass.in.d_o, pass.options, pass.saved);
        }
        for (std::size_t i = 0; i < 2; ++i)
            expect_same_but_for_rounding(to_host(contexts[i], gradients[i].q), expected[i]);
    }
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, AttentionCudaDqRing, testing::Values(DType::bf16, DType::f16),
                         [](const auto& parameter) { return std::string(name_of(parameter.param)); });

}  // namespace
}  // namespace gradtile::attention::test
