#pragma once
/// Epilogues of symmetric products; see kernel.cuh.
#include <cstdint>

#include <gradtile/core/cuda/device/fragments.cuh>

namespace gradtile::cuda::device {

/// c = x x^T.
template <class T>
struct StoreSymmetric {
    using Element = T;
    static constexpr int products = 1, outputs = 1, inputs = 0;
    static constexpr bool has_bias = false, sums_columns = false, symmetric = true;

    __device__ __forceinline__ void apply(std::uint32_t (&out)[1], const float (&x)[1][2],
                                          const std::uint32_t (&)[1], int) const {
        out[0] = pack<T>(x[0][0], x[0][1]);
    }
};

/// a I + b x + c x^2. The input is x.
template <class T>
struct StorePolynomial {
    using Element = T;
    static constexpr int products = 1, outputs = 1, inputs = 1;
    static constexpr bool has_bias = false, sums_columns = false, symmetric = true;
    float a, b, c;

    __device__ __forceinline__ void apply(std::uint32_t (&out)[1], const float (&x)[1][2],
                                          const std::uint32_t (&in)[1], int diagonal) const {
        const float2 power = unpack<T>(in[0]);
        const float first = diagonal == 0 ? a : 0.0f, second = diagonal == 1 ? a : 0.0f;
        // Without fmaf, the compiler may contract the elements (i, j) and (j, i) of a tile in different ways.
        out[0] =
            pack<T>(fmaf(c, x[0][0], fmaf(b, power.x, first)), fmaf(c, x[0][1], fmaf(b, power.y, second)));
    }
};

}  // namespace gradtile::cuda::device
