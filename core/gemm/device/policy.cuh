#pragma once
/// A product kernel's sizes and its shared memory layout.
#include <gradtile/core/gemm/internal/hopper_tiles.h>
#include <gradtile/core/gemm/device/operand_tile.cuh>

namespace gradtile::cuda::device {

/// A kernel's template parameters, and where its data lie in shared memory.
template <class Epilogue_, ProductTiles tiles_, Order order_b_>
struct ProductPolicy {
    using Epilogue = Epilogue_;
    static constexpr ProductTiles tiles = tiles_;
    static constexpr Order order_b = order_b_;
    static constexpr Order order_a = Epilogue::symmetric ? order_b : Order::reduction;
    static_assert(Epilogue::products == 1 || order_b == Order::reduction);
    static_assert(!Epilogue::symmetric || (tiles.rows() == tiles.columns && tiles.cluster == 1));
    using ATile = OperandTile<order_a, tiles.rows(), 1, false>;
    static constexpr int b_parts = tiles.cluster == 2 ? 2 : Epilogue::products;
    using BTile = OperandTile<order_b, tiles.columns, b_parts, tiles.cluster == 2>;
    static constexpr int columns = tiles.columns / Epilogue::products;  ///< a tile's columns in each matrix

    // A warp stores its results in units with 16 rows and 64 or 32 columns. Units with 32 columns take less
    // memory.
    static constexpr int unit_columns = Epilogue::outputs > 2 ? 32 : 64;
    static constexpr int unit_row_bytes = 2 * unit_columns, unit_bytes = 16 * unit_row_bytes;
    static constexpr int panels = columns / unit_columns,
                         units = tiles.row_blocks * panels;  ///< a warp's units in a tile
    /// Each consumer has two buffers, for 64 x 64 elements of a transposed tile.
    static constexpr int mirror_bytes = 64 * 64 * 2,
                         all_mirror_bytes = Epilogue::symmetric ? tiles.consumers * 2 * mirror_bytes : 0;
    // The bias for a consumer's tile, twice: the fastest warp may be in the tile after the slowest warp's.
    static constexpr int bias_bytes = 2 * tiles.columns;
    static constexpr int sums_rows = 4 * tiles.row_blocks, sums_bytes = 4 * sums_rows * tiles.columns;
    static constexpr int all_bias_bytes = Epilogue::has_bias ? 2 * tiles.consumers * bias_bytes : 0,
                         all_sums_bytes = Epilogue::sums_columns ? tiles.consumers * sums_bytes : 0;
    static constexpr int max_stages = 6,
                         max_barriers_bytes = 16 * max_stages + 8 * 4 * tiles.consumers * units;
    static constexpr int max_bytes = 227 * 1024;
    static constexpr int free_bytes =
        max_bytes - all_mirror_bytes - all_bias_bytes - all_sums_bytes - max_barriers_bytes;

    /// Whether the epilogue reads matrices. An input is loaded long before its use, to the buffer of the
    /// output that overwrites it. Two warps that have the same rows, one in each consumer, share buffers:
    /// when a warp has stored a unit, it loads a unit from its own tile or from the other consumer's next
    /// tile to the free buffers.
    static constexpr bool has_inputs = Epilogue::inputs > 0;
    static_assert(Epilogue::inputs <= Epilogue::outputs && tiles.consumers == 2);
    static constexpr int owners = 4 * (has_inputs ? 1 : tiles.consumers);  ///< warps, or pairs, with buffers
    static constexpr int buffer_bytes = Epilogue::outputs * unit_bytes;
    /// The inputs get the memory that four stages leave free. Three stages hide less of the load latency.
    static constexpr int stages_beside_inputs = 4;
    static constexpr int fitting_buffers =
        (free_bytes - stages_beside_inputs * tiles.stage_bytes()) / (owners * buffer_bytes);
    /// How many buffers a warp or pair has for each output: at most enough for a full tile.
    static constexpr int unit_buffers = !has_inputs ? 2 : fitting_buffers < units ? fitting_buffers : units;
    static_assert(unit_buffers <= 32);  // TileEpilogue::input_rounds_ has a bit for each
    // Without inputs, a tile begins with the first buffer again; so do transposed tiles.
    static_assert((has_inputs && !Epilogue::symmetric) || units % 2 == 0);
    static constexpr int owner_bytes = unit_buffers * buffer_bytes;
    static constexpr int fitting_stages = (free_bytes - owners * owner_bytes) / tiles.stage_bytes();
    static constexpr int stages = fitting_stages < max_stages ? fitting_stages : max_stages;

    // Offsets in the thread block's shared memory.
    static constexpr int unit_memory = stages * tiles.stage_bytes(),
                         mirror_memory = unit_memory + owners * owner_bytes,
                         bias_memory = mirror_memory + all_mirror_bytes,
                         sums_memory = bias_memory + all_bias_bytes,
                         full_memory = sums_memory + all_sums_bytes, with_memory = full_memory + 16 * stages,
                         bytes = with_memory + (has_inputs ? 8 * 4 * tiles.consumers * unit_buffers : 0);
    static_assert(bytes <= max_bytes && full_memory % 8 == 0);

    /// Whether the epilogue computes an activation or its derivative.
    static constexpr bool has_activation =
        !Epilogue::symmetric && Epilogue::products + Epilogue::outputs + Epilogue::inputs > 2;
    /// Whether this kernel exists. Kernels with an activation have no small tiles.
    static constexpr bool exists = stages >= 3 && !(has_activation && tiles.is_small()) &&
                                   (!has_inputs || (tiles.in_turns && unit_buffers >= 2)) &&
                                   (!Epilogue::sums_columns || (tiles.rows() == 128 && unit_columns == 64));
};

}  // namespace gradtile::cuda::device
