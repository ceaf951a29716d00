#pragma once
/// INTERNAL. Biases as the Hopper kernels read them: at most one matrix of queries and keys, in tiles by TMA,
/// and biases with one number for each key.
#include <array>

#include <gradtile/attention/score_rule.h>
#include <gradtile/core/cuda/internal/tensor_map.h>
#include <gradtile/attention/cuda/device/mask.cuh>

namespace gradtile::attention::cuda {

/// The elements of the matrix of queries and keys.
enum class BiasMatrix : std::uint8_t {
    none,    ///< there is no such bias
    bits16,  ///< q's dtype
    float32,
};

struct HopperBiases {
    gradtile::cuda::TensorMap map;  ///< of the matrix: boxes of rows of 128 bytes
    BiasMatrix matrix = BiasMatrix::none;
    int batch_divisor = 1;  ///< batch b of q reads batch b / batch_divisor of the matrix
    int head_step = 0;      ///< head h of q reads head h * head_step of the matrix
    std::array<ScoreOptions::Bias, max_biases> of_keys{};

    HopperBiases() = default;
    /// Boxes have `box_rows` queries. why_no_hopper_biases() must have returned nullptr.
    HopperBiases(const ScoreOptions& scores, const Tensor& q, const device::DeviceMask& mask, int box_rows);
};

/// Returns the reason why the Hopper kernels cannot read these biases; nullptr if they can. `dtype` is q's.
const char* why_no_hopper_biases(const ScoreOptions& scores, DType dtype);
/// The index of the matrix of queries and keys among the call's biases, or -1.
int bias_matrix_index(const ScoreOptions& scores);

}  // namespace gradtile::attention::cuda
