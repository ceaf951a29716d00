#pragma once
/// Epilogues of products with an activation; see core/gemm/hopper/kernel.cuh.
#include <gradtile/layers/internal/activation_formulas.h>
#include <gradtile/core/cuda/device/fragments.cuh>
#include <gradtile/layers/device/activation_math.cuh>

namespace gradtile::cuda::device {

using ProductGelu = activation_formulas::GeluTanh<ActivationMath, float>;

/// hidden = a b + bias, y = gelu(hidden), as a separate pass over the stored `hidden` would compute it.
template <class T>
struct StoreGelu {
    using Element = T;
    static constexpr int outputs = 2;  ///< hidden, y
    static constexpr bool has_bias = true, reads = false, sums_columns = false;

    __device__ __forceinline__ static void apply(std::uint32_t (&out)[2], float x, float y, std::uint32_t) {
        out[0] = pack<T>(x, y);
        const float2 hidden = unpack<T>(out[0]);
        out[1] = pack<T>(ProductGelu::value(hidden.x), ProductGelu::value(hidden.y));
    }
};

/// d_hidden = (a b) * gelu'(hidden), and its column sums.
template <class T, bool sums_columns_>
struct StoreGeluGradient {
    using Element = T;
    static constexpr int outputs = 1;
    static constexpr bool has_bias = false, reads = true, sums_columns = sums_columns_;

    __device__ __forceinline__ static void apply(std::uint32_t (&out)[1], float x, float y,
                                                 std::uint32_t in) {
        const float2 hidden = unpack<T>(in);
        out[0] = pack<T>(x * ProductGelu::slope(hidden.x), y * ProductGelu::slope(hidden.y));
    }
};

}  // namespace gradtile::cuda::device
