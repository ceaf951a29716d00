#pragma once
/// INTERNAL. Tile sizes for the Hopper products (sm_90a: wgmma and TMA).
#include <cstdint>

namespace gradtile::cuda {

/// A thread block has one producer warp, which starts the copies, and two consumer warpgroups, which compute.
/// With `in_turns`, each consumer computes its own tiles, one consumer during the other one's epilogue.
/// Otherwise the consumers compute the upper and the lower half of the same tile.
struct ProductTiles {
    int row_blocks;  ///< 64-row blocks per consumer: 1 or 2
    int columns;     ///< 128, 192 or 256
    bool in_turns;
    int cluster;  ///< 1 or 2 thread blocks with the same columns, which share the loads of B

    /// The reduction length of one block: a 128-byte row, as long as a swizzle.
    static constexpr int depth = 64;
    static constexpr int consumers = 2, threads = 128 * (consumers + 1);
    // Registers per thread. Together the warpgroups may have no more than the launch gives them: 168 each.
    static constexpr int producer_registers = 24, consumer_registers = 240;

    constexpr int consumer_rows() const { return 64 * row_blocks; }
    constexpr int rows() const { return consumer_rows() * (in_turns ? 1 : consumers); }
    /// Whether these tiles are for products that have few tiles.
    constexpr bool is_small() const { return columns == 128; }
    constexpr int a_bytes() const { return 2 * rows() * depth; }
    constexpr int b_bytes() const { return 2 * columns * depth; }
    /// Bytes of A and B per reduction block. Shared memory holds as many such blocks as fit.
    constexpr int stage_bytes() const { return a_bytes() + b_bytes(); }

    /// The number that names the tiles in checkpoints.
    constexpr std::uint64_t number() const {
        return static_cast<std::uint64_t>(rows() << 20 | columns << 8 | (in_turns ? 16 : 0) | cluster);
    }
};

/// The tiles that kernels exist for.
inline constexpr ProductTiles product_tiles[] = {
    {.row_blocks = 1, .columns = 128, .in_turns = false, .cluster = 1},
    {.row_blocks = 1, .columns = 256, .in_turns = false, .cluster = 2},
    {.row_blocks = 2, .columns = 192, .in_turns = true, .cluster = 2},
};

/// The tiles for symmetric products. They are square, and small, so that few elements above the diagonal are
/// computed: GPT-2's 768 columns have 21 such tiles on and below the diagonal, 58% of all.
inline constexpr ProductTiles symmetric_tiles{
    .row_blocks = 2, .columns = 128, .in_turns = true, .cluster = 1};

}  // namespace gradtile::cuda
