#pragma once
/// The forward pass for few queries and many keys with Hopper's asynchronous products and copies, for 33 to
/// 64 rows: see common/few_queries.h. With more than 32 rows the products take so long that they must overlap
/// with the copies. A producer warp copies key blocks, and one consumer warpgroup computes; two thread blocks
/// share a multiprocessor.
#include <gradtile/attention/cuda/common/few_queries.h>
#include <gradtile/attention/cuda/sm90/parameters.h>
#include <gradtile/attention/cuda/sm90/tiles.h>
#include <gradtile/attention/cuda/common/merge_splits.cuh>
#include <gradtile/attention/cuda/common/panel_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// A thread block's shared memory.
template <int head_dim>
struct FewQueriesShared {
    static constexpr FewQueriesTiles tiles{head_dim, 4};
    static constexpr int rows = FewQueriesTiles::max_rows, keys = FewQueriesTiles::keys,
                         stages = tiles.stages();
    using QTile = PanelTile<rows, head_dim>;
    using KvTile = PanelTile<keys, head_dim>;
    static constexpr int threads = warpgroup_threads + 32;
    static constexpr int q = 0, k = QTile::bytes, v = k + stages * KvTile::bytes,
                         ring = v + stages * KvTile::bytes;
    static_assert(ring == tiles.shared_bytes());
    static constexpr int bytes = ring + static_cast<int>(sizeof(Ring<stages>));
};

/// Copies Q rows to shared memory, zeros for rows that do not exist.
template <class Tile>
__device__ __forceinline__ void load_query_rows(std::uint32_t tile, const Bits16ForwardParameters& p,
                                                const SplitBlock& own) {
    constexpr int row_chunks = Tile::columns / 8, panel_chunks = Tile::panel_columns / 8;
    const int queries = p.mask.queries;
    for (int n = static_cast<int>(threadIdx.x); n < Tile::rows * row_chunks; n += warpgroup_threads) {
        const int row = n / row_chunks, chunk = n % row_chunks;
        const bool exists = row < own.rows && chunk * 8 < p.sizes.qk_dim;
        const std::uint16_t* const from =
            exists ? p.q.head(own.batch, own.first_head + row / queries).row(row % queries) + chunk * 8
                   : p.q.data;
        copy_16_bytes_async(
            tile + chunk / panel_chunks * Tile::panel_bytes + Tile::offset(row, chunk % panel_chunks), from,
            exists);
    }
    commit_copies();
    wait_for_copies<0>();
    publish_shared_writes();
}

/// Stores O and LSE for the lane's rows: the final results or, if the keys are split, one split's results.
template <class T, int head_dim>
__device__ __forceinline__ void store_few_rows(const FragmentC (&o)[1][head_dim / 8],
                                               const ExactLse (&lse)[2], const Bits16ForwardParameters& p,
                                               const SplitParameters& split, const SplitBlock& own) {
    const int queries = p.mask.queries, lane = lane_index();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = warp_index() * 16 + i * 8 + lane / 4;
        if (row >= own.rows) continue;
        const int head = own.first_head + row / queries, query = row % queries;
        const std::int64_t index = (std::int64_t{own.batch} * p.sizes.heads + head) * queries + query;
        if (gridDim.x == 1) {
            LseMerge merge;
            merge.add(lse[i]);
            merge.add(sink_of(p.scores, head));
            const float weight = merge.weight(lse[i]);
            std::uint16_t* const to = p.o.head(own.batch, head).row(query);
#pragma unroll
            for (int n = 0; n < head_dim / 8; ++n)
                if (const int column = n * 8 + lane % 4 * 2; column < p.sizes.v_dim)
                    *reinterpret_cast<std::uint32_t*>(to + column) =
                        pack<T>(weight * o[0][n][i * 2], weight * o[0][n][i * 2 + 1]);
            if (lane % 4 == 0) store_lse(p, index, merge.lse());
        } else {
            const std::int64_t part = static_cast<std::int64_t>(blockIdx.x) * split.all_rows + index;
            float* const to = split.o + part * split.columns;
#pragma unroll
            for (int n = 0; n < head_dim / 8; ++n)
                if (const int column = n * 8 + lane % 4 * 2; column < p.sizes.v_dim)
                    *reinterpret_cast<float2*>(to + column) = float2{o[0][n][i * 2], o[0][n][i * 2 + 1]};
            if (lane % 4 == 0) split.lse[part] = lse[i];
        }
    }
}

template <class T, int head_dim>
__global__ void __launch_bounds__(FewQueriesShared<head_dim>::threads, 2)
    hopper_few_queries_kernel(const __grid_constant__ HopperFewQueriesParameters parameters) {
    using Shared = FewQueriesShared<head_dim>;
    using QTile = typename Shared::QTile;
    using KvTile = typename Shared::KvTile;
    constexpr int keys = Shared::keys;
    extern __shared__ __align__(1024) unsigned char shared[];
    auto& ring = *reinterpret_cast<Ring<Shared::stages>*>(shared + Shared::ring);
    if (threadIdx.x == 0) {
        initialize(ring, warpgroup_threads / 32);
        publish_barriers();
    }
    __syncthreads();
    gradtile::cuda::device::await_predecessor();

    const Bits16ForwardParameters& p = parameters.params;
    const SplitParameters& split = parameters.split;
    const int queries = p.mask.queries;
    const SplitBlock own(split, p.sizes.heads, queries);
    const std::uint32_t base = shared_address(shared);
    RingPosition<Shared::stages> kv(ring);
    if (warp_index() == warpgroup_threads / 32) {
        if (lane_index() != 0) return;
        for (int key = own.first_key; key < own.end_key; key += keys) {
            kv.wait_empty();
            kv.full().arrive_and_expect(2 * KvTile::bytes);
            const BoxPosition box{0, key, own.first_head / p.sizes.group, own.batch};
            KvTile::load(base + Shared::k + kv.stage() * KvTile::bytes, parameters.k, box, kv.full());
            KvTile::load(base + Shared::v + kv.stage() * KvTile::bytes, parameters.v, box, kv.full());
            kv.advance();
        }
        return;
    }

    load_query_rows<QTile>(base + Shared::q, p, own);
    wait_at(1, warpgroup_threads);
    const int lane = lane_index(), warp_row = warp_index() * 16;
    const int all_see_from = p.mask.first_key(queries - 1),
              all_see_until = min(own.end_key, p.mask.end_key(0));
    FragmentC o[1][head_dim / 8];
    clear(o);
    LazyOnlineSoftmax<1> softmax(p.scale_log2);
    for (int key = own.first_key; key < own.end_key; key += keys) {
        FragmentC s[1][keys / 8];
        kv.wait_full();
        begin_products();
        start_a_bt<T, QTile, KvTile>(s[0], base + Shared::q, base + Shared::k + kv.stage() * KvTile::bytes);
        commit_products();
        await_products<0>(s[0]);
        if (key < all_see_from || key + keys > all_see_until) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int query = (warp_row + i * 8 + lane / 4) % queries;
                const int first = p.mask.first_key(query), end = min(own.end_key, p.mask.end_key(query));
#pragma unroll
                for (int n = 0; n < keys / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int j = key + n * 8 + lane % 4 * 2 + e;
                        if (j < first || j >= end) s[0][n][i * 2 + e] = -INFINITY;
                    }
            }
        }
        softmax.update(s, o);
        FragmentA probabilities[keys / 16][1];
        as_operand_a<T>(probabilities, s);
        begin_products();
        start_a_b<T, KvTile>(o[0], probabilities, base + Shared::v + kv.stage() * KvTile::bytes);
        commit_products();
        await_products<0>(o[0]);
        release(kv);
    }
    ExactLse lse[2];
    softmax.finish(o, lse);
    store_few_rows<T, head_dim>(o, lse, p, split, own);
}

}  // namespace device

template <class T>
void launch_hopper_few_queries(const Tensor& k, const Tensor& v, HopperFewQueriesParameters p,
                               const Context& ctx) {
    constexpr int head_dim = hopper_few_queries_head_dim;
    using Shared = device::FewQueriesShared<head_dim>;
    p.k = gradtile::cuda::tensor_map(k, Shared::keys, Shared::KvTile::swizzle);
    p.v = gradtile::cuda::tensor_map(v, Shared::keys, Shared::KvTile::swizzle);
    const dim3 grid(
        static_cast<unsigned>(p.split.splits),
        static_cast<unsigned>(p.params.batch_size * (p.params.sizes.heads / p.split.heads_together)));
    gradtile::cuda::launch(ctx, device::hopper_few_queries_kernel<T, head_dim>, grid,
                           {static_cast<unsigned>(Shared::threads), Shared::bytes, /*starts_early=*/true}, p);
    launch_merge_of_splits<T>(p.params, p.split, static_cast<cudaStream_t>(ctx.stream()));
}

}  // namespace gradtile::attention::cuda
