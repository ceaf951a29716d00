#pragma once
/// The CPU and CUDA implementations behind head_transform.h and rope.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/layers/head_transform.h>

namespace gradtile {

/// differentiate_heads() needs scratch memory `partials`: partial sums [head_partials(), 2, D] for the query
/// and key weight gradients, in accumulator_of(x.dtype()).
namespace cpu {
/// With `inverse`, rotates by the negative angles; the transform must then have no norm.
void transform_heads(const Context& ctx, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const HeadTransform& transform, bool inverse);
/// The transform must have a norm.
void differentiate_heads(const Context& ctx, const Tensor& gradient, const Tensor& rstd, const Tensor& x,
                         const HeadTransform& transform, const HeadWeightGradients& weights,
                         const Tensor& partials);
std::int64_t head_partials(std::int64_t tokens, std::int64_t heads);
}  // namespace cpu

namespace cuda {
GRADTILE_CUDA_TWIN(transform_heads);
GRADTILE_CUDA_TWIN(differentiate_heads);
GRADTILE_CUDA_TWIN(head_partials);
}  // namespace cuda

}  // namespace gradtile
