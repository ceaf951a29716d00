#pragma once
/// Steps that the Hopper backward kernels share: tasks, copies to shared memory, P, and additions to dQ.
#include <type_traits>

#include <gradtile/attention/cuda/sm90/parameters.h>
#include <gradtile/attention/cuda/common/backward_rows.cuh>
#include <gradtile/attention/cuda/common/panel_tile.cuh>
#include <gradtile/attention/cuda/common/turns.cuh>
#include <gradtile/attention/cuda/sm90/backward_biases.cuh>
#include <gradtile/attention/cuda/sm90/d_q_ring.cuh>
#include <gradtile/attention/cuda/sm90/distance_rule.cuh>
#include <gradtile/attention/cuda/sm90/seen_blocks.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>

namespace gradtile::attention::cuda::device {

/// A key block of one K/V head, and the rows that see it, from all query heads in the head's group.
template <class Policy>
struct KeyTask {
    int batch, head, key, block;
    int key_batch_head;      ///< batch * K/V heads + head
    int begin_row, end_row;  ///< the same for every head in the group; begin_row is a multiple of tiles.rows

    /// A task with row ranges. Only the producer reads the order of key blocks and looks for visible rows.
    struct RangedBlock {
        int batch_head;  ///< in the launch; -1: there are no more tasks
        int block;
        bool has_rows;
    };
    /// The producer writes it to shared memory for the consumers. Without row ranges it is the task's number.
    using Descriptor = std::conditional_t<Policy::has_ranges, RangedBlock, int>;

    __device__ static Descriptor take(const HopperBackwardParameters& p) {
        const int index = atomicAdd(p.params.next_task, 1);
        if constexpr (Policy::has_ranges) {
            if (index >= p.tasks) return {.batch_head = -1, .block = 0, .has_rows = false};
            const TaskOrder::Task task = p.params.order.longest_first(index);
            const KeyTask first(p, {task.batch_head, 0, true});
            RangedBlock ranged{task.batch_head,
                               p.params.row_ranges.order.of(first.batch, first.head)[task.part], true};
            ranged.has_rows = KeyTask(p, ranged).is_seen(p);
            return ranged;
        } else {
            return index;
        }
    }
    __device__ static bool is_end(const HopperBackwardParameters& p, const Descriptor& descriptor) {
        if constexpr (Policy::has_ranges) {
            return descriptor.batch_head < 0;
        } else {
            return descriptor >= p.tasks;
        }
    }
    __device__ KeyTask(const HopperBackwardParameters& parameters, const Descriptor& descriptor) {
        constexpr auto tiles = Policy::tiles;
        const Bits16BackwardParameters& p = parameters.params;
        const int key_heads = p.sizes.heads / p.sizes.group;
        if constexpr (Policy::has_ranges) {
            key_batch_head = p.first_batch * key_heads + descriptor.batch_head;
            block = descriptor.block;
        } else {
            const TaskOrder::Task task = p.order(descriptor);
            key_batch_head = p.first_batch * key_heads + task.batch_head;
            // The first keys come first: under a causal mask most rows see them. With in_turns the last keys
            // come first: key blocks that run at the same time then reach a row block one after the other.
            block = Policy::in_turns ? p.order.parts - 1 - task.part : task.part;
        }
        batch = key_batch_head / key_heads;
        head = key_batch_head - batch * key_heads;
        key = block * tiles.keys;
        begin_row = p.mask.first_row(key) / tiles.rows * tiles.rows;
        end_row = p.mask.end_row(min(key + tiles.keys, p.mask.keys) - 1);
        if constexpr (Policy::has_ranges) {
            if (!descriptor.has_rows) end_row = begin_row;
        }
    }
    /// Whether a row sees one of the task's keys by the mask and the row ranges.
    __device__ bool is_seen(const HopperBackwardParameters& p) const {
        const int first_head = head * p.params.sizes.group, end_head = first_head + p.params.sizes.group;
        return p.params.mask.first_row(key) < end_row && row_blocks(p).first(first_head).head < end_head;
    }
    /// Whether the row ranges hide no pair of the row block and the task's keys.
    __device__ bool sees_all(const HopperBackwardParameters& p, int query_head, int row) const {
        return p.params.row_ranges.of(batch, query_head).blocks[block].see_all(row, row + Policy::tiles.rows);
    }
    /// Iterates over the row blocks that see the task's keys, which must have rows.
    __device__ auto row_blocks(const HopperBackwardParameters& p) const {
        if constexpr (Policy::has_ranges) {
            return RangedRowBlocks<Policy::tiles.rows>{.ranges = p.params.row_ranges,
                                                       .limits = {begin_row, end_row},
                                                       .batch = batch,
                                                       .end_head = (head + 1) * p.params.sizes.group,
                                                       .first_key = 0,
                                                       .sequence = 0,
                                                       .block = block,
                                                       .visits_all = false};
        } else {
            return RowBlocks<Policy::tiles.rows>{begin_row, end_row};
        }
    }
    __device__ bool has_rows() const { return begin_row < end_row; }
    __device__ const DeviceMask& mask(const HopperBackwardParameters& p) const { return p.params.mask; }
    __device__ BoxPosition row_box(const HopperBackwardParameters&, int box_row, int query_head) const {
        return {0, box_row, query_head, batch};
    }
    __device__ BoxPosition key_box(const HopperBackwardParameters&, int column, int box_row) const {
        return {column, box_row, head, batch};
    }
    __device__ int batch_head(const HopperBackwardParameters& p, int query_head) const {
        return batch * p.params.sizes.heads + query_head;
    }
    __device__ int first_padded_row() const { return 0; }
    __device__ int sequence_index() const { return batch; }
    /// The task's slot in the dQ accumulator ring, and how many heads have used it before.
    __device__ int slot(const HopperBackwardParameters& p) const { return key_batch_head % p.ring.slots; }
    __device__ int earlier_uses(const HopperBackwardParameters& p) const {
        return key_batch_head / p.ring.slots;
    }
};

/// A key block of one head in a packed sequence. Rows and keys count from the sequence's start.
template <class Policy>
struct PackedKeyTask {
    /// What the producer writes to shared memory for the consumers.
    struct Descriptor {
        PackedTask task;  ///< sequence is -1 if there are no more tasks
        int head;
    };
    __device__ static Descriptor take(const HopperBackwardParameters& p) {
        PackedCounters* const counters = p.params.key_tasks.counters();
        TaskOrder order = p.params.order;
        order.parts = counters->tasks;
        const int index = atomicAdd(&counters->taken, 1);
        if (index >= order.batch_heads * order.parts) return {{.sequence = -1}};
        const TaskOrder::Task order_task = order(index);
        return {p.params.key_tasks.first[order_task.part], order_task.batch_head};
    }
    __device__ static bool is_end(const HopperBackwardParameters&, const Descriptor& descriptor) {
        return descriptor.task.sequence < 0;
    }
    int head, key, block;
    int begin_row, end_row;
    int first_query, queries, first_key, keys, sequence;

    __device__ PackedKeyTask(const HopperBackwardParameters& p, const Descriptor& descriptor)
        : head(descriptor.head),
          block(descriptor.task.block),
          first_query(descriptor.task.first_query),
          queries(descriptor.task.queries),
          first_key(descriptor.task.first_key),
          keys(descriptor.task.keys),
          sequence(descriptor.task.sequence) {
        constexpr auto tiles = Policy::tiles;
        key = block * tiles.keys;
        const DeviceMask seen = mask(p);
        begin_row = seen.first_row(key) / tiles.rows * tiles.rows;
        end_row = seen.end_row(min(key + tiles.keys, keys) - 1);
    }
    __device__ bool has_rows() const { return begin_row < end_row; }
    __device__ RowBlocks<Policy::tiles.rows> row_blocks(const HopperBackwardParameters&) const {
        return {begin_row, end_row};
    }
    __device__ DeviceMask mask(const HopperBackwardParameters& p) const {
        DeviceMask mask = p.params.mask;
        mask.queries = queries;
        mask.keys = keys;
        mask.offset = p.params.packed.top_left ? 0 : keys - queries;
        return mask;
    }
    __device__ BoxPosition row_box(const HopperBackwardParameters& p, int box_row, int query_head) const {
        return packed_box({p.params.mask.queries, first_query, queries}, 0, box_row, query_head);
    }
    __device__ BoxPosition key_box(const HopperBackwardParameters& p, int column, int box_row) const {
        return packed_box({p.params.mask.keys, first_key, keys}, column, box_row, head);
    }
    __device__ int batch_head(const HopperBackwardParameters&, int query_head) const { return query_head; }
    __device__ int first_padded_row() const { return packed_padded_row(sequence, first_query); }
    __device__ int sequence_index() const { return sequence; }
};

/// The task type for a policy's kernel.
template <class Policy>
using TaskOf = std::conditional_t<Policy::is_packed, PackedKeyTask<Policy>, KeyTask<Policy>>;

/// Takes tasks and starts all copies to shared memory. One thread runs this.
template <class Policy, class Shared>
__device__ __forceinline__ void produce(const HopperBackwardParameters& p, std::uint32_t base,
                                        typename Shared::Rings& rings) {
    using KTile = typename Shared::KTile;
    using VTile = typename Shared::VTile;
    using QTile = typename Shared::QTile;
    using DoTile = typename Shared::DoTile;
    constexpr auto tiles = Policy::tiles;
    RingPosition kv(rings.kv);
    RingPosition tasks(rings.tasks);
    RingPosition q(rings.q), d_o(rings.d_o);
    BackwardBiasProducer<Policy, Shared> biases(base, rings);
    using Task = TaskOf<Policy>;
    for (;;) {
        const auto descriptor = Task::take(p);
        tasks.wait_empty();
        rings.task[tasks.stage()] = descriptor;
        tasks.full().arrive();
        tasks.advance();
        if (Task::is_end(p, descriptor)) return;
        const Task task(p, descriptor);
        // Consumers that stage dK and dV in K's and V's memory wait for K and V in any case.
        if (!Shared::stages_in_kv && !task.has_rows()) continue;
        if constexpr (Policy::may_sum_in_ring) wait_for_slot(p, task);
        kv.wait_empty();
        kv.full().arrive_and_expect(KTile::bytes + VTile::bytes);
        const BoxPosition keys = task.key_box(p, 0, task.key);
        KTile::load(base + Shared::k, p.k, keys, kv.full());
        VTile::load(base + Shared::v, p.v, keys, kv.full());
        kv.advance();
        const int group = p.params.sizes.group, first_head = task.head * group;
        const auto load_rows = [&](int head, std::int64_t first_statistic, int row, bool is_last) {
            const BoxPosition rows = task.row_box(p, row, head);
            q.wait_empty();
            if constexpr (Policy::has_ranges)
                rings.seen.rows[q.stage()] = {head, row, is_last ? 1 : 0,
                                              task.sees_all(p, head, row) ? 0 : 1};
            q.full().arrive_and_expect(QTile::bytes + Shared::statistics_bytes);
            QTile::load(base + Shared::q + q.stage() * QTile::bytes, p.q, rows, q.full());
            load_bytes(base + Shared::lse + q.stage() * Shared::statistics_bytes,
                       p.params.lse_log2 + first_statistic + row, Shared::statistics_bytes, q.full());
            q.advance();
            d_o.wait_empty();
            d_o.full().arrive_and_expect(DoTile::bytes + Shared::statistics_bytes);
            DoTile::load(base + Shared::d_o + d_o.stage() * DoTile::bytes, p.d_o, rows, d_o.full());
            load_bytes(base + Shared::delta + d_o.stage() * Shared::statistics_bytes,
                       p.params.delta + first_statistic + row, Shared::statistics_bytes, d_o.full());
            d_o.advance();
            biases.load(p, task, head, row);
        };
        const auto first_statistic_of = [&](int head) {
            return static_cast<std::int64_t>(task.batch_head(p, head)) * p.params.padded_rows +
                   task.first_padded_row();
        };
        if constexpr (Policy::has_ranges) {
            const auto row_blocks = task.row_blocks(p);
            RowPosition next;
            for (RowPosition position = row_blocks.first(first_head); position.head < first_head + group;
                 position = next) {
                next = row_blocks.after(position);
                load_rows(position.head, first_statistic_of(position.head), position.row,
                          next.head == first_head + group);
            }
        } else {
            for (int head = first_head; head < first_head + group; ++head) {
                const std::int64_t first_statistic = first_statistic_of(head);
                for (int row = task.begin_row; row < task.end_row; row += tiles.rows)
                    load_rows(head, first_statistic, row, false);
            }
        }
    }
}

/// Returns the statistics (LSE or D) for a lane's two rows in column tile n. The accumulators' columns are Q
/// rows, as in S^T. `statistics` is the address in shared memory where the row block's statistics begin.
__device__ __forceinline__ float2 row_statistics(std::uint32_t statistics, int n) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "r"(statistics + n * 32 + lane_index() % 4 * 8));
    return pair;
}

/// Replaces S^T by P^T times p_factor, also where a row does not see a key. With biases, S^T holds scores in
/// base 2; else it holds products. `lse` is the address in shared memory where the rows' LSE begins.
template <class Policy, int n_tiles>
__device__ __forceinline__ void exponentiate(FragmentC (&s)[1][n_tiles], std::uint32_t lse,
                                             const Bits16BackwardParameters& p) {
    const float factor = Policy::rule == HopperRule::biases ? 1.0f : p.scale_log2;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        const float2 shift = row_statistics(lse, n);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            s[0][n][e] = power_of_two(fmaf(s[0][n][e], factor, e % 2 == 0 ? -shift.x : -shift.y));
    }
}

/// Adds the rule's terms to S^T and replaces S^T by P^T times p_factor. (position.row, key) is the warp's
/// first pair.
template <class Policy, int n_tiles>
__device__ __forceinline__ void make_probabilities(FragmentC (&s)[1][n_tiles], std::uint32_t lse,
                                                   const Bits16BackwardParameters& p, const DeviceMask& seen,
                                                   RowPosition position, int key) {
    if constexpr (Policy::rule != HopperRule::formula)
        apply_unscaled_rule<Policy::rule, RowsAre::keys>(s, p.scores, seen, p.scale_log2, position.head,
                                                         position.row, key);
    exponentiate<Policy>(s, lse, p);
    if (!seen.sees_all(position.row, n_tiles * 8, key, 16)) mask_transposed(s, 0, seen, key, position.row);
}

/// Replaces dP^T by dS^T, from P^T in binary16. `deltas` is D's address in shared memory.
template <int n_tiles>
__device__ __forceinline__ void make_d_s_of_binary16(FragmentC (&d_p)[1][n_tiles],
                                                     const FragmentA (&p)[n_tiles / 2],
                                                     std::uint32_t deltas) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        const float2 delta = row_statistics(deltas, n);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 pair = unpack<float16>(p[n / 2][n % 2 * 2 + half]);
            float* const key_values = &d_p[0][n][half * 2];
            key_values[0] = pair.x * fmaf(key_values[0], 1 / p_factor, -delta.x);
            key_values[1] = pair.y * fmaf(key_values[1], 1 / p_factor, -delta.y);
        }
    }
}

/// Replaces S^T by P^T times p_factor, and rounds P^T without dropped elements to the left operand of dV. If
/// a function is applied to products (softcap), s becomes P^T times this function's derivative.
template <class T, class Policy, int n_tiles, class Kept>
__device__ __forceinline__ void make_left_operand(FragmentA (&left)[n_tiles / 2][1],
                                                  FragmentC (&s)[1][n_tiles], std::uint32_t lse,
                                                  const Bits16BackwardParameters& p, const DeviceMask& seen,
                                                  RowPosition position, int key, const Kept& kept) {
    if constexpr (Policy::rule != HopperRule::formula)
        make_probabilities<Policy>(s, lse, p, seen, position, key);
#pragma unroll
    for (int k = 0; k < n_tiles / 2; ++k) {
        FragmentC pair[1][2], derivatives[1][2];
        for_each_element(pair, [&](float& x, int, int n, int e) {
            x = s[0][2 * k + n][e];
            derivatives[0][n][e] = 1;
        });
        if constexpr (Policy::rule == HopperRule::formula) {
            const RowPosition pair_position{position.head, position.row + k * 16};
            if (p.scores.changes_products()) {
                const ProductFunction function(p.scores, p.scale_log2, position.head);
                for_each_element(pair, [&](float& x, int, int n, int e) {
                    const Score<float> score = function(x);
                    x = score.value;
                    derivatives[0][n][e] = score.derivative;
                });
            }
            if (p.scores.has_distance_terms())
                add_unscaled_distance_terms<RowsAre::keys>(pair, p.scores, seen, p.scale_log2, position.head,
                                                           pair_position.row, key);
            make_probabilities<Policy>(pair, lse + k * 64, p, seen, pair_position, key);
        }
        FragmentC probabilities[2];
        for_each_element(pair, [&](float& x, int, int n, int e) {
            if constexpr (may_drop(Policy::rule))
                probabilities[n][e] = kept(2 * k + n, e) ? x : 0.0f;
            else
                probabilities[n][e] = x;
            s[0][2 * k + n][e] = x * derivatives[0][n][e];
        });
        pack_fragment<T>(left[k][0], probabilities[0], probabilities[1]);
    }
}

}  // namespace gradtile::attention::cuda::device

namespace gradtile::attention::cuda {

/// Fills in the backward tasks and their order. If sequences are packed, also enqueues the kernels that write
/// the task tables. Returns the number of padded rows over all heads.
template <class Policy>
std::int64_t prepare_tasks(HopperBackwardParameters& p, const HopperBackwardTensors& x, const Context& ctx) {
    constexpr auto tiles = Policy::tiles;
    const device::Sizes& sizes = p.params.sizes;
    const std::int64_t batch_heads = std::int64_t{p.params.batch_size} * x.q.size(2),
                       key_heads = batch_heads / sizes.group;
    std::int64_t rows = batch_heads * p.params.padded_rows,
                 key_blocks = (p.params.mask.keys + tiles.keys - 1) / tiles.keys;
    if constexpr (Policy::is_packed) {
        gradtile::cuda::use_device(ctx.device());
        const auto stream = static_cast<cudaStream_t>(ctx.stream());
        p.params.padded_tasks = make_packed_tasks(stream, p.params.packed, PackedOrder::last_rows_first,
                                                  backward_row_padding, p.params.padded_tasks.first);
        p.params.key_tasks =
            make_packed_tasks(stream, p.params.packed,
                              Policy::in_turns ? PackedOrder::last_keys_first : PackedOrder::first_keys_first,
                              tiles.keys, p.params.key_tasks.first);
        rows = batch_heads * p.params.padded_tasks.count * backward_row_padding;
        key_blocks = p.params.key_tasks.count;
    }
    p.params.last_keys_first = true;
    p.params.order = device::TaskOrder::with_sets(key_heads, static_cast<int>(key_blocks), x.ring.set_heads);
    p.tasks = static_cast<int>(key_heads * key_blocks);
    return rows;
}

/// The consumers' eight warps have a turn counter each.
template <class KernelTiles>
constexpr TurnTiles turn_tiles(KernelTiles tiles) {
    return {.rows = tiles.rows, .pairs = 4, .pair_keys = tiles.keys / 4};
}

/// Calls f<in_turns, is_packed>().
template <class F>
void visit_turns_and_packing(const Bits16BackwardParameters& parameters, F&& f) {
    const bool in_turns = parameters.turns != nullptr;
    if (parameters.packed) {
        in_turns ? f.template operator()<true, true>() : f.template operator()<false, true>();
    } else {
        in_turns ? f.template operator()<true, false>() : f.template operator()<false, false>();
    }
}

}  // namespace gradtile::attention::cuda
