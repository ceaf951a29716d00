#include <gradtile/attention/cuda/sm90/biases.h>

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

}  // namespace

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
