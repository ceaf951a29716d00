// Every kernel's average errors: the root mean square is within the derived bounds, and the errors have no
// bias over the rows. In one element, a factor that is wrong by one percent changes less than a 16-bit
// rounding does; averaged over a thousand elements, the change is visible.
#include "every_kernel.h"
#include "problems.h"
#include "reference.h"

namespace gradtile::attention::test {
namespace {

/// Problems with enough rows to detect a bias.
std::vector<Problem> problems_of_many_rows() {
    return {{.queries = 150, .keys = 170, .d_qk = 64, .d_v = 64, .batch = 2, .heads = 2, .key_heads = 2},
            {.queries = 150,
             .keys = 150,
             .d_qk = 32,
             .d_v = 48,
             .causal = true,
             .batch = 2,
             .heads = 4,
             .key_heads = 2},
            {.queries = 300, .keys = 260, .d_qk = 128, .d_v = 128, .window = {.left = 70, .right = 20}},
            {.queries = 300, .keys = 300, .d_qk = 16, .d_v = 16, .causal = true, .scale = -0.4}};
}

/// Uses three kinds of inputs: random numbers; numbers whose D is much larger than dP - D; a key that takes
/// most of the probability.
template <class T>
void expect_accurate_on_average(const Problem& problem) {
    const Context ctx(Device::cpu(), 2);
    constexpr DType dtype = dtype_of<T>;
    struct TestInputs {
        Inputs in;
        bool rows_differ;
    };
    std::vector<TestInputs> inputs{{random_inputs(ctx, problem, dtype), true},
                                   {offset_inputs(ctx, problem, dtype, 2), true}};
    if (problem.scale_or_default() != 0) inputs.push_back({sink_inputs(ctx, problem, dtype, 3, 4), false});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const Reference reference =
            float64_reference(ctx, problem, inputs[i].in, roundoff_of(dtype, ctx.device()));
        const Result naive = run(ctx, inputs[i].in, problem.options(Algorithm::naive));
        for (const cpu::FlashKernels<T>* kernels : every_kernel<T>()) {
            SCOPED_TRACE(::testing::Message()
                         << kernels->name << ' ' << dtype << ", inputs " << i << ": " << problem);
            const cpu::ForcedKernels<T> forced(kernels);
            const Result result = run(ctx, inputs[i].in, problem.options());
            expect_accurate(dtype, naive, result, reference);
            if (inputs[i].rows_differ) expect_no_bias(problem, result, reference);
        }
    }
}

TEST(AverageError, Float32KernelsAreWithinTheBounds) {
    for (const Problem& problem : problems_of_many_rows()) expect_accurate_on_average<float>(problem);
}
TEST(AverageError, Bfloat16KernelsAreWithinTheBounds) {
    for (const Problem& problem : problems_of_many_rows()) expect_accurate_on_average<bfloat16>(problem);
}
TEST(AverageError, Float16KernelsAreWithinTheBounds) {
    for (const Problem& problem : problems_of_many_rows()) expect_accurate_on_average<float16>(problem);
}
TEST(AverageError, Bfloat16KernelsAreWithinTheBoundsAtAnyLength) {
    for (const Problem& problem : problems_of_lengths()) expect_accurate_on_average<bfloat16>(problem);
}
TEST(AverageError, Bfloat16KernelsAreWithinTheBoundsUnderAnyOption) {
    for (const Problem& problem : problems_of_options()) expect_accurate_on_average<bfloat16>(problem);
}

}  // namespace
}  // namespace gradtile::attention::test
