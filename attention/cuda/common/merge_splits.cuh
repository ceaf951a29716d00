#pragma once
/// Merges results for disjoint key sets by their LSE, between a thread block's warps and between the thread
/// blocks that share a row. See few_queries.h.
#include <type_traits>

#include <gradtile/attention/cuda/common/few_queries.h>
#include <gradtile/attention/cuda/common/mma.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

inline constexpr int merge_threads = 128;

/// Merges results for disjoint key sets. weight() returns one result's factor. Each result's O is already
/// divided by its own P sum.
struct LseMerge {
    float maximum = -INFINITY, sum = 0;

    __device__ void add(const LseMerge& other) {
        const float next = fmaxf(maximum, other.maximum);
        if (next == -INFINITY) return;
        sum = sum * power_of_two((maximum - next) * log2_e) +
              other.sum * power_of_two((other.maximum - next) * log2_e);
        maximum = next;
    }
    __device__ void add(const ExactLse& part) {
        add(LseMerge{part.lse, part.lse == -INFINITY ? 0.0f : power_of_two(part.remainder * log2_e)});
    }
    __device__ float weight(const ExactLse& part) const {
        if (sum == 0) return 0;
        return __fdividef(power_of_two(fmaf(part.lse - maximum, log2_e, part.remainder * log2_e)), sum);
    }
    __device__ ExactLse lse() const { return ExactLse::of(maximum, sum); }
};

/// The rows and keys of a thread block in a grid of (splits, batch * heads / heads_together) blocks. Row r is
/// query r % queries in head first_head + r / queries.
struct SplitBlock {
    int batch, first_head, rows, first_key, end_key;

    __device__ __forceinline__ SplitBlock(const SplitParameters& split, int heads, int queries)
        : batch(static_cast<int>(blockIdx.y) / (heads / split.heads_together)),
          first_head(static_cast<int>(blockIdx.y) % (heads / split.heads_together) * split.heads_together),
          rows(queries * split.heads_together),
          first_key(split.first_key + static_cast<int>(blockIdx.x) * split.keys_per_split),
          end_key(min(split.end_key, first_key + split.keys_per_split)) {}
};

/// The LSE for a head's sink alone.
__device__ __forceinline__ ExactLse sink_of(const ScoreOptions& scores, int head) {
    return {scores.sink == nullptr ? -INFINITY : scores.sink[head * scores.sink_stride], 0};
}

/// Merges the splits' results. The grid has one block per row [B, Hq, Sq]. T is O's dtype, and Parameters is
/// the parameter type of the kernel that wrote the splits.
template <class T, class Parameters>
__global__ void __launch_bounds__(merge_threads)
    merge_splits_kernel(const __grid_constant__ Parameters p, const __grid_constant__ SplitParameters split) {
    constexpr int threads = merge_threads, warps = threads / 32, max_columns = 256;
    __shared__ ExactLse lse[max_splits];
    __shared__ float warp_sums[warps][max_columns];
    gradtile::cuda::device::await_predecessor();
    const std::int64_t index = blockIdx.x;
    const int query = static_cast<int>(index % p.mask.queries),
              batch_head = static_cast<int>(index / p.mask.queries);
    const int batch = batch_head / p.sizes.heads, head = batch_head % p.sizes.heads;
    const int warp = warp_index(), lane = lane_index();
    for (int part = static_cast<int>(threadIdx.x); part < split.splits; part += threads)
        lse[part] = split.lse[part * split.all_rows + index];
    __syncthreads();
    LseMerge merge;  // every warp merges all LSEs: each lane merges some, then the lanes are merged
    for (int part = lane; part < split.splits; part += 32) merge.add(lse[part]);
    for (int distance = 16; distance > 0; distance /= 2) {
        const LseMerge other{__shfl_xor_sync(~0u, merge.maximum, distance),
                             __shfl_xor_sync(~0u, merge.sum, distance)};
        merge.add(other);
    }
    merge.add(sink_of(p.scores, head));
    for (int column = lane * 2; column < p.sizes.v_dim; column += 64) {
        float2 sum{0, 0};
#pragma unroll 8
        for (int part = warp; part < split.splits; part += warps) {
            const std::int64_t part_row = part * split.all_rows + index;
            const float weight = merge.weight(lse[part]);
            const float2 o = *reinterpret_cast<const float2*>(split.o + part_row * split.columns + column);
            sum = {fmaf(weight, o.x, sum.x), fmaf(weight, o.y, sum.y)};
        }
        warp_sums[warp][column] = sum.x;
        warp_sums[warp][column + 1] = sum.y;
    }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < p.sizes.v_dim; column += threads) {
        float sum = 0;
        for (int n = 0; n < warps; ++n) sum += warp_sums[n][column];
        auto& element = p.o.head(batch, head).row(query)[column];
        if constexpr (std::is_same_v<T, float>) {
            element = sum;
        } else {
            element = static_cast<std::uint16_t>(pack<T>(sum, 0.0f));
        }
    }
    if (threadIdx.x == 0) store_lse(p, index, merge.lse());
}

}  // namespace device

/// Launches the merge if there is more than one split.
template <class T, class Parameters>
void launch_merge_of_splits(const Parameters& p, const SplitParameters& split, cudaStream_t stream) {
    if (split.splits > 1)
        gradtile::cuda::launch_on(stream, device::merge_splits_kernel<T, Parameters>,
                                  dim3(static_cast<unsigned>(split.all_rows)),
                                  {.threads = device::merge_threads, .starts_early = true}, p, split);
}

}  // namespace gradtile::attention::cuda
