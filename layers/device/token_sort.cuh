#pragma once
/// Sorts positions 0 .. n-1 by their token with a stable radix sort (least significant digit first). Equal
/// tokens stay in position order, so sums over them always have the same order. The sort takes one kernel per
/// digit, and one more for the first counts: each pass also counts the next pass's digits.
#include <cstdint>

#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::cuda {
namespace device {

constexpr int digit_bits = 8, digits = 1 << digit_bits;
constexpr int sort_threads = digits;  // one thread per digit
constexpr int sort_warps = sort_threads / 32;
constexpr int sort_rounds = 4;  // keys per thread
constexpr int sort_tile = sort_threads * sort_rounds;

__device__ __forceinline__ unsigned digit_of(std::int32_t key, int shift) {
    return static_cast<unsigned>(key) >> shift & (digits - 1);
}

/// A token's sort key. Tokens outside the vocabulary get the key `vocabulary`, so they come last.
__device__ __forceinline__ std::int32_t key_of(std::int32_t token, std::int32_t vocabulary) {
    return token >= 0 && token < vocabulary ? token : vocabulary;
}

/// The index of a thread's key in a round. A warp has 32 * sort_rounds neighbouring keys and reads them in
/// order.
__device__ __forceinline__ std::int64_t sort_index(int round) {
    return blockIdx.x * std::int64_t{sort_tile} + threadIdx.x / 32 * (32 * sort_rounds) + round * 32 +
           threadIdx.x % 32;
}

/// counts[tile][digit] = how many keys in the tile have `digit` as their first digit. Sets later passes'
/// counts and the `zeroed` words to 0.
static __global__ void __launch_bounds__(sort_threads)
    count_digits_kernel(std::int32_t* counts, const std::int32_t* tokens, std::int64_t n,
                        std::int32_t vocabulary, int passes, std::int32_t* zeroed, int zeroed_words) {
    __shared__ int digit_counts[digits];
    digit_counts[threadIdx.x] = 0;
    __syncthreads();
    await_predecessor();
#pragma unroll
    for (int round = 0; round < sort_rounds; ++round) {
        const std::int64_t i = sort_index(round);
        if (i < n) atomicAdd(&digit_counts[digit_of(key_of(tokens[i], vocabulary), 0)], 1);
    }
    __syncthreads();
    counts += blockIdx.x * std::int64_t{digits} + threadIdx.x;
    *counts = digit_counts[threadIdx.x];
    for (int pass = 1; pass < passes; ++pass) counts[pass * std::int64_t{gridDim.x} * digits] = 0;
    if (blockIdx.x == 0 && threadIdx.x < zeroed_words) zeroed[threadIdx.x] = 0;
}

/// The sum of `value` over the block's threads with a lower index.
template <int threads>
__device__ __forceinline__ int exclusive_sum(int value) {
    __shared__ int warp_sums[threads / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int inclusive = value;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int lower = __shfl_up_sync(0xffffffffu, inclusive, distance);
        if (lane >= distance) inclusive += lower;
    }
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    int before = 0;
#pragma unroll
    for (int w = 0; w < threads / 32; ++w)
        if (w < warp) before += warp_sums[w];
    return before + inclusive - value;
}

/// Arguments for a pass, which sorts keys and their positions by one digit. In the first pass, from_positions
/// is null, because token i has position i. In the last pass, next_counts is null.
struct SortPass {
    std::int32_t *to_keys, *to_positions;
    const std::int32_t *from_keys, *from_positions;
    const std::int32_t* counts;
    std::int32_t* next_counts;
    std::int64_t n;
    std::int32_t vocabulary;
    int shift;
};

/// Where the tile's first key with the thread's digit goes: after all keys with lower digits, and after the
/// keys with this digit in earlier tiles.
__device__ __forceinline__ int place_of_digit(const std::int32_t* counts) {
    int before = 0, total = 0;
#pragma unroll 32
    for (unsigned tile = 0; tile < gridDim.x; ++tile) {
        const int count = counts[tile * std::int64_t{digits} + threadIdx.x];
        if (tile < blockIdx.x) before += count;
        total += count;
    }
    return exclusive_sum<sort_threads>(total) + before;
}

static __global__ void __launch_bounds__(sort_threads) scatter_kernel(const SortPass pass) {
    __shared__ int next[sort_warps][digits];  // each warp's count, then the destination of its next key
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int w = 0; w < sort_warps; ++w) next[w][threadIdx.x] = 0;
    __syncthreads();
    await_predecessor();
    std::int32_t keys[sort_rounds], positions[sort_rounds];
#pragma unroll
    for (int round = 0; round < sort_rounds; ++round) {
        const std::int64_t i = sort_index(round);
        if (i >= pass.n) break;
        keys[round] = key_of(pass.from_keys[i], pass.vocabulary);
        positions[round] =
            pass.from_positions != nullptr ? pass.from_positions[i] : static_cast<std::int32_t>(i);
    }
    int place = place_of_digit(pass.counts);
#pragma unroll
    for (int round = 0; round < sort_rounds; ++round)
        if (sort_index(round) < pass.n) atomicAdd(&next[warp][digit_of(keys[round], pass.shift)], 1);
    __syncthreads();
    for (int w = 0; w < sort_warps; ++w) {
        const int count = next[w][threadIdx.x];
        next[w][threadIdx.x] = place;
        place += count;
    }
    __syncthreads();
#pragma unroll
    for (int round = 0; round < sort_rounds; ++round) {
        const bool inside = sort_index(round) < pass.n;
        // Lanes without a key get a digit that no key has.
        const unsigned digit = inside ? digit_of(keys[round], pass.shift) : digits;
        const unsigned peers = __match_any_sync(0xffffffffu, digit);
        const int rank = __popc(peers & ((1u << lane) - 1));
        int to = 0;
        if (inside) to = next[warp][digit] + rank;
        __syncwarp();
        if (inside && rank == 0) next[warp][digit] += __popc(peers);
        __syncwarp();
        if (!inside) continue;
        pass.to_keys[to] = keys[round];
        pass.to_positions[to] = positions[round];
        if (pass.next_counts != nullptr)
            atomicAdd(&pass.next_counts[to / sort_tile * digits +
                                        static_cast<int>(digit_of(keys[round], pass.shift + digit_bits))],
                      1);
    }
}

}  // namespace device

inline int sort_passes(std::int32_t vocabulary) {
    int passes = 1;
    while (passes * device::digit_bits < 31 && vocabulary >> passes * device::digit_bits != 0) ++passes;
    return passes;
}

/// Sorted keys and their positions, in the sort's scratch memory.
struct SortedTokens {
    const std::int32_t *keys, *positions;
};

/// Scratch memory for sorting n tokens, in int32 elements.
inline std::int64_t sort_scratch(std::int64_t n) {
    constexpr std::int64_t max_passes = ceil_div(31, device::digit_bits);
    return 4 * n + max_passes * device::digits * ceil_div(n, device::sort_tile);
}

/// The addresses of sort_tokens()'s results. They depend on the pass count, because the passes alternate
/// between the two halves of the scratch memory.
inline SortedTokens sorted_tokens(const std::int32_t* scratch, std::int64_t n, std::int32_t vocabulary) {
    const std::int32_t* const keys = scratch + (sort_passes(vocabulary) % 2 == 1 ? 0 : 2 * n);
    return {keys, keys + n};
}

/// Sorts n tokens. Also sets the `zeroed` words to 0.
inline void sort_tokens(const Context& ctx, std::int32_t* scratch, const std::int32_t* tokens, std::int64_t n,
                        std::int32_t vocabulary, std::int32_t* zeroed, int zeroed_words) {
    using namespace device;
    std::int32_t *to_keys = scratch, *spare_keys = scratch + 2 * n, *counts = scratch + 4 * n;
    const int passes = sort_passes(vocabulary);
    const dim3 tiles = blocks_for(n, sort_tile);
    const Block block{.threads = sort_threads, .starts_early = true};
    launch(ctx, count_digits_kernel, tiles, block, counts, tokens, n, vocabulary, passes, zeroed,
           zeroed_words);
    const std::int32_t *keys = tokens, *positions = nullptr;
    for (int pass = 0; pass < passes; ++pass) {
        std::int32_t* const next_counts = counts + std::int64_t{tiles.x} * digits;
        launch(ctx, scatter_kernel, tiles, block,
               SortPass{.to_keys = to_keys,
                        .to_positions = to_keys + n,
                        .from_keys = keys,
                        .from_positions = positions,
                        .counts = counts,
                        .next_counts = pass + 1 < passes ? next_counts : nullptr,
                        .n = n,
                        .vocabulary = vocabulary,
                        .shift = pass * digit_bits});
        counts = next_counts;
        keys = to_keys;
        positions = to_keys + n;
        std::swap(to_keys, spare_keys);
    }
}

}  // namespace gradtile::cuda
