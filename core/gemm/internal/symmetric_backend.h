#pragma once
/// INTERNAL. The CUDA implementation behind symmetric_product.h.
#include <gradtile/core/gemm/symmetric_product.h>

namespace gradtile::cuda {
bool symmetric_product(const Context& ctx, const Tensor& result, const Tensor& x,
                       const SymmetricProduct& product);
}  // namespace gradtile::cuda
