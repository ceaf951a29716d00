#pragma once
/// 16-bit matrix fragments in a warp's registers, as tensor cores take and return them, and their copies to
/// and from shared memory. PTX ISA 9.7.14 shows the fragment layout.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/dtype.h>
#include <gradtile/core/cuda/device/async_copy.cuh>

namespace gradtile::cuda::device {

/// One 16 x 16 operand A: {rows 0-7, rows 8-15} for columns 0-7, then for columns 8-15.
using FragmentA = std::uint32_t[4];
/// One 16 x 8 accumulator: row lane/4 in [0], [1], row lane/4 + 8 in [2], [3]; columns 2 (lane % 4) + {0, 1}.
using FragmentC = float[4];

/// Loads four 8 x 8 matrices with 16-bit elements. Lane i passes the address of row i % 8 in matrix i / 8.
/// From every matrix or, if `transposed`, from its transpose, a lane receives the elements in row lane/4,
/// columns 2 (lane % 4) + {0, 1}.
template <bool transposed>
__device__ __forceinline__ void load_matrices(std::uint32_t (&x)[4], std::uint32_t address) {
    if constexpr (transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address));
    }
}

/// Stores four matrices: the reverse of load_matrices<false>, with the same addresses. Uses stmatrix, which
/// sm_90 added.
__device__ __forceinline__ void store_matrices(const std::uint32_t (&x)[4], std::uint32_t address) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
#else
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        // Lane matrix * 8 + lane / 4 has the address of the row whose elements this lane holds.
        const std::uint32_t row = __shfl_sync(~0u, address, matrix * 8 + lane / 4);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + lane % 4 * 4), "r"(x[matrix]) : "memory");
    }
#endif
}

/// Rounds two float32 numbers to nearest even; `low` is in the result's lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
    std::uint32_t result;
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    }
    return result;
}

template <class T>
__device__ __forceinline__ float2 unpack(std::uint32_t pair) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
    } else {
        float2 result;
        asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.f32.f16 %0, l;\n cvt.f32.f16 %1, h;}"
            : "=f"(result.x), "=f"(result.y)
            : "r"(pair));
        return result;
    }
}

}  // namespace gradtile::cuda::device
