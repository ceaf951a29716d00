#pragma once
/// The gradient of a bias on 16-bit tensor cores. Each thread block computes one gradient tile: dS summed
/// over all batches, heads and query-key tiles to which the same bias tile is broadcast.
#include <gradtile/attention/cuda/sm80/launch.h>
#include <gradtile/attention/cuda/sm80/tiles.h>
#include <gradtile/attention/cuda/common/bias_sums.cuh>
#include <gradtile/attention/cuda/common/row_ranges.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/attention/cuda/sm80/bias_gradient_stage.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// Adds a tile's elements over its rows or keys through shared memory, in a fixed order, and stores the sums.
template <class Policy, int s_tiles>
__device__ __forceinline__ void store_bias_sums(FragmentC (&sum)[1][s_tiles], float* sums, int warp_row,
                                                const BiasBlock& block, const BiasGradient& g,
                                                const Bits16BackwardParameters& p) {
    constexpr auto tiles = Policy::tiles;
    const int lane_element = (warp_row + lane_index() / 4) * tiles.keys + lane_index() % 4 * 2;
    for_each_element(sum, [&](float& element, int, int column, int e) {
        sums[lane_element + e / 2 * 8 * tiles.keys + column * 8 + e % 2] = element;
    });
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

template <class T, int head_dim, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), Policy::tiles.blocks_per_sm)
    bias_gradient_kernel(const __grid_constant__ Bits16BackwardParameters p,
                         const __grid_constant__ BiasGradient g) {
    constexpr auto tiles = Policy::tiles;
    constexpr int s_tiles = tiles.keys / 8;
    using Stage = BiasGradientStage<head_dim, Policy>;
    using RowTile = typename Stage::RowTile;
    using KeyTile = typename Stage::KeyTile;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ SharedRule rules[tiles.stages];
    const int warp_row = warp_index() * 16;
    const std::uint32_t warp_bytes = warp_row * RowTile::row_bytes;
    gradtile::cuda::device::await_predecessor();

    const BiasBlock block(g, p.mask.queries, p.mask.keys, tiles.rows, tiles.keys);
    const int count = block.count(g);
    const auto next_visible = [&](int n) {
        for (; n < count; ++n) {
            const BiasBlock::Pairs pairs = block(g, n);
            if (p.mask.sees_any(static_cast<int>(pairs.row), tiles.rows, static_cast<int>(pairs.key),
                                tiles.keys))
                break;
        }
        return n;
    };
    const auto stage = [&](int number) {
        return Stage(shared_address(shared) + number % tiles.stages * Stage::bytes);
    };
    const auto start = [&](int number, int n) {
        if (n < count) {
            const BiasBlock::Pairs pairs = block(g, n);
            stage(number).load(p, pairs);
            if (threadIdx.x == 0)
                rules[number % tiles.stages].set(p.scores.rule_of<float>(pairs.batch, pairs.head));
        }
        commit_copies();
    };

    FragmentC sum[1][s_tiles];
    clear(sum);
    int n = next_visible(0);
    start(0, n);
    for (int number = 0; n < count; ++number) {
        const int next = next_visible(n + 1);
        wait_for_copies<0>();
        __syncthreads();  // this tile is in shared memory, and no warp reads the previous tile's stage
        if constexpr (tiles.stages > 1) start(number + 1, next);

        const BiasBlock::Pairs pairs = block(g, n);
        const int row = static_cast<int>(pairs.row) + warp_row, key = static_cast<int>(pairs.key);
        const Stage tile = stage(number);
        const ScoreRule<float>& rule = rules[number % tiles.stages].get();
        FragmentC s[1][s_tiles], d_p[1][s_tiles];
        clear(s);
        clear(d_p);
        multiply_a_bt<T, head_dim, 2>(s, LanePointer<RowTile>::stacked(tile.q + warp_bytes),
                                      LanePointer<KeyTile>::paired(tile.k));
        multiply_a_bt<T, head_dim, 2>(d_p, LanePointer<RowTile>::stacked(tile.d_o + warp_bytes),
                                      LanePointer<KeyTile>::paired(tile.v));
        drop(d_p, rule, row, key);
        scale(s, p.scale);
        apply_rule<T>(s, rule, row, key, p.mask.queries, p.mask.keys);
        if (!p.mask.sees_all(row, 16, key, tiles.keys)) mask_scores(s, p.mask, row, key);
        if (const HeadRowRanges ranges = p.row_ranges.of(pairs.batch, pairs.head))
            hide_unseen_pairs(s, ranges.keys + key, row);

        const RowReferences references(p.lse, p.lse_remainder,
                                       static_cast<std::int64_t>(pairs.batch) * p.sizes.heads + pairs.head,
                                       p.mask.queries);
        const std::int64_t statistics =
            (static_cast<std::int64_t>(pairs.batch) * p.sizes.heads + pairs.head) * p.padded_rows + row +
            lane_index() / 4;
        const ExactLse lse[2] = {references(row + lane_index() / 4), references(row + 8 + lane_index() / 4)};
        const float delta[2] = {p.delta[statistics], p.delta[statistics + 8]};
        for_each_element(sum, [&](float& element, int m, int column, int e) {
            const float probability = exact_probability(s[m][column][e], lse[e / 2], p_exponent);
            element += probability * fmaf(d_p[m][column][e], 1 / p_factor, -delta[e / 2]);
        });
        if constexpr (tiles.stages == 1) {
            __syncthreads();  // all warps have read the tile
            start(number + 1, next);
        }
        n = next;
    }

    wait_for_copies<0>();
    __syncthreads();  // no copy writes, and no warp reads, the stages
    static_assert(tiles.rows * tiles.keys * 4 <= tiles.stages * Stage::bytes);
    store_bias_sums<Policy>(sum, reinterpret_cast<float*>(shared), warp_row, block, g, p);
}

}  // namespace device

template <int head_dim, int shared_limit>
struct Bits16BiasGradientPolicy {
    static constexpr auto tiles = Bits16BiasGradientChoice<head_dim>::tiles(shared_limit);
};

template <class T>
void launch_bias_gradient(const Bits16BackwardParameters& p, const Tiles& tiles, const BiasGradient& gradient,
                          cudaStream_t stream) {
    visit_head_dim(
        Bits16HeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim), [&]<int head_dim>(HeadDim<head_dim>) {
            visit_shared_memory<Bits16BiasGradientChoice<head_dim>>(
                tiles.shared_limit, [&]<int limit>(SharedMemory<limit>) {
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
