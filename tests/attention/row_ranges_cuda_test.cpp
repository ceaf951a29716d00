// Row ranges on the GPU, compared with float64 on the CPU, where biases of -inf hide the same pairs. Every
// kernel family that takes row ranges computes every mask.
#include <array>
#include <functional>

#include <gradtile/core/cuda/step_graph.h>

#include "cuda_fixture.h"

namespace gradtile::attention::test {
namespace {

/// One key's two ranges of rows.
using Ranges = std::array<std::int32_t, 4>;

struct RangedMask {
    std::string name;
    bool differs_by_batch = false, differs_by_head = false;
    std::function<Ranges(std::int64_t batch, std::int64_t head, std::int64_t key)> ranges;
};

/// Masks for `queries` rows. Some keys are in no range, and some rows see no key.
std::vector<RangedMask> ranged_masks(std::int32_t queries) {
    const auto position = [](std::int64_t key) { return static_cast<std::int32_t>(key); };
    const auto scattered = [queries](std::int64_t seed, std::int64_t key) -> Ranges {
        const auto number = [&](std::int64_t n) {
            const std::uint64_t x = static_cast<std::uint64_t>(seed * 977 + key / 16 * 31 + n * 7 + 1);
            return static_cast<std::int32_t>((x * 6364136223846793005u >> 33) % (queries + 1));
        };
        // Keys in a group have neighbouring ranges, some of them empty and some beyond the rows.
        const std::int32_t shift = static_cast<std::int32_t>(key % 16);
        return {number(0) - shift, number(0) + number(1) / 4, number(2) + shift, number(2) + number(3) / 3};
    };
    return {{"causal", false, false,
             [=](auto, auto, auto key) {
                 return Ranges{position(key), queries, 0, 0};
             }},
            {"documents", false, false,
             [=](auto, auto, auto key) {
                 const std::int32_t first = position(key) / 50 * 50;
                 return Ranges{first, first + 50, 0, 0};
             }},
            {"window and global keys", false, false,
             [=](auto, auto, auto key) {
                 return key % 100 < 3 ? Ranges{0, queries, 0, 0}
                                      : Ranges{position(key), position(key) + 40, 0, 0};
             }},
            {"prefix", false, false,
             [=](auto, auto, auto key) {
                 return Ranges{key < 120 ? 0 : position(key), queries, 0, 0};
             }},
            {"two runs", false, false,
             [=](auto, auto, auto key) {
                 return Ranges{queries - 30, queries, position(key) / 64 * 32, position(key) / 64 * 32 + 20};
             }},
            {"holes", false, false,
             [=](auto, auto, auto key) {
                 return key / 90 % 2 == 0 ? Ranges{9, queries - 8, 3, 1} : Ranges{7, 7, INT32_MAX, INT32_MIN};
             }},
            {"hostile", false, false,
             [=](auto, auto, auto key) {
                 return key % 3 == 0   ? Ranges{INT32_MIN, INT32_MAX, 5, 2}
                        : key % 3 == 1 ? Ranges{INT32_MAX, INT32_MIN, -7, 11}
                                       : Ranges{20, INT32_MAX, INT32_MIN, 3};
             }},
            {"nothing", false, false,
             [](auto, auto, auto) {
                 return Ranges{4, 4, 9, 2};
             }},
            {"scattered", false, false, [=](auto, auto, auto key) { return scattered(1, key); }},
            {"each head its own", false, true,
             [=](auto, auto head, auto key) {
                 return head % 2 == 1 && key < 200 ? Ranges{0, 0, 0, 0} : scattered(head, key);
             }},
            {"each batch and head its own", true, true,
             [=](auto batch, auto head, auto key) { return scattered(5 * batch + head + 3, key); }}};
}

class AttentionCudaRowRanges : public AttentionCudaDtypes {
  protected:
    /// row_ranges [Bm, Hm, keys, 4] on the GPU. Memory between the keys' numbers holds other numbers.
    Tensor tensor_of(const RangedMask& mask, const Problem& p) const {
        const std::int64_t batches = mask.differs_by_batch ? p.batch : 1,
                           heads = mask.differs_by_head ? p.heads : 1;
        std::vector<double> numbers;
        for (std::int64_t b = 0; b < batches; ++b)
            for (std::int64_t h = 0; h < heads; ++h)
                for (std::int64_t key = 0; key < p.keys; ++key) {
                    for (const std::int32_t x : mask.ranges(b, h, key)) numbers.push_back(x);
                    for (const double x : {0.0, 1e9, 0.0, 1e9}) numbers.push_back(x);
                }
        return from_host(gpu(), numbers, {batches, heads, p.keys, 8}, DType::i32).slice(3, 0, 4);
    }
    static bool sees(const RangedMask& mask, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
        const Ranges r = mask.ranges(b, h, j);
        return (i >= r[0] && i < r[1]) || (i >= r[2] && i < r[3]);
    }
    /// A problem whose first bias hides the same pairs.
    static Problem with_hiding_bias(Problem p, const RangedMask& mask) {
        p.biases[0] = {mask.differs_by_batch ? p.batch : 1, mask.differs_by_head ? p.heads : 1, p.queries,
                       p.keys};
        return p;
    }
    void hide(Inputs& in, const Problem& p, const RangedMask& mask) const {
        std::vector<double> bias;
        for (std::int64_t b = 0; b < p.biases[0][0]; ++b)
            for (std::int64_t h = 0; h < p.biases[0][1]; ++h)
                for (std::int64_t i = 0; i < p.queries; ++i)
                    for (std::int64_t j = 0; j < p.keys; ++j)
                        bias.push_back(sees(mask, b, h, i, j) ? 0 : -infinity);
        in.biases[0] = from_host(cpu, bias, p.biases[0], DType::f32);
    }
    /// Sets rows that see no key, and keys that no row sees, to NaN.
    Inputs with_nan_where_unseen(const Inputs& in, const Problem& p, const RangedMask& mask) const {
        Inputs changed = in;
        const auto is_seen = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
            return sees(mask, b, h, i, j) && (!p.causal || j <= i + p.keys - p.queries);
        };
        const auto put_nan = [&](Tensor& x, auto&& is_needed) {
            std::vector<double> numbers = to_host(cpu, x);
            const std::int64_t width = x.size(3);
            for (std::int64_t n = 0; n < std::ssize(numbers); n += width) {
                const std::int64_t head = n / width % x.size(2), row = n / width / x.size(2) % x.size(1),
                                   batch = n / width / x.size(2) / x.size(1);
                if (is_needed(batch, head, row)) continue;
                std::fill_n(numbers.begin() + n, width, std::numeric_limits<double>::quiet_NaN());
            }
            x = from_host(cpu, numbers, x.shape(), x.dtype());
        };
        const auto row_is_needed = [&](std::int64_t b, std::int64_t h, std::int64_t i) {
            for (std::int64_t j = 0; j < p.keys; ++j)
                if (is_seen(b, h, i, j)) return true;
            return false;
        };
        const auto key_is_needed = [&](std::int64_t b, std::int64_t key_head, std::int64_t j) {
            const std::int64_t group = p.heads / p.key_heads;
            for (std::int64_t h = key_head * group; h < (key_head + 1) * group; ++h)
                for (std::int64_t i = 0; i < p.queries; ++i)
                    if (is_seen(b, h, i, j)) return true;
            return false;
        };
        put_nan(changed.q, row_is_needed);
        put_nan(changed.d_o, row_is_needed);
        put_nan(changed.k, key_is_needed);
        put_nan(changed.v, key_is_needed);
        return changed;
    }

    /// All kernels must be as accurate as the naive algorithm on the CPU with a bias that hides the pairs.
    void expect_accurate(const Problem& base, const RangedMask& mask, bool has_nan = false) const {
        const DType dtype = GetParam(), coarse = dtype == DType::f64 ? DType::f32 : dtype;
        SCOPED_TRACE(::testing::Message() << base << ' ' << dtype << ' ' << mask.name);
        const Problem problem = with_hiding_bias(base, mask);
        Inputs coarse_inputs = random_inputs(cpu, problem, coarse);
        hide(coarse_inputs, problem, mask);
        const Inputs in = coarse_inputs.to(cpu, dtype);
        Result naive = attention::accuracy::run(cpu, coarse_inputs, problem.options(Algorithm::naive));
        Reference reference = float64_reference(cpu, problem, in, roundoff_of(dtype, Device::cuda(0)));
        naive.d_bias_0.clear();
        for (Result* x :
             {&reference.value, &reference.floor, &reference.root_mean_square, &reference.systematic})
            x->d_bias_0.clear();
        Inputs without_bias = has_nan ? with_nan_where_unseen(in, problem, mask) : in;
        without_bias.biases[0] = {};
        const Tensor ranges = tensor_of(mask, problem);
        const auto expect = [&](const Options& options) {
            Inputs moved = on_gpu(without_bias);
            moved.row_ranges = ranges;
            const Result result = attention::accuracy::run(gpu(), moved, options);
            if (dtype == DType::f64) return expect_float64_accuracy(naive, result, reference);
            expect_as_accurate_as(
                naive, result, reference,
                options.algorithm == Algorithm::naive ? factors_of(DType::f32) : factors_of(dtype));
        };
        expect(base.options(Algorithm::naive));
        for (const bool hopper : {true, false})
            for (const bool deterministic : {false, true}) {
                SCOPED_TRACE(::testing::Message()
                             << "hopper " << hopper << " deterministic " << deterministic);
                Options options = base.options();
                options.kernels.hopper = hopper;
                options.deterministic = deterministic;
                expect(options);
            }
    }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionCudaRowRanges,
                         testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         [](const auto& instance) { return concat(instance.param); });

Problem problem_of(std::int64_t d) {
    return {.queries = 301, .keys = 433, .d_qk = d, .d_v = d, .batch = 2, .heads = 4, .key_heads = 2};
}

TEST_P(AttentionCudaRowRanges, AreAsAccurateAsABiasThatHidesTheSamePairs) {
    for (const std::int64_t d : {64, 128})
        for (const RangedMask& mask : ranged_masks(301)) expect_accurate(problem_of(d), mask);
}
TEST_P(AttentionCudaRowRanges, AreAsAccurateAtOtherHeadDims) {
    for (const std::int64_t d : {32, 40, 96, 192, 256})
        for (const RangedMask& mask : ranged_masks(301))
            if (mask.name == "scattered" || mask.name == "each batch and head its own")
                expect_accurate(problem_of(d), mask);
}
/// Row ranges and every other mask, sinks, the gradient through the LSE, and lengths of one block or less.
TEST_P(AttentionCudaRowRanges, CombineWithOtherOptions) {
    for (const std::int64_t d : {64, 128}) {
        std::vector<Problem> problems;
        const auto add = [&](auto&& change) { change(problems.emplace_back(problem_of(d))); };
        add([](Problem& p) { p.causal = p.sink = p.d_lse = true; });
        add([](Problem& p) { p.window = {.left = 60, .right = 20}, p.scale = 0.3; });
        add([](Problem& p) { p.causal = p.top_left = true, p.window.left = 90; });
        add([](Problem& p) { p.queries = 700, p.keys = 200, p.causal = true; });
        add([](Problem& p) { p.queries = 3, p.keys = 433; });
        add([](Problem& p) { p.queries = 64, p.keys = 1; });
        add([](Problem& p) { p.scale = -0.25; });
        add([](Problem& p) { p.softcap = 2, p.alibi = p.causal = true; });
        add([](Problem& p) { p.dropout_p = 0.3, p.sink = true; });
        add([](Problem& p) { p.biases[1] = {1, 4, 301, 433}, p.causal = true; });
        for (const Problem& problem : problems)
            for (const RangedMask& mask : ranged_masks(static_cast<std::int32_t>(problem.queries)))
                if (mask.name == "scattered" || mask.name == "holes" || mask.name == "each head its own")
                    expect_accurate(problem, mask);
    }
}
TEST_P(AttentionCudaRowRanges, UnseenRowsAndKeysMayHoldNaN) {
    for (const std::int64_t d : {32, 64, 128, 256})
        for (const RangedMask& mask : ranged_masks(301))
            if (mask.name == "holes" || mask.name == "two runs" || mask.name == "each head its own" ||
                mask.name == "nothing")
                expect_accurate(problem_of(d), mask, /*has_nan=*/true);
}

/// Packed sequences are dense calls of their own, whose ranges count rows from the sequence's start.
TEST_P(AttentionCudaRowRanges, OfPackedSequencesAreThoseOfEachSequence) {
    const std::vector<std::int32_t> queries{70, 0, 5, 331, 1, 129}, keys{70, 8, 0, 270, 3, 140};
    const auto offsets_of = [&](const std::vector<std::int32_t>& lengths) {
        std::vector<double> offsets{0};
        for (const std::int32_t n : lengths) offsets.push_back(offsets.back() + n);
        return offsets;
    };
    const std::vector<double> q_offsets = offsets_of(queries), k_offsets = offsets_of(keys);
    for (const std::int64_t d : {64, 128})
        for (const bool causal : {false, true}) {
            Problem problem{.queries = 540, .keys = 495, .d_qk = d, .d_v = d, .heads = 4, .key_heads = 2};
            problem.causal = causal;
            const Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
            RangedMask mask = ranged_masks(331).back();
            mask.differs_by_batch = false;
            const Tensor ranges = tensor_of(mask, problem);
            const auto part = [](const Tensor& x, const std::vector<double>& offsets, std::size_t s) {
                return x.slice(1, static_cast<std::int64_t>(offsets[s]),
                               static_cast<std::int64_t>(offsets[s + 1] - offsets[s]));
            };
            const auto without_batch = [](const Tensor& x) {
                return x.reshape({x.size(1), x.size(2), x.size(3)});
            };
            for (const bool deterministic : {false, true}) {
                Options options = problem.options();
                options.deterministic = deterministic;
                options.row_ranges = ranges.select(0, 0);
                options.cumulative_q = from_host(gpu(), q_offsets, {7}, DType::i32);
                options.cumulative_k = from_host(gpu(), k_offsets, {7}, DType::i32);
                Saved saved;
                const Tensor o = forward(gpu(), without_batch(in.q), without_batch(in.k), without_batch(in.v),
                                         options, saved);
                const Gradients gradients = backward(gpu(), without_batch(in.d_o), options, saved);
                for (std::size_t s = 0; s < queries.size(); ++s) {
                    SCOPED_TRACE(::testing::Message() << "sequence " << s << " head dim " << d);
                    Options own = problem.options();
                    own.row_ranges = ranges.slice(2, static_cast<std::int64_t>(k_offsets[s]), keys[s]);
                    if (keys[s] == 0) own.row_ranges = {};
                    Saved own_saved;
                    const Tensor own_o = forward(gpu(), part(in.q, q_offsets, s), part(in.k, k_offsets, s),
                                                 part(in.v, k_offsets, s), own, own_saved);
                    const Gradients own_d = backward(gpu(), part(in.d_o, q_offsets, s), own, own_saved);
                    // Different kernels may compute the two calls: each result has a few roundings.
                    const auto expect_near = [&](const char* name, const Tensor& x, const Tensor& expected) {
                        const std::vector<double> a = to_host(gpu(), x), b = to_host(gpu(), expected);
                        ASSERT_EQ(a.size(), b.size()) << name;
                        double largest = 0;
                        for (const double value : b) largest = std::max(largest, std::abs(value));
                        const double unit = roundoff_of(GetParam(), Device::cuda(0)).storage;
                        EXPECT_LE(accuracy::largest_difference(a, b), 64 * unit * largest) << name;
                    };
                    const auto rows_of = [&](const Tensor& x, const std::vector<double>& offsets) {
                        return x.slice(0, static_cast<std::int64_t>(offsets[s]),
                                       static_cast<std::int64_t>(offsets[s + 1] - offsets[s]));
                    };
                    expect_near("O", rows_of(o, q_offsets), own_o);
                    expect_near("dQ", rows_of(gradients.q, q_offsets), own_d.q);
                    expect_near("dK", rows_of(gradients.k, k_offsets), own_d.k);
                    expect_near("dV", rows_of(gradients.v, k_offsets), own_d.v);
                }
            }
        }
}

/// Long calls, in which thread blocks take many tasks and skip most blocks, compared between two families.
TEST_P(AttentionCudaRowRanges, HopperKernelsAgreeWithOthersInLongCalls) {
    for (const std::int64_t d : {64, 128})
        for (const RangedMask& mask : ranged_masks(3001)) {
            if (mask.differs_by_batch) continue;
            SCOPED_TRACE(::testing::Message() << mask.name << " head dim " << d);
            const Problem problem{
                .queries = 3001, .keys = 3001, .d_qk = d, .d_v = d, .heads = 16, .key_heads = 8};
            Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
            in.row_ranges = tensor_of(mask, problem);
            Options options = problem.options();
            options.kernels.hopper = true;
            const Result a = attention::accuracy::run(gpu(), in, options);
            options.kernels.hopper = false;
            const Result b = attention::accuracy::run(gpu(), in, options);
            const auto expect_near = [&](const char* name, const std::vector<double>& x,
                                         const std::vector<double>& y) {
                double largest = 0;
                for (const double value : y)
                    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
                const double unit = roundoff_of(GetParam(), Device::cuda(0)).storage;
                EXPECT_LE(accuracy::largest_difference(x, y), 64 * unit * largest) << name;
            };
            expect_near("O", a.o, b.o);
            expect_near("LSE", a.lse, b.lse);
            expect_near("dQ", a.d_q, b.d_q);
            expect_near("dK", a.d_k, b.d_k);
            expect_near("dV", a.d_v, b.d_v);
        }
}

/// Each replay reads the ranges again, orders the blocks by them and computes every block.
TEST_P(AttentionCudaRowRanges, ReplayedGraphsTakeOtherRanges) {
    if (GetParam() != DType::bf16 && GetParam() != DType::f16)
        GTEST_SKIP() << "only the Hopper kernels order blocks by their ranges";
    for (const std::int64_t d : {64, 128}) {
        const Problem problem{
            .queries = 1500, .keys = 1500, .d_qk = d, .d_v = d, .batch = 2, .heads = 8, .key_heads = 4};
        std::vector<RangedMask> masks = ranged_masks(1500);
        for (RangedMask& mask : masks) mask.differs_by_batch = mask.differs_by_head = true;
        Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
        in.row_ranges = tensor_of(masks.front(), problem);
        Options options = problem.options();
        options.row_ranges = in.row_ranges;
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
        for (const RangedMask& mask : masks) {
            SCOPED_TRACE(::testing::Message() << mask.name << " head dim " << d);
            copy(gpu(), options.row_ranges, tensor_of(mask, problem));
            for (const Tensor& x : {saved.o, saved.lse, gradients.q, gradients.k, gradients.v})
                fill(gpu(), x, std::numeric_limits<double>::quiet_NaN());
            graph.replay(gpu());
            const Result expected = attention::accuracy::run(gpu(), in, problem.options());
            EXPECT_EQ(to_host(gpu(), saved.o), expected.o);
            EXPECT_EQ(to_host(gpu(), saved.lse), expected.lse);
            EXPECT_EQ(to_host(gpu(), gradients.k), expected.d_k);
            EXPECT_EQ(to_host(gpu(), gradients.v), expected.d_v);
            // Key blocks add to dQ in any order.
            double largest = 0;
            for (const double x : expected.d_q) largest = std::max(largest, std::abs(x));
            EXPECT_LE(accuracy::largest_difference(to_host(gpu(), gradients.q), expected.d_q),
                      4 * roundoff_of(GetParam(), Device::cuda(0)).storage * largest);
        }
    }
}

}  // namespace
}  // namespace gradtile::attention::test
