#pragma once
/// INTERNAL. Tile sizes of the Hopper kernels (sm_90a: wgmma and TMA).
#include <gradtile/attention/cuda/shared_memory_limits.h>

namespace gradtile::attention::cuda {

/// A thread block has one producer warpgroup, which starts the copies, and consumer warpgroups, which
/// compute.
struct HopperForwardTiles {
    int consumers;  ///< warpgroups of 64 rows each
    int keys;
    int stages;       ///< K/V blocks that are in shared memory at the same time
    bool o_beside_q;  ///< whether O has shared memory of its own, so that the next Q is loaded early

    constexpr int rows() const { return 64 * consumers; }
    constexpr int threads() const { return 128 * (consumers + 1); }
    constexpr int producer_registers() const { return consumers == 2 ? 24 : 32; }
    constexpr int consumer_registers() const { return consumers == 2 ? 240 : 160; }
    constexpr int shared_bytes(int qk_dim, int v_dim) const {
        const int kv = stages * keys * (qk_dim + v_dim), q = rows() * qk_dim, o = rows() * v_dim;
        return 2 * (kv + q + (o_beside_q ? o : 0)) + ring_bytes;
    }
    static constexpr int ring_bytes = 256;  ///< upper bound of the barriers
};

constexpr HopperForwardTiles hopper_forward_tiles(int qk_dim, int v_dim) {
    if (qk_dim <= 64) return {.consumers = 3, .keys = 128, .stages = 2, .o_beside_q = true};
    if (qk_dim <= 128) return {.consumers = 2, .keys = 128, .stages = 2, .o_beside_q = true};
    if (v_dim <= 128) return {.consumers = 2, .keys = 112, .stages = 2, .o_beside_q = true};
    if (qk_dim <= 192) return {.consumers = 2, .keys = 112, .stages = 2, .o_beside_q = false};
    return {.consumers = 2, .keys = 80, .stages = 2, .o_beside_q = false};
}

}  // namespace gradtile::attention::cuda
