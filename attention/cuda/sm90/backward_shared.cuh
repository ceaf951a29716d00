#pragma once
/// Shared memory for the Hopper backward kernel (backward.cuh), and its barrier rings.
#include <gradtile/attention/cuda/sm90/tiles.h>
#include <gradtile/attention/cuda/common/panel_tile.cuh>
#include <gradtile/attention/cuda/sm90/backward_steps.cuh>

namespace gradtile::attention::cuda::device {

/// A thread block's shared memory.
template <class Policy>
struct HopperBackwardShared {
    static constexpr HopperBackwardTiles tiles = Policy::tiles;
    static constexpr int stages = 2;
    using KvTile = PanelTile<tiles.keys, Policy::head_dim>;
    using RowTile = PanelTile<tiles.rows, Policy::head_dim>;
    using KTile = KvTile;
    using VTile = KvTile;
    using QTile = RowTile;
    using DoTile = RowTile;
    using DsTile = std::conditional_t<tiles.rows == 80, PanelTile<tiles.rows, tiles.keys>, PanelTile<tiles.keys, tiles.rows == 80 ? 64 : tiles.rows>>;  ///< dS^T
    static constexpr bool stages_in_kv = tiles.rows == 80;        ///< whether dK and dV are staged in K's and V's memory
    static constexpr int statistics_bytes = 4 * tiles.rows;
    static constexpr int k = 0, v = k + KvTile::bytes, d_k = stages_in_kv ? k : v + KvTile::bytes, d_v = d_k + KvTile::bytes,
                         q = d_v + KvTile::bytes, d_o = q + stages * RowTile::bytes,
                         d_s = d_o + stages * RowTile::bytes, lse = d_s + 2 * DsTile::bytes,
                         delta = lse + stages * statistics_bytes, rings = delta + stages * statistics_bytes;
    struct Rings {
        Ring<1> kv;
        Ring<stages> q, d_o;
        Ring<2> tasks;
        typename TaskOf<Policy>::Descriptor task[2];
        Philox::Key dropout_key;  ///< only if Policy::may_drop
        Ring<tiles.d_q_stages> d_q;
        FinishedRows finished;  ///< only if Policy::may_sum_in_ring
        [[no_unique_address]] typename BackwardBiasShared<Policy>::Rings biases;
        [[no_unique_address]] SeenRowsShared<Policy, stages> seen;
    };
    /// dQ row blocks in float32, in DqSums order, for the thread that adds. If dK's and dV's memory is large
    /// enough, dQ shares it, because dK and dV are staged at other times.
    static constexpr int d_q_bytes = 4 * tiles.rows * Policy::head_dim;
    static constexpr bool d_q_has_memory = stages_in_kv || tiles.d_q_stages * d_q_bytes > 2 * KvTile::bytes;
    using Biases = BackwardBiasShared<Policy>;
    static constexpr int d_q = d_q_has_memory ? tiles.shared_bytes(Policy::head_dim) : d_k,
                         d_q_end = tiles.shared_bytes(Policy::head_dim) +
                                   (d_q_has_memory ? tiles.d_q_stages * d_q_bytes : 0),
                         biases = (d_q_end + 1023) / 1024 * 1024,
                         bytes = Biases::bytes > 0 ? biases + Biases::bytes : d_q_end;
    static constexpr int q_ring = rings + offsetof(Rings, q), d_o_ring = rings + offsetof(Rings, d_o);
    static_assert(sizeof(Rings) <= HopperBackwardTiles::ring_bytes);
    static_assert(rings + HopperBackwardTiles::ring_bytes <= tiles.shared_bytes(Policy::head_dim));
};

}  // namespace gradtile::attention::cuda::device
