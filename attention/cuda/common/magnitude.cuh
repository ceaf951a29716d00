#pragma once
/// Each head's largest magnitude, and the power of two that scales the head's numbers into binary16's range.
#include <cstdint>
#include <initializer_list>

#include <gradtile/attention/cuda/common/packed_tasks.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cuda::device {

/// The power of two that scales the largest magnitude into [2^13, 2^14), and its inverse. Both are normal
/// float32 numbers, so a largest magnitude below 2^-113 is scaled to less than 2^13.
struct PowerOfTwo {
    float factor, inverse;

    /// `largest` holds the bits of a finite, non-negative float32.
    __device__ explicit PowerOfTwo(std::uint32_t largest) {
        set_exponent(min(127 + 13 - static_cast<int>(largest >> 23), 126));
    }
    /// 2^exponent, for -126 to 126.
    __device__ static float from_exponent(int exponent) { return __int_as_float((127 + exponent) << 23); }
    /// log2(factor), from -126 to 126.
    __device__ int exponent() const { return (__float_as_int(factor) >> 23) - 127; }
    __device__ void limit_exponent(int largest) { set_exponent(max(-126, min(exponent(), largest))); }

  private:
    __device__ void set_exponent(int exponent) {
        factor = from_exponent(exponent);
        inverse = from_exponent(-exponent);
    }
};

/// Returns the power of two for one head in one tensor. magnitudes: [tensors, sequences, key heads], written
/// by measure().
__device__ __forceinline__ PowerOfTwo range_of(const std::uint32_t* magnitudes, int tensor, int sequences,
                                               int sequence, int key_heads, int key_head) {
    return PowerOfTwo(magnitudes[(tensor * sequences + sequence) * key_heads + key_head]);
}

inline std::uint32_t* largest_of(const Tensor& magnitudes) {
    return reinterpret_cast<std::uint32_t*>(magnitudes.data<std::int32_t>());
}

/// A tensor [B, S, heads, D] whose rows belong to queries or to keys.
struct Measured {
    Tensor x;
    bool has_query_rows = false;
};
/// Writes each tensor's largest finite magnitude per sequence and key head, as float32 bits, to `magnitudes`
/// [tensors, sequences, key heads]. The rows after the last packed sequence count as one more sequence. A
/// group's query heads share one element. There may be at most five tensors.
void measure(const Context& ctx, const Tensor& magnitudes, const PackedOffsets& packed,
             std::initializer_list<Measured> tensors);

}  // namespace gradtile::attention::cuda::device
