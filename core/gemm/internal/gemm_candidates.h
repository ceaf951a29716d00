#pragma once
/// The ways in which a CUDA context may compute its products, for benchmarks and tests.
#include <optional>
#include <string>

#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile::cuda {

/// The numbers that name gradtile's own kernels; empty in builds without them.
GRADTILE_CUDA_FUNCTION(std::vector<std::uint64_t>(), own_gemm_kernels);
/// Returns a text that describes a kernel's tiles: "128x192 in turns, cluster 2".
GRADTILE_CUDA_FUNCTION(std::string(std::uint64_t kernel), own_gemm_kernel_name);
/// Returns the number of gradtile's kernel that was chosen; nullopt if another way was chosen.
GRADTILE_CUDA_FUNCTION(std::optional<std::uint64_t>(const GemmAlgorithm& choice), own_gemm_kernel);

/// Restricts how ctx computes products from now on: by cuBLASLt and separate steps (no_own_kernel), or by
/// this gradtile kernel where it applies. nullopt: no restriction. Discards the choices made so far.
GRADTILE_CUDA_FUNCTION(void(const Context& ctx, std::optional<std::uint64_t> kernel), restrict_gemm);
inline constexpr std::uint64_t no_own_kernel = 0;

}  // namespace gradtile::cuda
