#pragma once
/// Row ranges in the Hopper kernels. Only the producer searches for the blocks with a visible pair. It tells
/// the consumers in shared memory what each stage holds, so that both always agree.
#include <gradtile/attention/cuda/sm90/rules.h>
#include <gradtile/attention/cuda/common/row_ranges.cuh>
#include <gradtile/core/cuda/device/tensor_copy.cuh>

namespace gradtile::attention::cuda::device {

/// The forward pass: which key block a K stage holds, in one word. Each consumer warpgroup has 64 rows.
struct SeenBlock {
    int word;

    __device__ static SeenBlock of(int block, const KeyBlockRows& rows, int first_row, int consumers,
                                   bool is_last) {
        int word = block << 9 | (is_last ? 1 : 0);
        for (int warpgroup = 0; warpgroup < consumers; ++warpgroup) {
            const int row = first_row + warpgroup * 64;
            word |= (rows.see_some(row, row + 64) ? 2 : 0) << warpgroup;
            word |= (rows.see_all(row, row + 64) ? 0 : 32) << warpgroup;
        }
        return {word};
    }
    __device__ int block() const { return word >> 9; }
    __device__ bool is_last() const { return (word & 1) != 0; }
    /// Whether a row of the warpgroup may see a key.
    __device__ bool is_seen_by(int warpgroup) const { return (word >> (1 + warpgroup) & 1) != 0; }
    /// Whether the row ranges hide some of the warpgroup's pairs.
    __device__ bool is_partial_for(int warpgroup) const { return (word >> (5 + warpgroup) & 1) != 0; }
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
    int is_last;     ///< of the task
    int is_partial;  ///< whether the row ranges hide some pairs of the row block and the task's keys

    __device__ static SeenRows load(const volatile SeenRows& from) {
        return {from.head, from.row, from.is_last, from.is_partial};
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
