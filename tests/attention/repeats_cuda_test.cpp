// Repeats calls on the GPU. O, LSE, dK, dV and the gradients of the options must be equal to the bit in every
// run, dQ with Options::deterministic too; without it, dQ differs by roundings of sums in another order.
//
//     GRADTILE_TEST_ROUNDS=10000 attention_test --gtest_filter='*AttentionCudaRepeats*'     # the long form
#include <cstdio>
#include <functional>

#include "cuda_fixture.h"
#include "packed_problems.h"

namespace gradtile::attention::test {
namespace {

class AttentionCudaRepeats : public AttentionCudaDtypes {
  protected:
    /// Repeats a call among neighbours that change what is in memory and in caches, which multiprocessors are
    /// free, and when thread blocks start.
    void expect_equal_runs(const std::string& name, bool deterministic, const std::function<Result()>& call) {
        SCOPED_TRACE(name + (deterministic ? ", deterministic" : ""));
        const Result first = call();
        for (int round = 1; round < rounds(20); ++round) {
            start_neighbour(round);
            const Result again = call();
            const char* const different = first_difference(first, again, deterministic);
            ASSERT_EQ(different, nullptr) << different << " differs in round " << round;
        }
    }
    void expect_equal_runs(const Problem& problem, bool typed_biases = false) {
        Inputs host = random_inputs(cpu, problem, GetParam());
        for (Tensor& bias : host.biases)
            if (typed_biases && bias.defined()) bias = cast(cpu, bias, GetParam());
        const Inputs in = on_gpu(host);
        for (const bool deterministic : {false, true}) {
            Options options = problem.options();
            options.deterministic = deterministic;
            expect_equal_runs((::testing::Message() << problem).GetString(), deterministic,
                              [&] { return run(gpu(), in, options); });
        }
    }
    void expect_equal_runs(const PackedProblem& problem) {
        const PackedInputs in = random_inputs(cpu, problem, GetParam()).on(gpu());
        for (const bool deterministic : {false, true}) {
            Options options = problem.each.options();
            options.deterministic = deterministic;
            expect_equal_runs((::testing::Message() << problem).GetString(), deterministic,
                              [&] { return run(gpu(), in, options); });
        }
    }

  private:
    void start_neighbour(int round) {
        if (!neighbour_) {
            const Problem problem{
                .queries = 500, .keys = 400, .d_qk = 128, .d_v = 128, .heads = 6, .key_heads = 3};
            neighbour_ = on_gpu(random_inputs(cpu, problem, DType::bf16));
        }
        const auto pass_on = [&](const Context& ctx) {
            Saved saved;
            forward(ctx, neighbour_->q, neighbour_->k, neighbour_->v, {}, saved);
            backward(ctx, neighbour_->d_o, {}, saved);
        };
        switch (round % 4) {
            case 0:
                return;
            case 1:
                return pass_on(gpu());
            case 2:
                return pass_on(other_stream_);
            case 3:
                pass_on(other_stream_);
                return pass_on(gpu());
        }
    }
    /// The name of an output that differs more than it may; null if there is none.
    const char* first_difference(const Result& a, const Result& b, bool deterministic) const {
        if (a.o != b.o) return "O";
        if (a.lse != b.lse) return "LSE";
        if (a.d_k != b.d_k) return "dK";
        if (a.d_v != b.d_v) return "dV";
        if (a.d_bias_0 != b.d_bias_0) return "dBias 0";
        if (a.d_bias_1 != b.d_bias_1) return "dBias 1";
        if (a.d_sink != b.d_sink) return "dSink";
        if (deterministic) return a.d_q == b.d_q ? nullptr : "dQ";
        double largest = 0;
        for (const double e : a.d_q) largest = std::max(largest, std::abs(e));
        // One rounding for each of a few blocks.
        const bool is_close =
            largest_difference(a.d_q, b.d_q) <= 8 * roundoff_of(GetParam(), gpu().device()).storage * largest;
        return is_close ? nullptr : "dQ";
    }

    Context other_stream_{cuda_device_count() > 0 ? Context(Device::cuda(0), 1) : cpu};
    std::optional<Inputs> neighbour_;
};

/// Several blocks of every kernel in both directions, and more blocks than fit the GPU at once.
TEST_P(AttentionCudaRepeats, DenseCalls) {
    for (const std::int64_t d : {32, 64, 96, 128, 192, 256})
        expect_equal_runs({.queries = 500,
                           .keys = 433,
                           .d_qk = d,
                           .d_v = d == 192 ? 128 : d,
                           .causal = true,
                           .batch = 2,
                           .heads = 8,
                           .key_heads = 4});
    expect_equal_runs({.queries = 500,
                       .keys = 333,
                       .d_qk = 128,
                       .d_v = 96,
                       .heads = 4,
                       .key_heads = 4,
                       .window = {.left = 150, .right = 100}});
}
/// Tasks so short that a thread block takes many of them.
TEST_P(AttentionCudaRepeats, ShortDenseCalls) {
    for (const std::int64_t d : {32, 64, 128, 192})
        expect_equal_runs({.queries = 190,
                           .keys = 170,
                           .d_qk = d,
                           .d_v = d,
                           .causal = true,
                           .batch = 2,
                           .heads = 4,
                           .key_heads = 2});
}
TEST_P(AttentionCudaRepeats, ManyShortHeads) {
    expect_equal_runs({.queries = 140,
                       .keys = 135,
                       .d_qk = 64,
                       .d_v = 64,
                       .causal = true,
                       .batch = 32,
                       .heads = 8,
                       .key_heads = 8});
}
TEST_P(AttentionCudaRepeats, FewQueries) {
    for (const std::int64_t d : {64, 128})
        expect_equal_runs(
            {.queries = 2, .keys = 3000, .d_qk = d, .d_v = d, .batch = 2, .heads = 4, .key_heads = 2});
}
TEST_P(AttentionCudaRepeats, PackedCalls) {
    for (const std::int64_t d : {32, 64, 128, 192, 256}) {
        PackedProblem problem{.each = {.d_qk = d, .d_v = d, .causal = true, .heads = 4, .key_heads = 2},
                              .queries = {70, 0, 5, 331, 1, 9, 0, 264},
                              .keys = {70, 8, 0, 270, 1, 140, 0, 265}};
        expect_equal_runs(problem);
    }
}
/// Every option of the scores alone, and all together.
TEST_P(AttentionCudaRepeats, CallsWithScoreOptions) {
    for (const std::int64_t d : {32, 64, 128, 192})
        for (const NamedProblem& option : score_option_problems({.queries = 200,
                                          .keys = 264,
                                          .d_qk = d,
                                          .d_v = d,
                                          .causal = true,
                                          .batch = 2,
                                          .heads = 4,
                                          .key_heads = 2})) {
            SCOPED_TRACE(option.name);
            expect_equal_runs(option.problem);
            if (option.problem.biases[0].rank() > 0) expect_equal_runs(option.problem, /*typed_biases=*/true);
        }
}
/// Evoformer's biases of pairs and of keys.
TEST_P(AttentionCudaRepeats, CallsWithBiasesInTiles) {
    for (const std::int64_t d : {32, 64})
        expect_equal_runs({.queries = 200,
                           .keys = 264,
                           .d_qk = d,
                           .d_v = d,
                           .batch = 4,
                           .heads = 4,
                           .key_heads = 4,
                           .biases = {Shape{4, 1, 1, 264}, Shape{2, 4, 200, 264}},
                           .batch_divisor = 2},
                          /*typed_biases=*/true);
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, AttentionCudaRepeats, testing::ValuesIn(floating_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace gradtile::attention::test
