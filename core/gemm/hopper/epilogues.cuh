#pragma once
/// Epilogues of products without an activation; see kernel.cuh.
#include <cstdint>

#include <gradtile/core/cuda/device/fragments.cuh>

namespace gradtile::cuda::device {

/// c = a b (+ bias).
template <class T, bool has_bias_>
struct StoreProduct {
    using Element = T;
    static constexpr int outputs = 1;
    static constexpr bool has_bias = has_bias_, reads = false, sums_columns = false;

    __device__ __forceinline__ static void apply(std::uint32_t (&out)[1], float x, float y, std::uint32_t) {
        out[0] = pack<T>(x, y);
    }
};

}  // namespace gradtile::cuda::device
