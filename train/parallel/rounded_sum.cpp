#include <gradtile/train/parallel/internal/rounded_sum.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/train/optimizers/internal/rounded_moments_cpu.h>

namespace gradtile {

void add_rounded(const Context& ctx, const Tensor& sums, const Tensor& x, const DropoutKey& key,
                 std::int64_t element) {
    check(sums.dtype() == DType::bf16 && x.dtype() == DType::f32 && sums.shape() == x.shape() &&
              sums.is_contiguous() && x.is_contiguous(),
          "add_rounded: x ", x, " added to ", sums, "; expected float32 and bfloat16 of one shape");
    check_sharing(ctx, "add_rounded", {"sums", sums}, {{"x", x}});
    const DropoutDraws draws = dropout_draws("add_rounded", 0.0, key, ctx.device());
    on_device(ctx, cpu::add_rounded, cuda::add_rounded, sums, x, draws, element);
}

namespace cpu {

void add_rounded(const Context& ctx, const Tensor& sums, const Tensor& x, const DropoutDraws& draws,
                 std::int64_t element) {
    constexpr std::int64_t grain = 1 << 14;
    bfloat16* const to = sums.data<bfloat16>();
    const float* const from = x.data<float>();
    const MomentDraws rounding{.key = draws.key()};
    parallel_ranges(ctx, sums.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
        with_float_moments(end - begin, rounding, element + begin, std::array{to + begin},
                           [&](std::int64_t first, std::int64_t n, auto& in_float) {
                               for (std::int64_t i = 0; i < n; ++i) in_float[0][i] += from[begin + first + i];
                           });
    });
}

}  // namespace cpu
}  // namespace gradtile
