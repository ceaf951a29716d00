#pragma once
/// The shared memory of a thread block of the Hopper backward kernel (backward.cuh), and its rings of
/// barriers.
#include <gradtile/attention/cuda/hopper/tiles.h>
#include <gradtile/attention/cuda/device/panel_tile.cuh>
#include <gradtile/attention/cuda/hopper/backward_steps.cuh>

namespace gradtile::attention::cuda::device {

/// The shared memory of a thread block.
template <class Policy>
struct HopperBackwardShared {
    static constexpr HopperBackwardTiles tiles = Policy::tiles;
    static_assert(tiles.stages == 2 || (tiles.overlaps_blocks && tiles.stages == 4 && tiles.rows == 64));
    using KvTile = PanelTile<tiles.keys, Policy::head_dim>;
    using RowTile = PanelTile<tiles.rows, Policy::head_dim>;
    using KTile = KvTile;
    using VTile = KvTile;
    using QTile = RowTile;
    using DoTile = RowTile;
    using DsTile = PanelTile<tiles.keys, tiles.rows>;  ///< dS^T
    static constexpr bool stages_in_kv = false;  ///< whether dK and dV are staged in the memory of K and V
    static constexpr int statistics_bytes = 4 * tiles.rows;
    static constexpr int k = 0, v = k + KvTile::bytes, d_k = v + KvTile::bytes, d_v = d_k + KvTile::bytes,
                         q = d_v + KvTile::bytes, d_o = q + tiles.stages * RowTile::bytes,
                         d_s = d_o + tiles.stages * RowTile::bytes, lse = d_s + 2 * DsTile::bytes,
                         delta = lse + tiles.stages * statistics_bytes,
                         rings = delta + tiles.stages * statistics_bytes;
    struct Rings {
        Ring<1> kv;
        Ring<tiles.stages> q, d_o;
        Ring<2> tasks;
        typename TaskOf<Policy>::Descriptor task[2];
        Philox::Key dropout_key;                              ///< only if Policy::may_drop
        Ring<2> d_q;                                          ///< only if adds_in_bulk
        Ring<Policy::sums_in_ring ? added_stages : 1> added;  ///< only if sums_in_ring, like finisher_tasks
        FinisherTask finisher_tasks[d_q_finishers];
        [[no_unique_address]] typename BackwardBiasShared<Policy>::Rings biases;
    };
    /// dQ of two blocks of rows in float32, in the order of DqSums, for the thread that adds in bulk. If the
    /// memory of dK and dV is large enough, dQ shares it, because dK and dV are staged at other times.
    static constexpr int d_q_bytes = 4 * tiles.rows * Policy::head_dim;
    static constexpr bool d_q_has_memory = 2 * d_q_bytes > 2 * KvTile::bytes;
    using Biases = BackwardBiasShared<Policy>;
    static constexpr int d_q = d_q_has_memory ? tiles.shared_bytes(Policy::head_dim) : d_k,
                         d_q_end = tiles.shared_bytes(Policy::head_dim) +
                                   (Policy::adds_in_bulk && d_q_has_memory ? 2 * d_q_bytes : 0),
                         biases = (d_q_end + 1023) / 1024 * 1024,
                         bytes = Biases::bytes > 0 ? biases + Biases::bytes : d_q_end;
    static constexpr int q_ring = rings + offsetof(Rings, q), d_o_ring = rings + offsetof(Rings, d_o),
                         added = rings + offsetof(Rings, added), end_added = added + 8 * added_stages;
    static_assert(sizeof(Rings) <= HopperBackwardTiles::ring_bytes);
    static_assert(rings + HopperBackwardTiles::ring_bytes <= tiles.shared_bytes(Policy::head_dim));
};

}  // namespace gradtile::attention::cuda::device
