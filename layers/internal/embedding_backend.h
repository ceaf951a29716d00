#pragma once
/// The CPU and CUDA implementations behind embedding.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/tensor.h>

namespace gradtile {
/// Throws Error "WHAT 7 is outside 0 to 3" for an element of contiguous int32 `indices` outside [0, end).
/// Does nothing on a GPU, whose elements the host does not wait for, and in a dry run.
void check_indices(const Context& ctx, const char* what, const Tensor& indices, std::int64_t end);
}  // namespace gradtile

namespace gradtile::cpu {
/// A token outside the vocabulary throws Error on the CPU. On the GPU the host does not wait for the kernel,
/// so the token's row becomes NaN; the loss is then NaN, too, and the trainer refuses the step.
void embedding_forward(const Context& ctx, const Tensor& y, const Tensor& tokens, const Tensor& weight);
void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy,
                        const Tensor& tokens);
/// y [B,T,C] = x + weight [T,C]
void position_embedding_forward(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight);
/// weight_grad [T,C] += sum over B of dy
void position_embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(embedding_forward);
/// Backward adds up each token's rows, so order_by_token() first sorts positions by token. `order` is int32
/// and has token_order_elements() elements. Positions whose token is outside the vocabulary are skipped.
GRADTILE_CUDA_FUNCTION(std::int64_t(std::int64_t positions), token_order_elements);
GRADTILE_CUDA_FUNCTION(void(const Context& ctx, const Tensor& order, const Tensor& tokens,
                            std::int64_t vocabulary),
                       order_by_token);
/// embedding_backward()'s `scratch` has this shape and weight_grad's dtype. Several passes may use the same
/// `order`, one after the other.
GRADTILE_CUDA_FUNCTION(Shape(std::int64_t positions, std::int64_t width), embedding_backward_scratch);
GRADTILE_CUDA_FUNCTION(void(const Context& ctx, const Tensor& weight_grad, const Tensor& dy,
                            const Tensor& order, const Tensor& scratch),
                       embedding_backward);
GRADTILE_CUDA_TWIN(position_embedding_forward);
GRADTILE_CUDA_TWIN(position_embedding_backward);
}  // namespace gradtile::cuda
