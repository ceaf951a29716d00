#pragma once
/// Single-element functions for activations. The error of fast_math.cuh's e^x in float32, about |x| + 2 units
/// in the last place, is within the bounds in tests/layers/activation_test.cpp, because activations do not
/// depend on e^x where |x| is large. Results below the smallest normal float are 0, as in vector_math.h.
#include <numbers>

#include <gradtile/core/cpu/vector_math.h>
#include <gradtile/core/cuda/device/fast_math.cuh>

namespace gradtile::cuda::device {

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

/// The device's functions for activation_formulas.h.
struct ActivationMath {
    /// float32's sigmoid takes x * -log2(e), which saves a multiplication where x is a product with a
    /// constant.
    template <class S>
    static constexpr S sigmoid_factor = 1;
    __device__ __forceinline__ static float scaled_sigmoid(float x) {
        return reciprocal(1 + power_of_two(x));
    }
    __device__ __forceinline__ static double scaled_sigmoid(double x) { return device::sigmoid(x); }
    template <class S>
    __device__ __forceinline__ static S sigmoid(S x) {
        return device::sigmoid(x);
    }
    template <class S>
    __device__ __forceinline__ static vector_math::Normal<S> normal(S x) {
        return device::normal(x);
    }
    /// x Phi(x) = max(x, 0) - |x| Phi(-|x|).
    __device__ __forceinline__ static float times_normal(float x) {
        const float t = reciprocal(vector_math::normal_divisor(x));
        return fmaxf(x, 0.0f) - fabsf(x) * vector_math::normal_tail(exponential(-0.5f * (x * x)), t);
    }
    __device__ __forceinline__ static double times_normal(double x) {
        return x * device::normal(x).distribution;
    }
};

template <>
inline constexpr float ActivationMath::sigmoid_factor<float> = -std::numbers::log2e_v<float>;

}  // namespace gradtile::cuda::device
