#pragma once
/// Float32 masters of 16-bit weights. A bfloat16 weight is its master rounded to nearest, ties away from
/// zero. So master and weight differ, as bits, by a signed 16-bit number, the remainder: weight and remainder
/// together are the master. With ties to even, 65,537 masters would round to a weight whose last bit is 0.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/dtype.h>
#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Remainders in an element of an int32 tensor.
inline constexpr std::int64_t remainders_per_word = 2;

/// Rounds a master. NaN stays NaN.
GRADTILE_HOST_DEVICE inline bfloat16 rounded_master(float master) {
    const auto word = __builtin_bit_cast(std::uint32_t, master);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    bfloat16 weight;
    weight.bits = static_cast<std::uint16_t>((is_nan ? word | 0x00400000u : word + 0x8000u) >> 16);
    return weight;
}

/// The remainder of a master; 0 for NaN, whose lower bits are lost.
GRADTILE_HOST_DEVICE inline std::int16_t remainder_of(float master) {
    const auto word = __builtin_bit_cast(std::uint32_t, master);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    return static_cast<std::int16_t>(is_nan ? 0u : word & 0xffffu);
}

GRADTILE_HOST_DEVICE inline float joined_master(bfloat16 weight, std::int16_t remainder) {
    const auto signed_remainder = static_cast<std::uint32_t>(static_cast<std::int32_t>(remainder));
    return __builtin_bit_cast(float, (static_cast<std::uint32_t>(weight.bits) << 16) + signed_remainder);
}

/// Returns an element's weight from the array that an optimizer updates: the weight itself, or the remainder
/// (int16) beside its value.
template <class Real, class Weight, class Value>
GRADTILE_HOST_DEVICE Real loaded_weight(Weight weight, Value value) {
    if constexpr (std::is_same_v<Weight, std::int16_t>) {
        return joined_master(value, weight);
    } else {
        return weight;
    }
}
/// Returns what that array keeps of an updated weight.
template <class Weight, class Real>
GRADTILE_HOST_DEVICE Weight kept_weight(Real updated) {
    if constexpr (std::is_same_v<Weight, std::int16_t>) {
        return remainder_of(updated);
    } else {
        return updated;
    }
}

/// Calls visit(TypeTag<Weight>) for the weights in `weights`: int16 for remainders in int32 words, else Real.
template <class Real, class Value, class Visit>
void visit_weight_type(DType weights, const Visit& visit) {
    if constexpr (std::is_same_v<Value, bfloat16>)
        if (weights == DType::i32) return visit(TypeTag<std::int16_t>{});
    visit(TypeTag<Real>{});
}
template <class Weight>
Weight* weight_data(const Tensor& weights) {
    if constexpr (std::is_same_v<Weight, std::int16_t>) {
        return reinterpret_cast<Weight*>(weights.data<std::int32_t>());
    } else {
        return weights.data<Weight>();
    }
}

/// Computes values = masters, rounded. Both are contiguous and have the same shape; dtypes other than
/// bfloat16 are rounded as copy() does.
void round_masters(const Context& ctx, const Tensor& masters, const Tensor& values);
/// Writes the remainders of float32 masters [n] to int32 [n / 2].
void split_masters(const Context& ctx, const Tensor& masters, const Tensor& remainders);
/// Computes float32 masters [n] from bfloat16 values [n] and their remainders, int32 [n / 2].
void join_masters(const Context& ctx, const Tensor& values, const Tensor& remainders, const Tensor& masters);

namespace cpu {
void round_masters(const Context& ctx, const Tensor& masters, const Tensor& values);
void split_masters(const Context& ctx, const Tensor& masters, const Tensor& remainders);
void join_masters(const Context& ctx, const Tensor& values, const Tensor& remainders, const Tensor& masters);

/// Returns what a weight's value becomes.
template <class Value, class Real>
Value value_of_weight(Real weight) {
    if constexpr (std::is_same_v<Value, bfloat16>) {
        return rounded_master(weight);
    } else {
        return convert<Value>(weight);
    }
}
}  // namespace cpu

namespace cuda {
GRADTILE_CUDA_TWIN(round_masters);
GRADTILE_CUDA_TWIN(split_masters);
GRADTILE_CUDA_TWIN(join_masters);
}  // namespace cuda

}  // namespace gradtile
