#include <gradtile/train/optimizers/global_norm.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/internal/global_norm_backend.h>

namespace gradtile {
namespace {

/// Returns one float64 per norm_block elements in x, uninitialised.
Tensor partial_sums(const Context& ctx, const Tensor& x) {
    check(x.defined() && x.is_contiguous() && is_floating(x.dtype()), "global_norm: ", x,
          "; expected a contiguous floating-point tensor");
    return empty(ctx, {ceil_div(x.elements(), norm_block)}, DType::f64);
}

Tensor norm_of_parts(const Context& ctx, const Tensor& part, const ClipOptions& options) {
    const Tensor norm = empty(ctx, {1}, DType::f64);
    on_device(ctx, cpu::sum_of_squares, cuda::sum_of_squares, part, partial_sums(ctx, part), norm);
    options.add_other_parts(norm);
    on_device(ctx, cpu::square_root, cuda::square_root, norm);
    return norm;
}

}  // namespace

Tensor global_norm(const Context& ctx, const Tensor& x) {
    const Tensor norm = empty(ctx, {1}, DType::f64);
    on_device(ctx, cpu::global_norm, cuda::global_norm, x, partial_sums(ctx, x), norm);
    return norm;
}

Clip clip_global_norm(const Context& ctx, const Tensor& gradients, const ClipOptions& options) {
    check(!options.loss.defined() || options.loss.elements() == 1, "clip_global_norm: loss ", options.loss,
          "; expected one element");
    check(!options.interruption.defined() ||
              (options.interruption.elements() == 1 && options.interruption.dtype() == DType::f64),
          "clip_global_norm: interruption ", options.interruption, "; expected one float64 element");
    Clip clip{options.add_other_parts ? norm_of_parts(ctx, gradients, options) : global_norm(ctx, gradients),
              empty(ctx, {1}, DType::f64)};
    on_device(ctx, cpu::clip_scale, cuda::clip_scale, clip.norm, clip.scale, options);
    return clip;
}

}  // namespace gradtile
