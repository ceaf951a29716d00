#pragma once
/// The CPU and CUDA implementations behind activation.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/column_sums.h>

namespace gradtile::cpu {
void activation_forward(const Context& ctx, const Tensor& y, const Tensor& x, Activation activation);
void activation_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         Activation activation);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(activation_forward);
GRADTILE_CUDA_TWIN(activation_backward);
/// Computes dx and its column sums in one pass. Operands are matrices; the activation is not gated.
GRADTILE_CUDA_FUNCTION(void(const Context& ctx, const SummedGradient& dx, const Tensor& dy, const Tensor& x,
                            Activation activation),
                       activation_backward_summed);
}  // namespace gradtile::cuda
