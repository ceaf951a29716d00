#pragma once
/// Positions 0 .. n-1 in the order of the keys that stand there, equal keys in order of position: a stable
/// radix sort (least significant digit first), for sums over equal keys whose order never changes.
#include <cstdint>

#include <gradtile/core/device/launch.cuh>

namespace gradtile::cuda {
namespace device {

constexpr int digit_bits = 8, digits = 1 << digit_bits;
constexpr int sort_threads = digits;  // one a digit
constexpr int sort_warps = sort_threads / 32;
constexpr int sort_rounds = 8;  // keys of one thread
constexpr int sort_tile = sort_threads * sort_rounds;

__device__ __forceinline__ unsigned digit_of(std::int32_t key, int shift) {
    return static_cast<unsigned>(key) >> shift & (digits - 1);
}

/// Where round r of a thread reads: a warp owns 32 * sort_rounds neighbouring keys and takes them in order.
__device__ __forceinline__ std::int64_t sort_index(int round) {
    return blockIdx.x * std::int64_t{sort_tile} + threadIdx.x / 32 * (32 * sort_rounds) + round * 32 +
           threadIdx.x % 32;
}

/// counts[digit][tile] = keys of the tile with that digit.
static __global__ void __launch_bounds__(sort_threads)
    count_digits_kernel(std::int32_t* counts, const std::int32_t* keys, std::int64_t n, int shift) {
    __shared__ int of_digit[digits];
    await_predecessor();
    of_digit[threadIdx.x] = 0;
    __syncthreads();
    for (int round = 0; round < sort_rounds; ++round) {
        const std::int64_t i = sort_index(round);
        if (i < n) atomicAdd(&of_digit[digit_of(keys[i], shift)], 1);
    }
    __syncthreads();
    counts[std::int64_t{threadIdx.x} * gridDim.x + blockIdx.x] = of_digit[threadIdx.x];
}

/// The sum of a value over the lower threads of the block, and over all of them.
template <int threads>
__device__ __forceinline__ int exclusive_sum(int value, int& total) {
    __shared__ int of_warp[threads / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int inclusive = value;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int lower = __shfl_up_sync(0xffffffffu, inclusive, distance);
        if (lane >= distance) inclusive += lower;
    }
    if (lane == 31) of_warp[warp] = inclusive;
    __syncthreads();
    int before = 0;
    total = 0;
#pragma unroll
    for (int w = 0; w < threads / 32; ++w) {
        if (w < warp) before += of_warp[w];
        total += of_warp[w];
    }
    __syncthreads();
    return before + inclusive - value;
}

/// counts becomes its exclusive prefix sum; one block.
constexpr int scan_threads = 1024, scan_items = 8;
static __global__ void __launch_bounds__(scan_threads) scan_kernel(std::int32_t* counts, std::int64_t n) {
    await_predecessor();
    int carried = 0;
    for (std::int64_t begin = 0; begin < n; begin += scan_threads * scan_items) {
        const std::int64_t first = begin + threadIdx.x * scan_items;
        int values[scan_items], sum = 0;
#pragma unroll
        for (int i = 0; i < scan_items; ++i) {
            values[i] = first + i < n ? counts[first + i] : 0;
            sum += values[i];
        }
        int total = 0;
        int prefix = carried + exclusive_sum<scan_threads>(sum, total);
#pragma unroll
        for (int i = 0; i < scan_items; ++i) {
            if (first + i < n) counts[first + i] = prefix;
            prefix += values[i];
        }
        carried += total;
    }
}

/// Moves every key (and the position it came from) to its place among those of its digit. In the first pass
/// from_positions is null: key i stands at position i.
static __global__ void __launch_bounds__(sort_threads)
    scatter_kernel(std::int32_t* to_keys, std::int32_t* to_positions, const std::int32_t* from_keys,
                   const std::int32_t* from_positions, const std::int32_t* offsets, std::int64_t n,
                   int shift) {
    __shared__ int next[sort_warps][digits];  // counts of the warps, then where their next key goes
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    await_predecessor();
    for (int w = 0; w < sort_warps; ++w) next[w][threadIdx.x] = 0;
    __syncthreads();
    for (int round = 0; round < sort_rounds; ++round) {
        const std::int64_t i = sort_index(round);
        if (i < n) atomicAdd(&next[warp][digit_of(from_keys[i], shift)], 1);
    }
    __syncthreads();
    int place = offsets[std::int64_t{threadIdx.x} * gridDim.x + blockIdx.x];
    for (int w = 0; w < sort_warps; ++w) {
        const int count = next[w][threadIdx.x];
        next[w][threadIdx.x] = place;
        place += count;
    }
    __syncthreads();
    for (int round = 0; round < sort_rounds; ++round) {
        const std::int64_t i = sort_index(round);
        const std::int32_t key = i < n ? from_keys[i] : 0;
        const unsigned digit =
            i < n ? digit_of(key, shift) : digits;  // lanes past the end keep to themselves
        const unsigned peers = __match_any_sync(0xffffffffu, digit);
        const int rank = __popc(peers & ((1u << lane) - 1));
        int to = 0;
        if (i < n) to = next[warp][digit] + rank;
        __syncwarp();
        if (i < n && rank == 0) next[warp][digit] += __popc(peers);
        __syncwarp();
        if (i < n) {
            to_keys[to] = key;
            to_positions[to] = from_positions != nullptr ? from_positions[i] : static_cast<std::int32_t>(i);
        }
    }
}

}  // namespace device

/// Keys and positions, sorted; both in the scratch they were sorted in.
struct SortedTokens {
    const std::int32_t *keys, *positions;
};

/// int32 elements of scratch that sorting n keys takes.
inline std::int64_t sort_scratch(std::int64_t n) {
    return 4 * n + device::digits * ceil_div(n, device::sort_tile);
}

/// Sorts n non-negative keys of at most `bits` bits; bits >= 1.
inline SortedTokens sort_tokens(const Context& ctx, std::int32_t* scratch, const std::int32_t* keys,
                                std::int64_t n, int bits) {
    using namespace device;
    std::int32_t *to_keys = scratch, *to_positions = to_keys + n;
    std::int32_t *spare_keys = to_positions + n, *spare_positions = spare_keys + n;
    std::int32_t* counts = spare_positions + n;
    const std::int32_t* positions = nullptr;
    const dim3 tiles = blocks_for(n, sort_tile);
    for (int shift = 0; shift < bits; shift += digit_bits) {
        const Block block{.threads = sort_threads, .starts_early = true};
        launch(ctx, count_digits_kernel, tiles, block, counts, keys, n, shift);
        launch(ctx, scan_kernel, dim3(1), Block{.threads = scan_threads, .starts_early = true}, counts,
               std::int64_t{tiles.x} * digits);
        launch(ctx, scatter_kernel, tiles, block, to_keys, to_positions, keys, positions, counts, n, shift);
        keys = to_keys;
        positions = to_positions;
        std::swap(to_keys, spare_keys);
        std::swap(to_positions, spare_positions);
    }
    return {keys, positions};
}

}  // namespace gradtile::cuda
