#pragma once
/// 16-bit tiles in shared memory for TMA and wgmma.
#include <cstdint>

#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/core/cuda/device/tensor_copy.cuh>
#include <gradtile/core/cuda/device/wgmma.cuh>

namespace gradtile::attention::cuda::device {

/// A tile in column panels: the first 64 columns for all rows, then the next 64 columns and so on. Panels
/// have 32 columns if `columns` is not divisible by 64, or on request. Each panel is row-major. The 16-byte
/// chunks in a row are swizzled as TMA and wgmma require: a tile must be 1024-byte aligned.
template <int rows_, int columns_, int panel_columns_ = columns_ % 64 == 0 ? 64 : 32>
struct PanelTile {
    static constexpr int rows = rows_, columns = columns_;
    static constexpr int panel_columns = panel_columns_;
    static constexpr int panels = columns / panel_columns;
    static constexpr int row_bytes = 2 * panel_columns;
    static constexpr int panel_bytes = rows * row_bytes;
    static constexpr int bytes = panels * panel_bytes;
    static constexpr gradtile::cuda::Swizzle swizzle =
        row_bytes == 128 ? gradtile::cuda::Swizzle::bytes_128 : gradtile::cuda::Swizzle::bytes_64;
    static_assert(columns % panel_columns == 0 && panel_bytes % 1024 == 0);

    // LanePointer reads these constants; warps use it to store results in the tile.
    static constexpr int span_bytes = row_bytes, span_distance = panel_bytes;
    __device__ static constexpr std::uint32_t offset(int row, int chunk) {
        const int swizzle = row_bytes == 128 ? row & 7 : row >> 1 & 3;
        return static_cast<std::uint32_t>(row * row_bytes + (chunk ^ swizzle) * 16);
    }

    /// Bytes from the tile's first column to `column`, which must be divisible by 16.
    __device__ static constexpr std::uint32_t column_offset(int column) {
        return static_cast<std::uint32_t>(column / panel_columns * panel_bytes + column % panel_columns * 2);
    }

    /// Starts to load a head's rows from box.row on. The loads report to `barrier`.
    __device__ static void load(std::uint32_t tile, const gradtile::cuda::TensorMap& map, BoxPosition box,
                                Barrier barrier) {
#pragma unroll
        for (int i = 0; i < panels; ++i)
            load_box(tile + i * panel_bytes, map,
                     {box.column + i * panel_columns, box.row, box.head, box.batch}, barrier);
    }
    /// Describes an operand whose summed axis is the tile's columns, from `column` (divisible by 16) on. The
    /// operand's first row is the tile's first row.
    __device__ __forceinline__ static std::uint64_t by_columns(std::uint32_t tile, int column) {
        return operand_description<row_bytes>(tile + column_offset(column), 0);
    }
    /// Describes an operand whose summed axis is the tile's rows, from `row` (divisible by 16) on. The
    /// operand's first column is the tile's first column.
    __device__ __forceinline__ static std::uint64_t by_rows(std::uint32_t tile, int row) {
        return operand_description<row_bytes>(tile + row * row_bytes, panel_bytes);
    }
};

/// Starts c = a b^T for 64 rows in `a` and all rows in `b`, summed over their columns.
template <class T, class TileA, class TileB>
__device__ __forceinline__ void start_a_bt(FragmentC (&c)[TileB::rows / 8], std::uint32_t a,
                                           std::uint32_t b) {
    static_assert(TileA::columns == TileB::columns);
#pragma unroll
    for (int k = 0; k < TileA::columns; k += 16)
        Product<T, TileB::rows>::template start<Order::reduction, Order::reduction>(
            c, TileA::by_columns(a, k), TileB::by_columns(b, k), k > 0);
}

/// The same for `a` in registers.
template <class T, class TileB>
__device__ __forceinline__ void start_a_bt(FragmentC (&c)[TileB::rows / 8],
                                           const FragmentA (&a)[TileB::columns / 16][1], std::uint32_t b) {
#pragma unroll
    for (int k = 0; k < TileB::columns / 16; ++k)
        Product<T, TileB::rows>::template start<Order::reduction>(c, a[k][0], TileB::by_columns(b, k * 16),
                                                                  k > 0);
}

/// Starts c += a b for a [64, TileB::rows] in registers. c has 8 * tiles columns; only the first 8 * tiles
/// columns in `b` are used.
template <class T, class TileB, int tiles>
__device__ __forceinline__ void start_a_b(FragmentC (&c)[tiles], const FragmentA (&a)[TileB::rows / 16][1],
                                          std::uint32_t b) {
#pragma unroll
    for (int k = 0; k < TileB::rows / 16; ++k)
        Product<T, 8 * tiles>::template start<Order::output>(c, a[k][0], TileB::by_rows(b, k * 16), true);
}

/// Starts c += a b for 64 rows in `a`, which is in shared memory.
template <class T, class TileA, class TileB, int tiles>
__device__ __forceinline__ void start_a_b(FragmentC (&c)[tiles], std::uint32_t a, std::uint32_t b) {
    static_assert(TileA::columns == TileB::rows);
#pragma unroll
    for (int k = 0; k < TileA::columns; k += 16)
        Product<T, 8 * tiles>::template start<Order::reduction, Order::output>(c, TileA::by_columns(a, k),
                                                                               TileB::by_rows(b, k), true);
}

/// Starts c = a^T b, summed over the rows in `a` and `b`, for 64 columns in `a`, all in one panel, and as
/// many columns in `b` as c has.
template <class T, class TileA, class TileB, int tiles>
__device__ __forceinline__ void start_at_b(FragmentC (&c)[tiles], std::uint32_t a, std::uint32_t b) {
    static_assert(TileA::rows == TileB::rows && TileA::panel_columns == 64);
#pragma unroll
    for (int k = 0; k < TileA::rows; k += 16)
        Product<T, 8 * tiles>::template start<Order::output, Order::output>(c, TileA::by_rows(a, k),
                                                                            TileB::by_rows(b, k), k > 0);
}

}  // namespace gradtile::attention::cuda::device
