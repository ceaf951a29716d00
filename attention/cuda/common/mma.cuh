#pragma once
/// sm_80 tensor core products for one warp: m16n8k16 with 16-bit operands and float32 sums.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/dtype.h>
#include <gradtile/core/cuda/device/async_copy.cuh>
#include <gradtile/core/cuda/device/fragments.cuh>

namespace gradtile::attention::cuda::device {

using namespace gradtile::cuda::device;  // helper functions that all gradtile kernels share

/// c += a * b, where b is 16 x 8.
template <class T>
__device__ __forceinline__ void mma(FragmentC& c, const FragmentA& a, std::uint32_t b0, std::uint32_t b1) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        static_assert(std::is_same_v<T, float16>);
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

}  // namespace gradtile::attention::cuda::device
