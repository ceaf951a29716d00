#pragma once
/// The gradient of a bias that kernels read in query-key tiles (RuleKind::pair_bias). Each thread block owns
/// a gradient tile and loops over the batches and heads that share it, as the sequences in an Evoformer share
/// a pair bias. So the bias tile is read once, and dS is summed in registers. Where the gradient has few
/// tiles, several thread blocks divide a tile's batches and heads, and another kernel adds their sums in a
/// fixed order.
#include <gradtile/attention/cuda/sm80/launch.h>
#include <gradtile/attention/cuda/sm80/tiles.h>
#include <gradtile/attention/cuda/common/bias_parts.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/attention/cuda/sm80/bias_gradient_stage.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// The inputs from one batch and head, in shared memory.
template <int head_dim, class Policy>
struct PairBiasStage : BiasGradientStage<head_dim, Policy> {
    using Rows = BiasGradientStage<head_dim, Policy>;
    using Rows::tiles;
    std::uint32_t lse, delta;
    KeyBiasTile<tiles.keys> key_bias;

    __device__ explicit PairBiasStage(std::uint32_t base)
        : Rows(base),
          lse(base + Rows::bytes),
          delta(lse + 4 * tiles.rows),
          key_bias{delta + 4 * tiles.rows} {}

    __device__ __forceinline__ void load(const Bits16BackwardParameters& p,
                                         const BiasBlock::Pairs& pairs) const {
        Rows::load(p, pairs);
        // Statistics exist for padded rows, too.
        const int row = static_cast<int>(pairs.row);
        const std::int64_t first =
            (static_cast<std::int64_t>(pairs.batch) * p.sizes.heads + pairs.head) * p.padded_rows + row;
        constexpr int row_chunks = tiles.rows / 4;
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < row_chunks) {
            copy_16_bytes_async(lse + thread * 16, p.lse_log2 + first + thread * 4,
                                row + thread * 4 < p.padded_rows);
        } else if (thread < 2 * row_chunks) {
            const int chunk = thread - row_chunks;
            copy_16_bytes_async(delta + chunk * 16, p.delta + first + chunk * 4,
                                row + chunk * 4 < p.padded_rows);
        } else {
            key_bias.load_async(p.scores.biases[1].rows_of(pairs.batch, pairs.head),
                                static_cast<int>(pairs.key), p.mask.keys, thread - 2 * row_chunks);
        }
    }
};

/// sum += dS, from S without the bias, and dP. `lse` and `delta` are the lane's first row in shared memory,
/// and `row` is that row in the sequence.
template <class T, class BiasTile, int m_tiles, int s_tiles>
__device__ __forceinline__ void add_d_s(FragmentC (&sum)[m_tiles][s_tiles],
                                        const FragmentC (&s)[m_tiles][s_tiles],
                                        const FragmentC (&d_p)[m_tiles][s_tiles],
                                        const LanePointer<BiasTile>& bias, int warp_key,
                                        std::uint32_t lse_rows, std::uint32_t delta_rows, bool has_large_lse,
                                        const RowReferences& references, int row) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
        float lse[2], delta[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const std::uint32_t row_offset = (m * 16 + half * 8) * 4;
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(lse[half]) : "r"(lse_rows + row_offset) : "memory");
            asm volatile("ld.shared.f32 %0, [%1];"
                         : "=f"(delta[half])
                         : "r"(delta_rows + row_offset)
                         : "memory");
        }
#pragma unroll
        for (int column = 0; column < s_tiles; column += 2) {
            std::uint32_t matrices[4];
            load_matrices<false>(matrices, bias.at(m * 16, warp_key + column * 8));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 terms = unpack<T>(matrices[i]);
                const int half = i % 2;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int tile = column + i / 2, element = half * 2 + e;
                    const float score = s[m][tile][element] + (e == 0 ? terms.x : terms.y);
                    const float probability =
                        has_large_lse
                            ? exact_probability(score, references(row + m * 16 + half * 8), p_exponent)
                            : power_of_two(fmaf(score, log2_e, -lse[half]));
                    sum[m][tile][element] =
                        fmaf(probability, fmaf(d_p[m][tile][element], 1 / p_factor, -delta[half]),
                             sum[m][tile][element]);
                }
            }
        }
    }
}

template <class T, int head_dim, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), 1)
    pair_bias_gradient_kernel(const __grid_constant__ Bits16BackwardParameters p,
                              const __grid_constant__ BiasGradient g,
                              const __grid_constant__ BiasGradientParts parts) {
    constexpr auto tiles = Policy::tiles;
    constexpr int m_tiles = tiles.warp_rows / 16, s_tiles = tiles.warp_keys / 8;
    using Stage = PairBiasStage<head_dim, Policy>;
    using RowTile = typename Stage::RowTile;
    using KeyTile = typename Stage::KeyTile;
    using BiasTile = Tile<tiles.rows, tiles.keys>;
    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t bias_tile = shared_address(shared), stages = bias_tile + BiasTile::bytes;
    constexpr int row_warps = tiles.rows / tiles.warp_rows;
    const int warp_row = warp_index() % row_warps * tiles.warp_rows,
              warp_key = warp_index() / row_warps * tiles.warp_keys;
    gradtile::cuda::device::await_predecessor();

    const BiasBlock block(g, p.mask.queries, p.mask.keys, tiles.rows, tiles.keys);
    const int block_row = static_cast<int>(block.row), block_key = static_cast<int>(block.key);
    const bool is_visible = p.mask.sees_any(block_row, tiles.rows, block_key, tiles.keys);
    const int all = is_visible ? block.count(g) : 0, part = static_cast<int>(blockIdx.y);
    const auto begin_of = [&](int part_index) {
        return static_cast<int>(std::int64_t{all} * part_index / parts.count);
    };
    const int begin = begin_of(part), count = begin_of(part + 1) - begin;
    const auto stage = [&](int n) { return Stage(stages + n % tiles.stages * tiles.stage_bytes()); };
    const auto start = [&](int n) {
        if (n < count) stage(n).load(p, block(g, begin + n));
        commit_copies();
    };
    const BiasBlock::Pairs first = block(g, 0);
    const BiasRows bias = p.scores.biases[0].rows_of(first.batch, first.head);
    load_tile_async<BiasTile, tiles.threads()>(
        bias_tile,
        reinterpret_cast<const std::uint16_t*>(bias.data) + block.row * bias.row_stride + block.key,
        bias.row_stride, p.mask.queries - block_row, p.mask.keys - block_key);
#pragma unroll
    for (int n = 0; n < tiles.stages - 1; ++n) start(n);

    const int row = block_row + warp_row, key = block_key + warp_key;
    const bool sees_all = p.mask.sees_all(row, tiles.warp_rows, key, tiles.warp_keys);
    const auto lane_bias = LanePointer<BiasTile>::stacked(bias_tile + warp_row * BiasTile::row_bytes);
    const int lane_row = (warp_row + lane_index() / 4) * 4;
    const bool has_large_lse = *p.has_large_lse != 0;
    FragmentC sum[m_tiles][s_tiles];
    clear(sum);
    for (int n = 0; n < count; ++n) {
        wait_for_copies<tiles.stages - 2>();
        __syncthreads();  // the inputs for n are copied, and no warp reads the stage that is loaded next
        start(n + tiles.stages - 1);

        const Stage inputs = stage(n);
        FragmentC s[m_tiles][s_tiles], d_p[m_tiles][s_tiles];
        clear(s);
        clear(d_p);
        multiply_a_bt<T, head_dim, 2>(s,
                                      LanePointer<RowTile>::stacked(inputs.q + warp_row * RowTile::row_bytes),
                                      LanePointer<KeyTile>::paired(inputs.k + warp_key * KeyTile::row_bytes));
        multiply_a_bt<T, head_dim, 2>(
            d_p, LanePointer<RowTile>::stacked(inputs.d_o + warp_row * RowTile::row_bytes),
            LanePointer<KeyTile>::paired(inputs.v + warp_key * KeyTile::row_bytes));
        if (p.scores.biases[1].data != nullptr) {
            add_key_bias<T>(s, p.scale, inputs.key_bias, p.scores.biases[1].dtype, warp_key);
        } else {
            scale(s, p.scale);
        }
        if (!sees_all) mask_scores(s, p.mask, row, key);
        const BiasBlock::Pairs pairs = block(g, begin + n);
        const RowReferences references(p.lse, p.lse_remainder,
                                       static_cast<std::int64_t>(pairs.batch) * p.sizes.heads + pairs.head,
                                       p.mask.queries);
        add_d_s<T>(sum, s, d_p, lane_bias, warp_key, inputs.lse + lane_row, inputs.delta + lane_row,
                   has_large_lse, references, row + lane_index() / 4);
    }
    wait_for_copies<0>();
    const BiasGradient into = parts.count == 1 ? g : sums_of_part(g, parts, part, p.mask);
    for_each_element(sum, [&](float& element, int m, int column, int e) {
        block.store(into, warp_row + m * 16 + e / 2 * 8 + lane_index() / 4,
                    warp_key + column * 8 + lane_index() % 4 * 2 + e % 2, element, p.mask.queries,
                    p.mask.keys);
    });
}

}  // namespace device

template <int head_dim, int shared_limit>
struct Bits16PairBiasGradientPolicy {
    static constexpr auto tiles = Bits16PairBiasGradientChoice<head_dim>::tiles(shared_limit);
};

template <class T>
void launch_pair_bias_gradient(const Bits16BackwardParameters& p, const Tiles& planned,
                               const BiasGradient& gradient, const BiasGradientParts& parts,
                               cudaStream_t stream) {
    const auto launch = [&]<int head_dim>() {
        visit_shared_memory<Bits16PairBiasGradientChoice<head_dim>>(
            planned.shared_limit, [&]<int limit>(SharedMemory<limit>) {
                using Policy = Bits16PairBiasGradientPolicy<head_dim, limit>;
                constexpr auto tiles = Policy::tiles;
                const dim3 blocks(
                    device::bias_blocks(gradient, p.mask.queries, p.mask.keys, tiles.rows, tiles.keys),
                    static_cast<unsigned>(parts.count));
                gradtile::cuda::launch_on(
                    stream, device::pair_bias_gradient_kernel<T, head_dim, Policy>, blocks,
                    {static_cast<unsigned>(tiles.threads()), static_cast<std::size_t>(tiles.shared_bytes()),
                     /*starts_early=*/true},
                    p, gradient, parts);
            });
    };
    visit_head_dim(Bits16HeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim),
                   [&]<int head_dim>(HeadDim<head_dim>) {
                       if constexpr (has_kernels(RuleKind::pair_bias, head_dim))
                           launch.template operator()<head_dim>();
                   });
    add_bias_gradient_parts(gradient, parts, p.mask, stream);
}

}  // namespace gradtile::attention::cuda
