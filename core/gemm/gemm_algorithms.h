#pragma once
/// Which algorithm a CUDA context uses for each matrix product. The first eager product of a kind times the
/// algorithms that cuBLASLt proposes. Two runs may therefore choose differently, and then agree to rounding
/// only; a run that restores another run's choices computes the same bits.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gradtile/core/context.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile {

/// The algorithm for one kind of product, as plain numbers. An algorithm is valid only for the same cuBLASLt
/// version on the same kind of GPU (architecture and multiprocessor count). `problem` contains both, so a
/// choice is never used with another version or kind of GPU.
struct GemmAlgorithm {
    std::array<std::int64_t, 27> problem;
    std::array<std::uint64_t, 8> algorithm;
    friend bool operator==(const GemmAlgorithm&, const GemmAlgorithm&) = default;
};

/// Returns the choices made or restored so far, in a fixed order; an empty list on the CPU.
std::vector<GemmAlgorithm> gemm_algorithms(const Context& ctx);
/// Restores the choices that were made with this cuBLASLt on this kind of GPU. Restored choices replace the
/// choices made so far for the same products. Returns how many choices were restored; 0 on the CPU. The
/// numbers may come from any file: at the first product of a kind, a restored algorithm is refused, and a new
/// one is chosen, unless cuBLASLt proposes it for this product or it is a gradtile kernel for this product.
std::size_t restore_gemm_algorithms(const Context& ctx, std::span<const GemmAlgorithm> algorithms);
/// Loads cuBLAS and cuBLASLt, as the first product on a GPU does. Returns cuBLASLt's version: "13.1.0".
/// Throws Error if a library cannot be loaded or the build has no CUDA.
GRADTILE_CUDA_FUNCTION(std::string(), cuda_matrix_library);
/// Returns how many restored choices were refused so far; 0 on the CPU.
std::size_t refused_gemm_algorithms(const Context& ctx);

}  // namespace gradtile
