#pragma once
/// What the two devices implement for embedding.h.
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
/// A token outside the vocabulary throws on the CPU. On the GPU, where nobody waits for a kernel's findings,
/// its row is NaN, and so is everything that follows from it: a training step then refuses itself.
void embedding_forward(const Context& ctx, const Tensor& y, const Tensor& tokens, const Tensor& weight);
/// Tokens as forward took them; `scratch` is int32 of the size that embedding_backward_scratch tells. On the
/// GPU positions whose token is outside the vocabulary are passed over.
void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy, const Tensor& tokens,
                        const Tensor& scratch);
/// Elements of scratch for so many positions of dy [.., width].
std::int64_t embedding_backward_scratch(std::int64_t positions, std::int64_t width, DType dtype);
/// y [B,T,C] = x + weight [T,C]
void position_embedding_forward(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight);
/// weight_grad [T,C] += sum over B of dy
void position_embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void embedding_forward(const Context& ctx, const Tensor& y, const Tensor& tokens, const Tensor& weight);
void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy, const Tensor& tokens,
                        const Tensor& scratch);
std::int64_t embedding_backward_scratch(std::int64_t positions, std::int64_t width, DType dtype);
void position_embedding_forward(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight);
void position_embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy);
}  // namespace gradtile::cuda
