#pragma once
/// INTERNAL. The CUDA implementation behind symmetric_product.h.
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile::cuda {
GRADTILE_CUDA_FUNCTION(bool(const Context& ctx, const Tensor& result, const Tensor& x,
                            const SymmetricProduct& product),
                       symmetric_product);
}  // namespace gradtile::cuda
