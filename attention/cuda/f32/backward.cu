// FlashAttention-2 backward pass in float32 on the GPU (Dao 2023, algorithm 2). Each thread block takes a key
// block, keeps its dK and dV in registers, loops over query rows in steps, and adds its part to dQ.
//
// S and P are computed transposed, with keys as rows. The P^T and dS^T accumulators are then already operand
// A for dV += P^T dO and dK += dS^T Q, and only dQ += dS K needs dS in shared memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include <gradtile/attention/cuda/common/bias_gradients.h>
#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/cuda/f32/f32.h>
#include <gradtile/attention/cuda/f32/tiles.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/magnitude.cuh>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/attention/cuda/common/row_ranges.cuh>
#include <gradtile/attention/cuda/common/row_statistics.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/attention/cuda/common/split_float.cuh>
#include <gradtile/attention/cuda/common/task_order.cuh>
#include <gradtile/attention/cuda/common/turns.cuh>
#include <gradtile/attention/cuda/f32/backward_steps.cuh>
#include <gradtile/attention/cuda/f32/backward_units.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace device;

/// The backward kernel's sizes and shared-memory layout, fixed at compile time.
template <int head_dim_, int shared_limit, bool has_rule_>
struct F32BackwardPolicy {
    static constexpr int head_dim = head_dim_;
    /// Whether the kernel applies score rules and takes packed sequences and row ranges.
    static constexpr bool has_rule = has_rule_, may_be_packed = has_rule_, may_have_ranges = has_rule_;
    static constexpr F32BackwardTiles tiles = F32BackwardChoice<head_dim>::tiles(shared_limit);
    static constexpr int s_tiles = tiles.rows / tiles.warps_per_keys / 8;  ///< tiles in a warp's S^T part
    static constexpr int columns = head_dim / tiles.warps_per_keys;        ///< dK and dV columns per warp
    static constexpr int d_q_columns = head_dim / (tiles.warps() / 2);     ///< dQ columns per warp
    using KvTile = Tile<tiles.keys(), head_dim>;
    using KvPiece = Tile<std::min(tiles.keys(), 32), head_dim>;  ///< the keys that are copied at one time
    using RowTile = Tile<tiles.rows, head_dim>;                  ///< Q or dO rows in one step
    using DsTile = Tile<tiles.keys(), tiles.rows>;               ///< dS^T or P^T
    // Offsets in shared memory, in bytes. P^T uses dS^T's memory unless both are needed at the same time.
    static constexpr int k = 0, v = k + split_bytes<KvTile>, q = v + split_bytes<KvTile>,
                         d_o = q + split_bytes<RowTile>, d_s = d_o + split_bytes<RowTile>,
                         p = d_s + (tiles.factor_tiles() - 1) * split_bytes<DsTile>,
                         statistics = p + split_bytes<DsTile>;
    static_assert(statistics + 2 * tiles.rows * int{sizeof(float)} == tiles.shared_bytes(head_dim));
};

/// Adds two adjacent numbers to a row. Other thread blocks also add to this row.
__device__ __forceinline__ void add_pair(float* row, int column, int columns, float first, float second,
                                         bool pairs) {
#if __CUDA_ARCH__ >= 900
    if (pairs) {
        if (column < columns)
            asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(row + column), "f"(first),
                         "f"(second)
                         : "memory");
        return;
    }
#endif
    if (column < columns) atomicAdd(row + column, first);
    if (column + 1 < columns) atomicAdd(row + column + 1, second);
}

/// The tile addresses from which a lane loads.
template <class Policy>
struct Lanes {
    LanePointer<typename Policy::KvTile> k, v;
    LanePointer<typename Policy::RowTile> q, d_o, q_transposed, d_o_transposed;
    LanePointer<typename Policy::DsTile> d_s, d_s_transposed, p;

    __device__ __forceinline__ explicit Lanes(std::uint32_t base)
        : k(k.stacked(base + Policy::k)),
          v(v.stacked(base + Policy::v)),
          q(q.paired(base + Policy::q)),
          d_o(d_o.paired(base + Policy::d_o)),
          q_transposed(q.stacked(base + Policy::q)),
          d_o_transposed(d_o.stacked(base + Policy::d_o)),
          d_s(d_s.stacked(base + Policy::d_s)),
          d_s_transposed(d_s.paired(base + Policy::d_s)),
          p(p.stacked(base + Policy::p)) {}
};

/// A warp's part in its block: 16 keys and, for these keys, some S rows and some dK and dV columns.
template <class Policy>
struct WarpPart {
    int warp, lane;
    int key, row, column;  ///< relative to the block's first key, row and column

    __device__ __forceinline__ WarpPart()
        : warp(static_cast<int>(threadIdx.x) / 32), lane(static_cast<int>(threadIdx.x) % 32) {
        const int share = warp % Policy::tiles.warps_per_keys;
        key = warp / Policy::tiles.warps_per_keys * 16;
        row = share * Policy::s_tiles * 8;
        column = share * Policy::columns;
    }
};

/// Splits the block's K and V and copies them to shared memory.
template <class Policy>
__device__ __forceinline__ void load_keys(const F32BackwardParameters& p, std::uint32_t base,
                                          const Units& units, const BlockSequence& sequence, int key_head,
                                          int first_key) {
    using KvTile = typename Policy::KvTile;
    using KvPiece = typename Policy::KvPiece;
#pragma unroll 1
    for (int key = 0; key < KvTile::rows; key += KvPiece::rows) {
        SplitTile<KvPiece, Policy::tiles.threads()> piece;
        const int first = first_key + key, valid = sequence.mask.keys - first,
                  offset = key * KvTile::row_bytes;
        piece.load(sequence.keys(p.k, key_head), first, valid, p.sizes.qk_dim, p.k_vectors);
        piece.store(base + Policy::k + offset, units.k.factor, KvTile::bytes);
        piece.load(sequence.keys(p.v, key_head), first, valid, p.sizes.v_dim, p.v_vectors);
        piece.store(base + Policy::v + offset, units.v.factor, KvTile::bytes);
    }
}

/// Computes P^T from the sums S^T, without dropped elements.
template <class Policy>
__device__ __forceinline__ void make_p(FragmentC (&x)[1][Policy::s_tiles], const DeviceMask& mask,
                                       const float* lse, const Units& units, int key, int row) {
    constexpr int s_tiles = Policy::s_tiles;
#pragma unroll
    for (int n = 0; n < s_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            x[0][n][e] =
                power_of_two(fmaf(x[0][n][e], units.score, -lse[n * 8 + e % 2])) * Units::probability;
    if (!mask.sees_all(row, s_tiles * 8, key, 16)) mask_transposed(x, 0, mask, key, row);
}

/// Computes P^T for a call with a score rule. Also computes the score derivatives, and returns which elements
/// dropout keeps: bit 4 n + e belongs to element e in tile n.
template <class Policy>
__device__ __forceinline__ std::uint32_t make_p_under_rule(FragmentC (&x)[1][Policy::s_tiles],
                                                           FragmentC (&derivatives)[1][Policy::s_tiles],
                                                           const DeviceMask& mask,
                                                           const ScoreRule<float>& rule, const float* lse,
                                                           const RowReferences* large_lse, const Units& units,
                                                           const KeyRows* key_rows, int key, int row) {
    constexpr int s_tiles = Policy::s_tiles;
    static_assert(s_tiles * 4 <= 32);
    scale(x, units.product);
    differentiate_products(x, derivatives, rule);
    add_terms<float, RowsAre::keys>(x, rule, row, key, mask.queries, mask.keys);
    const bool drops = rule.drops();
    std::uint32_t kept_elements = drops ? 0 : ~0u;
#pragma unroll
    for (int n = 0; n < s_tiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
            x[0][n][e] = Units::probability *
                         (large_lse == nullptr
                              ? power_of_two(fmaf(x[0][n][e], log2_e, -lse[n * 8 + e % 2]))
                              : exact_probability(x[0][n][e],
                                                  (*large_lse)(row + n * 8 + lane_index() % 4 * 2 + e % 2)));
        if (!drops) continue;
        const KeptOfColumns<1> kept(rule, row + n * 8, key);
#pragma unroll
        for (int e = 0; e < 4; ++e) kept_elements |= std::uint32_t{kept(0, 0, e)} << (n * 4 + e);
    }
    if (!mask.sees_all(row, s_tiles * 8, key, 16)) mask_transposed(x, 0, mask, key, row);
    if (key_rows != nullptr) mask_transposed_by_ranges(x, 0, key_rows + key, row);
    return kept_elements;
}

/// Computes P^T, without dropped elements, and dS^T for a warp's keys and rows; (first_key, first_row) is the
/// block's first pair.
template <class Policy>
__device__ __forceinline__ void compute_p_and_d_s(FragmentC (&probabilities)[1][Policy::s_tiles],
                                                  FragmentC (&d_s)[1][Policy::s_tiles],
                                                  const DeviceMask& mask, const ScoreRule<float>* rule,
                                                  const RowReferences* large_lse, const Lanes<Policy>& lanes,
                                                  const float* statistics, const Units& units,
                                                  const WarpPart<Policy>& part, const KeyRows* key_rows,
                                                  int first_key, int first_row) {
    constexpr int s_tiles = Policy::s_tiles;
    const int row = first_row + part.row, key = first_key + part.key;
    if (!mask.sees_any(row, s_tiles * 8, key, 16)) {
        clear(probabilities);
        clear(d_s);
        return;
    }
    const float* const lse = statistics + part.row + part.lane % 4 * 2;
    const float* const delta = lse + Policy::tiles.rows;
    multiply_split_a_bt<Policy::head_dim>(probabilities, lanes.k, part.key, lanes.q, part.row);
    [[maybe_unused]] FragmentC derivatives[1][s_tiles];
    [[maybe_unused]] std::uint32_t kept_elements = 0;
    if constexpr (Policy::has_rule) {
        kept_elements = make_p_under_rule<Policy>(probabilities, derivatives, mask, *rule, lse, large_lse,
                                                  units, key_rows, key, row);
    } else {
        make_p<Policy>(probabilities, mask, lse, units, key, row);
    }
    multiply_split_a_bt<Policy::head_dim>(d_s, lanes.v, part.key, lanes.d_o, part.row);
#pragma unroll
    for (int n = 0; n < s_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float& element = d_s[0][n][e];
            const float row_delta = delta[n * 8 + e % 2];
            if constexpr (Policy::has_rule) {
                const bool is_kept = kept_elements >> (n * 4 + e) & 1u;
                element = probabilities[0][n][e] * derivatives[0][n][e] *
                          (is_kept ? fmaf(element, units.d_p, -row_delta) : -row_delta);
                if (!is_kept) probabilities[0][n][e] = 0;
            } else {
                element = probabilities[0][n][e] * fmaf(element, units.d_p, -row_delta);
            }
        }
}

/// Stores the warp's P^T or dS^T part, factor[0] .. factor[s_tiles / 2 - 1], to shared memory.
template <class Policy, int k_steps>
__device__ __forceinline__ void store_factor(const LanePointer<typename Policy::DsTile>& to,
                                             const SplitA<1> (&factor)[k_steps],
                                             const WarpPart<Policy>& part) {
#pragma unroll
    for (int k = 0; k < Policy::s_tiles / 2; ++k)
#pragma unroll
        for (int plane = 0; plane < planes; ++plane)
            store_matrices(factor[k][plane][0],
                           to.at(part.key, part.row + k * 16) + plane * Policy::DsTile::bytes);
}
/// Loads P^T or dS^T for the warp's keys and all query rows from shared memory.
template <class Policy, int k_steps>
__device__ __forceinline__ void load_factor(SplitA<1> (&factor)[k_steps],
                                            const LanePointer<typename Policy::DsTile>& from,
                                            const WarpPart<Policy>& part) {
#pragma unroll
    for (int k = 0; k < k_steps; ++k) load_a(factor[k], from, part.key, k * 16);
}

/// c += P^T dO or dS^T Q, 32 columns at a time.
template <class TileB, int k_steps, int n_tiles>
__device__ __forceinline__ void add_product(FragmentC (&c)[1][n_tiles], const SplitA<1> (&a)[k_steps],
                                            const LanePointer<TileB>& b, int column) {
#pragma unroll
    for (int n = 0; n < n_tiles; n += 4) {
        SplitSum<1, 4> sum;
        multiply_split_a_b(sum, a, b, column + n * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) c[0][n + i][e] += sum.value(0, i, e);
    }
}

/// dV += P^T dO and dK += dS^T Q. Warps that share keys exchange their P^T and dS^T parts through shared
/// memory. Ends with a barrier, after which dS^T is in shared memory for dQ and all warps have read Q and dO.
template <class Policy>
__device__ __forceinline__ void add_d_k_and_d_v(FragmentC (&d_k)[1][Policy::columns / 8],
                                                FragmentC (&d_v)[1][Policy::columns / 8],
                                                const FragmentC (&probabilities)[1][Policy::s_tiles],
                                                const FragmentC (&d_s)[1][Policy::s_tiles],
                                                const Lanes<Policy>& lanes, const WarpPart<Policy>& part) {
    SplitA<1> factor[Policy::tiles.rows / 16];
    if constexpr (Policy::tiles.warps_per_keys == 1) {
        split_operands_a(factor, probabilities);
        add_product(d_v, factor, lanes.d_o_transposed, 0);
        split_operands_a(factor, d_s);
        store_factor(lanes.d_s, factor, part);
        add_product(d_k, factor, lanes.q_transposed, 0);
        __syncthreads();
    } else {
        split_operands_a(factor, probabilities);
        store_factor(lanes.p, factor, part);
        if constexpr (Policy::tiles.separate_factors) {
            split_operands_a(factor, d_s);
            store_factor(lanes.d_s, factor, part);
        }
        __syncthreads();
        load_factor(factor, lanes.p, part);
        add_product(d_v, factor, lanes.d_o_transposed, part.column);
        if constexpr (!Policy::tiles.separate_factors) {
            __syncthreads();  // all warps have read P
            split_operands_a(factor, d_s);
            store_factor(lanes.d_s, factor, part);
            __syncthreads();
        }
        load_factor(factor, lanes.d_s, part);
        add_product(d_k, factor, lanes.q_transposed, part.column);
        __syncthreads();
    }
}

/// dQ += scale dS K. Each warp computes some columns for 16 rows.
template <class Policy>
__device__ __forceinline__ void add_d_q(const F32BackwardParameters& p, const Lanes<Policy>& lanes,
                                        const Units& units, const WarpPart<Policy>& part,
                                        const BlockSequence& sequence, RowPosition position) {
    const int row = position.row + part.warp % 2 * 16 + part.lane / 4;
    const StridedRows<float> d_q_rows = sequence.queries(p.d_q, position.head);
    constexpr int group = Policy::d_q_columns >= 32 ? 4 : 2;  // 8-column tiles at a time
#pragma unroll
    for (int c = 0; c < Policy::d_q_columns; c += group * 8) {
        const int column = part.warp / 2 * Policy::d_q_columns + c;
        SplitSum<1, group> sum;
#pragma unroll
        for (int k = 0; k < Policy::tiles.keys(); k += 16) {
            SplitA<1> a;
            SplitB<group> b;
            load_a<true>(a, lanes.d_s_transposed, k, part.warp % 2 * 16);
            load_b<true>(b, lanes.k, k, column);
            sum.add_product(a, b);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (row + half * 8 >= sequence.mask.queries) continue;
            float* const to = d_q_rows.row(row + half * 8);
#pragma unroll
            for (int n = 0; n < group; ++n)
                add_pair(to, column + n * 8 + part.lane % 4 * 2, p.sizes.qk_dim,
                         sum.value(0, n, half * 2) * units.d_q, sum.value(0, n, half * 2 + 1) * units.d_q,
                         p.d_q_pairs);
        }
    }
}

/// Stores the warp's dK or dV rows, times `factor`.
template <int n_tiles>
__device__ __forceinline__ void store_rows(const FragmentC (&c)[1][n_tiles], StridedRows<float> to, int row,
                                           int end, int column, int columns, float factor, bool pairs) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row + half * 8 >= end) continue;
        float* const to_row = to.row(row + half * 8);
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
            store_pair(to_row, column + n * 8, columns, c[0][n][half * 2] * factor,
                       c[0][n][half * 2 + 1] * factor, pairs);
    }
}

/// A task's key block.
struct KeyBlock {
    BlockSequence sequence;
    int key_head, number;
    bool exists;
};
/// Tasks are in increasing key order, because with a causal mask most rows see the first keys. If dQ is added
/// in turns, tasks are in decreasing key order; Turns gives the reason.
template <class Policy>
__device__ __forceinline__ KeyBlock key_block_of_task(const F32BackwardParameters& p, int task) {
    const int key_heads = p.sizes.heads / p.sizes.group;
    if (Policy::may_be_packed && p.packed) {
        const PackedTask packed = p.key_tasks.first[p.turns ? task / key_heads : task % p.key_tasks.count];
        if (packed.sequence < 0) return {{}, 0, 0, false};
        return {BlockSequence::from_task(p.mask, p.packed, packed),
                p.turns ? task % key_heads : task / p.key_tasks.count, packed.block, true};
    }
    const auto [batch_key_head, part] = p.order(task);
    return {BlockSequence::from_batch(p.mask, batch_key_head / key_heads), batch_key_head % key_heads,
            p.turns ? p.order.parts - 1 - part : part, true};
}

template <class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), Policy::tiles.blocks_per_sm)
    backward_kernel(const __grid_constant__ F32BackwardParameters p) {
    constexpr F32BackwardTiles tiles = Policy::tiles;
    extern __shared__ __align__(1024) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    auto* const statistics = reinterpret_cast<float*>(shared + Policy::statistics);
    const WarpPart<Policy> warp_part;

    const Turns<Policy> turns(p);
    const int task = p.turns ? take_task(p.turns, statistics) : static_cast<int>(blockIdx.x);
    const KeyBlock own = key_block_of_task<Policy>(p, task);
    if (!own.exists) return;
    const int key_head = own.key_head, key_block = own.number;
    __shared__ BlockSequence shared_sequence;
    if constexpr (Policy::may_be_packed) {
        if (threadIdx.x == 0) shared_sequence = own.sequence;
        __syncthreads();
    }
    const BlockSequence& sequence = Policy::may_be_packed ? shared_sequence : own.sequence;
    const DeviceMask& mask = sequence.mask;
    const int first_key = key_block * tiles.keys();
    const Units units(p, sequence.index, key_head, Policy::head_dim);
    load_keys<Policy>(p, base, units, sequence, key_head, first_key);

    const RowBlocks<tiles.rows> row_blocks{mask.first_row(first_key) / tiles.rows * tiles.rows,
                                           mask.end_row(min(first_key + tiles.keys(), mask.keys) - 1)};
    const int numbered_sequence = p.packed ? sequence.index : 0;
    const RangedRowBlocks<tiles.rows> ranged_row_blocks{.ranges = p.row_ranges,
                                                        .limits = {row_blocks.begin_row, row_blocks.end_row},
                                                        .batch = sequence.batch,
                                                        .end_head = (key_head + 1) * p.sizes.group,
                                                        .first_key = sequence.first_key,
                                                        .sequence = numbered_sequence,
                                                        .block = key_block,
                                                        .visits_all = p.turns != nullptr};
    const bool has_ranges = Policy::may_have_ranges && p.row_ranges;
    const bool is_seen = mask.first_row(first_key) < row_blocks.end_row;
    const int end_head = is_seen ? (key_head + 1) * p.sizes.group : 0;

    FragmentC d_k[1][Policy::columns / 8], d_v[1][Policy::columns / 8];
    clear(d_k);
    clear(d_v);
    RowStep<Policy> step(p, sequence, base, statistics, units);
    const bool has_large_lse = Policy::has_rule && p.has_large_lse != nullptr && *p.has_large_lse != 0;
    RowPosition position{key_head * p.sizes.group, row_blocks.begin_row};
    if (has_ranges && is_seen) position = ranged_row_blocks.first(position.head);
    // Score rules for this step's head and the next step's head; a head's rule is rules[head % 2].
    __shared__ SharedRule rules[Policy::has_rule ? 2 : 1];
    const auto prepare_rule = [&](int head) {
        if constexpr (Policy::has_rule) {
            if (threadIdx.x == 0) rules[head % 2].set(rule_of<float>(sequence, p.scores, head));
        }
    };
    if (position.head < end_head) prepare_rule(position.head);
    if (position.head < end_head) {
        step.load(position);
        step.store();
    }
    __syncthreads();
    while (position.head < end_head) {
        const RowPosition next = has_ranges ? ranged_row_blocks.after(position) : row_blocks.after(position);
        if (next.head < end_head) step.load(next);
        if (next.head < end_head && next.head != position.head) prepare_rule(next.head);

        const Lanes<Policy> lanes(rematerialize(base));
        FragmentC probabilities[1][Policy::s_tiles], d_s[1][Policy::s_tiles];
        const RowReferences references(p.lse, p.lse_remainder,
                                       std::int64_t{sequence.batch} * p.sizes.heads + position.head,
                                       p.mask.queries, sequence.first_query, mask.queries);
        compute_p_and_d_s(
            probabilities, d_s, mask, Policy::has_rule ? &rules[position.head % 2].get() : nullptr,
            has_large_lse ? &references : nullptr, lanes, statistics, units, warp_part,
            has_ranges ? p.row_ranges.of(sequence.batch, position.head, sequence.first_key).keys : nullptr,
            first_key, position.row);

        std::int32_t* turn = nullptr;
        if (p.turns) {
            turn = turns.counter(std::int64_t{sequence.batch} * p.sizes.heads + position.head,
                                 sequence.first_padded_row + position.row);
            turns.wait(mask, turn, position.row, key_block);
        }
        add_d_k_and_d_v(d_k, d_v, probabilities, d_s, lanes, warp_part);
        if (next.head < end_head) step.store();
        add_d_q(p, lanes, units, warp_part, sequence, position);
        if (p.turns) __threadfence();
        __syncthreads();  // the next step is in shared memory; all warps have read dS
        if (p.turns && threadIdx.x == 0) BlockTurn::pass(turn);
        position = next;
    }

    const int key = first_key + warp_part.key + warp_part.lane / 4;
    const int column = warp_part.column + warp_part.lane % 4 * 2;
    store_rows(d_k, sequence.keys(p.d_k, key_head), key, mask.keys, column, p.sizes.qk_dim, units.d_k,
               p.d_k_pairs);
    store_rows(d_v, sequence.keys(p.d_v, key_head), key, mask.keys, column, p.sizes.v_dim, units.d_v,
               p.d_v_pairs);
}

template <int head_dim, bool has_rule>
void launch_backward(const Context& ctx, F32BackwardParameters parameters, int shared_limit,
                     std::int64_t batch_key_heads) {
    gradtile::cuda::use_device(ctx.device());
    visit_shared_memory<F32BackwardChoice<head_dim>>(shared_limit, [&]<int limit>(SharedMemory<limit>) {
        using Policy = F32BackwardPolicy<head_dim, limit, has_rule>;
        constexpr F32BackwardTiles tiles = Policy::tiles;
        int key_blocks = (parameters.mask.keys + tiles.keys() - 1) / tiles.keys();
        if (parameters.packed && key_blocks > 0) {
            parameters.key_tasks = make_packed_tasks(
                static_cast<cudaStream_t>(ctx.stream()), parameters.packed,
                parameters.turns ? PackedOrder::last_keys_first : PackedOrder::first_keys_first, tiles.keys(),
                parameters.key_tasks.first);
            key_blocks = parameters.key_tasks.count;
        }
        const std::int64_t blocks = batch_key_heads * key_blocks;
        if (blocks == 0) return;
        check(blocks <= INT32_MAX, "attention: ", blocks, " blocks of keys; CUDA launches at most 2^31 - 1");
        const Sizes& sizes = parameters.sizes;
        const std::int64_t row_bytes =
            static_cast<std::int64_t>(sizeof(float)) * (2 * sizes.qk_dim + sizes.v_dim);
        parameters.order =
            TaskOrder(batch_key_heads, key_blocks, parameters.mask.queries * row_bytes * sizes.group);
        gradtile::cuda::launch(
            ctx, backward_kernel<Policy>, dim3(static_cast<unsigned>(blocks)),
            {.threads = unsigned{tiles.threads()}, .shared_bytes = tiles.shared_bytes(head_dim)}, parameters);
    });
}

}  // namespace

void f32_backward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                  const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    const DeviceMask mask(options.mask);
    const std::int64_t batch = saved.q.size(0), queries = saved.q.size(1), heads = saved.q.size(2);
    const Readable q(ctx, saved.q), k(ctx, saved.k), v(ctx, saved.v), o(ctx, saved.o), d_o(ctx, d_out.o);
    const Writable d_q(ctx, into.q, DType::f32), d_k(ctx, into.k, DType::f32), d_v(ctx, into.v, DType::f32);
    const Scratch scratch(ctx, plan);
    const Tensor lse_log2 = scratch[ScratchUse::lse], delta = scratch[ScratchUse::delta],
                 magnitudes = scratch[ScratchUse::magnitudes], turns = scratch[ScratchUse::turns];
    const bool has_d_lse = d_out.lse.defined();
    const Readable d_lse = contiguous(ctx, d_out.lse);
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v, &o, &d_o, &d_lse}) x->load(ctx);
    constexpr double log2_e = std::numbers::log2e;
    const PackedOffsets packed(options);
    const Measured measured_q{q.tensor(), true}, measured_k{k.tensor()}, measured_v{v.tensor()},
        measured_d_o{d_o.tensor(), true};
    if (has_d_lse) {
        const Tensor d_lse_column = d_lse.tensor().reshape({batch, heads, queries, 1}).transpose(1, 2);
        measure(ctx, magnitudes, packed,
                {measured_q, measured_k, measured_v, measured_d_o, {d_lse_column, true}});
    } else {
        measure(ctx, magnitudes, packed, {measured_q, measured_k, measured_v, measured_d_o});
    }
    const double dropout_scale = options.scores.dropout.scale;
    launch_row_statistics<float>(ctx, delta, lse_log2, saved.lse, log2_e, o.tensor(), d_o.tensor(),
                                 d_q.tensor(), d_lse.tensor(), 1 / dropout_scale, large_lse_flag(options));
    if (turns.defined()) fill(ctx, turns, 0.0);
    const F32BackwardParameters parameters{
        .q = tensor_view<const float>(q.tensor()),
        .k = tensor_view<const float>(k.tensor()),
        .v = tensor_view<const float>(v.tensor()),
        .d_o = tensor_view<const float>(d_o.tensor()),
        .d_q = tensor_view<float>(d_q.tensor()),
        .d_k = tensor_view<float>(d_k.tensor()),
        .d_v = tensor_view<float>(d_v.tensor()),
        .lse = saved.lse.data<float>(),
        .lse_remainder = data_or_null<float>(saved.lse_remainder),
        .has_large_lse = large_lse_flag(options),
        .lse_log2 = lse_log2.data<float>(),
        .delta = delta.data<float>(),
        .magnitudes = largest_of(magnitudes),
        .has_d_lse = has_d_lse,
        .mask = mask,
        .sizes = sizes_of(saved.q, saved.k, saved.v),
        .measured_sequences = static_cast<int>(magnitudes.size(1)),
        .scale = static_cast<float>(options.scale),
        .scale_log2 = static_cast<float>(options.scale * log2_e),
        .dropout_scale = static_cast<float>(dropout_scale),
        .scores = options.scores,
        .packed = packed,
        .key_tasks = {packed_tasks_in(scratch[ScratchUse::key_tasks])},
        .order = {},
        .q_vectors = has_vector_rows(q.tensor()),
        .k_vectors = has_vector_rows(k.tensor()),
        .v_vectors = has_vector_rows(v.tensor()),
        .d_o_vectors = has_vector_rows(d_o.tensor()),
        .d_q_pairs = has_vector_rows(d_q.tensor(), 8),
        .d_k_pairs = has_vector_rows(d_k.tensor(), 8),
        .d_v_pairs = has_vector_rows(d_v.tensor(), 8),
        .turns = data_or_null<std::int32_t>(turns),
        .turn_steps = static_cast<int>(f32_turn_steps(options.packed, queries)),
        .row_ranges = launch_row_ranges(ctx, options, saved.q.size(0), saved.q.size(2), plan.tiles.keys,
                                        scratch[ScratchUse::row_ranges])};
    visit_head_dim(
        F32HeadDims{}, std::max(parameters.sizes.qk_dim, parameters.sizes.v_dim),
        [&]<int head_dim>(HeadDim<head_dim>) {
            const std::int64_t batch_key_heads = batch * saved.k.size(2);
            if (options.scores.scores_are_products && !packed && !parameters.row_ranges) {
                launch_backward<head_dim, false>(ctx, parameters, plan.tiles.shared_limit, batch_key_heads);
            } else {
                launch_backward<head_dim, true>(ctx, parameters, plan.tiles.shared_limit, batch_key_heads);
            }
        });
    for (const Writable* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    find_non_finite_gradients(ctx, options, into);
    launch_bias_gradients<float>(ctx, options,
                                 {.q = q.tensor(),
                                  .k = k.tensor(),
                                  .v = v.tensor(),
                                  .o = o.tensor(),
                                  .d_o = d_o.tensor(),
                                  .lse = saved.lse.data<float>(),
                                  .lse_remainder = data_or_null<float>(saved.lse_remainder),
                                  .delta = delta.data<float>(),
                                  .delta_factor = static_cast<float>(dropout_scale)},
                                 into);
    if (into.sink.defined())
        launch_sink_gradient(ctx, options.scores, saved.lse, delta.data<float>(), queries, dropout_scale,
                             into.sink);
}

}  // namespace gradtile::attention::cuda
