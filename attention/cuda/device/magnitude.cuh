#pragma once
/// How large a head's numbers are, and the power of two that brings them into binary16's range.
#include <cstdint>
#include <initializer_list>

#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cuda::device {

/// A power of two that brings the largest of some magnitudes into [2^13, 2^14), and its inverse; both are
/// normal numbers, so magnitudes below 2^-113 stay smaller.
struct PowerOfTwo {
    float factor, inverse;

    /// largest: the bits of a float32, finite and not negative.
    __device__ explicit PowerOfTwo(std::uint32_t largest) {
        const int exponent = min(2 * 127 + 13 - static_cast<int>(largest >> 23), 253);
        factor = __int_as_float(exponent << 23);
        inverse = __int_as_float((254 - exponent) << 23);
    }
};

/// Of one head of a measured tensor. magnitudes: [tensors, B, key heads], what measure() found.
__device__ __forceinline__ PowerOfTwo range_of(const std::uint32_t* magnitudes, int tensor, int batch_size,
                                               int batch, int key_heads, int key_head) {
    return PowerOfTwo(magnitudes[(tensor * batch_size + batch) * key_heads + key_head]);
}

/// Scratch for measure().
inline Tensor empty_magnitudes(const Context& ctx, std::int64_t tensors, const Tensor& k) {
    return empty(ctx, {tensors, k.size(0), k.size(2)}, DType::i32);
}

inline std::uint32_t* largest_of(const Tensor& magnitudes) {
    return reinterpret_cast<std::uint32_t*>(magnitudes.data<std::int32_t>());
}

/// The largest finite magnitude of each tensor [B, S, heads, D] per batch and key head, as bits of a float32;
/// the query heads of a group count as one. At most four tensors.
void measure(const Context& ctx, const Tensor& magnitudes, std::initializer_list<const Tensor*> tensors);

}  // namespace gradtile::attention::cuda::device
