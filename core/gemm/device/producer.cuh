#pragma once
/// The producer of a product kernel.
#include <cstdint>

#include <gradtile/core/gemm/device/parameters.cuh>
#include <gradtile/core/gemm/device/policy.cuh>
#include <gradtile/core/gemm/device/ring.cuh>

namespace gradtile::cuda::device {

/// Starts the copies of A and B. One thread runs this.
template <class Policy>
__device__ __forceinline__ void produce(const ProductParameters<typename Policy::Epilogue>& p,
                                        std::uint32_t base, int rank) {
    constexpr ProductTiles tiles = Policy::tiles;
    StagePosition<Policy::stages> position;
    const int step = static_cast<int>(gridDim.x) / tiles.cluster;
    for (int index = static_cast<int>(blockIdx.x) / tiles.cluster; index < p.tiles; index += step) {
        const TileOrder::Tile tile = tile_at<Policy>(p, index, rank);
        for (int block = 0; block < p.depth_blocks; ++block) {
            const std::uint32_t a = base + position.stage * tiles.stage_bytes(), b = a + tiles.a_bytes();
            const Barrier full = full_barrier<Policy>(base, position.stage);
            empty_barrier<Policy>(base, position.stage).wait(position.round ^ 1);
            full.arrive_and_expect(tiles.stage_bytes());
            const int depth = block * tiles.depth;
            Policy::ATile::load(a, p.a, tile.row, depth, tile.matrix, 0, full);
            const auto load_b = [&](int part) {
                using Tile = typename Policy::BTile;
                if constexpr (Policy::Epilogue::products == 2) {
                    Tile::load(b, p.b[part], tile.column, depth, tile.matrix, part, full);
                } else if constexpr (Policy::order_b == Order::reduction) {
                    Tile::load(b, p.b[0], tile.column + part * Tile::box_rows, depth, tile.matrix, part,
                               full);
                } else {
                    Tile::load(b, p.b[0], tile.column, depth + part * Tile::box_rows, tile.matrix, part,
                               full);
                }
            };
            if constexpr (tiles.cluster == 2) {
                load_b(rank);
            } else {
#pragma unroll
                for (int part = 0; part < Policy::b_parts; ++part) load_b(part);
            }
            position.advance();
        }
    }
}

}  // namespace gradtile::cuda::device
