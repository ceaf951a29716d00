#pragma once
/// INTERNAL. The shape of a bias gradient.
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cuda {

/// One bias gradient.
struct BiasGradient {
    std::byte* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t strides[4] = {};  ///< [batch, head, row, column], in elements
    int batches = 1, heads = 1;    ///< lengths of the gradient's first two axes
    bool sums_rows = false, sums_keys = false;
    int summed_batches = 1, summed_heads = 1;  ///< q batches and heads that add to one element

    /// `into` has the bias's shape; stride 0 stands for length 1.
    BiasGradient(const Tensor& into, const ScoreOptions::Bias& bias, std::int64_t batch_size,
                 std::int64_t query_heads)
        : data(into.raw_data()), dtype(into.dtype()) {
        bool is_summed[4];
        for (int axis = 0; axis < 4; ++axis) {
            is_summed[axis] = into.size(axis) == 1 || into.stride(axis) == 0;
            strides[axis] = is_summed[axis] ? 0 : into.stride(axis);
        }
        batches = is_summed[0] ? 1 : static_cast<int>(into.size(0));
        heads = is_summed[1] ? 1 : static_cast<int>(into.size(1));
        sums_rows = is_summed[2];
        sums_keys = is_summed[3];
        summed_batches = static_cast<int>(is_summed[0] ? batch_size : bias.batch_divisor);
        summed_heads = static_cast<int>(is_summed[1] ? query_heads : 1);
    }
};

}  // namespace gradtile::attention::cuda
