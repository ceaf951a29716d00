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

    struct Step {};
    __device__ __forceinline__ static void begin(Step&, const float (&)[1][8],
                                                 const std::uint32_t (&)[1][4]) {}
    __device__ __forceinline__ static void end(std::uint32_t (&out)[1][4], const Step&,
                                               const float (&x)[1][8], const std::uint32_t (&)[1][4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[0][i] = pack<T>(x[0][2 * i], x[0][2 * i + 1]);
    }
};

}  // namespace gradtile::cuda::device
