#pragma once
/// The consumers of a product kernel.
#include <cstdint>

#include <gradtile/core/cuda/device/cluster_copy.cuh>
#include <gradtile/core/cuda/device/fragments.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>
#include <gradtile/core/cuda/device/wgmma.cuh>
#include <gradtile/core/gemm/device/parameters.cuh>
#include <gradtile/core/gemm/device/policy.cuh>
#include <gradtile/core/gemm/device/ring.cuh>
#include <gradtile/core/gemm/device/tile_epilogue.cuh>

namespace gradtile::cuda::device {

/// A consumer warpgroup.
template <class Policy>
class ProductConsumer {
    using Epilogue = typename Policy::Epilogue;
    using T = typename Epilogue::Element;
    using Parameters = ProductParameters<Epilogue>;
    static constexpr ProductTiles tiles = Policy::tiles;
    static constexpr int row_blocks = tiles.row_blocks;
    using Sums = FragmentC[row_blocks][tiles.columns / 8];
    static constexpr int first_turn = 1 + tiles.consumers;  ///< barrier number

  public:
    __device__ __forceinline__ ProductConsumer(const Parameters& p, std::uint32_t base, int warpgroup)
        : p_(p),
          base_(base),
          warpgroup_(warpgroup),
          first_row_(tiles.in_turns ? 0 : warpgroup * tiles.consumer_rows()),
          epilogue_(p, base, warpgroup, first_row_) {}

    __device__ __forceinline__ void consume(int rank) {
        const int step = static_cast<int>(gridDim.x) / tiles.cluster;
        // With in_turns, a consumer skips the other consumers' tiles.
        constexpr int others = tiles.in_turns ? tiles.consumers - 1 : 0;
        int index = static_cast<int>(blockIdx.x) / tiles.cluster;
        if constexpr (tiles.in_turns) {
            index += warpgroup_ * step;
            position_.advance(warpgroup_ * p_.depth_blocks);
        }
        if constexpr (Policy::has_inputs) {
            epilogue_.pass_over(warpgroup_);
            if (warpgroup_ == 0 && index < p_.tiles && lane_index() == 0)
                epilogue_.load_first_inputs(tile_at<Policy>(p_, index, rank));
        }
        for (; index < p_.tiles; index += (1 + others) * step) {
            const TileOrder::Tile tile = tile_at<Policy>(p_, index, rank);
            epilogue_.copy_bias(tile);
            if (tiles.in_turns && index >= step) wait_for_turn();
            Sums sums;
            multiply(sums);
            if (tiles.in_turns && index + step < p_.tiles) pass_turn();
            await_sums(sums);
            const bool has_next = Policy::has_inputs && index + step < p_.tiles;
            epilogue_.finish(sums, tile, has_next,
                             has_next ? tile_at<Policy>(p_, index + step, rank) : TileOrder::Tile{});
            position_.advance(others * p_.depth_blocks);
            epilogue_.pass_over(others);
        }
        if (lane_index() == 0) wait_until_stores_have_read();
    }

  private:
    // A wait names a barrier phase by its parity, so a waiting consumer must not be two phases behind. A
    // consumer that skips a tile is far behind until the other consumer has waited for all stages of this
    // tile.
    __device__ __forceinline__ void wait_for_turn() const {
        wait_at(first_turn + warpgroup_, tiles.consumers * warpgroup_threads);
    }
    __device__ __forceinline__ void pass_turn() const {
        arrive_at(first_turn + (warpgroup_ + 1) % tiles.consumers, tiles.consumers * warpgroup_threads);
    }

    /// Starts a tile's products, and waits for all except those of the last stage.
    __device__ __forceinline__ void multiply(Sums& c) {
        for (int block = 0; block < p_.depth_blocks; ++block) {
            const std::uint32_t a = base_ + position_.stage * tiles.stage_bytes(), b = a + tiles.a_bytes();
            full_barrier<Policy>(base_, position_.stage).wait(position_.round);
            begin_products();
#pragma unroll
            for (int k = 0; k < tiles.depth; k += 16)
#pragma unroll
                for (int m = 0; m < row_blocks; ++m)
                    Product<T, tiles.columns>::template start<Policy::order_a, Policy::order_b>(
                        c[m], Policy::ATile::describe(a, first_row_ + m * 64, k),
                        Policy::BTile::describe(b, 0, k), block > 0 || k > 0);
            commit_products();
            if (block > 0) {
                await_products<1>();
                release(last_stage_);
            }
            last_stage_ = position_.stage;
            position_.advance();
        }
    }
    __device__ __forceinline__ void await_sums(Sums& c) const {
        if constexpr (row_blocks == 1) {
            await_products<0>(c[0]);
        } else {
            await_products<0>(c[0], c[1]);
        }
        release(last_stage_);
    }

    /// Each warp releases a stage in all thread blocks that load parts of it.
    __device__ __forceinline__ void release(int stage) const {
        const Barrier empty = empty_barrier<Policy>(base_, stage);
        const int lane = lane_index();
        if constexpr (tiles.cluster == 1) {
            if (lane == 0) empty.arrive();
        } else {
            if (lane < tiles.cluster) arrive_in(lane, empty);
        }
    }

    const Parameters& p_;
    std::uint32_t base_;
    int warpgroup_;
    int first_row_;  ///< this consumer's first row in the tile
    StagePosition<Policy::stages> position_;
    int last_stage_ = 0;  ///< the last stage that the present tile's products read
    TileEpilogue<Policy> epilogue_;
};

}  // namespace gradtile::cuda::device
