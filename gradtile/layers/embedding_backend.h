#pragma once
/// What the two devices implement for embedding.h.
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
void embedding_forward(const Context& ctx, const Tensor& y, const Tensor& tokens, const Tensor& weight);
void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy,
                        const Tensor& tokens);
/// y [B,T,C] = x + weight [T,C]
void position_embedding_forward(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight);
/// weight_grad [T,C] += sum over B of dy
void position_embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void embedding_forward(const Context& ctx, const Tensor& y, const Tensor& tokens, const Tensor& weight);
void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy,
                        const Tensor& tokens);
void position_embedding_forward(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight);
void position_embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy);
}  // namespace gradtile::cuda
