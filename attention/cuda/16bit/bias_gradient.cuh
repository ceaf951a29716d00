#pragma once
/// The gradient of a bias on 16-bit tensor cores. Each thread block takes a tile of rows and keys of the
/// gradient and adds up dS of all tiles of Q, K, V and dO that it stands for.
#include <gradtile/attention/cuda/16bit/parameters.h>
#include <gradtile/attention/cuda/16bit/tiles.h>
#include <gradtile/attention/cuda/device/bias_sums.cuh>
#include <gradtile/attention/cuda/device/score_rule.cuh>
#include <gradtile/attention/cuda/device/shared_tile.cuh>
#include <gradtile/attention/cuda/device/softmax.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

template <class T, int head_dim, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), Policy::tiles.blocks_per_sm)
    bias_gradient_kernel(const __grid_constant__ Bits16BackwardParameters p,
                         const __grid_constant__ BiasGradient g) {
    constexpr auto tiles = Policy::tiles;
    constexpr int n_tiles = tiles.keys / 8;
    using RowTile = Tile<tiles.rows, head_dim>;
    using KeyTile = Tile<tiles.keys, head_dim>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ SharedRule rule;
    const std::uint32_t q_tile = shared_address(shared), d_o_tile = q_tile + RowTile::bytes,
                        k_tile = d_o_tile + RowTile::bytes, v_tile = k_tile + KeyTile::bytes;
    const int warp_row = warp_index() * 16;
    const std::uint32_t warp_bytes = warp_row * RowTile::row_bytes;
    gradtile::cuda::device::await_predecessor();

    const BiasBlock block(g, p.mask.queries, p.mask.keys, tiles.rows, tiles.keys);
    FragmentC sum[1][n_tiles];
    clear(sum);
    block.for_each_tile(g, [&](int batch, int head, std::int64_t first_row, std::int64_t first_key) {
        const int row = static_cast<int>(first_row), key = static_cast<int>(first_key);
        if (!p.mask.sees_any(row, tiles.rows, key, tiles.keys)) return;
        __syncthreads();  // all warps have read the last tiles
        const int key_head = head / p.sizes.group;
        const int rows_left = p.mask.queries - row, keys_left = p.mask.keys - key;
        load_tile_async<RowTile, tiles.threads()>(q_tile, p.q.head(batch, head).row(row), p.q.row_stride,
                                                  rows_left, p.sizes.qk_dim);
        load_tile_async<RowTile, tiles.threads()>(d_o_tile, p.d_o.head(batch, head).row(row),
                                                  p.d_o.row_stride, rows_left, p.sizes.v_dim);
        load_tile_async<KeyTile, tiles.threads()>(k_tile, p.k.head(batch, key_head).row(key), p.k.row_stride,
                                                  keys_left, p.sizes.qk_dim);
        load_tile_async<KeyTile, tiles.threads()>(v_tile, p.v.head(batch, key_head).row(key), p.v.row_stride,
                                                  keys_left, p.sizes.v_dim);
        commit_copies();
        if (threadIdx.x == 0) rule.set(p.scores.rule_of<float>(batch, head));
        wait_for_copies<0>();
        __syncthreads();

        FragmentC s[1][n_tiles], d_p[1][n_tiles];
        clear(s);
        clear(d_p);
        multiply_a_bt<T, head_dim, 2>(s, LanePointer<RowTile>::stacked(q_tile + warp_bytes),
                                      LanePointer<KeyTile>::paired(k_tile));
        multiply_a_bt<T, head_dim, 2>(d_p, LanePointer<RowTile>::stacked(d_o_tile + warp_bytes),
                                      LanePointer<KeyTile>::paired(v_tile));
        drop(d_p, rule.get(), row + warp_row, key);
        scale(s, p.scale);
        apply_rule<T>(s, rule.get(), row + warp_row, key, p.mask.queries, p.mask.keys);
        if (!p.mask.sees_all(row + warp_row, 16, key, tiles.keys))
            mask_scores(s, p.mask, row + warp_row, key);
        // Rows of the padding have an LSE of +inf, so P is 0 there.
        const std::int64_t statistics =
            (static_cast<std::int64_t>(batch) * p.sizes.heads + head) * p.padded_rows + row + warp_row +
            lane_index() / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float lse = p.lse_log2[statistics + half * 8], delta = p.delta[statistics + half * 8];
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int e = half * 2; e < half * 2 + 2; ++e) {
                    const float probability = exp2_fast(fmaf(s[0][n][e], log2_e, -lse));
                    sum[0][n][e] += probability * fmaf(d_p[0][n][e], 1 / p_factor, -delta);
                }
        }
    });

    // Sums over rows or keys of the tile go through shared memory, in a fixed order.
    __syncthreads();
    auto* const sums = reinterpret_cast<float*>(shared);
    static_assert(tiles.rows * tiles.keys * 4 <= 2 * (RowTile::bytes + KeyTile::bytes));
    const int lane_element = (warp_row + lane_index() / 4) * tiles.keys + lane_index() % 4 * 2;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            sums[lane_element + e / 2 * 8 * tiles.keys + n * 8 + e % 2] = sum[0][n][e];
    __syncthreads();
    const int rows = g.sums_rows ? 1 : tiles.rows, keys = g.sums_keys ? 1 : tiles.keys;
    for (int element = static_cast<int>(threadIdx.x); element < rows * keys; element += tiles.threads()) {
        const int x = element / keys, y = element % keys;
        float total = 0;
        for (int r = x; r < (g.sums_rows ? tiles.rows : x + 1); ++r)
            for (int c = y; c < (g.sums_keys ? tiles.keys : y + 1); ++c) total += sums[r * tiles.keys + c];
        block.store(g, x, y, total * p.dropout_scale, p.mask.queries, p.mask.keys);
    }
}

}  // namespace device

template <int head_dim, int shared_limit>
struct Bits16BiasGradientPolicy {
    static constexpr auto tiles = Bits16BiasGradientChoice<head_dim>::tiles(shared_limit);
};

template <class T>
void launch_bias_gradient(const Bits16BackwardParameters& p, const BiasGradient& gradient,
                          cudaStream_t stream) {
    visit_head_dim(
        Bits16HeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim), [&]<int head_dim>(HeadDim<head_dim>) {
            visit_shared_memory<Bits16BiasGradientChoice<head_dim>>(
                gradtile::cuda::shared_memory_of_a_block(), [&]<int limit>(SharedMemory<limit>) {
                    using Policy = Bits16BiasGradientPolicy<head_dim, limit>;
                    gradtile::cuda::launch_on(
                        stream, device::bias_gradient_kernel<T, head_dim, Policy>,
                        device::bias_blocks(gradient, p.mask.queries, p.mask.keys, Policy::tiles.rows,
                                            Policy::tiles.keys),
                        {static_cast<unsigned>(Policy::tiles.threads()),
                         static_cast<std::size_t>(Policy::tiles.shared_bytes()), /*starts_early=*/true},
                        p, gradient);
                });
        });
}

}  // namespace gradtile::attention::cuda
