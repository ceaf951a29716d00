#pragma once
/// INTERNAL. The compiled kernels without an activation; hopper_products.cu and hopper_symmetric.cu define
/// these functions, and run_hopper_product(), in builds for sm_90a.
#include <gradtile/core/gemm/internal/hopper_product.h>
#include <gradtile/core/gemm/symmetric_product.h>

namespace gradtile::cuda {

std::span<const std::uint64_t> compiled_product_kernels(const ProductOperands& operands);

/// See symmetric_product(). Tensors are bfloat16, and TMA can address them.
void run_compiled_symmetric_product(const Context& ctx, const Tensor& result, const Tensor& x,
                                    const SymmetricProduct& product);

}  // namespace gradtile::cuda
