#pragma once
/// Exponentials and reciprocals. float32 uses the hardware's instructions for 2^x and 1/x; results below the
/// smallest normal float are 0, because the intrinsics that compute subnormal results take twice as many
/// instructions. float64 uses the library's functions.
#include <numbers>

namespace gradtile::cuda::device {

/// 2^x with relative error 2^-22; results below 2^-126 are 0.
__device__ __forceinline__ float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/// e^x; the error in float32 is about |x| + 2 units in the last place.
__device__ __forceinline__ float exponential(float x) {
    return power_of_two(x * std::numbers::log2e_v<float>);
}
__device__ __forceinline__ double exponential(double x) {
    return exp(x);
}

/// 1 / x; in float32 with relative error 2^-23, and 0 if 1 / x is below 2^-126.
__device__ __forceinline__ float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
__device__ __forceinline__ double reciprocal(double x) {
    return 1.0 / x;
}

}  // namespace gradtile::cuda::device
