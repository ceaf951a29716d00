#pragma once
/// The parameters of a product kernel.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/cuda/internal/tensor_map.h>
#include <gradtile/core/gemm/device/tile_order.cuh>

namespace gradtile::cuda::device {

template <class Epilogue>
struct ProductParameters {
    TensorMap a, b[Epilogue::products];
    /// Boxes have 16 rows. If the result is symmetric, the last map has 64-row boxes, for transposed tiles.
    TensorMap to[Epilogue::outputs + (Epilogue::symmetric ? 1 : 0)];
    TensorMap with[Epilogue::inputs == 0 ? 1 : Epilogue::inputs];  ///< epilogue inputs; the same boxes
    const typename Epilogue::Element* bias;
    float* column_sums;  ///< [ceil(rows / 128), columns]: sums over 128 rows each
    int rows, columns, depth_blocks;
    std::conditional_t<Epilogue::symmetric, TriangleOrder, TileOrder> order;  ///< of cluster tiles
    int tiles;                                                                ///< number of cluster tiles
    Epilogue epilogue;
};

/// The first element of a thread block's tile.
template <class Policy>
__device__ __forceinline__ TileOrder::Tile tile_at(const ProductParameters<typename Policy::Epilogue>& p,
                                                   int index, int rank) {
    const TileOrder::Tile tile = p.order(index);
    return {(tile.row * Policy::tiles.cluster + rank) * Policy::tiles.rows(), tile.column * Policy::columns,
            tile.matrix};
}

}  // namespace gradtile::cuda::device
