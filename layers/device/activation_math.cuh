#pragma once
/// GELU and SiLU of one element. In float32 the exponential is the hardware's 2^x and the quotient its
/// reciprocal: e^x is then off by about |x| + 2 units in the last place, which the bounds of
/// tests/layers/activation_test.cpp have room for, since wherever |x| is large the result no longer depends
/// on e^x. Below the smallest normal float results are 0, as in vector_math.h; the intrinsics' care for
/// subnormal numbers would cost as many instructions again. float64 takes the library's functions.
#include <numbers>

#include <gradtile/core/cpu/vector_math.h>

namespace gradtile::cuda::device {

__device__ __forceinline__ float exponential(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * std::numbers::log2e_v<float>));
    return result;
}
__device__ __forceinline__ double exponential(double x) {
    return exp(x);
}
__device__ __forceinline__ float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
__device__ __forceinline__ double reciprocal(double x) {
    return 1.0 / x;
}

template <class S>
__device__ __forceinline__ S sigmoid(S x) {
    return reciprocal(1 + exponential(-x));
}

__device__ __forceinline__ vector_math::Normal<float> normal(float x) {
    return vector_math::normal(x, exponential(-0.5f * (x * x)), reciprocal(vector_math::normal_divisor(x)));
}
__device__ __forceinline__ vector_math::Normal<double> normal(double x) {
    return {0.5 * erfc(-x * (std::numbers::sqrt2 / 2)), exp(-0.5 * (x * x))};
}

/// x/2 (1 + tanh(u/2)) = x sigmoid(u) with u = a x + b x^3, which costs one exponential.
template <class S>
struct GeluTanh {
    static constexpr S a = S(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    static constexpr S b = S(0.044715 * 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);

    __device__ __forceinline__ static S value(S x) { return x * sigmoid(x * (a + b * (x * x))); }
    __device__ __forceinline__ static S slope(S x) {
        // Beyond 12 the sigmoid is 0 or 1 (to 1e-61), while x^2 may overflow.
        const S z = x > S(12) ? S(12) : (x < S(-12) ? S(-12) : x);
        const S square = z * z;
        const S s = sigmoid(z * (a + b * square));
        return s + z * (s * (1 - s)) * (a + 3 * b * square);
    }
};

/// x Phi(x), whose slope is Phi(x) + x e^(-x^2/2) / sqrt(2 pi).
template <class S>
struct GeluExact {
    /// x Phi(x) = max(x, 0) - |x| Phi(-|x|).
    __device__ __forceinline__ static S value(S x) {
        if constexpr (std::is_same_v<S, float>) {
            const float t = reciprocal(vector_math::normal_divisor(x));
            return fmaxf(x, 0.0f) - fabsf(x) * vector_math::normal_tail(exponential(-0.5f * (x * x)), t);
        } else {
            return x * normal(x).distribution;
        }
    }
    __device__ __forceinline__ static S slope(S x) {
        constexpr S density = S(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
        const vector_math::Normal<S> both = normal(x);
        return both.distribution + x * density * both.gaussian;
    }
};

}  // namespace gradtile::cuda::device
