#pragma once
/// Epilogues of products without an activation; see kernel.cuh.
#include <cstdint>

#include <gradtile/core/cuda/device/fragments.cuh>

namespace gradtile::cuda::device {

/// c = a b (+ bias).
template <class T, bool has_bias_>
struct StoreProduct {
    using Element = T;
    static constexpr int products = 1, outputs = 1, inputs = 0;
    static constexpr bool has_bias = has_bias_, sums_columns = false, symmetric = false;

    __device__ __forceinline__ static void apply(std::uint32_t (&out)[1], const float (&x)[1][2],
                                                 const std::uint32_t (&)[1]) {
        out[0] = pack<T>(x[0][0], x[0][1]);
    }
};

}  // namespace gradtile::cuda::device
