// bfloat16 has float32's exponents, so numbers below 2^-126 are subnormal. The instructions that multiply
// bf16 (vdpbf16ps, tdpbf16ps) and those that round to it (vcvtne2ps2bf16, vcvtneps2bf16) read such numbers as
// 0 and give 0 for such results: docs/numerics.md, "Subnormal numbers".
#include <algorithm>
#include <cmath>

#include "every_kernel.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

constexpr double smallest_normal = 0x1p-126;
constexpr double subnormal_rounding = 0x1p-134;  // half the distance between bfloat16's subnormal numbers

const Problem problem{
    .queries = 70, .keys = 90, .d_qk = 32, .d_v = 32, .causal = true, .heads = 2, .key_heads = 1};

/// Multiplies every number by 2^-126: half the numbers become subnormal, the others are just above 2^-126.
Tensor scaled_to_subnormal(const Context& ctx, const Tensor& x) {
    std::vector<double> numbers = to_host(ctx, x);
    for (double& e : numbers) e *= smallest_normal;
    return from_host(ctx, numbers, x.shape(), x.dtype());
}

double largest_of(const std::vector<double>& x) {
    double largest = 0;
    for (const double e : x) largest = std::max(largest, std::abs(e));
    return largest;
}

/// The absolute error that flushing to 0 may add to each output's usual bound.
struct Lost {
    double o, d_q, d_k, d_v;
};

/// Each addition in a sum of products loses less than the smallest normal number t. A subnormal factor loses
/// t times the other factor. Storing the result loses t.
Lost lost_to_flushing(const Context& ctx, const Inputs& in) {
    const double t = smallest_normal, keys = static_cast<double>(problem.keys),
                 rows = static_cast<double>(problem.queries * problem.heads / problem.key_heads),
                 columns = static_cast<double>(problem.d_v), scale = problem.scale_or_default();
    const double q = largest_of(to_host(ctx, in.q)), k = largest_of(to_host(ctx, in.k)),
                 v = largest_of(to_host(ctx, in.v)), d_o = largest_of(to_host(ctx, in.d_o));
    // dP is a sum over the columns. D includes O's error. P <= 1.
    const double o = t * (keys + 2), d_p = t * columns * (1 + v + d_o), d_s = 2 * d_p + columns * d_o * o + t;
    return {.o = o,
            .d_q = scale * keys * (k * (d_s + t) + t) + t,
            .d_k = scale * rows * (q * (d_s + t) + t) + t,
            .d_v = t * (rows * (2 + d_o) + 1)};
}

void expect_within(const char* what, const std::vector<double>& result, const std::vector<double>& naive,
                   const std::vector<double>& expected, const std::vector<double>& floor, double lost) {
    const double naive_error = largest_difference(naive, expected);
    for (std::size_t i = 0; i < result.size(); ++i)
        ASSERT_LE(std::abs(result[i] - expected[i]), naive_error + floor[i] + lost) << what << ' ' << i;
}

void expect_lost_at_most(const Result& result, const Result& naive, const Reference& reference,
                         const Lost& lost) {
    const Result &expected = reference.value, &floor = reference.floor;
    expect_within("O", result.o, naive.o, expected.o, floor.o, lost.o);
    expect_within("dQ", result.d_q, naive.d_q, expected.d_q, floor.d_q, lost.d_q);
    expect_within("dK", result.d_k, naive.d_k, expected.d_k, floor.d_k, lost.d_k);
    expect_within("dV", result.d_v, naive.d_v, expected.d_v, floor.d_v, lost.d_v);
}

Inputs with_subnormal(const Context& ctx, Tensor Inputs::*part) {
    Inputs in = random_inputs(ctx, problem, DType::bf16);
    in.*part = scaled_to_subnormal(ctx, in.*part);
    return in;
}

TEST(Subnormal, Bfloat16KernelsLoseAtMostTheSmallestNormalNumberPerAddition) {
    const Context ctx(Device::cpu(), 2);
    for (Tensor Inputs::*part : {&Inputs::v, &Inputs::d_o}) {
        const Inputs in = with_subnormal(ctx, part);
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(DType::bf16, ctx.device()));
        const Result naive = run(ctx, in, problem.options(Algorithm::naive));
        for (const cpu::FlashKernels<bfloat16>* kernels : every_kernel<bfloat16>()) {
            SCOPED_TRACE(::testing::Message() << kernels->name << (part == &Inputs::v ? ", v" : ", dO"));
            const cpu::ForcedKernels<bfloat16> forced(kernels);
            expect_lost_at_most(run(ctx, in, problem.options()), naive, reference, lost_to_flushing(ctx, in));
        }
    }
}

TEST(Subnormal, PortableKernelsKeepSubnormalNumbersUpToRounding) {
    const Context ctx(Device::cpu(), 2);
    const cpu::ForcedKernels<bfloat16> forced(&cpu::generic_kernels<bfloat16>());
    for (Tensor Inputs::*part : {&Inputs::v, &Inputs::d_o}) {
        SCOPED_TRACE(part == &Inputs::v ? "v" : "dO");
        const Inputs in = with_subnormal(ctx, part);
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(DType::bf16, ctx.device()));
        const Result naive = run(ctx, in, problem.options(Algorithm::naive));
        // The kernels round O, which changes D, and they round every result.
        const double d_o = largest_of(to_host(ctx, in.d_o)), scale = problem.scale_or_default(),
                     delta_error = static_cast<double>(problem.d_v) * d_o * subnormal_rounding,
                     rows = static_cast<double>(problem.queries * problem.heads / problem.key_heads);
        expect_lost_at_most(
            run(ctx, in, problem.options()), naive, reference,
            {.o = subnormal_rounding,
             .d_q = scale * delta_error * largest_of(to_host(ctx, in.k)) + subnormal_rounding,
             .d_k = scale * delta_error * rows * largest_of(to_host(ctx, in.q)) + subnormal_rounding,
             .d_v = subnormal_rounding});
    }
}

/// Inputs far above the subnormal range lose nothing: multiplying v by a power of two multiplies the results
/// exactly.
TEST(Subnormal, ScalingNormalNumbersByAPowerOfTwoScalesTheResultsExactly) {
    const Context ctx(Device::cpu(), 2);
    const Inputs in = random_inputs(ctx, problem, DType::bf16);
    Inputs small = in;
    std::vector<double> v = to_host(ctx, in.v);
    // All products with P and dO that contribute to a result are above 2^-100.
    constexpr double factor = 0x1p-60;
    for (double& e : v) e *= factor;
    small.v = from_host(ctx, v, in.v.shape(), DType::bf16);
    for (const cpu::FlashKernels<bfloat16>* kernels : every_kernel<bfloat16>()) {
        SCOPED_TRACE(kernels->name);
        const cpu::ForcedKernels<bfloat16> forced(kernels);
        const Result result = run(ctx, small, problem.options()), expected = run(ctx, in, problem.options());
        for (std::size_t i = 0; i < expected.o.size(); ++i)
            ASSERT_EQ(result.o[i], factor * expected.o[i]) << i;
        for (std::size_t i = 0; i < expected.d_q.size(); ++i)
            ASSERT_EQ(result.d_q[i], factor * expected.d_q[i]) << i;
        EXPECT_EQ(result.d_v, expected.d_v);
    }
}

}  // namespace
}  // namespace gradtile::attention::test
