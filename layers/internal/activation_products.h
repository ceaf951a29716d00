#pragma once
/// INTERNAL. Products with GELU's tanh form or SwiGLU by gradtile's kernels for Hopper; see
/// core/gemm/internal/hopper_product.h.
#include <gradtile/core/gemm/internal/hopper_product.h>

namespace gradtile::cuda {

/// to[0] = a b[0] + bias and to[1] = gelu(to[0]), which reads the rounded to[0]: the same bits as in a
/// separate pass. The list is empty where no kernel applies.
std::span<const std::uint64_t> gelu_product_kernels(const ProductOperands& operands);
void run_gelu_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel);

/// to[0] = (a b) * gelu'(with[0]), and its column sums, if there is a tensor for them.
std::span<const std::uint64_t> gelu_gradient_product_kernels(const ProductOperands& operands);
void run_gelu_gradient_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel);

/// to[0] = a b[0] (the gate), to[1] = a b[1], to[2] = silu(to[0]) * to[1], which reads the rounded numbers.
std::span<const std::uint64_t> swiglu_product_kernels(const ProductOperands& operands);
void run_swiglu_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel);

/// to[0] and to[1] = the gradients of the gate with[0] and of with[1], from SwiGLU's gradient a b[0].
std::span<const std::uint64_t> swiglu_gradient_product_kernels(const ProductOperands& operands);
void run_swiglu_gradient_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel);

}  // namespace gradtile::cuda
