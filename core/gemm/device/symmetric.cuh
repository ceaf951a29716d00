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

    struct Step {};
    __device__ __forceinline__ static void begin(Step&, const float (&)[1][8],
                                                 const std::uint32_t (&)[1][4]) {}
    __device__ __forceinline__ void end(std::uint32_t (&out)[1][4], const Step&, const float (&x)[1][8],
                                        const std::uint32_t (&)[1][4], int) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[0][i] = pack<T>(x[0][2 * i], x[0][2 * i + 1]);
    }
};

/// a I + b x + c x^2. The input is x.
template <class T>
struct StorePolynomial {
    using Element = T;
    static constexpr int products = 1, outputs = 1, inputs = 1;
    static constexpr bool has_bias = false, sums_columns = false, symmetric = true;
    float a, b, c;

    struct Step {};
    __device__ __forceinline__ static void begin(Step&, const float (&)[1][8],
                                                 const std::uint32_t (&)[1][4]) {}
    __device__ __forceinline__ void end(std::uint32_t (&out)[1][4], const Step&, const float (&x)[1][8],
                                        const std::uint32_t (&in)[1][4], int diagonal) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 power = unpack<T>(in[0][i]);
            const int distance = diagonal + (i % 2 - i / 2) * 8;
            const float first = distance == 0 ? a : 0.0f, second = distance == 1 ? a : 0.0f;
            // Without fmaf, the compiler may contract a tile's elements (i, j) and (j, i) in different ways.
            out[0][i] = pack<T>(fmaf(c, x[0][2 * i], fmaf(b, power.x, first)),
                                fmaf(c, x[0][2 * i + 1], fmaf(b, power.y, second)));
        }
    }
};

}  // namespace gradtile::cuda::device
