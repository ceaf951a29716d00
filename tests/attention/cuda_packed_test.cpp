// Tests packed sequences on the GPU. Every algorithm and dtype is compared with dense calls, one for each
// sequence.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include <gradtile/core/cuda/step_graph.h>

#include "cuda_fixture.h"

namespace gradtile::attention::test {
namespace {

struct Lengths {
    std::vector<std::int64_t> queries, keys;
    std::int64_t rest = 0;  ///< rows and keys after the last sequence
};

std::vector<std::int32_t> offsets_of(const std::vector<std::int64_t>& lengths) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int64_t length : lengths)
        offsets.push_back(offsets.back() + static_cast<std::int32_t>(length));
    return offsets;
}

/// The sequences in one packed call. `shape` has one batch; its lengths are the sums over all sequences.
struct PackedInputs {
    Problem shape;
    std::vector<std::int32_t> q_offsets, k_offsets;
    Inputs in;

    PackedInputs(const Context& cpu, Problem problem, const Lengths& lengths, DType dtype)
        : shape(std::move(problem)),
          q_offsets(offsets_of(lengths.queries)),
          k_offsets(offsets_of(lengths.keys)) {
        shape.queries = q_offsets.back() + lengths.rest;
        shape.keys = k_offsets.back() + lengths.rest;
        in = random_inputs(cpu, shape, dtype);
        // No kernel may read the rows after the last sequence: they are NaN.
        for (Tensor* x : {&in.q, &in.k, &in.v, &in.d_o}) {
            const std::int64_t used = x->size(1) - lengths.rest;
            fill(cpu, x->slice(1, used, lengths.rest), std::numeric_limits<double>::quiet_NaN());
        }
    }
    std::size_t count() const { return q_offsets.size() - 1; }

    Tensor offsets(const Context& ctx, const std::vector<std::int32_t>& of) const {
        return from_host(ctx, of, {static_cast<std::int64_t>(of.size())});
    }
    Options options(const Context& ctx, Algorithm algorithm) const {
        Options options = shape.options(algorithm);
        options.cumulative_q = offsets(ctx, q_offsets);
        options.cumulative_k = offsets(ctx, k_offsets);
        return options;
    }
    /// Compares one sequence's results in two packed calls.
    void expect_equal(std::size_t b, const Result& x, const Result& y) const {
        SCOPED_TRACE(::testing::Message() << "sequence " << b);
        const auto expect = [](const std::vector<double>& a, const std::vector<double>& e, std::int64_t from,
                               std::int64_t to, const char* name) {
            for (auto i = static_cast<std::size_t>(from); i < static_cast<std::size_t>(to); ++i)
                ASSERT_EQ(a[i], e[i]) << name << ' ' << i;
        };
        const std::int64_t q_width = shape.heads * shape.d_qk, o_width = shape.heads * shape.d_v,
                           k_width = shape.key_heads * shape.d_qk, v_width = shape.key_heads * shape.d_v;
        const std::int64_t row = q_offsets[b], end_row = q_offsets[b + 1], key = k_offsets[b],
                           end_key = k_offsets[b + 1];
        expect(x.o, y.o, row * o_width, end_row * o_width, "o");
        expect(x.d_q, y.d_q, row * q_width, end_row * q_width, "dq");
        expect(x.d_k, y.d_k, key * k_width, end_key * k_width, "dk");
        expect(x.d_v, y.d_v, key * v_width, end_key * v_width, "dv");
        for (std::int64_t h = 0; h < shape.heads; ++h)
            expect(x.lse, y.lse, h * shape.queries + row, h * shape.queries + end_row, "lse");
    }
    static Inputs without_batch(Inputs x) {
        for (Tensor* t : {&x.q, &x.k, &x.v, &x.d_o}) *t = t->select(0, 0);
        if (x.d_lse.defined()) x.d_lse = x.d_lse.select(0, 0);
        return x;
    }
    Inputs inputs_of_sequence(Inputs x, std::size_t b) const {
        const std::int64_t row = q_offsets[b], rows = q_offsets[b + 1] - row, key = k_offsets[b],
                           keys = k_offsets[b + 1] - key;
        for (Tensor* t : {&x.q, &x.d_o}) *t = t->slice(1, row, rows);
        for (Tensor* t : {&x.k, &x.v}) *t = t->slice(1, key, keys);
        if (x.d_lse.defined()) x.d_lse = x.d_lse.slice(2, row, rows);
        return x;
    }
};

double largest_of(const std::vector<double>& x) {
    double largest = 0;
    for (const double e : x) largest = std::max(largest, std::abs(e));
    return largest;
}

/// The largest finite magnitude in x. Rows that see no key have LSE = -inf.
double largest_finite_of(const std::vector<double>& x) {
    double largest = 0;
    for (const double e : x)
        if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
    return largest;
}

/// Compares a part of `packed`, [heads, rows] or [rows, heads, columns], with a dense result.
struct Part {
    const std::vector<double>& packed;
    std::int64_t first, stride, count;  ///< `count` pieces; piece n begins at first + n * stride
    std::int64_t piece;

    void expect_near(const std::vector<double>& dense, double tolerance, const char* name) const {
        const double allowed = tolerance * std::max(1.0, largest_of(dense));
        for (std::int64_t n = 0; n < count; ++n)
            for (std::int64_t i = 0; i < piece; ++i) {
                const double x = packed[static_cast<std::size_t>(first + n * stride + i)],
                             y = dense[static_cast<std::size_t>(n * piece + i)];
                if (x == y) continue;
                ASSERT_NEAR(x, y, allowed) << name << ' ' << n << ' ' << i;
            }
    }
};

class AttentionCudaPacked : public AttentionCudaDtypes {
  protected:
    /// A dense call may use different kernels, and float64 cuts sequences into different tiles, so sums are
    /// rounded in another order: 16 units in float64, 4 units in the other dtypes. In float32 the roundings
    /// on P's way through the LSE are as large (docs/numerics.md, with u = 2^-24). In the packed and in the
    /// dense call, P has two relative errors: u (3 |S| + 4) from the maximum and 3 u |LSE| from the LSE. A
    /// dense call on the few-query path rounds its LSE twice more, when it merges the warps and the splits.
    /// Scores that matter are not larger than the LSE L. So the two P, and with them all results, differ by 2
    /// u (3 L + 4 + 3 L) + 2 u L = (2 + 3.5 L) 2^-22. 16-bit results are rounded so much more coarsely that
    /// this term does not count.
    double tolerance(double largest_lse) const {
        switch (GetParam()) {
            case DType::f64:
                return 16 * 0x1p-52;
            case DType::f32:
                return (4 + 2 + 3.5 * largest_lse) * 0x1p-22;
            case DType::bf16:
                return 4 * 0x1p-8;
            default:
                return 4 * 0x1p-11;
        }
    }
    void expect_equal_to_dense(const Problem& problem, const Lengths& lengths, bool deterministic = false) {
        const PackedInputs packed(cpu, problem, lengths, GetParam());
        for (const Algorithm algorithm : packed_algorithms) {
            SCOPED_TRACE(::testing::Message() << packed.shape << ' ' << GetParam() << ' ' << algorithm);
            poison();
            const Inputs in = on_gpu(packed.in);
            Options options = packed.options(gpu(), algorithm);
            options.deterministic = deterministic;
            const Result result = run(gpu(), PackedInputs::without_batch(in), options);
            std::vector<Result> dense_results;
            double largest_lse = 0;
            for (std::size_t b = 0; b < packed.count(); ++b) {
                Options dense = packed.shape.options(algorithm);
                dense.deterministic = deterministic;
                dense.dropout_key.first_sample += static_cast<std::int64_t>(b);
                dense_results.push_back(run(gpu(), packed.inputs_of_sequence(in, b), dense));
                largest_lse = std::max(largest_lse, largest_finite_of(dense_results.back().lse));
            }
            const double allowed = tolerance(largest_lse);
            std::vector<double> d_sink(result.d_sink.size());
            const std::int64_t heads = problem.heads, key_heads = problem.key_heads;
            for (std::size_t b = 0; b < packed.count(); ++b) {
                SCOPED_TRACE(::testing::Message() << "sequence " << b);
                const Result& expected = dense_results[b];
                const std::int64_t row = packed.q_offsets[b], rows = packed.q_offsets[b + 1] - row,
                                   key = packed.k_offsets[b], keys = packed.k_offsets[b + 1] - key;
                const auto query_rows = [&](const std::vector<double>& x, std::int64_t width) {
                    return Part{x, row * width, 0, 1, rows * width};
                };
                const auto key_rows = [&](const std::vector<double>& x, std::int64_t width) {
                    return Part{x, key * width, 0, 1, keys * width};
                };
                Part{result.lse, row, packed.shape.queries, heads, rows}.expect_near(expected.lse, allowed,
                                                                                     "lse");
                query_rows(result.o, heads * problem.d_v).expect_near(expected.o, allowed, "o");
                query_rows(result.d_q, heads * problem.d_qk).expect_near(expected.d_q, allowed, "dq");
                key_rows(result.d_k, key_heads * problem.d_qk).expect_near(expected.d_k, allowed, "dk");
                key_rows(result.d_v, key_heads * problem.d_v).expect_near(expected.d_v, allowed, "dv");
                for (std::size_t h = 0; h < d_sink.size(); ++h) d_sink[h] += expected.d_sink[h];
            }
            const double sinks = static_cast<double>(packed.count());
            for (std::size_t h = 0; h < d_sink.size(); ++h)
                EXPECT_NEAR(result.d_sink[h], d_sink[h],
                            sinks * std::max(allowed, 0x1p-20) * std::max(1.0, std::abs(d_sink[h])));
            expect_nothing_in_rest(packed, result, lengths.rest);
        }
    }
    void expect_nothing_in_rest(const PackedInputs& packed, const Result& result, std::int64_t rest) {
        if (rest == 0) return;
        const auto expect_zeros = [&](const std::vector<double>& x, std::int64_t length) {
            for (std::size_t i =
                     x.size() / static_cast<std::size_t>(length) * static_cast<std::size_t>(length - rest);
                 i < x.size(); ++i)
                ASSERT_EQ(x[i], 0);
        };
        for (const auto* x : {&result.o, &result.d_q}) expect_zeros(*x, packed.shape.queries);
        for (const auto* x : {&result.d_k, &result.d_v}) expect_zeros(*x, packed.shape.keys);
        for (std::int64_t head = 0; head < packed.shape.heads; ++head)
            for (std::int64_t row = packed.shape.queries - rest; row < packed.shape.queries; ++row)
                ASSERT_EQ(result.lse[static_cast<std::size_t>(head * packed.shape.queries + row)], -infinity);
    }
};

const Lengths mixed{
    .queries = {70, 0, 5, 200, 1, 64, 0, 129, 3}, .keys = {70, 9, 0, 200, 1, 64, 0, 140, 300}, .rest = 37};
const Lengths equal{.queries = {1, 257, 128, 30}, .keys = {1, 257, 128, 30}};
/// Sequences that end before, at and after the end of a kernel's block, and some with many blocks.
const Lengths edges{.queries = {1, 63, 64, 65, 127, 0, 128, 129, 191, 192, 193, 700, 2, 320},
                    .keys = {1, 64, 63, 127, 65, 5, 129, 128, 192, 0, 191, 700, 450, 320},
                    .rest = 70};

TEST_P(AttentionCudaPacked, EqualDenseCalls) {
    const Problem base{.d_qk = 32, .d_v = 32, .heads = 4, .key_heads = 2};
    for (const Lengths& lengths : {mixed, equal})
        for (const bool causal : {false, true})
            for (const bool deterministic : {false, true}) {
                Problem problem = base;
                problem.causal = causal;
                expect_equal_to_dense(problem, lengths, deterministic);
            }
    Problem window = base;
    window.window = {.left = 40, .right = 3};
    expect_equal_to_dense(window, mixed);
    window.top_left = true;
    expect_equal_to_dense(window, mixed, /*deterministic=*/true);
}
TEST_P(AttentionCudaPacked, EqualDenseCallsAtEveryHeadDim) {
    for (const std::int64_t d : {1, 16, 64, 96, 128, 192, 256})
        expect_equal_to_dense({.d_qk = d, .d_v = d, .causal = true, .heads = 2, .key_heads = 2}, mixed);
    expect_equal_to_dense({.d_qk = 192, .d_v = 128, .causal = true, .heads = 2, .key_heads = 1}, equal);
}
TEST_P(AttentionCudaPacked, EqualDenseCallsAtTheEdgesOfBlocks) {
    for (const std::int64_t d : {32, 64, 96, 128, 192, 256})
        for (const bool deterministic : {false, true}) {
            Problem problem{.d_qk = d, .d_v = d, .causal = true, .heads = 4, .key_heads = 2, .sink = true};
            expect_equal_to_dense(problem, edges, deterministic);
            problem.causal = false;
            problem.alibi = true;
            problem.window = {.left = 150, .right = 70};
            expect_equal_to_dense(problem, edges, deterministic);
        }
}
/// With so many heads, each thread block computes many tasks.
TEST_P(AttentionCudaPacked, EqualDenseCallsWithManyHeads) {
    const Lengths lengths{.queries = {300, 20, 513, 90}, .keys = {300, 20, 513, 90}};
    expect_equal_to_dense({.d_qk = 64, .d_v = 64, .causal = true, .heads = 48, .key_heads = 48}, lengths);
    expect_equal_to_dense({.d_qk = 128, .d_v = 128, .causal = true, .heads = 48, .key_heads = 12}, lengths,
                          /*deterministic=*/true);
}
TEST_P(AttentionCudaPacked, NoSequenceReadsItsNeighbours) {
    for (const std::int64_t d : {32, 64, 96, 128, 192, 256}) {
        const Problem problem{.d_qk = d, .d_v = d, .heads = 2, .key_heads = 1};
        const PackedInputs packed(cpu, problem, edges, GetParam());
        Options options = packed.options(gpu(), Algorithm::flash);
        options.deterministic = true;
        const Result expected = run(gpu(), PackedInputs::without_batch(on_gpu(packed.in)), options);
        for (const double poison : {std::numeric_limits<double>::quiet_NaN(), infinity})
            for (const std::size_t parity : {0, 1}) {
                SCOPED_TRACE(::testing::Message() << d << ' ' << poison << ' ' << parity);
                Inputs in = on_gpu(packed.in);
                for (std::size_t b = parity; b < packed.count(); b += 2) {
                    Inputs sequence_inputs = packed.inputs_of_sequence(in, b);
                    for (Tensor* x :
                         {&sequence_inputs.q, &sequence_inputs.k, &sequence_inputs.v, &sequence_inputs.d_o})
                        if (x->elements() > 0) fill(gpu(), *x, poison);
                }
                const Result result = run(gpu(), PackedInputs::without_batch(in), options);
                for (std::size_t b = 1 - parity; b < packed.count(); b += 2)
                    packed.expect_equal(b, result, expected);
            }
    }
}
TEST_P(AttentionCudaPacked, EqualDenseCallsUnderEveryScoreOption) {
    const Problem base{.d_qk = 16, .d_v = 24, .heads = 4, .key_heads = 2};
    const auto expect = [&](auto&& change) {
        Problem problem = base;
        change(problem);
        expect_equal_to_dense(problem, mixed);
    };
    for (const NamedProblem& option : score_option_problems(base))
        expect([&](Problem& p) { p = option.problem, p.biases = {}; });
    expect([](Problem& p) { p.causal = p.sink = p.d_lse = true; });
    for (const std::int64_t d : {16, 64, 96, 128, 192, 256})
        expect([&](Problem& p) {
            p = score_option_problems(base).back().problem;
            p.biases = {};
            p.d_qk = p.d_v = d;
            p.causal = true;
        });
    for (const std::int64_t d : {32, 64, 128, 256})
        expect([&](Problem& p) { p.d_qk = p.d_v = d, p.dropout_p = 0.2; });
}

TEST_P(AttentionCudaPacked, ManyShortSequencesAndNone) {
    Lengths many{.queries = std::vector<std::int64_t>(70, 3), .keys = std::vector<std::int64_t>(70, 2)};
    const Problem problem{.d_qk = 8, .d_v = 8, .causal = true, .heads = 1, .key_heads = 1};
    expect_equal_to_dense(problem, many);
    expect_equal_to_dense(problem, {.queries = {}, .keys = {}, .rest = 20});
    expect_equal_to_dense(problem, {.queries = {0, 0}, .keys = {0, 0}});
    expect_equal_to_dense(problem, {.queries = {0, 3}, .keys = {5, 0}});
}

/// The tests above would also pass if all calls took the kernels for sm_80.
TEST_F(AttentionCuda, PackedCallsTakeTheHopperKernels) {
    const PackedInputs packed(cpu, {.d_qk = 64, .d_v = 64, .heads = 2, .key_heads = 1}, equal, DType::bf16);
    const Inputs in = PackedInputs::without_batch(on_gpu(packed.in));
    const std::string explanation =
        explain_forward(gpu(), in.q, in.k, in.v, packed.options(gpu(), Algorithm::flash));
    EXPECT_THAT(explanation, testing::HasSubstr("packed sequences"));
    if (lacks_hopper_kernels(explanation)) GTEST_SKIP() << explanation;
    EXPECT_THAT(explanation, testing::HasSubstr("Hopper's asynchronous products"));
}

/// A graph is captured once and replayed with other offsets.
TEST_P(AttentionCudaPacked, ReplayedGraphsTakeOtherLengths) {
    const Problem problem{.d_qk = 32, .d_v = 32, .causal = true, .heads = 2, .key_heads = 2};
    const PackedInputs first(cpu, problem, {.queries = {100, 20, 8}, .keys = {100, 20, 8}}, GetParam()),
        second(cpu, problem, {.queries = {1, 0, 127}, .keys = {1, 0, 127}}, GetParam());
    const Inputs in = PackedInputs::without_batch(on_gpu(first.in));
    Options options = first.options(gpu(), Algorithm::flash);
    options.deterministic = true;
    Saved saved;
    Gradients gradients;
    StepGraph graph;
    const auto step = [&] {
        forward(gpu(), in.q, in.k, in.v, options, saved);
        gradients = backward(gpu(), in.d_o, options, saved);
    };
    step();
    graph.capture(gpu(), step);
    ASSERT_TRUE(graph.captured());
    for (const PackedInputs* lengths : {&first, &second}) {
        copy(gpu(), options.cumulative_q, lengths->offsets(gpu(), lengths->q_offsets));
        copy(gpu(), options.cumulative_k, lengths->offsets(gpu(), lengths->k_offsets));
        graph.replay(gpu());
        const Result expected = run(gpu(), in, options);
        EXPECT_EQ(to_host(gpu(), saved.o), expected.o);
        EXPECT_EQ(to_host(gpu(), saved.lse), expected.lse);
        EXPECT_EQ(to_host(gpu(), gradients.q), expected.d_q);
        EXPECT_EQ(to_host(gpu(), gradients.k), expected.d_k);
        EXPECT_EQ(to_host(gpu(), gradients.v), expected.d_v);
    }
}

/// With wrong offsets, kernels must not access memory outside the tensors. Only compute-sanitizer detects
/// such accesses.
TEST_P(AttentionCudaPacked, WrongOffsetsStayInsideTheTensors) {
    const Problem problem{.d_qk = 32, .d_v = 32, .causal = true, .heads = 2, .key_heads = 1};
    PackedInputs packed(cpu, problem, {.queries = {60, 40}, .keys = {60, 40}}, GetParam());
    const Inputs in = PackedInputs::without_batch(on_gpu(packed.in));
    for (const std::vector<std::int32_t>& wrong :
         {std::vector<std::int32_t>{-7, 2000000000, 100}, std::vector<std::int32_t>{90, 10, 50},
          std::vector<std::int32_t>{0, 100, 0, 100, 0, 100}}) {
        packed.q_offsets = packed.k_offsets = wrong;
        for (const Algorithm algorithm : packed_algorithms) run(gpu(), in, packed.options(gpu(), algorithm));
    }
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, AttentionCudaPacked, testing::ValuesIn(floating_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace gradtile::attention::test
