// Long sums with one dominating term, by every kernel of this machine and every dtype.
#include "every_kernel.h"
#include "long_problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

template <class T>
void expect_long_sums_are_accurate() {
    const Context ctx(Device::cpu(), 2);
    constexpr DType dtype = dtype_of<T>;
    for (const LongSum& sum : long_sums()) {
        const Inputs in = sum.inputs(ctx, dtype);
        const Reference reference = float64_reference(ctx, sum.problem, in, roundoff_of(dtype, ctx.device()));
        const Result naive = run(ctx, in, sum.problem.options(Algorithm::naive));
        for (const cpu::FlashKernels<T>* kernels : every_kernel<T>()) {
            SCOPED_TRACE(::testing::Message() << kernels->name << ' ' << dtype << ": " << sum.name);
            const cpu::ForcedKernels<T> forced(kernels);
            expect_accurate(dtype, naive, run(ctx, in, sum.problem.options()), reference);
        }
    }
}

TEST(LongSums, OneDominatingTermCostsFloat32NoDigits) {
    expect_long_sums_are_accurate<float>();
}
TEST(LongSums, OneDominatingTermCostsBfloat16NoDigits) {
    expect_long_sums_are_accurate<bfloat16>();
}
TEST(LongSums, OneDominatingTermCostsFloat16NoDigits) {
    expect_long_sums_are_accurate<float16>();
}

/// The yardstick itself: were its sums worse than blocked ones, it would hide what it is to show.
TEST(LongSums, TheNaiveFormsAreAsGood) {
    const Context ctx(Device::cpu(), 2);
    for (const LongSum& sum : long_sums()) {
        SCOPED_TRACE(sum.name);
        const Inputs in = sum.inputs(ctx, DType::f32);
        const Reference reference =
            float64_reference(ctx, sum.problem, in, roundoff_of(DType::f32, ctx.device()));
        const Result naive = run(ctx, in, sum.problem.options(Algorithm::naive));
        // Beside the sums it rounds S, P, dP and dS as flash does, in float32: the floor holds for it as
        // well.
        expect_as_accurate_as(reference.value, naive, reference, {.forward = 0, .gradients = 0});
    }
}

}  // namespace
}  // namespace gradtile::attention::test
