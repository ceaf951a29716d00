#pragma once
/// FlashAttention (Dao et al. 2022) on the GPU: algorithm 1 forward, algorithm 4 backward. In both passes the
/// outer loop is over key blocks, which stay in shared memory, the paper's fast memory. Every key block
/// loads, updates and stores O, m and l for the rows that see it; the backward pass does the same with dQ.
///
/// The paper's first version has one thread block per head. Here, if there are too few heads to fill the GPU,
/// several thread blocks compute one head: they divide its rows in the forward pass, and its key blocks in
/// the backward pass. In the forward pass rows are independent, so each warp has its own rows and waits for
/// other warps only when the key block changes.
#include <gradtile/attention/cuda/literature/tiles.cuh>
#include <gradtile/core/cuda/device/async_copy.cuh>

namespace gradtile::attention::cuda::tiled {

/// Shared memory holds a key block's K and V in tiles, each warp's Q rows in stages, and each warp's scratch
/// memory. S stays in registers.
template <class Tiles, int shared_limit>
struct Flash1ForwardLayout {
    static constexpr int fast_bytes = shared_limit - rule_shared_bytes;
    static constexpr int bytes_with(int key_tiles, int query_stages) {
        return key_tiles * 2 * Tiles::key_bytes +
               Tiles::warps * (query_stages * Tiles::query_bytes + Tiles::scratch_bytes);
    }
    /// The paper's B_c = ceil(M / 4d) for a fast memory with M elements, in whole tiles; smaller if the other
    /// tiles would not fit.
    static constexpr int choose_key_tiles() {
        const int m = fast_bytes / int{sizeof(typename Tiles::T)}, d = Tiles::head_dim;
        int tiles = (m + 4 * d - 1) / (4 * d) / Tiles::keys;
        if (tiles < 1) tiles = 1;
        while (tiles > 1 && bytes_with(tiles, 1) > fast_bytes) tiles = (tiles + 1) / 2;
        return tiles;
    }
    static constexpr int key_tiles = choose_key_tiles();
    static constexpr int query_stages = bytes_with(key_tiles, 2) <= fast_bytes ? 2 : 1;
    static constexpr int keys = key_tiles * Tiles::keys, rows = Tiles::warps * Tiles::warp_rows;
    static constexpr int k = 0, v = key_tiles * Tiles::key_bytes, q = 2 * v,
                         scratch = q + Tiles::warps * query_stages * Tiles::query_bytes,
                         bytes = bytes_with(key_tiles, query_stages);
};

template <class Tiles, class Layout>
__global__ void __launch_bounds__(Tiles::threads, 1)
    flash1_forward_kernel(const __grid_constant__ TiledForwardParameters<typename Tiles::T> p) {
    using T = typename Tiles::T;
    using A = typename Tiles::A;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ RuleInShared<A> rule;
    const DeviceMask& mask = p.mask;
    const int batch_head = static_cast<int>(blockIdx.x) / p.splits,
              split = static_cast<int>(blockIdx.x) % p.splits;
    const int batch = batch_head / p.sizes.heads, head = batch_head % p.sizes.heads, warp = warp_index();
    const StridedRows<const T> q = p.q.head(batch, head), k = p.k.head(batch, head / p.sizes.group),
                               v = p.v.head(batch, head / p.sizes.group);
    const StridedRows<A> o = p.o_sums.head(batch, head);
    const std::int64_t statistics = std::int64_t{batch_head} * mask.queries;
    A *const m = p.row_max + statistics, *const l = p.row_sum + statistics;
    // Row strips are assigned in turn to the warps in all splits. Only a strip's warp reads and writes the
    // strip's O, m and l.
    constexpr int strip = Tiles::warp_rows;
    const int own_row = (split * Tiles::warps + warp) * strip, step = p.splits * Tiles::warps * strip;
    const auto scratch = Tiles::at(shared, Layout::scratch + warp * Tiles::scratch_bytes);
    const auto q_tile = [&](int stage) {
        return Tiles::at(shared, Layout::q + (warp * Layout::query_stages + stage % Layout::query_stages) *
                                                 Tiles::query_bytes);
    };
    const auto load_queries = [&](int stage, int row, int end_row) {
        if (row < end_row)
            Tiles::load_queries(q_tile(stage), rows_from(q, row, mask.queries, p.sizes.qk_dim));
        commit_copies();
    };

    if (threadIdx.x == 0) rule.set(p.scores.template rule_of<A>(batch, head));
    __syncthreads();
    const Scoring<A> scoring{mask, &rule.get(), p.scale};
    typename Tiles::Rows state;
    state.start(rule.get().sink);
    for (int row = own_row; row < mask.queries; row += step) {
        state.store_statistics(m + row, l + row, mask.queries - row);
        state.store_output(rows_from(o, row, mask.queries, p.sizes.v_dim), A(1));
    }
    for (int block = 0; block < mask.keys; block += Layout::keys) {
        const int end_key = min(block + Layout::keys, mask.keys);
        const int first_row = mask.first_row(block), end_row = mask.end_row(end_key - 1);
        if (first_row >= end_row) continue;
        __syncthreads();  // all warps have read the previous key block
        for (int key = block; key < end_key; key += Tiles::keys) {
            const int tile = (key - block) / Tiles::keys * Tiles::key_bytes;
            Tiles::load_keys(Tiles::at(shared, Layout::k + tile),
                             rows_from(k, key, mask.keys, p.sizes.qk_dim));
            Tiles::load_keys(Tiles::at(shared, Layout::v + tile),
                             rows_from(v, key, mask.keys, p.sizes.v_dim));
        }
        // `row` begins this warp's first strip that contains a row >= first_row.
        const int earlier = max(0, first_row - (own_row + strip) + 1);
        int row = own_row + (earlier + step - 1) / step * step;
        load_queries(0, row, end_row);
        wait_for_copies<0>();
        __syncthreads();  // the keys are in shared memory
        for (int i = 0; row < end_row; ++i, row += step) {
            wait_for_copies<0>();
            __syncwarp();  // Q, m and l are visible to the warp, which no longer reads the other stage
            if constexpr (Layout::query_stages == 2) load_queries(i + 1, row + step, end_row);
            state.load_statistics(m + row, l + row, mask.queries - row);
            state.load_output(rows_from(o, row, mask.queries, p.sizes.v_dim));
#pragma unroll 1
            for (int key = block; key < end_key; key += Tiles::keys) {
                const int tile = (key - block) / Tiles::keys * Tiles::key_bytes;
                state.add_keys(q_tile(i), Tiles::at(shared, Layout::k + tile),
                               Tiles::at(shared, Layout::v + tile), scratch, scoring, row, key);
            }
            state.store_output(rows_from(o, row, mask.queries, p.sizes.v_dim), A(1));
            state.store_statistics(m + row, l + row, mask.queries - row);
            if constexpr (Layout::query_stages == 1) {
                __syncwarp();  // the warp has read Q
                load_queries(i + 1, row + step, end_row);
            }
        }
    }
    wait_for_copies<0>();
    // Computes LSE = m + ln l, and multiplies O by dropout's scale, which the sums l do not contain.
    const A dropout_scale = rule.get().dropout_scale;
    for (int row = own_row; row < mask.queries; row += step) {
        const int rows = mask.queries - row;
        __syncwarp();
        state.load_statistics(m + row, l + row, rows);
        if (dropout_scale != 1) {
            const auto o_rows = rows_from(o, row, mask.queries, p.sizes.v_dim);
            state.load_output(o_rows);
            state.store_output(o_rows, dropout_scale);
        }
        state.store_lse(p.lse + statistics + row, nullptr, rows);
        __syncwarp();  // all lanes have read m
        state.store_max_in_base_e(m + row, rows);
    }
}

/// Shared memory holds the key block's K and V, the Q and dO stages, P and dS.
template <class Tiles>
struct Flash1BackwardLayout {
    static constexpr int k = 0, v = Tiles::key_bytes, rows = 2 * Tiles::key_bytes,
                         stage_bytes = 2 * Tiles::row_bytes, p = rows + Tiles::stages * stage_bytes,
                         d_s = p + Tiles::pair_bytes, bytes = d_s + Tiles::pair_bytes;
};

/// One step in the loop over a group's query heads and, for each head, over row blocks.
struct RowStep {
    int head, row;
};

/// For each (batch, K/V head), `splits` thread blocks divide the key blocks. Each thread block adds to its
/// own part of dQ, so the addition order is fixed.
template <class Tiles>
__global__ void __launch_bounds__(Tiles::threads, 1)
    flash1_backward_kernel(const __grid_constant__ TiledBackwardParameters<typename Tiles::T> p) {
    using T = typename Tiles::T;
    using A = typename Tiles::A;
    using Layout = Flash1BackwardLayout<Tiles>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ RuleInShared<A> rules[2];
    const DeviceMask& mask = p.mask;
    const int key_heads = p.sizes.heads / p.sizes.group;
    const int batch_head = static_cast<int>(blockIdx.x) / p.splits,
              split = static_cast<int>(blockIdx.x) % p.splits;
    const int batch = batch_head / key_heads, key_head = batch_head % key_heads,
              first_head = key_head * p.sizes.group;
    const StridedRows<const T> k = p.k.head(batch, key_head), v = p.v.head(batch, key_head);
    const auto k_tile = Tiles::at(shared, Layout::k), v_tile = Tiles::at(shared, Layout::v),
               p_tile = Tiles::at(shared, Layout::p), d_s_tile = Tiles::at(shared, Layout::d_s);
    const auto q_tile = [&](int i) {
        return Tiles::at(shared, Layout::rows + i % Tiles::stages * Layout::stage_bytes);
    };
    const auto d_o_tile = [&](int i) {
        return Tiles::at(shared, Layout::rows + i % Tiles::stages * Layout::stage_bytes + Tiles::row_bytes);
    };
    const auto load_rows = [&](int i, RowStep step) {
        if (step.head < first_head + p.sizes.group) {
            if (threadIdx.x == 0) rules[i % 2].set(p.scores.template rule_of<A>(batch, step.head));
            Tiles::load_rows(q_tile(i),
                             rows_from(p.q.head(batch, step.head), step.row, mask.queries, p.sizes.qk_dim));
            Tiles::load_rows(d_o_tile(i),
                             rows_from(p.d_o.head(batch, step.head), step.row, mask.queries, p.sizes.v_dim));
        }
        commit_copies();
    };

    for (int key = split * Tiles::keys; key < mask.keys; key += p.splits * Tiles::keys) {
        const int first_row = mask.first_row(key) / Tiles::rows * Tiles::rows,
                  end_row = mask.end_row(min(key + Tiles::keys, mask.keys) - 1);
        const auto after = [&](RowStep step) {
            return step.row + Tiles::rows < end_row ? RowStep{step.head, step.row + Tiles::rows}
                                                    : RowStep{step.head + 1, first_row};
        };
        typename Tiles::KeySums d_k, d_v;
        // If first_row >= end_row, no row sees the keys.
        RowStep step{first_row < end_row ? first_head : first_head + p.sizes.group, first_row};
        __syncthreads();  // all warps have read the previous key block
        Tiles::load_keys(k_tile, rows_from(k, key, mask.keys, p.sizes.qk_dim));
        Tiles::load_keys(v_tile, rows_from(v, key, mask.keys, p.sizes.v_dim));
        load_rows(0, step);
        for (int i = 0; step.head < first_head + p.sizes.group; ++i) {
            const RowStep next = after(step);
            wait_for_copies<0>();
            __syncthreads();  // the rows are in shared memory; no warp reads the other stage, P or dS
            if constexpr (Tiles::stages == 2) load_rows(i + 1, next);
            const std::int64_t first =
                (std::int64_t{batch} * p.sizes.heads + step.head) * mask.queries + step.row;
            typename Tiles::Statistics statistics;
            statistics.load(p.reference + first, p.row_sum + first, p.delta + first, mask.queries - step.row);
            const Scoring<A> scoring{mask, &rules[i % 2].get(), p.scale};
            Tiles::compute_pairs(
                {.q = q_tile(i), .d_o = d_o_tile(i), .k = k_tile, .v = v_tile, .p = p_tile, .d_s = d_s_tile},
                statistics, scoring, p.dropout_scale, step.row, key);
            __syncthreads();  // P and dS are complete
            d_v.add(p_tile, d_o_tile(i));
            d_k.add(d_s_tile, q_tile(i));
            typename Tiles::RowSums d_q;
            d_q.add(d_s_tile, k_tile);
            const RowsInMemory<A> d_q_rows =
                rows_from(p.d_q.head(batch, step.head), step.row, mask.queries, p.sizes.qk_dim);
            d_q.template put<Write::add>({d_q_rows.first + split * p.d_q_part_stride, d_q_rows.stride,
                                          d_q_rows.rows, d_q_rows.columns},
                                         p.scale);
            if constexpr (Tiles::stages == 1) {
                __syncthreads();  // all warps have read the rows
                load_rows(i + 1, next);
            }
            step = next;
        }
        wait_for_copies<0>();
        d_v.template put<Write::store>(rows_from(p.d_v.head(batch, key_head), key, mask.keys, p.sizes.v_dim),
                                       p.dropout_scale);
        d_k.template put<Write::store>(rows_from(p.d_k.head(batch, key_head), key, mask.keys, p.sizes.qk_dim),
                                       p.scale);
    }
}

/// Returns how many thread blocks divide a head's rows: the smallest number that keeps 90% of the
/// multiprocessors busy, averaged over the run time; if there is none, the number that keeps the most busy.
/// The paper's first version has one thread block per head.
inline int flash1_row_splits(std::int64_t heads, std::int64_t row_blocks, std::int64_t processors) {
    constexpr std::int64_t most = 32;
    int best = 1;
    double best_occupancy = 0;
    for (std::int64_t splits = 1; splits <= std::min(most, row_blocks); ++splits) {
        const std::int64_t blocks = heads * splits, runs = ceil_div(blocks, processors);
        const double occupancy = static_cast<double>(blocks) / static_cast<double>(runs * processors);
        if (occupancy <= best_occupancy) continue;
        best = static_cast<int>(splits);
        best_occupancy = occupancy;
        if (occupancy >= 0.9) break;
    }
    return best;
}

template <class T>
void launch_flash1_forward(const Context& ctx, const TiledForwardParameters<T>& p) {
    visit_forward_tiles<T, 8>(p, [&]<class Tiles, int limit>() {
        using Layout = Flash1ForwardLayout<Tiles, limit>;
        static_assert(Layout::bytes + rule_shared_bytes <= limit);
        const std::int64_t heads = std::int64_t{p.batch_size} * p.sizes.heads;
        TiledForwardParameters<T> parameters = p;
        parameters.splits = flash1_row_splits(heads, ceil_div(p.mask.queries, Layout::rows),
                                              gradtile::cuda::processors_of(ctx));
        launch_blocks(ctx, flash1_forward_kernel<Tiles, Layout>, heads * parameters.splits, Tiles::threads,
                      Layout::bytes, parameters);
    });
}

template <class T>
void launch_flash1_backward(const Context& ctx, const TiledBackwardParameters<T>& p) {
    visit_backward_tiles<T, KeysAreOuter>(p, [&]<class Tiles, int limit>() {
        constexpr int bytes = Flash1BackwardLayout<Tiles>::bytes;
        static_assert(bytes + rule_shared_bytes <= limit);
        launch_blocks(ctx, flash1_backward_kernel<Tiles>,
                      std::int64_t{p.batch_size} * (p.sizes.heads / p.sizes.group) * p.splits, Tiles::threads,
                      bytes, p);
    });
}

template <class T>
BlockSizes flash1_forward_blocks(const TiledForwardParameters<T>& p) {
    BlockSizes blocks{};
    visit_forward_tiles<T, 8>(p, [&]<class Tiles, int limit>() {
        using Layout = Flash1ForwardLayout<Tiles, limit>;
        blocks = {Layout::rows, Layout::keys};
    });
    return blocks;
}
template <class T>
BlockSizes flash1_backward_blocks(const TiledBackwardParameters<T>& p) {
    BlockSizes blocks{};
    visit_backward_tiles<T, KeysAreOuter>(p, [&]<class Tiles, int>() {
        blocks = {Tiles::rows, Tiles::keys};
    });
    return blocks;
}

}  // namespace gradtile::attention::cuda::tiled
