#pragma once
/// INTERNAL. Products with GELU's tanh form by gradtile's kernels for Hopper; see
/// core/gemm/hopper/internal/product.h.
#include <gradtile/core/gemm/hopper/internal/product.h>

namespace gradtile::cuda {

/// to[0] = a b + bias and to[1] = gelu(to[0]), which reads the rounded to[0]: the same bits as in a separate
/// pass. The list is empty where no kernel applies.
std::span<const std::uint64_t> gelu_product_kernels(const ProductOperands& operands);
void run_gelu_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel);

/// to[0] = (a b) * gelu'(with), and its column sums, if there is a tensor for them.
std::span<const std::uint64_t> gelu_gradient_product_kernels(const ProductOperands& operands);
void run_gelu_gradient_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel);

}  // namespace gradtile::cuda
