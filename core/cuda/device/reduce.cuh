#pragma once
/// Sums and maxima over the threads that share a row. The summation order is fixed, so results are
/// bit-identical from run to run.
#include <cuda_runtime.h>

namespace gradtile::cuda::device {

struct Sum {
    template <class S>
    __device__ __forceinline__ S operator()(S a, S b) const {
        return a + b;
    }
};

/// Combines the values in each group of `lanes` neighbouring lanes. All lanes in the warp must take part;
/// every lane receives its group's result.
template <int lanes, class S, class Combine>
__device__ __forceinline__ S reduce_lanes(S value, Combine combine) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

/// Combines the values in a team with `team` threads: a part of a warp, a warp, or a whole block. Every
/// thread receives the result.
template <int team, class S, class Combine>
__device__ __forceinline__ S reduce_team(S value, Combine combine) {
    if constexpr (team <= 32) {
        return reduce_lanes<team>(value, combine);
    } else {
        constexpr int warps = team / 32;
        static_assert(team % 32 == 0 && (warps & (warps - 1)) == 0 && warps <= 32);
        __shared__ S warp_values[warps];
        value = reduce_lanes<32>(value, combine);
        __syncthreads();  // waits until all threads have read the previous result
        if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32] = value;
        __syncthreads();
        return reduce_lanes<warps>(warp_values[threadIdx.x % warps], combine);
    }
}

}  // namespace gradtile::cuda::device
