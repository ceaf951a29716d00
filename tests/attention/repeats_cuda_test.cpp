// Repeats calls on the GPU. O, LSE, dK, dV and the option gradients must be equal to the bit in every run, dQ
// with Options::deterministic too; without it, dQ differs by roundings, because the summation order differs.
//
//     GRADTILE_TEST_ROUNDS=10000 attention_test --gtest_filter='*AttentionCudaRepeats*'     # the long form
//     GRADTILE_TEST_SECONDS=10   # each call at most that long; prints the rounds
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <iterator>

#include "cuda_fixture.h"
#include "device_difference.h"
#include "packed_problems.h"

namespace gradtile::attention::test {
namespace {

class AttentionCudaRepeats : public AttentionCudaDtypes {
  protected:
    /// Repeats a call among neighbours that change what is in memory and in caches, which multiprocessors are
    /// free, and when thread blocks start.
    void expect_equal_runs(const std::string& name, const Inputs& in, const Options& options) {
        SCOPED_TRACE(name + (options.deterministic ? ", deterministic" : ""));
        const std::vector<Tensor> first = outputs_of(in, options);
        const char* const limit = std::getenv("GRADTILE_TEST_SECONDS");
        const auto begin = std::chrono::steady_clock::now();
        const auto is_over = [&] {
            const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
            return limit != nullptr && elapsed.count() > std::atof(limit);
        };
        int round = 1;
        for (; round < rounds(20) && !is_over(); ++round) {
            start_neighbour(round);
            const std::vector<Tensor> again = outputs_of(in, options);
            const char* const different = first_difference(first, again, options.deterministic);
            ASSERT_EQ(different, nullptr) << different << " differs in round " << round;
        }
        if (limit != nullptr) std::cout << round << " rounds of " << name << std::endl;
    }
    void expect_equal_runs(const Problem& problem, bool typed_biases = false) {
        Inputs host = random_inputs(cpu, problem, GetParam());
        for (Tensor& bias : host.biases)
            if (typed_biases && bias.defined()) bias = cast(cpu, bias, GetParam());
        const Inputs in = on_gpu(host);
        for (const bool deterministic : {false, true}) {
            Options options = problem.options();
            options.deterministic = deterministic;
            expect_equal_runs((::testing::Message() << problem).GetString(), in, options);
        }
    }
    void expect_equal_runs(const PackedProblem& problem) {
        const PackedInputs in = random_inputs(cpu, problem, GetParam()).on(gpu());
        for (const bool deterministic : {false, true}) {
            Options options = problem.each.options();
            options.deterministic = deterministic;
            options.cumulative_q = in.cumulative_q;
            options.cumulative_k = in.cumulative_k;
            expect_equal_runs((::testing::Message() << problem).GetString(), in.in, options);
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
    /// O, LSE, dK, dV, the option gradients, and dQ.
    std::vector<Tensor> outputs_of(const Inputs& in, const Options& options) const {
        const Options with_tensors = in.with_tensors(options);
        Saved saved;
        const Tensor o = forward(gpu(), in.q, in.k, in.v, with_tensors, saved);
        const Gradients d = backward(gpu(), in.d_o, with_tensors, saved, in.d_lse);
        return {o, saved.lse, d.k, d.v, d.biases[0], d.biases[1], d.sink, d.q};
    }
    /// Names an output that differs more than it may; null if there is none.
    const char* first_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                                 bool deterministic) const {
        static constexpr const char* names[] = {"O", "LSE", "dK", "dV", "dBias 0", "dBias 1", "dSink", "dQ"};
        const std::vector<DeviceDifference> differences = device_differences(gpu(), a, b);
        for (std::size_t n = 0; n < std::size(names); ++n) {
            const bool may_round = n + 1 == std::size(names) && !deterministic;
            // One rounding for each of a few blocks.
            const double bound = 8 * roundoff_of(GetParam(), gpu().device()).storage * differences[n].largest;
            if (may_round ? !(differences[n].largest_difference <= bound) : differences[n].different_bits > 0)
                return names[n];
        }
        return nullptr;
    }

    Context other_stream_{cuda_device_count() > 0 ? Context(Device::cuda(0), 1) : cpu};
    std::optional<Inputs> neighbour_;
};

/// Several blocks for every kernel in both directions, and more blocks than fit the GPU at once.
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
/// Tasks so short that a thread block takes many tasks.
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
/// Every score option alone, and all together.
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
/// Kernels skip other blocks for each head. Short and long calls: a thread block takes one task or many.
TEST_P(AttentionCudaRepeats, CallsWithRowRanges) {
    for (const std::int64_t d : {32, 64, 128, 192})
        for (const std::int64_t length : {190, 1100})
            for (const Shape& heads : {Shape{1, 1}, Shape{2, 8}})
                expect_equal_runs({.queries = length,
                                   .keys = length - 67,
                                   .d_qk = d,
                                   .d_v = d,
                                   .causal = length == 190,
                                   .batch = 2,
                                   .heads = 8,
                                   .key_heads = 4,
                                   .row_ranges = heads});
}
/// Evoformer's pair biases and key biases.
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

/// Tests the comparison that all other tests here use.
TEST_P(AttentionCudaRepeats, OneBitIsADifference) {
    constexpr std::int64_t length = 100'000;
    std::vector<double> numbers(length, 0.5), others = numbers;
    others[length - 1] = 0.5625;
    const auto difference_of = [&](double a, double b) {
        numbers[1] = a, others[1] = b;
        const auto tensor = [&](const std::vector<double>& x) {
            return from_host(gpu(), x, {length}, GetParam());
        };
        return device_differences(gpu(), {tensor(numbers)}, {tensor(others)}).at(0);
    };
    const DeviceDifference one = difference_of(-2, -2), zero_difference = difference_of(0.0, -0.0),
                           nan_difference = difference_of(std::nan(""), 1);
    EXPECT_EQ(one.different_bits, 1);
    EXPECT_EQ(one.largest_difference, 0.0625);
    EXPECT_EQ(one.largest, 2);
    EXPECT_EQ(zero_difference.different_bits, 2);
    EXPECT_EQ(zero_difference.largest_difference, 0.0625);
    EXPECT_EQ(nan_difference.different_bits, 2);
    EXPECT_EQ(nan_difference.largest_difference, std::numeric_limits<double>::infinity());
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, AttentionCudaRepeats, testing::ValuesIn(floating_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace gradtile::attention::test
