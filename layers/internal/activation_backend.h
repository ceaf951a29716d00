#pragma once
/// What the two devices implement for gelu.h and swiglu.h.
#include <gradtile/layers/column_sums.h>
#include <gradtile/layers/gelu.h>

namespace gradtile::cpu {
void gelu_forward(const Context& ctx, const Tensor& y, const Tensor& x, Gelu::Form form);
void gelu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu::Form form);
void swiglu_forward(const Context& ctx, const Tensor& y, const Tensor& x);
void swiglu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void gelu_forward(const Context& ctx, const Tensor& y, const Tensor& x, Gelu::Form form);
void gelu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu::Form form);
/// dx and its column sums in one pass; matrices.
void gelu_backward_summed(const Context& ctx, const SummedGradient& dx, const Tensor& dy, const Tensor& x,
                          Gelu::Form form);
void swiglu_forward(const Context& ctx, const Tensor& y, const Tensor& x);
void swiglu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x);
}  // namespace gradtile::cuda
