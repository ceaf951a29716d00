#pragma once
/// Chooses tiles for memory_efficient and flash1 on the GPU by dtype, head dim and shared memory.
#include <algorithm>

#include <gradtile/attention/cuda/common/shared_memory_limits.h>
#include <gradtile/attention/cuda/literature/tensor_tiles.cuh>
#include <gradtile/attention/cuda/literature/thread_tiles.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda::tiled {

using TiledHeadDims = HeadDims<32, 64, 128, 256>;

/// Upper bound on the shared memory that a kernel uses in addition to its tiles, in bytes.
inline constexpr int rule_shared_bytes = 512;

// ---- Tensor cores ----

/// Backward sizes for memory_efficient, whose outer loop is over rows. Per lane, dQ takes head_dim / 2
/// registers.
struct RowsAreOuter {
    template <int head_dim, bool has_rule>
    static constexpr TensorBackwardSizes candidates[] = {
        {.warps = 8, .row_warps = 8, .keys = head_dim <= 128 ? 64 : 32, .stages = 2},
        {.warps = 8, .row_warps = 8, .keys = head_dim <= 128 ? 64 : 32, .stages = 1},
        {.warps = 4, .row_warps = 4, .keys = 32, .stages = 1},
        {.warps = 4, .row_warps = 2, .keys = 32, .stages = 1}};
};
/// Backward sizes for flash1, whose outer loop is over keys: B_c = keys and B_r = 16 row_warps. The paper's
/// B_c = ceil(M / 4d) would need more registers for dK and dV than there are.
struct KeysAreOuter {
    template <int head_dim, bool has_rule>
    static constexpr TensorBackwardSizes candidates[] = {
        {.warps = 8,
         .row_warps = head_dim <= 128 ? 4 : 2,
         .keys = head_dim <= (has_rule ? 64 : 128) ? 128 : 64,
         .stages = 2},
        {.warps = 8, .row_warps = 2, .keys = 64, .stages = 1},
        {.warps = 4, .row_warps = 2, .keys = 32, .stages = 1}};
};

/// Chooses the first candidate whose K, V, Q, dO, P and dS tiles fit. The inner loop's tiles are needed
/// `stages` times.
template <class Order, int head_dim, bool has_rule, int shared_limit>
struct TensorBackwardPolicy {
    static constexpr bool rows_are_outer = std::is_same_v<Order, RowsAreOuter>;
    static constexpr int bytes(const TensorBackwardSizes& s) {
        const int rows = 2 * 2 * s.rows() * head_dim, keys = 2 * 2 * s.keys * head_dim;
        return (rows_are_outer ? rows + s.stages * keys : s.stages * rows + keys) + 2 * 2 * s.rows() * s.keys;
    }
    static constexpr TensorBackwardSizes choose() {
        for (const TensorBackwardSizes& s : Order::template candidates<head_dim, has_rule>)
            if (bytes(s) + rule_shared_bytes <= shared_limit) return s;
        return {};
    }
    static constexpr TensorBackwardSizes sizes = choose();
};

// ---- Without tensor cores ----

/// Scores per thread along each axis: 4, in float64 2 to save registers, or fewer if `tiles` row tiles and
/// `pair_tiles` pair tiles do not fit. 0 if nothing fits.
template <class A, int head_dim, int tiles, int pair_tiles, int shared_limit>
inline constexpr int micro_of = [] {
    for (int micro = sizeof(A) == 8 ? 2 : 4; micro > 0; micro /= 2) {
        const int rows = 16 * micro, padding = 16 / static_cast<int>(sizeof(A));
        const int numbers = tiles * rows * (head_dim + padding) + pair_tiles * rows * (rows + padding);
        if (numbers * static_cast<int>(sizeof(A)) + rule_shared_bytes <= shared_limit) return micro;
    }
    return 0;
}();

/// Calls f<Tiles, limit>() if the tiles fit. Otherwise throws Error: the GPU has too little shared memory for
/// the head dim.
template <class Tiles, int limit, bool fits, class F>
void call_if_fits(int head_dim, F&& f) {
    if constexpr (fits) {
        f.template operator()<Tiles, limit>();
    } else {
        throw Error(concat("attention: head_dim ", head_dim, " in ", dtype_of<typename Tiles::T>,
                           " needs more than the ", limit,
                           " bytes of shared memory that a thread block of this GPU has; choose flash2"));
    }
}

struct EveryLimit {
    static constexpr int tiles(int shared_limit) { return shared_limit; }
};

/// Calls f<head_dim, limit, has_rule>() for a call's arguments.
template <bool tensor_cores, class Parameters, class F>
void visit_sizes(const Parameters& p, F&& f) {
    visit_head_dim(TiledHeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim),
                   [&]<int head_dim>(HeadDim<head_dim>) {
                       visit_shared_memory<EveryLimit>(
                           gradtile::cuda::shared_memory_of_a_block(), [&]<int limit>(SharedMemory<limit>) {
                               // Without tensor cores, kernels that may apply a rule are as fast as others.
                               if constexpr (tensor_cores) {
                                   if (p.scores.scores_are_products)
                                       return f.template operator()<head_dim, limit, false>();
                               }
                               f.template operator()<head_dim, limit, true>();
                           });
                   });
}

/// Calls f<Tiles, limit>() with the forward tiles. With tensor cores, thread blocks for head dims up to 64
/// have `narrow_warps` warps, others 8.
template <class T, int narrow_warps, class F>
void visit_forward_tiles(const TiledForwardParameters<T>& p, F&& f) {
    visit_sizes<sizeof(T) == 2>(p, [&]<int head_dim, int limit, bool has_rule>() {
        if constexpr (sizeof(T) == 2) {
            constexpr int warps = head_dim <= 64 ? narrow_warps : 8;
            f.template operator()<TensorForwardTiles<T, head_dim, has_rule, warps>, limit>();
        } else {
            constexpr int micro = micro_of<T, head_dim, 3, 1, limit>;
            call_if_fits<ThreadForwardTiles<T, head_dim, has_rule, micro == 0 ? 1 : micro>, limit,
                         micro != 0>(head_dim, f);
        }
    });
}
/// Calls f<Tiles, limit>() with the backward tiles.
template <class T, class Order, class F>
void visit_backward_tiles(const TiledBackwardParameters<T>& p, F&& f) {
    visit_sizes<sizeof(T) == 2>(p, [&]<int head_dim, int limit, bool has_rule>() {
        if constexpr (sizeof(T) == 2) {
            using Policy = TensorBackwardPolicy<Order, head_dim, has_rule, limit>;
            f.template operator()<TensorBackwardTiles<T, head_dim, has_rule, Policy>, limit>();
        } else {
            constexpr int micro = micro_of<T, head_dim, 4, 2, limit>;
            call_if_fits<ThreadBackwardTiles<T, head_dim, has_rule, micro == 0 ? 1 : micro>, limit,
                         micro != 0>(head_dim, f);
        }
    });
}

/// Launches a kernel with `blocks` thread blocks; does nothing for 0.
template <class Kernel, class Parameters>
void launch_blocks(const Context& ctx, Kernel kernel, std::int64_t blocks, int threads, int shared_bytes,
                   const Parameters& parameters) {
    if (blocks == 0) return;
    check(blocks <= INT32_MAX, "attention: ", blocks, " thread blocks; CUDA launches at most 2^31 - 1");
    gradtile::cuda::launch(
        ctx, kernel, dim3(static_cast<unsigned>(blocks)),
        {.threads = static_cast<unsigned>(threads), .shared_bytes = static_cast<std::size_t>(shared_bytes)},
        parameters);
}

}  // namespace gradtile::attention::cuda::tiled
