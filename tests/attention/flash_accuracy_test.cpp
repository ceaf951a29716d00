// Flash against naive over a grid of shapes, every set of kernels this machine runs, bounded as
// docs/numerics.md derives: float32 at most 2x (gradients 3x) the error of the naive float32 form, plus a
// floor.
#include <gtest/gtest.h>

#include <gradtile/attention/flash_f32.h>

#include "attention_testing.h"

namespace gradtile::attention::testing {
namespace {

constexpr double unit_f32 = 0x1p-24, unit_f16 = 0x1p-11;

std::vector<Problem> grid() {
    std::vector<Problem> problems;
    // Lengths, with a head dim that fills vectors; causal and not.
    constexpr std::pair<std::int64_t, std::int64_t> lengths[] = {
        {1, 1},   {2, 2},   {5, 5},   {17, 17}, {64, 64},   {1, 64},    {64, 1},      {113, 203},  {203, 113},
        {799, 3}, {3, 799}, {239, 1}, {1, 239}, {108, 256}, {256, 108}, {1023, 1024}, {1024, 1023}};
    for (const auto& [queries, keys] : lengths)
        for (const bool causal : {false, true})
            problems.push_back({.queries = queries, .keys = keys, .d_qk = 64, .d_v = 64, .causal = causal});
    // Head dims, also those that no vector length divides, and Dqk != Dv.
    for (const std::int64_t d : {1, 7, 8, 16, 32, 33, 40, 80, 96, 128, 160, 256})
        problems.push_back({.queries = 65, .keys = 81, .d_qk = d, .d_v = d, .causal = true});
    problems.push_back({.queries = 65, .keys = 81, .d_qk = 40, .d_v = 96});
    problems.push_back({.queries = 65, .keys = 81, .d_qk = 128, .d_v = 7, .causal = true});
    problems.push_back({.queries = 65, .keys = 81, .d_qk = 7, .d_v = 256, .causal = true});
    // Grouped-query and multi-query attention.
    for (const std::int64_t key_heads : {1, 2, 4})
        problems.push_back({.queries = 130,
                            .keys = 150,
                            .heads = 4,
                            .key_heads = key_heads,
                            .d_qk = 32,
                            .d_v = 32,
                            .causal = true,
                            .batch = 2});
    // Windows, and the other corner.
    problems.push_back(
        {.queries = 300, .keys = 300, .d_qk = 16, .d_v = 16, .causal = true, .window = {.left = 70}});
    problems.push_back(
        {.queries = 200, .keys = 300, .d_qk = 16, .d_v = 16, .window = {.left = 3, .right = 90}});
    problems.push_back(
        {.queries = 200, .keys = 300, .d_qk = 16, .d_v = 16, .causal = true, .top_left = true});
    problems.push_back({.queries = 300,
                        .keys = 100,
                        .d_qk = 16,
                        .d_v = 16,
                        .window = {.left = 0, .right = 0},
                        .top_left = true});
    return problems;
}

void expect_as_accurate_as_naive(const Context& ctx, const Problem& problem, DType dtype,
                                 double forward_factor, double gradient_factor) {
    SCOPED_TRACE(::testing::Message() << problem << ' ' << dtype);
    const Inputs exact = make_inputs(ctx, problem, dtype, DType::f64);
    const Inputs rounded = make_inputs(ctx, problem, dtype, dtype);
    const Result reference = run(ctx, exact, problem.options(Algorithm::naive));
    const Result naive = run(ctx, rounded, problem.options(Algorithm::naive));
    const Result flash = run(ctx, rounded, problem.options());
    Floors floor = floors(ctx, problem, exact, reference, unit_f32);
    if (dtype == DType::f16) {
        // Every result is rounded once more, and D = rowsum(dO * O) comes from an O that has been.
        const double d_error = unit_f16 * largest_norm(to_host(ctx, exact.d_o), problem.d_v) *
                               largest_norm(reference.o, problem.d_v);
        const double scale = 1.0 / std::sqrt(static_cast<double>(problem.d_qk));
        const double rows =
            std::sqrt(static_cast<double>(problem.queries * problem.heads / problem.key_heads));
        floor.o += unit_f16 * largest(reference.o);
        floor.d_q += unit_f16 * largest(reference.d_q) + scale * largest(to_host(ctx, exact.k)) * d_error;
        floor.d_k +=
            unit_f16 * largest(reference.d_k) + scale * largest(to_host(ctx, exact.q)) * d_error * rows;
        floor.d_v += unit_f16 * largest(reference.d_v);
    }
    const auto check_one = [&](const char* name, double factor, double floor_of,
                               const std::vector<double>& of_flash, const std::vector<double>& of_naive,
                               const std::vector<double>& of_reference) {
        EXPECT_LE(error(of_flash, of_reference), factor * error(of_naive, of_reference) + floor_of)
            << name << ", naive error " << error(of_naive, of_reference) << ", floor " << floor_of;
    };
    check_one("o", forward_factor, floor.o, flash.o, naive.o, reference.o);
    check_one("lse", forward_factor, floor.lse, flash.lse, naive.lse, reference.lse);
    check_one("d_q", gradient_factor, floor.d_q, flash.d_q, naive.d_q, reference.d_q);
    check_one("d_k", gradient_factor, floor.d_k, flash.d_k, naive.d_k, reference.d_k);
    check_one("d_v", gradient_factor, floor.d_v, flash.d_v, naive.d_v, reference.d_v);
}

class Float32Kernels : public ::testing::TestWithParam<const cpu::FlashKernels<float>*> {
  protected:
    void SetUp() override { cpu::force_float32_kernels(GetParam()); }
    void TearDown() override { cpu::force_float32_kernels(nullptr); }
};

TEST_P(Float32Kernels, ForwardAndBackwardAreAsAccurateAsNaiveFloat32) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : grid()) expect_as_accurate_as_naive(ctx, problem, DType::f32, 2.0, 3.0);
}

TEST_P(Float32Kernels, NegativeZeroAndLargeScalesAreAsAccurateAsNaive) {
    const Context ctx(Device::cpu(), 2);
    const Problem problem{.queries = 70, .keys = 90, .d_qk = 16, .d_v = 16, .causal = true};
    const Inputs exact = make_inputs(ctx, problem, DType::f32, DType::f64);
    const Inputs rounded = make_inputs(ctx, problem, DType::f32, DType::f32);
    for (const double scale : {-0.25, 0.0, 4.0}) {
        Options options = problem.options(Algorithm::naive);
        options.scale = scale;
        const Result reference = run(ctx, exact, options), naive = run(ctx, rounded, options);
        options.algorithm = Algorithm::flash;
        const Result flash = run(ctx, rounded, options);
        // The floors stand for the default scale 1/4; they grow with the scores and with the factor of dQ and
        // dK.
        const double growth = std::max(1.0, 16.0 * scale * scale);
        const Floors floor = floors(ctx, problem, exact, reference, unit_f32 * growth);
        EXPECT_LE(error(flash.o, reference.o), 2 * error(naive.o, reference.o) + floor.o) << scale;
        EXPECT_LE(error(flash.lse, reference.lse), 2 * error(naive.lse, reference.lse) + floor.lse) << scale;
        EXPECT_LE(error(flash.d_q, reference.d_q), 3 * error(naive.d_q, reference.d_q) + floor.d_q) << scale;
        EXPECT_LE(error(flash.d_k, reference.d_k), 3 * error(naive.d_k, reference.d_k) + floor.d_k) << scale;
        EXPECT_LE(error(flash.d_v, reference.d_v), 3 * error(naive.d_v, reference.d_v) + floor.d_v) << scale;
    }
}

TEST_P(Float32Kernels, HugeScoresStayFinite) {
    const Context ctx(Device::cpu(), 1);
    const Problem problem{.queries = 40, .keys = 70, .d_qk = 8, .d_v = 8, .causal = true};
    const Inputs in = make_inputs(ctx, problem, DType::f32, DType::f32);
    Options options = problem.options();
    options.scale = 1e4;  // probabilities of 0 and 1
    const Result result = run(ctx, in, options);
    for (const auto* x : {&result.o, &result.lse, &result.d_q, &result.d_k, &result.d_v})
        for (const double element : *x) ASSERT_TRUE(std::isfinite(element));
}

TEST_P(Float32Kernels, BlocksOutsideTheMaskAreNeverRead) {
    const Context ctx(Device::cpu(), 2);
    const std::int64_t length = 640, poisoned = 256;
    Problem problem{.queries = length, .keys = length, .d_qk = 16, .d_v = 16, .causal = true};
    Inputs in = make_inputs(ctx, problem, DType::f32, DType::f32);
    // NaN survives a product with P = 0, so only blocks that are not computed at all leave the results clean.
    for (const Tensor& x : {in.k, in.v, in.q, in.d_o})
        fill(ctx, x.slice(1, poisoned, length - poisoned), NAN);
    Saved saved;
    forward(ctx, in.q, in.k, in.v, problem.options(), saved);
    for (const double element : to_host(ctx, saved.o.slice(1, 0, poisoned)))
        ASSERT_TRUE(std::isfinite(element));
    const Gradients gradients = backward(ctx, in.d_o, problem.options(), saved);
    for (const double element : to_host(ctx, gradients.q.slice(1, 0, poisoned)))
        ASSERT_TRUE(std::isfinite(element));

    // The other way round: with a window no later row than 256 + 63 sees the first 256 keys.
    in = make_inputs(ctx, problem, DType::f32, DType::f32);
    problem.window = {.left = 63};
    for (const Tensor& x : {in.k, in.v, in.q, in.d_o}) fill(ctx, x.slice(1, 0, poisoned), NAN);
    forward(ctx, in.q, in.k, in.v, problem.options(), saved);
    const std::int64_t clean = poisoned + 64;
    for (const double element : to_host(ctx, saved.o.slice(1, clean, length - clean)))
        ASSERT_TRUE(std::isfinite(element));
    const Gradients windowed = backward(ctx, in.d_o, problem.options(), saved);
    for (const Tensor& x : {windowed.q, windowed.k, windowed.v})
        for (const double element : to_host(ctx, x.slice(1, clean, length - clean)))
            ASSERT_TRUE(std::isfinite(element));
}

INSTANTIATE_TEST_SUITE_P(Attention, Float32Kernels, ::testing::ValuesIn(cpu::usable_float32_kernels()),
                         [](const auto& info) {
                             std::string name = info.param->name;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

TEST(Attention, Float16IsAsAccurateAsNaiveFloat16) {
    const Context ctx(Device::cpu(), 2);
    for (const Problem& problem : grid())
        if (problem.d_qk % 8 == 0 && problem.d_v % 8 == 0 && problem.queries * problem.keys < 100000)
            expect_as_accurate_as_naive(ctx, problem, DType::f16, 1.0, 1.0);
}

}  // namespace
}  // namespace gradtile::attention::testing
