// Tests packed sequences on every device. They are compared with float64, and with a dense call for each
// sequence.
#include <limits>

#include <gmock/gmock.h>

#include <gradtile/core/gradcheck.h>

#include <support/error_message.h>

#include "devices.h"
#include "packed_problems.h"

namespace gradtile::attention::test {
namespace {

using gradtile::test::message_of;
using testing::HasSubstr;

// ---- Every device ----

class PackedAttention : public EveryDevice {
  protected:
    Result run_on_device(const PackedInputs& in, const Options& options) const {
        return run(ctx(), in.on(ctx()), options);
    }
};

TEST_P(PackedAttention, IsAsAccurateAsNaive) {
    for (const PackedProblem& problem : packed_problems()) {
        SCOPED_TRACE(::testing::Message() << problem);
        // The bound for float64 results is derived from the same problem's float32 error.
        const DType coarse = dtype() == DType::f64 ? DType::f32 : dtype();
        const PackedInputs coarse_inputs = random_inputs(cpu, problem, coarse),
                           in = coarse_inputs.to(cpu, dtype());
        const Result naive = run_each(cpu, problem, coarse_inputs, Algorithm::naive);
        const Reference reference = float64_reference(cpu, problem, in, roundoff_of(dtype(), ctx().device()));
        for_every_packed_implementation([&](Algorithm algorithm) {
            const Result result = run_on_device(in, problem.each.options(algorithm));
            if (dtype() == DType::f64) {
                expect_float64_accuracy(naive, result, reference);
            } else if (algorithm == Algorithm::naive) {
                expect_as_accurate_as(naive, result, reference, factors_of(DType::f32));
            } else {
                expect_as_accurate_as(naive, result, reference, factors_of(dtype()));
            }
        });
    }
}

/// A NaN that leaks from one sequence, or from memory after the last one, makes a result NaN.
TEST_P(PackedAttention, ReadsNoTokenOfAnotherSequence) {
    const PackedProblem problem{{.d_qk = 16, .d_v = 16, .heads = 2, .key_heads = 1, .sink = true},
                                {70, 3, 40},
                                {70, 3, 130},
                                /*unused_rows=*/9,
                                /*unused_keys=*/9};
    PackedInputs in = random_inputs(cpu, problem, dtype());
    for_every_packed_implementation([&](Algorithm algorithm) {
        // On a GPU naive multiplies whole matrices, in which a hidden NaN reaches every sum.
        if (GetParam().on_gpu && algorithm == Algorithm::naive) return;
        Options options = problem.each.options(algorithm);
        options.deterministic = true;
        const Result expected = run_on_device(in, options);
        PackedInputs bad = in;
        for (Tensor* x : {&bad.in.q, &bad.in.k, &bad.in.v, &bad.in.d_o}) {
            *x = from_host(cpu, to_host(cpu, *x), x->shape(), dtype());
            fill(cpu, x->slice(0, 70, 3), std::numeric_limits<double>::quiet_NaN());
            fill(cpu, x->slice(0, x->size(0) - 9, 9), std::numeric_limits<double>::quiet_NaN());
        }
        const Result result = run_on_device(bad, options);
        const auto expect_equal_outside = [](const std::vector<double>& a, const std::vector<double>& b,
                                             std::size_t columns) {
            for (std::size_t i = 0; i < a.size(); ++i)
                if (i / columns < 70 || i / columns >= 73) {
                    EXPECT_EQ(a[i], b[i]) << i;
                } else {
                    EXPECT_TRUE(std::isnan(a[i])) << i;
                }
        };
        expect_equal_outside(result.o, expected.o, 2 * 16);
        expect_equal_outside(result.d_q, expected.d_q, 2 * 16);
        expect_equal_outside(result.d_k, expected.d_k, 16);
        expect_equal_outside(result.d_v, expected.d_v, 16);
    });
}

/// In each sequence, V has a 1 in column j at key j and zeros elsewhere, so column j of O is not 0 where key
/// j's probability is kept.
TEST_P(PackedAttention, DropoutDropsWhatDenseCallsDrop) {
    const PackedProblem problem{
        {.d_qk = 8, .d_v = 64, .heads = 3, .key_heads = 3, .scale = 0.0, .dropout_p = 0.4},
        {33, 0, 64, 7},
        {40, 3, 64, 64}};
    PackedInputs in = random_inputs(cpu, problem, dtype());
    std::vector<double> identity(static_cast<std::size_t>(in.in.v.elements()));
    std::size_t first = 0;
    for (const std::int32_t keys : problem.keys) {
        for (std::size_t j = 0; j < static_cast<std::size_t>(keys); ++j)
            for (std::size_t h = 0; h < 3; ++h) identity[((first + j) * 3 + h) * 64 + j] = 1;
        first += static_cast<std::size_t>(keys);
    }
    in.in.v = from_host(cpu, identity, in.in.v.shape(), dtype());
    const auto is_kept = [](const Result& result) {
        std::vector<bool> kept;
        for (const double x : result.o) kept.push_back(x != 0);
        return kept;
    };
    const std::vector<bool> expected = is_kept(run_each(cpu, problem, in, Algorithm::naive));
    EXPECT_THAT(expected, ::testing::AllOf(::testing::Contains(true), ::testing::Contains(false)));
    for_every_packed_implementation([&](Algorithm algorithm) {
        EXPECT_EQ(is_kept(run_on_device(in, problem.each.options(algorithm))), expected);
    });
}

/// q, k and v may be views into one tensor, and results may be written to views.
TEST_P(PackedAttention, TensorsMayBeViewsOfOneProjection) {
    const PackedProblem problem{{.d_qk = 16, .d_v = 16, .causal = true, .heads = 2, .key_heads = 1},
                                {30, 0, 70, 5},
                                {30, 0, 70, 5},
                                /*unused_rows=*/3,
                                /*unused_keys=*/3};
    const PackedInputs dense = random_inputs(cpu, problem, dtype()).on(ctx());
    for_every_packed_implementation([&](Algorithm algorithm) {
        Options options = problem.each.options(algorithm);
        const Result expected = run(ctx(), dense, options);
        const std::int64_t rows = problem.rows();
        const Tensor projection = empty(ctx(), {rows, 4, 16}, dtype());
        const Tensor gradient = empty(ctx(), {rows, 4, 16}, dtype());
        const auto heads = [](const Tensor& x, std::int64_t first, std::int64_t count) {
            return x.slice(1, first, count);
        };
        copy(ctx(), heads(projection, 0, 2), dense.in.q);
        copy(ctx(), heads(projection, 2, 1), dense.in.k);
        copy(ctx(), heads(projection, 3, 1), dense.in.v);
        options.cumulative_q = dense.cumulative_q;
        options.cumulative_k = dense.cumulative_k;
        Saved saved;
        const Tensor o = forward(ctx(), heads(projection, 0, 2), heads(projection, 2, 1),
                                 heads(projection, 3, 1), options, saved);
        backward(ctx(), dense.in.d_o, options, saved,
                 {.q = heads(gradient, 0, 2), .k = heads(gradient, 2, 1), .v = heads(gradient, 3, 1)});
        EXPECT_EQ(to_host(ctx(), o), expected.o);
        EXPECT_EQ(to_host(ctx(), heads(gradient, 3, 1)), expected.d_v);
        EXPECT_EQ(to_host(ctx(), heads(gradient, 2, 1)), expected.d_k);
        if (ctx().device().is_cpu()) {
            EXPECT_EQ(to_host(ctx(), heads(gradient, 0, 2)), expected.d_q);
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Devices, PackedAttention, testing::ValuesIn(devices_and_dtypes()), name_of_place);

// ---- The CPU ----

/// Leaves out sequences with rows that see no key or keys that no row sees. A dense call leaves these rows
/// and keys out, so that its blocks begin at others.
PackedProblem with_fully_seen_sequences(const PackedProblem& problem) {
    PackedProblem seen = problem;
    seen.queries.clear();
    seen.keys.clear();
    for (std::size_t s = 0; s < problem.queries.size(); ++s) {
        const Problem p = problem.sequence(s);
        const SeenRanges ranges = seen_ranges({.queries = p.queries,
                                               .keys = p.keys,
                                               .offset = p.top_left ? 0 : p.keys - p.queries,
                                               .left = p.window.left,
                                               .right = p.causal ? 0 : p.window.right});
        if (ranges.rows.end - ranges.rows.begin < p.queries || ranges.keys.end - ranges.keys.begin < p.keys)
            continue;
        seen.queries.push_back(problem.queries[s]);
        seen.keys.push_back(problem.keys[s]);
    }
    seen.each.batch_divisor = 1;
    for (Shape& bias : seen.each.biases) {
        if (bias.rank() == 2 && bias[1] != 1) bias[1] = seen.key_count();
        if (bias.rank() == 4 && bias[0] != 1) bias[0] = std::ssize(seen.queries);
    }
    return seen;
}

/// Whether an element of a bias belongs to several sequences.
bool sequences_share(const PackedProblem& problem, const Shape& bias) {
    return bias.rank() == 2 ? bias[1] == 1
                            : bias.rank() == 4 && (bias[0] == 1 || problem.each.batch_divisor > 1);
}

/// For each block in a sequence, a packed call and a dense call run the same kernel on the same numbers.
TEST(PackedAttentionOnTheCpu, EqualsDenseCallsToTheBit) {
    const Context ctx(Device::cpu(), 2);
    for (const PackedProblem& all : packed_problems())
        for (const DType dtype : floating_dtypes)
            for_every_packed_algorithm(dtype, [&](Algorithm algorithm) {
                const PackedProblem problem = with_fully_seen_sequences(all);
                SCOPED_TRACE(::testing::Message() << problem);
                const PackedInputs in = random_inputs(ctx, problem, dtype);
                Result packed = run(ctx, in, problem.each.options(algorithm));
                Result dense = run_each(ctx, problem, in, algorithm);
                // Dense calls round each sequence's sums to float32.
                double largest = 0;
                for (const double x : dense.d_sink) largest = std::max(largest, std::abs(x));
                for (std::size_t h = 0; h < dense.d_sink.size(); ++h)
                    EXPECT_NEAR(packed.d_sink[h], dense.d_sink[h],
                                static_cast<double>(problem.queries.size()) * 0x1p-22 * (1 + largest));
                packed.d_sink = dense.d_sink = {};
                // Sums over sequences are rounded in another order; IsAsAccurateAsNaive compares them.
                if (sequences_share(problem, problem.each.biases[0])) packed.d_bias_0 = dense.d_bias_0 = {};
                if (sequences_share(problem, problem.each.biases[1])) packed.d_bias_1 = dense.d_bias_1 = {};
                EXPECT_TRUE(packed == dense);
            });
}

TEST(PackedAttentionOnTheCpu, ResultsDoNotDependOnTheNumberOfThreads) {
    const Context one(Device::cpu(), 1);
    for (const PackedProblem& problem : packed_problems())
        for (const DType dtype : {DType::f32, DType::bf16}) {
            SCOPED_TRACE(::testing::Message() << problem << ' ' << dtype);
            const PackedInputs in = random_inputs(one, problem, dtype);
            const Result expected = run(one, in, problem.each.options());
            for (const int threads : {2, 3})
                EXPECT_EQ(run(Context(Device::cpu(), threads), in, problem.each.options()), expected);
        }
}

/// A dry run does not know the lengths; its memory must suffice for all, and results must not depend on what
/// memory held before.
TEST(PackedAttentionOnTheCpu, ADryRunPlansForAllLengths) {
    const Context plain(Device::cpu(), 2);
    const auto tensors = [](const Context& ctx, DType dtype) {
        return std::array{zeros(ctx, {600, 2, 16}, dtype), zeros(ctx, {620, 1, 16}, dtype),
                          zeros(ctx, {2}, DType::f32), zeros(ctx, {2, 620}, DType::f32),
                          zeros(ctx, {1, 1, 600, 600}, dtype)};
    };
    const auto run_passes = [&](const Context& ctx, DType dtype, Algorithm algorithm, const Tensor& offsets) {
        const auto inputs = tensors(ctx, dtype);
        const auto& q = inputs[0];
        const auto& k = inputs[1];
        const Options options{.algorithm = algorithm,
                              .causal = true,
                              .biases = {inputs[3], inputs[4]},
                              .sink = inputs[2],
                              .cumulative_q = offsets,
                              .cumulative_k = offsets};
        Saved saved;
        const Tensor o = forward(ctx, q, k, k, options, saved);
        const Gradients gradients = backward(ctx, q, options, saved);
        if (ctx.is_planning()) return 0.0;
        double sum = 0;
        for (const Tensor& x : {o, gradients.q, gradients.k, gradients.v, gradients.biases[0],
                                gradients.biases[1], gradients.sink})
            for (const double element : to_host(plain, x)) sum += element;
        return sum;
    };
    const auto offsets = [&](std::vector<std::int32_t> list) {
        list.resize(101, list.back());
        return from_host(plain, list, {101});
    };
    std::vector<std::int32_t> steps;
    for (std::int32_t i = 0; i <= 100; ++i) steps.push_back(6 * i);
    for (const DType dtype : floating_dtypes)
        for_every_packed_algorithm(dtype, [&](Algorithm algorithm) {
            const auto plan = Arena::for_planning(Device::cpu());
            run_passes(plain.plan(plan), dtype, algorithm, offsets({0, 600}));
            for (const auto& lengths : {std::vector<std::int32_t>{0, 600}, {0, 1, 599, 600}, {0}, steps}) {
                const auto arena = std::make_shared<Arena>(Device::cpu(), plan->peak_bytes());
                const Context inside = plain.with_allocator(arena);
                fill(inside, empty(inside, {static_cast<std::int64_t>(plan->peak_bytes() / 4)}, DType::f32),
                     std::numeric_limits<double>::quiet_NaN());
                EXPECT_EQ(run_passes(inside, dtype, algorithm, offsets(lengths)),
                          run_passes(plain, dtype, algorithm, offsets(lengths)));
                EXPECT_EQ(arena->bytes_in_use(), 0u);
            }
        });
}

/// Packed attention as a function of q, k, v and two biases.
struct PackedOperator {
    Options options;
    Saved saved = {};

    Tensor forward(const Context& ctx, const std::vector<Tensor>& x) {
        options.biases = {x[3], x[4]};
        return attention::forward(ctx, x[0], x[1], x[2], options, saved);
    }
    std::vector<Tensor> backward(const Context& ctx, const std::vector<Tensor>&, const Tensor& d_o) {
        const Gradients g = attention::backward(ctx, d_o, options, saved);
        return {g.q, g.k, g.v, g.biases[0], g.biases[1]};
    }
};

TEST(PackedAttentionOnTheCpu, GradientsAreThoseOfFiniteDifferences) {
    const Context ctx(Device::cpu(), 2);
    PackedProblem problem{{.d_qk = 8,
                           .d_v = 6,
                           .causal = true,
                           .heads = 4,
                           .key_heads = 2,
                           .window = {.left = 30},
                           .softcap = 2,
                           .alibi = true,
                           .sink = true,
                           .dropout_p = 0.25},
                          {40, 3, 0, 9, 70},
                          {40, 9, 4, 0, 33},
                          /*unused_rows=*/2,
                          /*unused_keys=*/3};
    const std::int64_t count = 5, heads = 4, rows = 70, keys = 40;
    for (const auto& biases : {std::array{Shape{heads, problem.key_count()}, Shape{1, heads, rows, keys}},
                               std::array{Shape{1, problem.key_count()}, Shape{count, 1, rows, keys}},
                               std::array{Shape{heads, 1}, Shape{count, heads, 1, keys}}}) {
        problem.each.biases = biases;
        const PackedInputs in = random_inputs(ctx, problem, DType::f64);
        for (const Algorithm algorithm : packed_algorithms) {
            SCOPED_TRACE(::testing::Message() << problem << ' ' << algorithm);
            Options options = in.in.with_tensors(problem.each.options(algorithm));
            options.cumulative_q = in.cumulative_q;
            options.cumulative_k = in.cumulative_k;
            const GradientReport report =
                gradient_check(ctx, PackedOperator{options},
                               {in.in.q, in.in.k, in.in.v, cast(ctx, in.in.biases[0], DType::f64),
                                cast(ctx, in.in.biases[1], DType::f64)},
                               {.elements = 24, .names = {"q", "k", "v", "bias per key", "bias per pair"}});
            EXPECT_TRUE(report.ok()) << report;
        }
    }
}

TEST(PackedAttentionOnTheCpu, WrongOffsetsAreRefusedByNameIndexAndValue) {
    const Context ctx(Device::cpu(), 2);
    const Tensor x = zeros(ctx, {10, 2, 8}, DType::f32);
    const auto offsets = [&](std::vector<std::int32_t> list) {
        return from_host(ctx, list, {std::ssize(list)});
    };
    const auto message = [&](const Tensor& q, const Tensor& k, Algorithm algorithm = Algorithm::flash) {
        return message_of([&] {
            Saved saved;
            forward(ctx, x, x, x, {.algorithm = algorithm, .cumulative_q = q, .cumulative_k = k}, saved);
        });
    };
    const Tensor good = offsets({0, 4, 10});
    for (const Algorithm algorithm : packed_algorithms) {
        EXPECT_EQ(message(good, good, algorithm), "no error");
        EXPECT_THAT(message(offsets({1, 4, 10}), good, algorithm),
                    HasSubstr("cumulative_q[0] is 1; expected 0"));
        EXPECT_THAT(message(good, offsets({0, 4, 3}), algorithm),
                    HasSubstr("cumulative_k[2] is 3; expected at least 4"));
        EXPECT_THAT(message(good, offsets({0, -4, 3}), algorithm),
                    HasSubstr("cumulative_k[1] is -4; expected at least 0"));
        EXPECT_THAT(message(offsets({0, 4, 11}), good, algorithm),
                    HasSubstr("cumulative_q[2] is 11; expected at most 10"));
    }
    EXPECT_THAT(message(offsets({0, 10}), good), HasSubstr("cumulative_q has 1 sequences, cumulative_k 2"));
    EXPECT_THAT(message(good, {}), HasSubstr("cumulative_k is not set"));
    EXPECT_THAT(message({}, good), HasSubstr("cumulative_q is not set"));
    EXPECT_THAT(message(zeros(ctx, {3}, DType::f32), good), HasSubstr("expected contiguous int32"));
}

/// Backward reads the offsets, too.
TEST(PackedAttentionOnTheCpu, BackwardRefusesWrongOffsets) {
    const Context ctx(Device::cpu(), 2);
    const Tensor x = zeros(ctx, {10, 2, 8}, DType::f32);
    for (const Algorithm algorithm : packed_algorithms) {
        const Tensor offsets = from_host(ctx, std::vector<std::int32_t>{0, 4, 10}, {3});
        const Options options{.algorithm = algorithm, .cumulative_q = offsets, .cumulative_k = offsets};
        Saved saved;
        forward(ctx, x, x, x, options, saved);
        offsets.data<std::int32_t>()[2] = 12;
        EXPECT_THAT(message_of([&] { backward(ctx, x, options, saved); }),
                    HasSubstr("cumulative_q[2] is 12; expected at most 10"));
    }
}

}  // namespace
}  // namespace gradtile::attention::test
