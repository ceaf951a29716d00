#pragma once
/// Moments in 8 bits on the GPU. Sixteen threads, half a warp, have a block's elements; each has four.
#include <gradtile/train/optimizers/internal/moment_blocks.h>
#include <gradtile/core/cuda/device/packed.cuh>

namespace gradtile::cuda::device {

inline constexpr int moments_per_thread = MomentBlock::codes_per_word;
inline constexpr unsigned threads_per_moment_block = MomentBlock::elements / moments_per_thread;
using FourMoments = Packed<float, moments_per_thread>;

/// Returns this thread's moments k.
__device__ __forceinline__ FourMoments load_moments(const MomentBlock* block, std::size_t k) {
    const MomentCode code(k);
    const std::uint32_t codes = block->codes[threadIdx.x % threads_per_moment_block];
    FourMoments moments;
#pragma unroll
    for (int j = 0; j < moments_per_thread; ++j)
        moments[j] = code.decoded(codes >> 8 * j & 0xffu, __uint_as_float(block->largest));
    return moments;
}

/// Rounds and stores a block's moments k. All threads of the half warp call this function together.
__device__ __forceinline__ void store_moments(MomentBlock* block, const FourMoments& moments,
                                              const Philox::Counter& draw, std::size_t k) {
    std::uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < moments_per_thread; ++j) bits = max(bits, magnitude_bits(moments[j]));
    const unsigned half = 0xffffu << (threadIdx.x & threads_per_moment_block);
#pragma unroll
    for (int distance = threads_per_moment_block / 2; distance > 0; distance /= 2)
        bits = max(bits, __shfl_xor_sync(half, bits, distance));
    const MomentCode code(k);
    std::uint32_t codes = 0;
#pragma unroll
    for (int j = 0; j < moments_per_thread; ++j)
        codes |= code.encoded(moments[j], __uint_as_float(bits),
                              MomentDraws::bits(draw[static_cast<std::size_t>(j)], k))
                 << 8 * j;
    const unsigned lane = threadIdx.x % threads_per_moment_block;
    block->codes[lane] = codes;
    if (lane == 0) block->largest = bits;
}

}  // namespace gradtile::cuda::device
