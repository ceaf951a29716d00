#pragma once
/// Which algorithm a CUDA context uses for each of its matrix products. The first eager product of a kind
/// times what cuBLASLt proposes, so two runs may choose differently and then agree to rounding only; a run
/// that restores another's choices gets its bits.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <gradtile/core/context.h>

namespace gradtile {

/// Plain numbers, to be stored as they are. They mean something to the same cuBLASLt on the same kind of GPU
/// only; both stand in `problem`, so others never match them.
struct GemmAlgorithm {
    std::array<std::int64_t, 27> problem;
    std::array<std::uint64_t, 8> algorithm;
    friend bool operator==(const GemmAlgorithm&, const GemmAlgorithm&) = default;
};

/// The choices made or restored so far, in a fixed order; none on the CPU.
std::vector<GemmAlgorithm> gemm_algorithms(const Context& ctx);
/// Takes over the choices that were made with this cuBLASLt on this kind of GPU, in place of those made so
/// far for the same products, and returns how many those are; 0 on the CPU. One that turns out not to run
/// here is made anew.
std::size_t restore_gemm_algorithms(const Context& ctx, std::span<const GemmAlgorithm> algorithms);

}  // namespace gradtile
