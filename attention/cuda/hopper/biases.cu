#include <gradtile/attention/cuda/hopper/biases.h>

#include <climits>

#include <gradtile/core/tensor.h>

namespace gradtile::attention::cuda {
namespace {

bool has_rows(const ScoreOptions::Bias& bias) {
    return bias.data != nullptr && bias.strides[2] != 0;
}

/// The matrix as TMA sees it: [batches, rows, heads, keys].
Tensor matrix_view(const ScoreOptions::Bias& bias, const Tensor& q, std::int64_t queries, std::int64_t keys) {
    const auto& [batch, head, row, column] = bias.strides;
    const std::int64_t batches = batch == 0 ? 1 : (q.size(0) + bias.batch_divisor - 1) / bias.batch_divisor,
                       heads = head == 0 ? 1 : q.size(2);
    return {nullptr,    const_cast<std::byte*>(bias.data),    q.device(),
            bias.dtype, Shape{batches, queries, heads, keys}, Strides{batch, row, head, column}};
}

bool has_aligned_rows(const ScoreOptions::Bias& bias) {
    const auto is_aligned = [&](std::int64_t stride) {
        const std::int64_t bytes = stride * static_cast<std::int64_t>(size_of(bias.dtype));
        return bytes >= 0 && bytes % 16 == 0 && bytes < std::int64_t{1} << 39;
    };
    return bias.strides[3] == 1 && is_aligned(bias.strides[0]) && is_aligned(bias.strides[1]) &&
           is_aligned(bias.strides[2]) && reinterpret_cast<std::uintptr_t>(bias.data) % 16 == 0;
}

}  // namespace

int bias_matrix_index(const ScoreOptions& scores) {
    for (std::size_t n = 0; n < max_biases; ++n)
        if (has_rows(scores.biases[n])) return static_cast<int>(n);
    return -1;
}

const char* why_no_hopper_biases(const ScoreOptions& scores, DType dtype) {
    int matrices = 0;
    for (const ScoreOptions::Bias& bias : scores.biases) {
        if (!has_rows(bias)) continue;
        if (++matrices > 1) return "two biases depend on the query";
        if (bias.dtype != dtype && bias.dtype != DType::f32) return "a bias has another dtype";
        if (!has_aligned_rows(bias)) return "TMA cannot read the strides of a bias";
    }
    return nullptr;
}

HopperBiases::HopperBiases(const ScoreOptions& scores, const Tensor& q, const device::DeviceMask& mask,
                           int box_rows) {
    std::size_t keys = 0;
    for (const ScoreOptions::Bias& bias : scores.biases) {
        if (bias.data == nullptr) continue;
        if (!has_rows(bias)) {
            key_biases[keys++] = bias;
            continue;
        }
        matrix = bias.dtype == DType::f32 ? BiasMatrix::float32 : BiasMatrix::bits16;
        batch_divisor = bias.strides[0] == 0 ? INT_MAX : static_cast<int>(bias.batch_divisor);
        head_step = bias.strides[1] == 0 ? 0 : 1;
        map = gradtile::cuda::tensor_map(matrix_view(bias, q, mask.queries, mask.keys), box_rows,
                                         gradtile::cuda::Swizzle::bytes_128);
    }
}

}  // namespace gradtile::attention::cuda
