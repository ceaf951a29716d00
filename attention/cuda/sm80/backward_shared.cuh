#pragma once
/// Shared memory for the 16-bit backward kernel, and barriers for its warp pairs.
#include <cstdint>

#include <gradtile/attention/cuda/sm80/tiles.h>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/common/shared_tile.cuh>

namespace gradtile::attention::cuda::device {

/// Barriers for one warp pair: the first warp calls arrive_at_pair() when P is in shared memory, and the
/// second warp waits for it in wait_at_pair().
__device__ __forceinline__ void wait_at_pair(int pair) {
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
}
__device__ __forceinline__ void arrive_at_pair(int pair) {
#ifdef GRADTILE_RACECHECK
    // After a bar.arrive, racecheck reports false hazards between the reads before the next __syncthreads and
    // the loads after it. Builds for racecheck therefore use bar.sync. arrive_at_pair() is never called
    // between those reads and loads, so code without hazards under bar.sync has none under bar.arrive. (Other
    // tools need bar.arrive: synccheck reports a bar.sync as divergent if not all warps reach it by the same
    // branch.)
    wait_at_pair(pair);
#else
    asm volatile("bar.arrive %0, 64;" ::"r"(pair + 1) : "memory");
#endif
}

/// The layout of a thread block's shared memory: tile types, and offsets in bytes.
template <int head_dim, class Policy>
struct Bits16BackwardShared {
    static constexpr Bits16BackwardTiles tiles = Policy::tiles;
    using KvTile = Tile<tiles.keys(), head_dim>;
    using RowTile = Tile<tiles.rows, head_dim>;                               ///< a Q or dO row block
    using DsTile = Tile<tiles.keys(), tiles.rows>;                            ///< P^T, later dS^T
    using BiasTile = Tile<tiles.rows, tiles.reads_bias ? tiles.keys() : 32>;  ///< unused without a bias
    static constexpr int row_stage_bytes = 2 * RowTile::bytes, statistics_bytes = 2 * tiles.rows * 4;
    static constexpr int k = 0, v = k + KvTile::bytes, row_stages = v + KvTile::bytes,
                         d_s = row_stages + 2 * row_stage_bytes, bias = d_s + 2 * DsTile::bytes,
                         statistics = bias + (tiles.reads_bias ? 2 * BiasTile::bytes : 0),
                         d_q = statistics + 2 * statistics_bytes;  // d_q: a whole head's dQ
};

/// Rarely used values are kept in shared memory to save registers, which the gradient and S fill.
struct RarelyUsed {
    std::uint16_t *d_k, *d_v;   ///< rows of the block's first key
    const std::uint16_t* bias;  ///< for head 0, at the first query and the block's first key
    int batch, key, keys;       ///< `key` is the block's first key, `keys` the number of its keys
    int2 positions[4];          ///< {head, row} for iteration i in [i % 4]
};

/// The score rules for this iteration's head and for the next head, at index head % 2. Empty for a kernel
/// without rules.
template <bool has_rule>
struct RulesOfHeads {
    SharedRule head_rules[2];
};
template <>
struct RulesOfHeads<false> {};

}  // namespace gradtile::attention::cuda::device
