#pragma once
/// INTERNAL. Biases as the Hopper kernels read them: at most one [queries, keys] matrix, in tiles by TMA, and
/// biases with one number per key.
#include <array>

#include <gradtile/attention/score_rule.h>
#include <gradtile/core/cuda/internal/tensor_map.h>
#include <gradtile/attention/cuda/common/mask.cuh>

namespace gradtile::attention::cuda {

/// Element type in the [queries, keys] bias matrix.
enum class BiasMatrix : std::uint8_t {
    none,    ///< there is no such bias
    bits16,  ///< q's dtype
    float32,
};

struct HopperBiases {
    gradtile::cuda::TensorMap map;  ///< for the matrix; boxes have 128-byte rows
    BiasMatrix matrix = BiasMatrix::none;
    int batch_divisor = 1;  ///< q's batch b reads the matrix's batch b / batch_divisor
    int head_step = 0;      ///< q's head h reads the matrix's head h * head_step
    std::array<ScoreOptions::Bias, max_biases> key_biases{};

    HopperBiases() = default;
    /// Boxes have `box_rows` queries. At most one bias may differ between queries, and TMA can address it.
    HopperBiases(const ScoreOptions& scores, const Tensor& q, const device::DeviceMask& mask, int box_rows);
};

}  // namespace gradtile::attention::cuda
