#pragma once
/// Memory-efficient attention (Rabe & Staats 2021) on the GPU. In the forward pass each thread block computes
/// a row block and loops over key blocks. Each row keeps a running maximum and a running sum, and its output
/// is rescaled when the maximum changes. The output stays in registers up to a head dim of 128 and in global
/// memory above, as in the xformers kernels. The backward pass recomputes P from the LSE, row block by row
/// block: the row block's dQ stays in registers, and its contributions are added to dK and dV in global
/// memory.
#include <algorithm>

#include <gradtile/attention/cuda/literature/tiles.cuh>
#include <gradtile/core/cuda/device/async_copy.cuh>

namespace gradtile::attention::cuda::tiled {

/// Shared memory holds each warp's Q, then the K and V stages, then each warp's scratch memory. If two stages
/// fit, the next keys are copied while the current keys are in use.
template <class Tiles, int shared_limit>
struct MemoryEfficientForwardLayout {
    static constexpr int q = 0, kv = Tiles::warps * Tiles::query_bytes, stage_bytes = 2 * Tiles::key_bytes;
    static constexpr int scratch_bytes = Tiles::warps * Tiles::scratch_bytes;
    static constexpr int stages =
        kv + 2 * stage_bytes + scratch_bytes + rule_shared_bytes <= shared_limit ? 2 : 1;
    static constexpr int scratch = kv + stages * stage_bytes, bytes = scratch + scratch_bytes;
};

template <class Tiles, class Layout>
__global__ void __launch_bounds__(Tiles::threads, 1)
    memory_efficient_forward_kernel(const __grid_constant__ TiledForwardParameters<typename Tiles::T> p) {
    using T = typename Tiles::T;
    using A = typename Tiles::A;
    constexpr int block_rows = Tiles::warps * Tiles::warp_rows;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ RuleInShared<A> rule;
    // The last rows come first: under a causal mask they have the most work.
    const DeviceMask& mask = p.mask;
    const int row_blocks = (mask.queries + block_rows - 1) / block_rows;
    const int batch_head = static_cast<int>(blockIdx.x) / row_blocks, batch = batch_head / p.sizes.heads,
              head = batch_head % p.sizes.heads;
    const int first_row = (row_blocks - 1 - static_cast<int>(blockIdx.x) % row_blocks) * block_rows;
    const int warp = warp_index(), row = first_row + warp * Tiles::warp_rows, rows = mask.queries - row;
    const StridedRows<const T> k = p.k.head(batch, head / p.sizes.group),
                               v = p.v.head(batch, head / p.sizes.group);
    const int end_key = mask.end_key(min(first_row + block_rows, mask.queries) - 1);
    const int first_key = mask.first_key(first_row) / Tiles::keys * Tiles::keys;

    const auto q_tile = Tiles::at(shared, Layout::q + warp * Tiles::query_bytes);
    const auto scratch = Tiles::at(shared, Layout::scratch + warp * Tiles::scratch_bytes);
    const auto k_tile = [&](int key) {
        return Tiles::at(shared, Layout::kv + key / Tiles::keys % Layout::stages * Layout::stage_bytes);
    };
    const auto v_tile = [&](int key) {
        return Tiles::at(
            shared, Layout::kv + key / Tiles::keys % Layout::stages * Layout::stage_bytes + Tiles::key_bytes);
    };
    const auto load_keys = [&](int key) {
        if (key < end_key) {
            Tiles::load_keys(k_tile(key), rows_from(k, key, mask.keys, p.sizes.qk_dim));
            Tiles::load_keys(v_tile(key), rows_from(v, key, mask.keys, p.sizes.v_dim));
        }
        commit_copies();
    };

    if (threadIdx.x == 0) rule.set(p.scores.template rule_of<A>(batch, head));
    Tiles::load_queries(q_tile, rows_from(p.q.head(batch, head), row, mask.queries, p.sizes.qk_dim));
    load_keys(first_key);
    __syncthreads();  // the rule is in shared memory
    const Scoring<A> scoring{mask, &rule.get(), p.scale};
    const bool keeps_output = p.sizes.v_dim <= max_columns_in_registers;
    const RowsInMemory<A> sums = rows_from(p.o_sums.head(batch, head), row, mask.queries, p.sizes.v_dim);
    typename Tiles::Rows state;
    state.start(rule.get().sink);
    if (!keeps_output) state.store_output(sums, A(1));
    for (int key = first_key; key < end_key; key += Tiles::keys) {
        wait_for_copies<0>();
        __syncthreads();  // the keys are in shared memory, and no warp reads the other stage
        if constexpr (Layout::stages == 2) load_keys(key + Tiles::keys);
        if (!keeps_output) state.load_output(sums);
        state.add_keys(q_tile, k_tile(key), v_tile(key), scratch, scoring, row, key);
        if (!keeps_output) state.store_output(sums, A(1));
        if constexpr (Layout::stages == 1) {
            __syncthreads();  // all warps have read the keys
            load_keys(key + Tiles::keys);
        }
    }
    wait_for_copies<0>();
    const A factor = rule.get().dropout_scale;
    if (keeps_output) {
        state.store_output(rows_from(p.o.head(batch, head), row, mask.queries, p.sizes.v_dim), factor);
    } else if (factor != 1) {
        state.load_output(sums);
        state.store_output(sums, factor);
    }
    const std::int64_t first = std::int64_t{batch_head} * mask.queries + row;
    state.store_lse(p.lse + first, p.lse_remainder == nullptr ? nullptr : p.lse_remainder + first, rows);
}

/// Shared memory holds the row block's Q and dO, the K and V stages, P and dS.
template <class Tiles>
struct MemoryEfficientBackwardLayout {
    static constexpr int q = 0, d_o = Tiles::row_bytes, kv = 2 * Tiles::row_bytes,
                         stage_bytes = 2 * Tiles::key_bytes, p = kv + Tiles::stages * stage_bytes,
                         d_s = p + Tiles::pair_bytes, bytes = d_s + Tiles::pair_bytes;
};

/// Computes the gradients for one row block in one head.
template <class Tiles>
__device__ __forceinline__ void differentiate_rows(const TiledBackwardParameters<typename Tiles::T>& p,
                                                   unsigned char* shared,
                                                   RuleInShared<typename Tiles::A>& rule, int batch, int head,
                                                   int first_row) {
    using T = typename Tiles::T;
    using A = typename Tiles::A;
    using Layout = MemoryEfficientBackwardLayout<Tiles>;
    const DeviceMask& mask = p.mask;
    const int key_head = head / p.sizes.group;
    const StridedRows<const T> k = p.k.head(batch, key_head), v = p.v.head(batch, key_head);
    const int end_key = mask.end_key(min(first_row + Tiles::rows, mask.queries) - 1);
    const int first_key = mask.first_key(first_row) / Tiles::keys * Tiles::keys;
    const auto q_tile = Tiles::at(shared, Layout::q), d_o_tile = Tiles::at(shared, Layout::d_o),
               p_tile = Tiles::at(shared, Layout::p), d_s_tile = Tiles::at(shared, Layout::d_s);
    const auto k_tile = [&](int key) {
        return Tiles::at(shared, Layout::kv + key / Tiles::keys % Tiles::stages * Layout::stage_bytes);
    };
    const auto v_tile = [&](int key) {
        return Tiles::at(
            shared, Layout::kv + key / Tiles::keys % Tiles::stages * Layout::stage_bytes + Tiles::key_bytes);
    };
    const auto load_keys = [&](int key) {
        if (key < end_key) {
            Tiles::load_keys(k_tile(key), rows_from(k, key, mask.keys, p.sizes.qk_dim));
            Tiles::load_keys(v_tile(key), rows_from(v, key, mask.keys, p.sizes.v_dim));
        }
        commit_copies();
    };

    __syncthreads();  // the previous row block is complete
    if (threadIdx.x == 0) rule.set(p.scores.template rule_of<A>(batch, head));
    Tiles::load_rows(q_tile, rows_from(p.q.head(batch, head), first_row, mask.queries, p.sizes.qk_dim));
    Tiles::load_rows(d_o_tile, rows_from(p.d_o.head(batch, head), first_row, mask.queries, p.sizes.v_dim));
    load_keys(first_key);
    const std::int64_t first_statistic =
        (std::int64_t{batch} * p.sizes.heads + head) * mask.queries + first_row;
    typename Tiles::Statistics statistics;
    statistics.load(p.reference + first_statistic,
                    p.row_sum == nullptr ? nullptr : p.row_sum + first_statistic, p.delta + first_statistic,
                    mask.queries - first_row);
    const Scoring<A> scoring{mask, &rule.get(), p.scale};
    typename Tiles::RowSums d_q;
    for (int key = first_key; key < end_key; key += Tiles::keys) {
        wait_for_copies<0>();
        __syncthreads();  // the keys are in shared memory; no warp reads the other stage, P or dS
        if constexpr (Tiles::stages == 2) load_keys(key + Tiles::keys);
        Tiles::compute_pairs(
            {.q = q_tile, .d_o = d_o_tile, .k = k_tile(key), .v = v_tile(key), .p = p_tile, .d_s = d_s_tile},
            statistics, scoring, p.dropout_scale, first_row, key);
        __syncthreads();  // P and dS are complete
        {
            typename Tiles::KeySums d_v;
            d_v.add(p_tile, d_o_tile);
            d_v.template put<Write::add_atomically>(
                rows_from(p.d_v.head(batch, key_head), key, mask.keys, p.sizes.v_dim), p.dropout_scale);
        }
        {
            typename Tiles::KeySums d_k;
            d_k.add(d_s_tile, q_tile);
            d_k.template put<Write::add_atomically>(
                rows_from(p.d_k.head(batch, key_head), key, mask.keys, p.sizes.qk_dim), p.scale);
        }
        d_q.add(d_s_tile, k_tile(key));
        if constexpr (Tiles::stages == 1) {
            __syncthreads();  // all warps have read the keys
            load_keys(key + Tiles::keys);
        }
    }
    wait_for_copies<0>();
    d_q.template put<Write::store>(
        rows_from(p.d_q.head(batch, head), first_row, mask.queries, p.sizes.qk_dim), p.scale);
}

/// For each (batch, K/V head), `splits` thread blocks divide the row blocks in its query heads. With one
/// split, the additions to dK and dV have a fixed order, because one thread makes all additions to an
/// element.
template <class Tiles>
__global__ void __launch_bounds__(Tiles::threads, 1)
    memory_efficient_backward_kernel(const __grid_constant__ TiledBackwardParameters<typename Tiles::T> p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ RuleInShared<typename Tiles::A> rule;
    const int key_heads = p.sizes.heads / p.sizes.group;
    const int batch_head = static_cast<int>(blockIdx.x) / p.splits,
              split = static_cast<int>(blockIdx.x) % p.splits;
    const int batch = batch_head / key_heads, key_head = batch_head % key_heads;
    const int row_blocks = (p.mask.queries + Tiles::rows - 1) / Tiles::rows;
    // The last rows come first: under a causal mask they have the most work.
    for (int i = split; i < row_blocks * p.sizes.group; i += p.splits)
        differentiate_rows<Tiles>(p, shared, rule, batch, key_head * p.sizes.group + i % p.sizes.group,
                                  (row_blocks - 1 - i / p.sizes.group) * Tiles::rows);
}

template <class T>
void launch_memory_efficient_forward(const Context& ctx, const TiledForwardParameters<T>& p) {
    visit_forward_tiles<T, 4>(p, [&]<class Tiles, int limit>() {
        using Layout = MemoryEfficientForwardLayout<Tiles, limit>;
        static_assert(Layout::bytes + rule_shared_bytes <= limit);
        constexpr int block_rows = Tiles::warps * Tiles::warp_rows;
        const std::int64_t row_blocks = (p.mask.queries + block_rows - 1) / block_rows;
        launch_blocks(ctx, memory_efficient_forward_kernel<Tiles, Layout>,
                      std::int64_t{p.batch_size} * p.sizes.heads * row_blocks, Tiles::threads, Layout::bytes,
                      p);
    });
}

template <class T>
void launch_memory_efficient_backward(const Context& ctx, const TiledBackwardParameters<T>& p) {
    visit_backward_tiles<T, RowsAreOuter>(p, [&]<class Tiles, int limit>() {
        constexpr int bytes = MemoryEfficientBackwardLayout<Tiles>::bytes;
        static_assert(bytes + rule_shared_bytes <= limit);
        TiledBackwardParameters<T> parameters = p;
        // Without a fixed order, each row block has its own thread block.
        if (p.splits == 0)
            parameters.splits = std::max(1, (p.mask.queries + Tiles::rows - 1) / Tiles::rows * p.sizes.group);
        launch_blocks(ctx, memory_efficient_backward_kernel<Tiles>,
                      std::int64_t{p.batch_size} * (p.sizes.heads / p.sizes.group) * parameters.splits,
                      Tiles::threads, bytes, parameters);
    });
}

template <class T>
BlockSizes memory_efficient_forward_blocks(const TiledForwardParameters<T>& p) {
    BlockSizes blocks{};
    visit_forward_tiles<T, 4>(p, [&]<class Tiles, int>() {
        blocks = {Tiles::warps * Tiles::warp_rows, Tiles::keys};
    });
    return blocks;
}
template <class T>
BlockSizes memory_efficient_backward_blocks(const TiledBackwardParameters<T>& p) {
    BlockSizes blocks{};
    visit_backward_tiles<T, RowsAreOuter>(p, [&]<class Tiles, int>() {
        blocks = {Tiles::rows, Tiles::keys};
    });
    return blocks;
}

}  // namespace gradtile::attention::cuda::tiled
