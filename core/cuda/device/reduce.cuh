#pragma once
/// Sums and maxima over the threads that share a row. The order of the additions is fixed, so are the bits.
#include <cuda_runtime.h>

namespace gradtile::cuda::device {

struct Sum {
    template <class S>
    __device__ __forceinline__ S operator()(S a, S b) const {
        return a + b;
    }
};

/// combine over groups of `lanes` neighbouring lanes of a warp, which must all be there; every lane gets it.
template <int lanes, class S, class Combine>
__device__ __forceinline__ S reduce_lanes(S value, Combine combine) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

/// combine over a team: a part of a warp, a warp, or the whole block of `team` threads. Every thread gets it.
template <int team, class S, class Combine>
__device__ __forceinline__ S reduce_team(S value, Combine combine) {
    if constexpr (team <= 32) {
        return reduce_lanes<team>(value, combine);
    } else {
        constexpr int warps = team / 32;
        static_assert(team % 32 == 0 && (warps & (warps - 1)) == 0 && warps <= 32);
        __shared__ S of_warp[warps];
        value = reduce_lanes<32>(value, combine);
        __syncthreads();  // the previous reduction has been read
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
        __syncthreads();
        return reduce_lanes<warps>(of_warp[threadIdx.x % warps], combine);
    }
}

}  // namespace gradtile::cuda::device
