#pragma once
/// The codes behind quantized_weights.h, for both devices.
#include <cmath>
#include <cstdint>

#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/quantized_weights.h>

namespace gradtile {

/// The value of an nf4 code. With p = 0.9677083 and the normal distribution's quantiles q, the values above 0
/// are q(p) to q(1/2) in 8 equal steps of the probability, those below 0 are -q(p) to q(1/2) in 7 steps, and
/// all are divided by q(p). The code of 0 is 7.
GRADTILE_HOST_DEVICE inline float nf4_value(std::uint32_t code) {
    constexpr float values[16] = {-1.0f,         -0.696192801f, -0.525073051f,  -0.394917488f,
                                  -0.284441382f, -0.18477343f,  -0.0910500363f, 0.0f,
                                  0.0795802996f, 0.160930201f,  0.246112302f,   0.337915242f,
                                  0.440709829f,  0.562617004f,  0.722956836f,   1.0f};
    return values[code & 15u];
}

/// The magnitude of a scale's code, for its distance `step` >= 1 from the code of 0. Steps [2^e, 2^(e+1)) are
/// the centres of 2^e equal parts of [0.1, 1], times 10^(e-6); step 128 is 1. The borders of the parts are
/// rounded as bitsandbytes rounds them: by adding parts to 0.1 in the lower half, by subtracting them from 1
/// in the upper.
GRADTILE_HOST_DEVICE inline float scale_code_magnitude(int step) {
    constexpr float powers_of_ten[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1e0f};
    if (step == 128) return 1.0f;
    int exponent = 0;
    while (step >> (exponent + 1) != 0) ++exponent;
    const int parts = 1 << exponent, part = step - parts;
    const float length = (1.0f - 0.1f) / static_cast<float>(parts);
    float borders[2];
    for (int i = 0; i < 2; ++i) {
        const int border = part + i;
        borders[i] = border < (parts + 1) / 2 ? std::fma(length, static_cast<float>(border), 0.1f)
                                              : std::fma(-length, static_cast<float>(parts - border), 1.0f);
    }
    return (borders[0] + borders[1]) / 2 * powers_of_ten[exponent];
}
/// The value of a scale's code in [0, 255]; they increase. The code of 0 is 127.
GRADTILE_HOST_DEVICE inline float scale_code_value(int code) {
    if (code == 127) return 0.0f;
    return code > 127 ? scale_code_magnitude(code - 127) : -scale_code_magnitude(127 - code);
}

/// a b, rounded. A compiler may otherwise contract the product with a following sum, and round only once.
GRADTILE_HOST_DEVICE inline float rounded_product(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    const volatile float product = a * b;
    return product;
#endif
}

/// A block's scale. `code_value` is scale_code_value() of its code. The words are those of a matrix in nf4.
GRADTILE_HOST_DEVICE inline float nf4_scale(const std::int32_t* words, const QuantizedLayout& layout,
                                            std::int64_t block, float code_value) {
    const auto* groups = reinterpret_cast<const float*>(words + layout.groups);
    const float mean = *reinterpret_cast<const float*>(words + layout.mean);
    return rounded_product(code_value, groups[block / quantized_group]) + mean;
}
/// The code of a block's scale.
GRADTILE_HOST_DEVICE inline int nf4_scale_code(const std::int32_t* words, const QuantizedLayout& layout,
                                               std::int64_t block) {
    return reinterpret_cast<const std::uint8_t*>(words + layout.scales)[block];
}

}  // namespace gradtile

namespace gradtile::cpu {
void dequantize_weights(const Context& ctx, const Tensor& weights, const Tensor& words, WeightFormat format);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(dequantize_weights);
}  // namespace gradtile::cuda
