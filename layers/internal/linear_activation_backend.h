#pragma once
/// The CPU and CUDA implementations behind linear_activation.h. Operands are checked, non-empty matrices with
/// contiguous rows. d_activated is scratch memory for the gradient of a gated activation's result; undefined
/// for other activations.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/column_sums.h>

namespace gradtile::cpu {
void linear_activation_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                               const Tensor& weight, const Tensor& bias, Activation activation);
void linear_activation_backward(const Context& ctx, const SummedGradient& d_hidden, const Tensor& dy,
                                const Tensor& weight, const Tensor& hidden, Activation activation,
                                const Tensor& d_activated);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(linear_activation_forward);
GRADTILE_CUDA_TWIN(linear_activation_backward);
}  // namespace gradtile::cuda
