// Long sums with one dominating term, for every kernel on this machine and every dtype.
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

TEST(LongSums, Float32IsAccurateInSpiteOfADominatingTerm) {
    expect_long_sums_are_accurate<float>();
}
TEST(LongSums, Bfloat16IsAccurateInSpiteOfADominatingTerm) {
    expect_long_sums_are_accurate<bfloat16>();
}
TEST(LongSums, Float16IsAccurateInSpiteOfADominatingTerm) {
    expect_long_sums_are_accurate<float16>();
}

/// All kernels' bounds are multiples of the naive form's error. If its sums lost digits, the bounds would
/// hide that a kernel loses digits.
TEST(LongSums, TheNaiveFormIsWithinTheFloorOfFlash) {
    const Context ctx(Device::cpu(), 2);
    for (const LongSum& sum : long_sums()) {
        SCOPED_TRACE(sum.name);
        const Inputs in = sum.inputs(ctx, DType::f32);
        const Reference reference =
            float64_reference(ctx, sum.problem, in, roundoff_of(DType::f32, ctx.device()));
        const Result naive = run(ctx, in, sum.problem.options(Algorithm::naive));
        // Apart from its sums, the naive form rounds S, P, dP and dS like flash in float32, so flash's floor
        // is a bound for it, too.
        expect_as_accurate_as(reference.value, naive, reference, {.forward = 0, .gradients = 0});
    }
}

}  // namespace
}  // namespace gradtile::attention::test
