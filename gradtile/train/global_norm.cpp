#include <gradtile/train/global_norm.h>

#include <cmath>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/global_norm_backend.h>

namespace gradtile {

Tensor global_norm(const Context& ctx, const Tensor& x) {
    check(x.is_contiguous() && is_floating(x.dtype()), "global_norm: ", x,
          "; expected a contiguous floating-point tensor");
    Tensor norm = empty(ctx, {1}, DType::f64);
    const Tensor partial = empty(ctx, {(x.elements() + norm_block - 1) / norm_block}, DType::f64);
    on_device(ctx, cpu::global_norm, cuda::global_norm, x, partial, norm);
    return norm;
}

Clip clip_global_norm(const Context& ctx, const Tensor& gradients, const ClipOptions& options) {
    check(!options.loss.defined() || options.loss.elements() == 1, "clip_global_norm: loss ", options.loss,
          "; expected one element");
    Clip clip{global_norm(ctx, gradients), empty(ctx, {1}, DType::f64)};
    on_device(ctx, cpu::clip_scale, cuda::clip_scale, clip.norm, clip.scale, options);
    return clip;
}

std::string first_non_finite_gradient(const Context& ctx, const ParameterStore& store) {
    for (const Parameter& parameter : store.parameters())
        if (!std::isfinite(item(ctx, global_norm(ctx, parameter.grad())))) return parameter.name();
    return {};
}

}  // namespace gradtile
