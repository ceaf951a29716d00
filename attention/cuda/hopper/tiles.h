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

/// Head dims of the backward kernels. Others use the next larger one.
using HopperBackwardHeadDims = HeadDims<32, 64, 128>;
inline constexpr int hopper_backward_max_head_dim = 128;
/// The columns of the sums of dQ: 0 if the head dim has no kernel.
inline int padded_hopper_head_dim(int head_dim) {
    return head_dim > hopper_backward_max_head_dim ? 0 : padded_head_dim(HopperBackwardHeadDims{}, head_dim);
}

/// Two consumer warpgroups take 64 keys each.
struct HopperBackwardTiles {
    int rows;  ///< 64 or 128
    static constexpr int keys = 128, consumers = 2, stages = 2;

    static constexpr int threads() { return 128 * (consumers + 1); }
    /// Bytes of K, V and their gradients, of the stages of Q and dO with their statistics, and of dS.
    constexpr int shared_bytes(int head_dim) const {
        const int kv = 2 * keys * head_dim, gradients = kv, row_stages = stages * 2 * rows * (head_dim + 2),
                  d_s = 2 * rows * keys;
        return 2 * (kv + gradients + row_stages + d_s) + ring_bytes;
    }
    static constexpr int ring_bytes = 256;  ///< upper bound of the barriers
};

constexpr HopperBackwardTiles hopper_backward_tiles(int head_dim) {
    return {.rows = head_dim <= 64 ? 128 : 64};
}

}  // namespace gradtile::attention::cuda
