// Tests attention on the GPU. Every algorithm and dtype runs the CPU tests' problems and is compared with
// float64 on the CPU, within the CPU kernels' bounds. Without a GPU these tests are skipped.
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

#include <gmock/gmock.h>

#include "cuda_fixture.h"
#include "layouts.h"
#include "long_problems.h"
#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

TEST_P(AttentionCudaDtypes, IsAsAccurateAsNaiveAtAnyLength) {
    expect_accurate(problems_of_lengths(), GetParam());
}
TEST_P(AttentionCudaDtypes, IsAsAccurateAsNaiveForLongSequences) {
    expect_accurate(long_problems(), GetParam());
}
TEST_P(AttentionCudaDtypes, IsAsAccurateAsNaiveAtAnyHeadDim) {
    expect_accurate(
        problems_of_head_dims({1, 7, 8, 16, 24, 32, 33, 40, 64, 80, 96, 112, 128, 160, 192, 255, 256}),
        GetParam());
}
TEST_P(AttentionCudaDtypes, IsAsAccurateAsNaiveUnderAnyOption) {
    expect_accurate(problems_of_options(), GetParam());
}

/// Head dims from 128 on, whose kernels are structured differently, in problems with many blocks, with key
/// blocks that no row sees, and with rows that see no key.
TEST_P(AttentionCudaDtypes, LargeHeadDimsAreAsAccurateAsNaive) {
    if (!is_16_bit(GetParam())) GTEST_SKIP() << "this dtype has the same kernels for small head dims";
    for (const auto& [d_qk, d_v] :
         {std::pair{128, 128}, {104, 128}, {192, 128}, {192, 192}, {256, 256}, {200, 72}, {136, 256}})
        for (const bool deterministic : {false, true}) {
            const Problem base{.queries = 333, .keys = 290, .d_qk = d_qk, .d_v = d_v};
            Problem tiny = base, shared_keys = base, windowed = base, unseen_keys = base, blind_rows = base;
            tiny.queries = tiny.keys = 64;
            shared_keys.causal = shared_keys.sink = shared_keys.d_lse = true;
            shared_keys.queries = 150;
            shared_keys.keys = 140;
            shared_keys.batch = 2;
            shared_keys.heads = 6;
            shared_keys.key_heads = 2;
            windowed.window = {.left = 70, .right = 20};
            unseen_keys.queries = 100;
            unseen_keys.window.right = 5;
            unseen_keys.top_left = true;
            blind_rows.keys = 50;
            blind_rows.causal = true;
            for (const Problem& problem : {tiny, base, shared_keys, windowed, unseen_keys, blind_rows})
                expect_accurate(problem, GetParam(), deterministic);
        }
}

/// A thread block takes several row blocks, some without keys, so that its memory for Q and O is used again.
TEST_P(AttentionCudaDtypes, ManyRowBlocksOfWhichSomeSeeNoKeyAreAsAccurateAsNaive) {
    if (!is_16_bit(GetParam())) GTEST_SKIP() << "this dtype has no kernel with several row blocks";
    for (const std::int64_t d : {64, 128})
        expect_accurate({.queries = 300,
                         .keys = 50,
                         .d_qk = d,
                         .d_v = d,
                         .causal = true,
                         .batch = 20,
                         .heads = 8,
                         .key_heads = 8},
                        GetParam());
}

TEST_P(AttentionCudaDtypes, LongSumsAreAccurateInSpiteOfADominatingTerm) {
    const DType dtype = GetParam();
    if (dtype == DType::f64) return;  // float64 is the reference
    for (const LongSum& sum : long_sums()) {
        SCOPED_TRACE(sum.name);
        const Inputs in = sum.inputs(cpu, dtype);
        const Reference reference =
            float64_reference(cpu, sum.problem, in, roundoff_of(dtype, gpu().device()));
        const Result naive = run(cpu, in, sum.problem.options(Algorithm::naive));
        for (const Algorithm algorithm : {Algorithm::flash2, Algorithm::memory_efficient, Algorithm::flash1})
            for (const bool deterministic : {false, true}) {
                SCOPED_TRACE(::testing::Message() << algorithm << (deterministic ? ", deterministic" : ""));
                Options options = sum.problem.options(algorithm);
                options.deterministic = deterministic;
                test::expect_accurate(dtype, naive, run_on_gpu(in, options), reference);
            }
    }
}

/// One problem with several blocks for every kernel instantiation.
TEST_P(AttentionCudaDtypes, DeterministicGradientsAreAsAccurateAsNaive) {
    for (const auto& [d_qk, d_v] :
         {std::pair{32, 32}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}})
        expect_accurate({.queries = 140,
                         .keys = 135,
                         .d_qk = d_qk,
                         .d_v = d_v,
                         .causal = true,
                         .heads = 2,
                         .window = {.left = 100}},
                        GetParam(), true);
    // In this problem no row sees the last keys.
    expect_accurate(
        {.queries = 100, .keys = 256, .d_qk = 64, .d_v = 64, .window = {.right = 5}, .top_left = true},
        GetParam(), true);
}

/// Problems with many short heads. For them the operator uses the 16-bit kernel in which a thread block
/// processes whole heads.
TEST_P(AttentionCudaDtypes, ManyShortHeadsAreAsAccurateAsNaive) {
    if (!is_16_bit(GetParam())) GTEST_SKIP() << "this dtype has no kernel for whole heads";
    const Problem causal{.queries = 140,
                         .keys = 135,
                         .d_qk = 64,
                         .d_v = 64,
                         .causal = true,
                         .batch = 64,
                         .heads = 4,
                         .key_heads = 4};
    Problem windowed = causal, narrow = causal, rows_without_keys = causal, longest = causal;
    windowed.window = {.left = 20, .right = 3};
    windowed.causal = false;
    narrow.d_qk = 40;
    narrow.causal = false;
    rows_without_keys.queries = 150;  // the first 100 rows see no key, and no row sees some key blocks
    rows_without_keys.keys = 50;
    longest.queries = longest.keys = 256;
    expect_accurate({causal, windowed, narrow, rows_without_keys, longest}, GetParam());
    expect_accurate(causal, GetParam(), /*deterministic=*/true);
}

/// Problems for this kernel with only two blocks in each direction, for slow tools.
TEST_P(AttentionCudaDtypes, ManyTinyHeadsAreAsAccurateAsNaive) {
    expect_accurate({.queries = 70,
                     .keys = 70,
                     .d_qk = 64,
                     .d_v = 64,
                     .causal = true,
                     .batch = 32,
                     .heads = 8,
                     .key_heads = 8},
                    GetParam());
}

TEST_P(AttentionCudaDtypes, ZeroLengthsAndEmptyBatchesAreValid) {
    const auto all_zero = ::testing::Each(0.0);
    for (const Algorithm algorithm : algorithms) {
        SCOPED_TRACE(::testing::Message() << algorithm);
        const Problem no_keys{.queries = 5, .keys = 0}, no_queries{.queries = 0, .keys = 5},
            no_batch{.queries = 5, .keys = 5, .batch = 0};
        const Result without_keys =
            run_on_gpu(random_inputs(cpu, no_keys, GetParam()), no_keys.options(algorithm));
        EXPECT_THAT(without_keys.o, all_zero);
        EXPECT_THAT(without_keys.d_q, all_zero);
        EXPECT_THAT(without_keys.lse, ::testing::Each(-std::numeric_limits<double>::infinity()));
        const Result without_queries =
            run_on_gpu(random_inputs(cpu, no_queries, GetParam()), no_queries.options(algorithm));
        EXPECT_THAT(without_queries.d_k, all_zero);
        EXPECT_THAT(without_queries.d_v, all_zero);
        run_on_gpu(random_inputs(cpu, no_batch, GetParam()), no_batch.options(algorithm));
    }
}

TEST_P(AttentionCudaDtypes, HugeScoresGiveFiniteResults) {
    const Problem problem{.queries = 40, .keys = 70, .causal = true, .scale = 100};
    for (const Algorithm algorithm : algorithms) {
        const Result result = run_on_gpu(random_inputs(cpu, problem, GetParam()), problem.options(algorithm));
        for (const auto* x : {&result.o, &result.lse, &result.d_q, &result.d_k, &result.d_v})
            EXPECT_THAT(*x, ::testing::Each(::testing::Truly([](double e) { return std::isfinite(e); })))
                << algorithm;
    }
}

/// Kernels scale every head by its largest element, and an all-zero head has none.
TEST_P(AttentionCudaDtypes, AnAllZeroInputWithTinyOtherInputsGivesZerosWithoutNaN) {
    const Problem problem{.queries = 70, .keys = 90, .d_qk = 64, .d_v = 64, .causal = true};
    // `tiny` is so small that its square is 0 in the accumulator dtype, except in float16, where it is the
    // smallest number.
    const double tiny = GetParam() == DType::f64 ? 0x1p-1000 : GetParam() == DType::f16 ? 0x1p-24 : 0x1p-120;
    for (const bool deterministic : {false, true})
        for (int zero = 0; zero < 4; ++zero) {
            SCOPED_TRACE(concat("input ", zero, deterministic ? " zero, deterministic" : " zero"));
            Options options = problem.options();
            options.deterministic = deterministic;
            const Inputs in = random_inputs(cpu, problem, GetParam());
            const std::array inputs{&in.q, &in.k, &in.v, &in.d_o};
            for (const Tensor* x : inputs)
                fill(cpu, *x, x == inputs[static_cast<std::size_t>(zero)] ? 0 : tiny);
            const Result result = run_on_gpu(in, options);
            const auto all_zero = ::testing::Each(0.0);
            for (const double e : result.o) ASSERT_NEAR(e, zero == 2 ? 0 : tiny, 1e-3 * tiny);
            EXPECT_THAT(result.d_q, all_zero);  // products of three tiny factors
            EXPECT_THAT(result.d_k, all_zero);
            if (zero == 3) {
                EXPECT_THAT(result.d_v, all_zero);
            } else {
                for (const double e : result.d_v) ASSERT_TRUE(e >= 0 && e <= 70 * tiny) << e;
            }
        }
}

/// The tiled algorithms' forward passes, flash1's gradients, and memory_efficient's with `deterministic` are
/// equal to the bit in every run.
TEST_P(AttentionCudaDtypes, TiledAlgorithmsGiveTheSameBitsInEveryRun) {
    const Problem problem{.queries = 700,
                          .keys = 650,
                          .d_qk = 64,
                          .d_v = 64,
                          .causal = true,
                          .batch = 2,
                          .heads = 4,
                          .key_heads = 2};
    const Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
    for (const Algorithm algorithm : tiled_algorithms) {
        SCOPED_TRACE(::testing::Message() << algorithm);
        const Result first = run(gpu(), in, repeatable_options(problem, algorithm));
        for (int round = 1; round < rounds(20); ++round)
            ASSERT_EQ(run(gpu(), in, repeatable_options(problem, algorithm)), first) << round;
    }
}

/// Without `deterministic`, dQ differs only by rounding, because the addition order differs.
void expect_same_but_for_rounding(const std::vector<double>& a, const std::vector<double>& b, DType dtype) {
    double largest = 0;
    for (const double e : b) largest = std::max(largest, std::abs(e));
    const double roundoff = dtype == DType::f64   ? 0x1p-53
                            : dtype == DType::f32 ? 0x1p-24
                            : dtype == DType::f16 ? 0x1p-11
                                                  : 0x1p-8;
    EXPECT_LE(largest_difference(a, b), 8 * roundoff * largest);  // one rounding for each of a few blocks
}

TEST_P(AttentionCudaDtypes, TensorsMayHaveAnyStrides) {
    const Problem problem{.queries = 45,
                          .keys = 70,
                          .d_qk = 24,
                          .d_v = 40,
                          .causal = true,
                          .batch = 2,
                          .heads = 4,
                          .key_heads = 2};
    const Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
    const auto place = [&](const Shape& shape, Layout layout) {
        return Placed(gpu(), shape, GetParam(), layout).view;
    };
    for (const Algorithm algorithm : algorithms) {
        const Result expected = run(gpu(), in, repeatable_options(problem, algorithm));
        for (const Layout layout : layouts) {
            SCOPED_TRACE(::testing::Message() << algorithm << ", layout " << static_cast<int>(layout));
            const auto placed = [&](const Tensor& x) {
                const Tensor view = place(x.shape(), layout);
                copy(gpu(), view, x);
                return view;
            };
            const Tensor o = place(in.d_o.shape(), layout);
            const Gradients into{.q = place(in.q.shape(), layout),
                                 .k = place(in.k.shape(), layout),
                                 .v = place(in.v.shape(), layout)};
            Saved saved;
            forward(gpu(), placed(in.q), placed(in.k), placed(in.v), repeatable_options(problem, algorithm),
                    saved, o);
            backward(gpu(), placed(in.d_o), repeatable_options(problem, algorithm), saved, into);
            EXPECT_EQ(to_host(gpu(), o), expected.o);
            EXPECT_EQ(to_host(gpu(), saved.lse), expected.lse);
            EXPECT_EQ(to_host(gpu(), into.k), expected.d_k);
            EXPECT_EQ(to_host(gpu(), into.v), expected.d_v);
            expect_same_but_for_rounding(to_host(gpu(), into.q), expected.d_q, GetParam());
        }
    }
}

TEST_P(AttentionCudaDtypes, ExpandedTensorsGiveTheSameResultsAsCopies) {
    const Problem problem{.queries = 45,
                          .keys = 70,
                          .d_qk = 24,
                          .d_v = 40,
                          .causal = true,
                          .batch = 2,
                          .heads = 4,
                          .key_heads = 2};
    const Inputs in = on_gpu(random_inputs(cpu, problem, GetParam()));
    const Tensor ones = empty(gpu(), {1, 1, 1, 1}, GetParam());
    fill(gpu(), ones, 1);
    const Inputs repeated{.q = in.q,
                          .k = in.k.slice(0, 0, 1).expand(in.k.shape()),
                          .v = in.v.slice(1, 3, 1).expand(in.v.shape()),
                          .d_o = ones.expand(in.d_o.shape())};
    for (const Algorithm algorithm : algorithms) {
        SCOPED_TRACE(::testing::Message() << algorithm);
        const Result result = run(gpu(), repeated, repeatable_options(problem, algorithm)),
                     expected =
                         run(gpu(), repeated.to(gpu(), GetParam()), repeatable_options(problem, algorithm));
        EXPECT_EQ(result.o, expected.o);
        EXPECT_EQ(result.d_k, expected.d_k);
        EXPECT_EQ(result.d_v, expected.d_v);
        expect_same_but_for_rounding(result.d_q, expected.d_q, GetParam());
    }
}

TEST_P(AttentionCudaDtypes, SlicesOfAPackedQkvTensorGiveTheSameResults) {
    const Problem square{.queries = 65,
                         .keys = 65,
                         .d_qk = 32,
                         .d_v = 32,
                         .causal = true,
                         .batch = 2,
                         .heads = 3,
                         .key_heads = 3};
    const Inputs in = on_gpu(random_inputs(cpu, square, GetParam()));
    for (const Algorithm algorithm : algorithms) {
        SCOPED_TRACE(::testing::Message() << algorithm);
        const Result expected = run(gpu(), in, repeatable_options(square, algorithm));
        const Tensor packed = empty(gpu(), {2, 65, 3, 3, 32}, GetParam()),
                     gradient = empty_like(gpu(), packed);
        fill(gpu(), gradient, std::numeric_limits<double>::quiet_NaN());
        copy(gpu(), packed.select(2, 0), in.q);
        copy(gpu(), packed.select(2, 1), in.k);
        copy(gpu(), packed.select(2, 2), in.v);
        Saved saved;
        const Tensor o = forward(gpu(), packed.select(2, 0), packed.select(2, 1), packed.select(2, 2),
                                 repeatable_options(square, algorithm), saved);
        backward(gpu(), in.d_o, repeatable_options(square, algorithm), saved,
                 {.q = gradient.select(2, 0), .k = gradient.select(2, 1), .v = gradient.select(2, 2)});
        EXPECT_EQ(to_host(gpu(), o), expected.o);
        expect_same_but_for_rounding(to_host(gpu(), gradient.select(2, 0)), expected.d_q, GetParam());
        EXPECT_EQ(to_host(gpu(), gradient.select(2, 1)), expected.d_k);
        EXPECT_EQ(to_host(gpu(), gradient.select(2, 2)), expected.d_v);
    }
}

TEST_P(AttentionCudaDtypes, ADryRunPredictsThePeakMemoryOfARealRun) {
    const Problem problem{
        .queries = 130, .keys = 90, .d_qk = 40, .d_v = 24, .causal = true, .heads = 4, .key_heads = 2};
    const Inputs host = random_inputs(cpu, problem, GetParam());
    for (const Algorithm algorithm : algorithms)
        for (const bool transposed : {false, true}) {
            SCOPED_TRACE(::testing::Message() << algorithm << transposed);
            const auto peak = [&](const Context& ctx, Arena& arena) {
                const auto place = [&](const Tensor& x) {
                    const Shape& s = x.shape();
                    const Tensor view = transposed
                                            ? zeros(ctx, {s[0], s[1], s[3], s[2]}, x.dtype()).transpose(2, 3)
                                            : zeros(ctx, s, x.dtype());
                    return view;
                };
                const Inputs in{place(host.q), place(host.k), place(host.v), place(host.d_o)};
                Saved saved;
                forward(ctx, in.q, in.k, in.v, problem.options(algorithm), saved);
                backward(ctx, in.d_o, problem.options(algorithm), saved);
                return arena.peak_bytes();
            };
            const auto plan = Arena::for_planning(Device::cuda(0));
            const std::size_t planned = peak(gpu().plan(plan), *plan);
            const auto arena = std::make_shared<Arena>(Device::cuda(0), planned);
            EXPECT_EQ(peak(gpu().with_allocator(arena), *arena), planned);
        }
}

TEST_P(AttentionCudaDtypes, MemoryGrowsLinearlyWithTheLength) {
    const auto bytes = [&](Algorithm algorithm, std::int64_t length) {
        const Problem p{.queries = length, .keys = length, .d_qk = 64, .d_v = 64, .causal = true};
        const auto arena = Arena::for_planning(Device::cuda(0));
        const Context plan = gpu().plan(arena);
        const Inputs in = random_inputs(plan, p, GetParam());
        Saved saved;
        forward(plan, in.q, in.k, in.v, p.options(algorithm), saved);
        backward(plan, in.d_o, p.options(algorithm), saved);
        return static_cast<double>(arena->peak_bytes());
    };
    for (const Algorithm algorithm : {Algorithm::flash2, Algorithm::memory_efficient, Algorithm::flash1})
        EXPECT_LE(bytes(algorithm, 1 << 17), 2.0 * bytes(algorithm, 1 << 16) + 4096) << algorithm;
}

/// Returns x [B, S, H, D] with every head multiplied by 2^(exponent + step * (batch + head /
/// heads_per_step)), which is exact in float32.
Tensor scaled_by_powers_of_two(const Context& ctx, const Tensor& x, int exponent, int step,
                               std::int64_t heads_per_step) {
    std::vector<double> numbers = to_host(ctx, x);
    const std::int64_t columns = x.size(3), heads = x.size(2), per_batch = x.size(1) * heads * columns;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        const auto index = static_cast<std::int64_t>(i);
        const std::int64_t batch = index / per_batch, head = index / columns % heads;
        numbers[i] =
            std::ldexp(numbers[i], exponent + step * static_cast<int>(batch + head / heads_per_step));
    }
    return from_host(ctx, numbers, x.shape(), x.dtype());
}

/// The kernels split factors into binary16 numbers, which have few exponents. Therefore the kernels scale
/// every head by its own power of two.
TEST_F(AttentionCuda, ScalingAFloat32HeadByAPowerOfTwoScalesItsResultsExactly) {
    const Problem problem{.queries = 70,
                          .keys = 90,
                          .d_qk = 24,
                          .d_v = 40,
                          .causal = true,
                          .batch = 2,
                          .heads = 4,
                          .key_heads = 2};
    const Inputs in = on_gpu(random_inputs(cpu, problem, DType::f32));
    Options options = problem.options();
    options.deterministic = true;
    const auto scaled = [&](const Tensor& x, int exponent, int step) {
        return scaled_by_powers_of_two(gpu(), x, exponent, step, x.size(2) / problem.key_heads);
    };
    // The scores do not change: k is divided by q's factor.
    const Inputs scaled_inputs{scaled(in.q, 30, -17), scaled(in.k, -30, 17), scaled(in.v, 50, -33),
                               scaled(in.d_o, -70, 20)};
    const auto run_passes = [&](const Inputs& x) {
        Saved saved;
        const Tensor o = forward(gpu(), x.q, x.k, x.v, options, saved);
        return std::pair{std::pair{o, saved.lse}, backward(gpu(), x.d_o, options, saved)};
    };
    const auto [forward, gradients] = run_passes(in);
    const auto [scaled_forward, scaled_gradients] = run_passes(scaled_inputs);
    const auto host = [&](const Tensor& x) { return to_host(gpu(), x); };
    EXPECT_EQ(host(scaled_forward.second), host(forward.second));
    EXPECT_EQ(host(scaled_forward.first), host(scaled(forward.first, 50, -33)));
    EXPECT_EQ(host(scaled_gradients.v), host(scaled(gradients.v, -70, 20)));
    EXPECT_EQ(host(scaled_gradients.q), host(scaled(gradients.q, -50, 4)));
    EXPECT_EQ(host(scaled_gradients.k), host(scaled(gradients.k, 10, -30)));
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, AttentionCudaDtypes, testing::ValuesIn(floating_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace gradtile::attention::test
