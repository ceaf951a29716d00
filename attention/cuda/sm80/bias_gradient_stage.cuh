#pragma once
/// The operands of a query-key tile in shared memory. Both bias gradient kernels load them.
#include <gradtile/attention/cuda/sm80/launch.h>
#include <gradtile/attention/cuda/common/bias_sums.cuh>
#include <gradtile/attention/cuda/common/shared_tile.cuh>

namespace gradtile::attention::cuda::device {

/// The Q, dO, K and V rows for one query-key tile, in shared memory.
template <int head_dim, class Policy>
struct BiasGradientStage {
    static constexpr auto tiles = Policy::tiles;
    using RowTile = Tile<tiles.rows, head_dim>;
    using KeyTile = Tile<tiles.keys, head_dim>;
    static constexpr int bytes = 2 * (RowTile::bytes + KeyTile::bytes);
    std::uint32_t q, d_o, k, v;

    __device__ explicit BiasGradientStage(std::uint32_t base)
        : q(base), d_o(q + RowTile::bytes), k(d_o + RowTile::bytes), v(k + KeyTile::bytes) {}

    __device__ __forceinline__ void load(const Bits16BackwardParameters& p,
                                         const BiasBlock::Pairs& pairs) const {
        const int row = static_cast<int>(pairs.row), key = static_cast<int>(pairs.key);
        const int key_head = pairs.head / p.sizes.group;
        load_rows<RowTile>(q, p.q, pairs.batch, pairs.head, row, p.mask.queries, p.sizes.qk_dim);
        load_rows<RowTile>(d_o, p.d_o, pairs.batch, pairs.head, row, p.mask.queries, p.sizes.v_dim);
        load_rows<KeyTile>(k, p.k, pairs.batch, key_head, key, p.mask.keys, p.sizes.qk_dim);
        load_rows<KeyTile>(v, p.v, pairs.batch, key_head, key, p.mask.keys, p.sizes.v_dim);
    }

  private:
    template <class Shared>
    __device__ __forceinline__ static void load_rows(std::uint32_t to,
                                                     const TensorView<const std::uint16_t>& x, int batch,
                                                     int head, int row, int end, int columns) {
        load_tile_async<Shared, tiles.threads()>(to, x.head(batch, head).row(row), x.row_stride, end - row,
                                                 columns);
    }
};

}  // namespace gradtile::attention::cuda::device
