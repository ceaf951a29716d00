#pragma once
/// What the two devices implement for embedding.h.
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
/// A token outside the vocabulary throws on the CPU. On the GPU, where nobody waits for a kernel's findings,
/// its row is NaN, and so is everything that follows from it: a training step then refuses itself.
void embedding_forward(const Context& ctx, const Tensor& y, const Tensor& tokens, const Tensor& weight);
/// Tokens as forward took them.
void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy,
                        const Tensor& tokens);
/// y [B,T,C] = x + weight [T,C]
void position_embedding_forward(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight);
/// weight_grad [T,C] += sum over B of dy
void position_embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void embedding_forward(const Context& ctx, const Tensor& y, const Tensor& tokens, const Tensor& weight);
/// Backward adds the rows of a token together, so positions are sorted by token first: into `order`, int32 of
/// so many elements. Positions whose token is outside the vocabulary are passed over.
std::int64_t token_order_elements(std::int64_t positions);
void order_by_token(const Context& ctx, const Tensor& order, const Tensor& tokens, std::int64_t vocabulary);
/// `scratch` is of this shape and weight_grad's dtype. `order` may be used again, by one pass at a time.
Shape embedding_backward_scratch(std::int64_t positions, std::int64_t width);
void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy, const Tensor& order,
                        const Tensor& scratch);
void position_embedding_forward(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight);
void position_embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy);
}  // namespace gradtile::cuda
