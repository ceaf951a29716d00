#pragma once
/// Row ranges in the Hopper kernels. Only the producer searches for the blocks with a visible pair. It tells
/// the consumers in shared memory what each stage holds, so that both always agree.
#include <gradtile/attention/cuda/sm90/rules.h>
#include <gradtile/attention/cuda/common/row_ranges.cuh>
#include <gradtile/core/cuda/device/tensor_copy.cuh>

namespace gradtile::attention::cuda::device {

/// The forward pass: which key block a K stage holds, in one word.
struct SeenBlock {
    int word;

    __device__ static SeenBlock of(int block, bool is_partial, bool is_last) {
        return {block << 2 | (is_partial ? 2 : 0) | (is_last ? 1 : 0)};
    }
    __device__ int block() const { return word >> 2; }
    /// Whether the row ranges hide some of its pairs.
    __device__ bool is_partial() const { return (word & 2) != 0; }
    __device__ bool is_last() const { return (word & 1) != 0; }
};
/// Shared memory for it; empty without row ranges.
template <class Policy, bool has_ranges = Policy::rule == HopperRule::row_ranges>
struct SeenBlocksShared {};
template <class Policy>
struct SeenBlocksShared<Policy, true> {
    int words[Policy::tiles.stages];         ///< SeenBlock, one per K stage
    int has_blocks[Policy::tiles.q_stages];  ///< whether a row of the Q stage may see a key
};

/// The backward pass: which row block a Q stage holds.
struct SeenRows {
    int head, row;
    int is_last;  ///< of the task

    __device__ static SeenRows load(const volatile SeenRows& from) {
        return {from.head, from.row, from.is_last};
    }
};
/// Shared memory for it; empty without row ranges.
template <class Policy, int stages, bool has_ranges = Policy::has_ranges>
struct SeenRowsShared {};
template <class Policy, int stages>
struct SeenRowsShared<Policy, stages, true> {
    SeenRows rows[stages];
};

}  // namespace gradtile::attention::cuda::device
