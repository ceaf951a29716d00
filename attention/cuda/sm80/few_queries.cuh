#pragma once
/// The forward pass for few queries and many keys on 16-bit tensor cores: see common/few_queries.h. The warps
/// in a thread block divide the rows, and the keys in each key block. The warps then merge their results by
/// LSE. In the same way, a second kernel merges the results from thread blocks that share a row.
#include <gradtile/attention/cuda/common/few_queries.h>
#include <gradtile/attention/cuda/sm80/launch.h>
#include <gradtile/attention/cuda/sm80/tiles.h>
#include <gradtile/attention/cuda/common/merge_splits.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// Stores a warp's O and LSE in shared memory; `part` is the warp's number among those that share its rows.
template <int key_warps, int rows, int m_tiles, int o_tiles>
__device__ __forceinline__ void store_warp(float* warp_o, ExactLse (&warp_lse)[key_warps][rows],
                                           const FragmentC (&o)[m_tiles][o_tiles],
                                           const ExactLse (&lse)[2 * m_tiles], int part, int warp_row) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < 2 * m_tiles; ++i) {
        const int row = warp_row + i * 8 + lane / 4;
        float* const to = warp_o + (part * rows + row) * o_tiles * 8 + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < o_tiles; ++n) {
            const float* const pair = &o[i / 2][n][i % 2 * 2];
            *reinterpret_cast<float2*>(to + n * 8) = float2{pair[0], pair[1]};
        }
        if (lane % 4 == 0) warp_lse[part][row] = lse[i];
    }
}

/// Merges the warps' results by LSE into O, or into the split's partial result.
template <class T, int head_dim, int key_warps, int rows>
__device__ __forceinline__ void merge_warps(const Bits16ForwardParameters& p, const SplitParameters& split,
                                            const float* warp_o, const ExactLse (&warp_lse)[key_warps][rows],
                                            const SplitBlock& own) {
    const int queries = p.mask.queries;
    const bool is_whole = gridDim.x == 1;
    for (int n = static_cast<int>(threadIdx.x); n < own.rows * (head_dim / 2);
         n += FewQueriesTiles::threads) {
        const int row = n / (head_dim / 2), column = n % (head_dim / 2) * 2;
        const int head = own.first_head + row / queries, query = row % queries;
        if (column >= p.sizes.v_dim) continue;
        LseMerge merge;
        for (int part = 0; part < key_warps; ++part) merge.add(warp_lse[part][row]);
        if (is_whole) merge.add(sink_of(p.scores, head));
        float2 sum{0, 0};
        for (int part = 0; part < key_warps; ++part) {
            const float weight = merge.weight(warp_lse[part][row]);
            const float2 warp_values =
                *reinterpret_cast<const float2*>(warp_o + (part * rows + row) * head_dim + column);
            sum = {fmaf(weight, warp_values.x, sum.x), fmaf(weight, warp_values.y, sum.y)};
        }
        const std::int64_t index = (std::int64_t{own.batch} * p.sizes.heads + head) * queries + query;
        if (is_whole) {
            *reinterpret_cast<std::uint32_t*>(p.o.head(own.batch, head).row(query) + column) =
                pack<T>(sum.x, sum.y);
            if (column == 0) store_lse(p, index, merge.lse());
        } else {
            const std::int64_t part = static_cast<std::int64_t>(blockIdx.x) * split.all_rows + index;
            *reinterpret_cast<float2*>(split.o + part * split.columns + column) = sum;
            if (column == 0) split.lse[part] = merge.lse();
        }
    }
}

/// Starts to copy the block's queries.
template <class QTile, int rows>
__device__ __forceinline__ void start_queries(std::uint32_t q_tile, const Bits16ForwardParameters& p,
                                              const SplitBlock& own) {
    const int queries = p.mask.queries;
    for (int n = static_cast<int>(threadIdx.x); n < rows * QTile::row_chunks; n += FewQueriesTiles::threads) {
        const int row = n / QTile::row_chunks, chunk = n % QTile::row_chunks;
        const bool exists = row < own.rows && chunk * 8 < p.sizes.qk_dim;
        const std::uint16_t* const from =
            exists ? p.q.head(own.batch, own.first_head + row / queries).row(row % queries) + chunk * 8
                   : p.q.data;
        copy_16_bytes_async(q_tile + QTile::offset(row, chunk), from, exists);
    }
}

template <class T, int head_dim, int row_tiles, bool has_rule>
__global__ void __launch_bounds__(FewQueriesTiles::threads,
                                  FewQueriesTiles{head_dim, row_tiles}.blocks_per_sm())
    few_queries_kernel(const __grid_constant__ Bits16ForwardParameters p,
                       const __grid_constant__ SplitParameters split) {
    constexpr FewQueriesTiles tiles{head_dim, row_tiles};
    constexpr int stages = tiles.stages(), keys = FewQueriesTiles::keys, rows = 16 * row_tiles,
                  m_tiles = tiles.warp_row_tiles(), key_warps = 4 * m_tiles / row_tiles,
                  warp_keys = keys / key_warps;
    using QTile = Tile<rows, head_dim>;
    using KvTile = Tile<keys, head_dim>;
    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t q_tile = shared_address(shared), kv_tiles = q_tile + QTile::bytes;
    gradtile::cuda::device::await_predecessor();

    const int queries = p.mask.queries;
    const SplitBlock own(split, p.sizes.heads, queries);
    const StridedRows<const std::uint16_t> k = p.k.head(own.batch, own.first_head / p.sizes.group),
                                           v = p.v.head(own.batch, own.first_head / p.sizes.group);
    const auto load_kv = [&](int block) {
        const int key = own.first_key + block * keys;
        if (key < own.end_key) {
            const std::uint32_t stage = kv_tiles + block % stages * 2 * KvTile::bytes;
            load_tile_async<KvTile, FewQueriesTiles::threads>(stage, k.row(key), k.stride, own.end_key - key,
                                                              p.sizes.qk_dim);
            load_tile_async<KvTile, FewQueriesTiles::threads>(stage + KvTile::bytes, v.row(key), v.stride,
                                                              own.end_key - key, p.sizes.v_dim);
        }
        commit_copies();
    };
    start_queries<QTile, rows>(q_tile, p, own);
#pragma unroll
    for (int block = 0; block < stages - 1; ++block) load_kv(block);
    __shared__ SharedRule rule;
    if constexpr (has_rule) {
        if (threadIdx.x == 0) rule.set(p.scores.rule_of<float>(own.batch, own.first_head));
    }

    const int warp = warp_index(), lane = lane_index();
    const int warp_row = warp / key_warps * m_tiles * 16, warp_key = warp % key_warps * warp_keys;
    struct {
        int first_key, end_key;
    } visible[2 * m_tiles];  // for the lane's rows
#pragma unroll
    for (int i = 0; i < 2 * m_tiles; ++i) {
        const int row = warp_row + i * 8 + lane / 4, query = row % queries;
        visible[i] = {p.mask.first_key(query), row < own.rows ? min(own.end_key, p.mask.end_key(query)) : 0};
    }
    FragmentC o[m_tiles][head_dim / 8];
    clear(o);
    LazyOnlineSoftmax<m_tiles, has_rule> softmax(p.scale_log2);
    for (int block = 0; own.first_key + block * keys < own.end_key; ++block) {
        wait_for_copies<stages - 2>();
        __syncthreads();  // this block's K and V are in shared memory, and no warp reads the stage that is
                          // loaded next
        load_kv(block + stages - 1);
        const std::uint32_t stage =
            kv_tiles + block % stages * 2 * KvTile::bytes + warp_key * KvTile::row_bytes;
        const int key = own.first_key + block * keys + warp_key;
        FragmentC s[m_tiles][warp_keys / 8];
        clear(s);
        multiply_a_bt<T, head_dim, 4>(s, LanePointer<QTile>::stacked(q_tile + warp_row * QTile::row_bytes),
                                      LanePointer<KvTile>::paired(stage));
        if (p.prescale != 1.0f) scale(s, p.prescale);
        if constexpr (has_rule) apply_rule<T>(s, rule.get(), warp_row, key, queries, p.mask.keys);
        for_each_element(s, [&](float& score, int m, int n, int e) {
            const auto [first, end] = visible[2 * m + e / 2];
            const int j = key + n * 8 + lane % 4 * 2 + e % 2;
            if (j < first || j >= end) score = -INFINITY;
        });
        softmax.update(s, o);
        if constexpr (has_rule) drop(s, rule.get(), warp_row, key);
        FragmentA probabilities[warp_keys / 16][m_tiles];
        as_operand_a<T>(probabilities, s);
        multiply_a_b<T>(o, probabilities, LanePointer<KvTile>::stacked(stage + KvTile::bytes));
    }
    ExactLse lse[2 * m_tiles];
    if constexpr (has_rule) {
        softmax.finish(o, lse, rule.get().dropout_scale);
    } else {
        softmax.finish(o, lse);
    }

    // The warps' results, in K's and V's memory.
    wait_for_copies<0>();
    __syncthreads();
    auto* const warp_o = reinterpret_cast<float*>(shared + QTile::bytes);  // [key_warps, rows, head_dim]
    __shared__ ExactLse warp_lse[key_warps][rows];
    store_warp(warp_o, warp_lse, o, lse, warp % key_warps, warp_row);
    __syncthreads();
    merge_warps<T, head_dim, key_warps>(p, split, warp_o, warp_lse, own);
}

}  // namespace device

template <class T>
void launch_few_queries(const Bits16ForwardParameters& p, const SplitParameters& split, cudaStream_t stream) {
    using gradtile::cuda::launch_on;
    const int rows = split.heads_together * p.mask.queries;
    const auto launch = [&]<int head_dim, int row_tiles>() {
        const auto kernel = p.rule == RuleKind::none
                                ? device::few_queries_kernel<T, head_dim, row_tiles, false>
                                : device::few_queries_kernel<T, head_dim, row_tiles, true>;
        const dim3 grid(static_cast<unsigned>(split.splits),
                        static_cast<unsigned>(p.batch_size * (p.sizes.heads / split.heads_together)));
        launch_on(stream, kernel, grid,
                  {.threads = FewQueriesTiles::threads,
                   .shared_bytes = FewQueriesTiles{head_dim, row_tiles}.shared_bytes(),
                   .starts_early = true},
                  p, split);
    };
    visit_head_dim(Bits16HeadDims{}, std::max(p.sizes.qk_dim, p.sizes.v_dim),
                   [&]<int head_dim>(HeadDim<head_dim>) {
                       if (rows <= 16) return launch.template operator()<head_dim, 1>();
                       if (rows <= 32) return launch.template operator()<head_dim, 2>();
                       launch.template operator()<head_dim, 4>();
                   });
    launch_merge_of_splits<T>(p, split, stream);
}

}  // namespace gradtile::attention::cuda
