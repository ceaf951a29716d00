#pragma once
/// What a weight's value becomes on the GPU, with the bits of cpu::value_of_weight().
#include <gradtile/core/internal/master_weights.h>
#include <gradtile/core/cuda/device/convert.cuh>

namespace gradtile::cuda::device {

template <class Value, class Real>
__device__ __forceinline__ Value value_of_weight(Real weight) {
    if constexpr (std::is_same_v<Value, bfloat16>) {
        return rounded_master(weight);
    } else {
        return convert<Value>(weight);
    }
}

}  // namespace gradtile::cuda::device
