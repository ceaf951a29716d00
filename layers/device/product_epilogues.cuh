#pragma once
/// Epilogues of products with an activation; see core/gemm/hopper/kernel.cuh.
#include <gradtile/layers/internal/activation_formulas.h>
#include <gradtile/core/cuda/device/fragments.cuh>
#include <gradtile/layers/device/activation_math.cuh>

namespace gradtile::cuda::device {

using ProductGelu = activation_formulas::GeluTanh<ActivationMath, float>;
using ProductSwiGlu = activation_formulas::SwiGlu<ActivationMath, float>;

/// hidden = a b + bias, y = gelu(hidden). y is computed from the rounded hidden, so it has the same bits as
/// after a separate pass.
template <class T>
struct StoreGelu {
    using Element = T;
    static constexpr int products = 1, outputs = 2, inputs = 0;  ///< outputs: hidden, y
    static constexpr bool has_bias = true, sums_columns = false, symmetric = false;

    __device__ __forceinline__ static void apply(std::uint32_t (&out)[2], const float (&x)[1][2],
                                                 const std::uint32_t (&)[1]) {
        out[0] = pack<T>(x[0][0], x[0][1]);
        const float2 hidden = unpack<T>(out[0]);
        out[1] = pack<T>(ProductGelu::value(hidden.x), ProductGelu::value(hidden.y));
    }
};

/// d_hidden = (a b) * gelu'(hidden), and its column sums.
template <class T, bool sums_columns_>
struct StoreGeluGradient {
    using Element = T;
    static constexpr int products = 1, outputs = 1, inputs = 1;
    static constexpr bool has_bias = false, sums_columns = sums_columns_, symmetric = false;

    __device__ __forceinline__ static void apply(std::uint32_t (&out)[1], const float (&x)[1][2],
                                                 const std::uint32_t (&in)[1]) {
        const float2 hidden = unpack<T>(in[0]);
        out[0] = pack<T>(x[0][0] * ProductGelu::slope(hidden.x), x[0][1] * ProductGelu::slope(hidden.y));
    }
};

/// gate = a b[0], up = a b[1], y = silu(gate) * up. y is computed from the rounded gate and up, so it has the
/// same bits as after a separate pass.
template <class T>
struct StoreSwiGlu {
    using Element = T;
    static constexpr int products = 2, outputs = 3, inputs = 0;  ///< outputs: gate, up, y
    static constexpr bool has_bias = false, sums_columns = false, symmetric = false;

    __device__ __forceinline__ static void apply(std::uint32_t (&out)[3], const float (&x)[2][2],
                                                 const std::uint32_t (&)[1]) {
        out[0] = pack<T>(x[0][0], x[0][1]);
        out[1] = pack<T>(x[1][0], x[1][1]);
        const float2 gate = unpack<T>(out[0]), up = unpack<T>(out[1]);
        out[2] = pack<T>(ProductSwiGlu::value(gate.x, up.x), ProductSwiGlu::value(gate.y, up.y));
    }
};

/// The gradients of gate and up from the gradient a b of y.
template <class T>
struct StoreSwiGluGradient {
    using Element = T;
    static constexpr int products = 1, outputs = 2, inputs = 2;  ///< gate and up; outputs: their gradients
    static constexpr bool has_bias = false, sums_columns = false, symmetric = false;

    __device__ __forceinline__ static void apply(std::uint32_t (&out)[2], const float (&x)[1][2],
                                                 const std::uint32_t (&in)[2]) {
        const float2 gate = unpack<T>(in[0]), up = unpack<T>(in[1]);
        const auto left = ProductSwiGlu::gradient(x[0][0], gate.x, up.x),
                   right = ProductSwiGlu::gradient(x[0][1], gate.y, up.y);
        out[0] = pack<T>(left.gate, right.gate);
        out[1] = pack<T>(left.up, right.up);
    }
};

}  // namespace gradtile::cuda::device
