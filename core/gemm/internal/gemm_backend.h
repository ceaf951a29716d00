#pragma once
/// The CPU and CUDA implementations behind gemm.h and symmetric_product.h. gemm() has checked the operands
/// and made their rows contiguous.
#include <algorithm>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile {
/// Elements between an operand's rows; matrix libraries expect at least a row's length, also for one row.
inline std::int64_t row_distance(const Tensor& x) {
    return x.size(-2) > 1 ? x.stride(-2) : std::max<std::int64_t>(1, x.size(-1));
}
/// Elements between the matrices of a batch with one axis.
inline std::int64_t matrix_distance(const Tensor& x) {
    return x.rank() > 2 ? x.stride(0) : 0;
}
}  // namespace gradtile

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
