#pragma once
/// A and B blocks in shared memory: their copies, and their descriptions for wgmma.
#include <cstdint>

#include <gradtile/core/cuda/device/cluster_copy.cuh>
#include <gradtile/core/cuda/device/wgmma.cuh>

namespace gradtile::cuda::device {

/// An A or B block in shared memory. `length` is how many result rows (A) or columns (B) it covers. An
/// operand with Order::reduction is [length][64]; one with Order::output is [length / 64][64][64], with the
/// reduction as its middle axis. The block is loaded in parts: with Order::reduction, the parts divide its
/// rows; with Order::output, they divide the reduction. With `multicast`, a load goes to both thread blocks
/// in a cluster.
template <Order order, int length, int parts, bool multicast>
struct OperandTile {
    static constexpr int row_bytes = 128, panel_bytes = 64 * row_bytes, bytes = length * row_bytes;
    static constexpr int box_rows = (order == Order::reduction ? length : 64) / parts;
    static constexpr int panels = order == Order::reduction ? 1 : length / 64;
    static_assert(length % 64 == 0 && box_rows % 8 == 0 && box_rows <= 256);

    /// Loads a part. `first` and `depth` are the part's first element in the matrix.
    __device__ __forceinline__ static void load(std::uint32_t tile, const TensorMap& map, int first,
                                                int depth, int matrix, int part, Barrier barrier) {
#pragma unroll
        for (int i = 0; i < panels; ++i) {
            const std::uint32_t to = tile + i * panel_bytes + part * box_rows * row_bytes;
            const BoxPosition position = order == Order::reduction
                                             ? BoxPosition{depth, first, 0, matrix}
                                             : BoxPosition{first + i * 64, depth, 0, matrix};
            if constexpr (multicast) {
                load_box_to(0b11, to, map, position, barrier);
            } else {
                load_box(to, map, position, barrier);
            }
        }
    }
    /// Describes the rows or columns from `first` on, with 16 elements of the reduction from `depth` on.
    __device__ __forceinline__ static std::uint64_t describe(std::uint32_t tile, int first, int depth) {
        const int offset = order == Order::reduction ? first * row_bytes + depth * 2
                                                     : first / 64 * panel_bytes + depth * row_bytes;
        return operand_description<row_bytes>(tile + offset, panel_bytes);
    }
};

}  // namespace gradtile::cuda::device
