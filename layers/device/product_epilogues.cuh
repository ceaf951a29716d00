#pragma once
/// Epilogues for products with an activation; see core/gemm/device/kernel.cuh.
#include <gradtile/layers/internal/activation_formulas.h>
#include <gradtile/core/cuda/device/fragments.cuh>
#include <gradtile/layers/device/activation_math.cuh>

namespace gradtile::cuda::device {

using ProductGelu = activation_formulas::GeluTanh<ActivationMath, float>;
using ProductSwiGlu = activation_formulas::SwiGlu<ActivationMath, float>;

/// Replaces x by ActivationMath::scaled_sigmoid(x). Each loop computes all numbers before the next loop
/// begins, so that the GPU functions' latencies overlap: few warps compute epilogues at a time.
template <int n>
__device__ __forceinline__ void take_sigmoids(float (&x)[n]) {
#pragma unroll
    for (int i = 0; i < n; ++i) x[i] = power_of_two(x[i]);
#pragma unroll
    for (int i = 0; i < n; ++i) x[i] = reciprocal(1 + x[i]);
}

/// Replaces x by scaled_sigmoid()'s argument for sigmoid(x).
template <int n>
__device__ __forceinline__ void scale_logits(float (&x)[n]) {
#pragma unroll
    for (int i = 0; i < n; ++i) x[i] *= ActivationMath::sigmoid_factor<float>;
}

/// Unpacks four pairs into eight elements.
template <class T>
__device__ __forceinline__ void unpack_pairs(float (&x)[8], const std::uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack<T>(pairs[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
}
template <class T>
__device__ __forceinline__ void pack_pairs(std::uint32_t (&pairs)[4], const float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = pack<T>(x[2 * i], x[2 * i + 1]);
}

/// Limits both elements in a pair to [-limit, limit]; NaN stays NaN.
template <class T>
__device__ __forceinline__ std::uint32_t clamp_pair(std::uint32_t pair, float limit) {
    const std::uint32_t highest = pack<T>(limit, limit), lowest = pack<T>(-limit, -limit);
    std::uint32_t result;
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(highest));
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(result), "r"(lowest));
    } else {
        asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(highest));
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(result), "r"(lowest));
    }
    return result;
}

/// hidden = a b + bias, y = gelu(hidden). y is computed from the rounded hidden, so it has the same bits as
/// after a separate pass.
template <class T>
struct StoreGelu {
    using Element = T;
    static constexpr int products = 1, outputs = 2, inputs = 0;  ///< outputs: hidden, y
    static constexpr bool has_bias = true, sums_columns = false, symmetric = false;

    struct Step {
        std::uint32_t hidden[4];
        float s[8];  ///< sigmoids
    };
    __device__ __forceinline__ static void begin(Step& step, const float (&x)[1][8],
                                                 const std::uint32_t (&)[1][4]) {
        float hidden[8];
        pack_pairs<T>(step.hidden, x[0]);
        unpack_pairs<T>(hidden, step.hidden);
#pragma unroll
        for (int i = 0; i < 8; ++i) step.s[i] = ProductGelu::scaled_logit(hidden[i]);
        take_sigmoids(step.s);
    }
    __device__ __forceinline__ static void end(std::uint32_t (&out)[2][4], const Step& step,
                                               const float (&)[1][8], const std::uint32_t (&)[1][4]) {
        float hidden[8];
        unpack_pairs<T>(hidden, step.hidden);
#pragma unroll
        for (int i = 0; i < 8; ++i) hidden[i] = ProductGelu::value_at(hidden[i], step.s[i]);
#pragma unroll
        for (int i = 0; i < 4; ++i) out[0][i] = step.hidden[i];
        pack_pairs<T>(out[1], hidden);
    }
};

/// d_hidden = (a b) * gelu'(hidden), and its column sums.
template <class T, bool sums_columns_>
struct StoreGeluGradient {
    using Element = T;
    static constexpr int products = 1, outputs = 1, inputs = 1;
    static constexpr bool has_bias = false, sums_columns = sums_columns_, symmetric = false;

    struct Step {
        std::uint32_t hidden[4];  ///< clamped
        float s[8];               ///< sigmoids
    };
    __device__ __forceinline__ static void begin(Step& step, const float (&)[1][8],
                                                 const std::uint32_t (&in)[1][4]) {
        float z[8];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            step.hidden[i] = clamp_pair<T>(in[0][i], static_cast<float>(ProductGelu::limit));
        unpack_pairs<T>(z, step.hidden);
#pragma unroll
        for (int i = 0; i < 8; ++i) step.s[i] = ProductGelu::scaled_logit(z[i]);
        take_sigmoids(step.s);
    }
    __device__ __forceinline__ static void end(std::uint32_t (&out)[1][4], const Step& step,
                                               const float (&x)[1][8], const std::uint32_t (&)[1][4]) {
        float z[8];
        unpack_pairs<T>(z, step.hidden);
#pragma unroll
        for (int i = 0; i < 8; ++i) z[i] = x[0][i] * ProductGelu::slope_at(z[i], step.s[i]);
        pack_pairs<T>(out[0], z);
    }
};

/// gate = a b[0], up = a b[1], y = silu(gate) * up. y is computed from the rounded gate and up, so it has the
/// same bits as after a separate pass.
template <class T>
struct StoreSwiGlu {
    using Element = T;
    static constexpr int products = 2, outputs = 3, inputs = 0;  ///< outputs: gate, up, y
    static constexpr bool has_bias = false, sums_columns = false, symmetric = false;

    struct Step {
        std::uint32_t gate[4];
        float s[8];  ///< sigmoids of the gate
    };
    __device__ __forceinline__ static void begin(Step& step, const float (&x)[2][8],
                                                 const std::uint32_t (&)[1][4]) {
        pack_pairs<T>(step.gate, x[0]);
        unpack_pairs<T>(step.s, step.gate);
        scale_logits(step.s);
        take_sigmoids(step.s);
    }
    __device__ __forceinline__ static void end(std::uint32_t (&out)[3][4], const Step& step,
                                               const float (&x)[2][8], const std::uint32_t (&)[1][4]) {
        float gate[8], up[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) out[0][i] = step.gate[i];
        pack_pairs<T>(out[1], x[1]);
        unpack_pairs<T>(gate, out[0]);
        unpack_pairs<T>(up, out[1]);
#pragma unroll
        for (int i = 0; i < 8; ++i) gate[i] = ProductSwiGlu::value_at(gate[i], up[i], step.s[i]);
        pack_pairs<T>(out[2], gate);
    }
};

/// Computes the gate and up gradients from y's gradient, which is a b.
template <class T>
struct StoreSwiGluGradient {
    using Element = T;
    static constexpr int products = 1, outputs = 2, inputs = 2;  ///< gate and up; outputs: their gradients
    static constexpr bool has_bias = false, sums_columns = false, symmetric = false;

    struct Step {
        float s[8];  ///< sigmoids of the gate
    };
    __device__ __forceinline__ static void begin(Step& step, const float (&)[1][8],
                                                 const std::uint32_t (&in)[2][4]) {
        unpack_pairs<T>(step.s, in[0]);
        scale_logits(step.s);
        take_sigmoids(step.s);
    }
    __device__ __forceinline__ static void end(std::uint32_t (&out)[2][4], const Step& step,
                                               const float (&x)[1][8], const std::uint32_t (&in)[2][4]) {
        float gate[8], up[8];
        unpack_pairs<T>(gate, in[0]);
        unpack_pairs<T>(up, in[1]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const auto gradient = ProductSwiGlu::gradient_at(x[0][i], gate[i], up[i], step.s[i]);
            gate[i] = gradient.gate;
            up[i] = gradient.up;
        }
        pack_pairs<T>(out[0], gate);
        pack_pairs<T>(out[1], up);
    }
};

}  // namespace gradtile::cuda::device
