#pragma once
/// The CPU and CUDA implementations behind gemm.h and symmetric_product.h. gemm() has checked the operands and
/// made their rows contiguous.
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile::cpu {
void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options);
}
namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(gemm);
GRADTILE_CUDA_FUNCTION(std::vector<GemmAlgorithm>(const Context& ctx), gemm_algorithms);
GRADTILE_CUDA_FUNCTION(std::size_t(const Context& ctx, std::span<const GemmAlgorithm> algorithms),
                       restore_gemm_algorithms);
GRADTILE_CUDA_FUNCTION(std::size_t(const Context& ctx), refused_gemm_algorithms);
GRADTILE_CUDA_FUNCTION(bool(const Context& ctx, const Tensor& result, const Tensor& x,
                            const SymmetricProduct& product),
                       symmetric_product);
}  // namespace gradtile::cuda
