#pragma once
/// The CPU and CUDA implementations behind gemm.h. gemm() has checked the operands and made their rows
/// contiguous.
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/gemm_algorithms.h>

namespace gradtile::cpu {
void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options);
}
namespace gradtile::cuda {
void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options);
std::vector<GemmAlgorithm> gemm_algorithms(const Context& ctx);
std::size_t restore_gemm_algorithms(const Context& ctx, std::span<const GemmAlgorithm> algorithms);
std::size_t refused_gemm_algorithms(const Context& ctx);
}  // namespace gradtile::cuda
