#pragma once
/// The order in which the thread blocks compute a result's tiles.

namespace gradtile::cuda::device {

/// The tile order: groups of a few tile rows, column by column, so that the A and B blocks that are read at
/// the same time fit the L2 cache.
struct TileOrder {
    static constexpr int group_rows = 8;
    int row_tiles, column_tiles;

    struct Tile {
        int row, column, matrix;
    };
    __device__ Tile operator()(int index) const {
        const int group_tiles = group_rows * column_tiles, group = index / group_tiles;
        const int in_group = index - group * group_tiles, first = group * group_rows;
        const int height = min(group_rows, row_tiles - first), column = in_group / height;
        return {first + in_group - column * height, column, 0};
    }
};

/// The tile order for symmetric results: tiles on and below the diagonal, row by row, one matrix after the
/// other.
struct TriangleOrder {
    int side;  ///< tiles per row

    __host__ __device__ int tiles_of_matrix() const { return side * (side + 1) / 2; }
    __device__ TileOrder::Tile operator()(int index) const {
        const int matrix = index / tiles_of_matrix();
        int column = index - matrix * tiles_of_matrix(), row = 0;
        while (column > row) column -= ++row;
        return {row, column, matrix};
    }
};

}  // namespace gradtile::cuda::device
