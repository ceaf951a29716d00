#pragma once
/// What the two devices implement for linear_gelu.h: matrices with contiguous rows, checked, not empty.
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/gelu.h>

namespace gradtile::cpu {
void linear_gelu_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                         const Tensor& weight, const Tensor& bias, Gelu::Form form);
void linear_gelu_backward(const Context& ctx, const SummedGradient& d_hidden, const Tensor& dy,
                          const Tensor& weight, const Tensor& hidden, Gelu::Form form);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void linear_gelu_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                         const Tensor& weight, const Tensor& bias, Gelu::Form form);
void linear_gelu_backward(const Context& ctx, const SummedGradient& d_hidden, const Tensor& dy,
                          const Tensor& weight, const Tensor& hidden, Gelu::Form form);
}  // namespace gradtile::cuda
