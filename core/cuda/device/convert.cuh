#pragma once
/// Element conversions on the GPU, with the same bits as those of dtype.h on the CPU.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include <gradtile/core/dtype.h>

namespace gradtile::cuda::device {

/// Converts a value to type To; a 16-bit float is converted to float32 first.
template <class To, class From>
__device__ __forceinline__ To convert(From value) {
    if constexpr (std::is_same_v<To, From>) {
        return value;
    } else if constexpr (std::is_same_v<From, bfloat16>) {
        return convert<To>(__uint_as_float(static_cast<unsigned>(value.bits) << 16));
    } else if constexpr (std::is_same_v<From, float16>) {
        return convert<To>(__half2float(__ushort_as_half(value.bits)));
    } else if constexpr (std::is_same_v<To, bfloat16>) {
        bfloat16 result;
        result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(value)));
        return result;
    } else if constexpr (std::is_same_v<To, float16>) {
        float16 result;
        result.bits = __half_as_ushort(__float2half_rn(static_cast<float>(value)));
        return result;
    } else {
        return static_cast<To>(value);
    }
}

}  // namespace gradtile::cuda::device
