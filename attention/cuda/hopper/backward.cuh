#pragma once
/// FlashAttention-2 backward (Dao 2023, algorithm 2) with the asynchronous products and copies of Hopper. A
/// thread block takes blocks of keys, one after the other, and loops over the blocks of rows that see them.
///
/// S^T = K Q^T and dP^T = V dO^T have keys as rows, so the accumulators of P^T, rounded to 16 bits, are
/// already the left operand of dV = P^T dO. dS passes through shared memory, because a row of dQ = dS K sums
/// over the keys of both warpgroups; dK = dS^T Q reads it there, too, which frees registers for the next S.
/// That product runs while a warpgroup waits for the dS of the other one. Where registers allow it
/// (tiles.overlaps_blocks), dK takes dS from registers, and the products with dS run during the exponentials
/// of the next block of rows.
///
/// dQ is summed in float32 in global memory. If the order of the additions is fixed or the head dim is 128, a
/// thread of the producer's warpgroup adds from shared memory, so that consumers wait neither for turns nor
/// for the memory system. Otherwise consumers add, and unless sequences are packed, the sums exist for the
/// heads in flight only: d_q_ring.cuh.
///
/// P is multiplied by p_factor until dV and dS are complete: then also small P are normal numbers in
/// binary16.
#include <gradtile/attention/cuda/hopper/tiles.h>
#include <gradtile/attention/cuda/device/panel_tile.cuh>
#include <gradtile/attention/cuda/device/turns.cuh>
#include <gradtile/attention/cuda/hopper/backward_steps.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// The shared memory of a thread block.
template <class Policy>
struct HopperBackwardShared {
    static constexpr HopperBackwardTiles tiles = Policy::tiles;
    static_assert(tiles.stages == 2 || (tiles.overlaps_blocks && tiles.stages == 4 && tiles.rows == 64));
    using KvTile = PanelTile<tiles.keys, Policy::head_dim>;
    using RowTile = PanelTile<tiles.rows, Policy::head_dim>;
    using KTile = KvTile;
    using VTile = KvTile;
    using QTile = RowTile;
    using DoTile = RowTile;
    using DsTile = PanelTile<tiles.keys, tiles.rows>;  ///< dS^T
    static constexpr bool stages_in_kv = false;  ///< whether dK and dV are staged in the memory of K and V
    static constexpr int statistics_bytes = 4 * tiles.rows;
    static constexpr int k = 0, v = k + KvTile::bytes, d_k = v + KvTile::bytes, d_v = d_k + KvTile::bytes,
                         q = d_v + KvTile::bytes, d_o = q + tiles.stages * RowTile::bytes,
                         d_s = d_o + tiles.stages * RowTile::bytes, lse = d_s + 2 * DsTile::bytes,
                         delta = lse + tiles.stages * statistics_bytes,
                         rings = delta + tiles.stages * statistics_bytes;
    struct Rings {
        Ring<1> kv;
        Ring<tiles.stages> q, d_o;
        Ring<2> tasks;
        typename TaskOf<Policy>::Announced task[2];
        Philox::Key dropout_key;                              ///< only if Policy::may_drop
        Ring<2> d_q;                                          ///< only if adds_in_bulk
        Ring<Policy::sums_in_ring ? added_stages : 1> added;  ///< only if sums_in_ring, like finisher_tasks
        FinisherTask finisher_tasks[d_q_finishers];
        [[no_unique_address]] typename BackwardBiasShared<Policy>::Rings biases;
    };
    /// dQ of two blocks of rows in float32, in the order of DqSums, for the thread that adds in bulk. The
    /// memory is that of dK and dV, which are staged at other times, if it is large enough.
    static constexpr int d_q_bytes = 4 * tiles.rows * Policy::head_dim;
    static constexpr bool d_q_has_memory = 2 * d_q_bytes > 2 * KvTile::bytes;
    using Biases = BackwardBiasShared<Policy>;
    static constexpr int d_q = d_q_has_memory ? tiles.shared_bytes(Policy::head_dim) : d_k,
                         d_q_end = tiles.shared_bytes(Policy::head_dim) +
                                   (Policy::adds_in_bulk && d_q_has_memory ? 2 * d_q_bytes : 0),
                         biases = (d_q_end + 1023) / 1024 * 1024,
                         bytes = Biases::bytes > 0 ? biases + Biases::bytes : d_q_end;
    static constexpr int q_ring = rings + offsetof(Rings, q), d_o_ring = rings + offsetof(Rings, d_o),
                         added = rings + offsetof(Rings, added), end_added = added + 8 * added_stages;
    static_assert(sizeof(Rings) <= HopperBackwardTiles::ring_bytes);
    static_assert(rings + HopperBackwardTiles::ring_bytes <= tiles.shared_bytes(Policy::head_dim));
};

/// The turns of the thread that adds in bulk. It passes a turn when those additions are complete, and in the
/// meantime starts the next ones. Without `in_turns`, the functions do nothing.
template <bool in_turns>
class BulkTurn {
  public:
    /// Waits until all blocks of keys after `block` have added.
    __device__ __forceinline__ void wait(const std::int32_t* turn, int block) {
        if constexpr (in_turns) {
            if (load_acquire(turn) != block) {
                pass_last(block);  // others may wait for it
                while (load_acquire(turn) != block) {
                }
            }
            order_with_copies();
        }
    }
    /// Follows the start of the additions that `turn` allows. Passes the turn before it.
    __device__ __forceinline__ void pass_previous(std::int32_t* turn, int block) {
        if constexpr (in_turns) {
            if (to_pass_ != nullptr) {
                await_stores<1>();
                pass(block);
            }
            to_pass_ = turn;
        }
    }
    __device__ __forceinline__ void pass_last(int block) {
        if constexpr (in_turns) {
            if (to_pass_ == nullptr) return;
            await_stores<0>();
            pass(block);
        }
    }

  private:
    __device__ __forceinline__ void pass(int block) {
        order_with_copies();
        asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(to_pass_), "r"(block - 1) : "memory");
        to_pass_ = nullptr;
    }

    std::int32_t* to_pass_ = nullptr;  ///< the turn whose additions may not be complete
};

/// Adds the dQ of all tasks to its sums, in turns if Policy::in_turns. One thread runs this. The additions to
/// two blocks of rows are on their way at the same time.
template <class Policy>
__device__ __forceinline__ void add_in_bulk(const HopperBackwardParameters& p, std::uint32_t base,
                                            typename HopperBackwardShared<Policy>::Rings& rings) {
    using Shared = HopperBackwardShared<Policy>;
    constexpr HopperBackwardTiles tiles = Policy::tiles;
    using Task = TaskOf<Policy>;
    RingPosition tasks(rings.tasks);
    RingPosition d_q(rings.d_q);
    BulkTurn<Policy::in_turns> turn;
    order_with_copies();  // the previous kernel cleared the sums
    for (;;) {
        tasks.wait_full();
        const auto announced = rings.task[tasks.stage()];
        tasks.empty().arrive();
        tasks.advance();
        if (Task::is_end(p, announced)) break;
        const Task task(p, announced);
        const int end_head = (task.head + 1) * p.rows.sizes.group;
        const RowBlocks<tiles.rows> row_blocks{task.begin_row, task.end_row};
        RowPosition at{task.has_rows() ? task.head * p.rows.sizes.group : end_head, task.begin_row};
        for (; at.head < end_head; at = row_blocks.after(at)) {
            const std::int64_t row =
                static_cast<std::int64_t>(task.batch_head(p, at.head)) * p.rows.padded_rows +
                task.first_padded_row() + at.row;
            std::int32_t* const of_rows = p.rows.turns + row / tiles.rows * 4 * tiles.consumers;
            d_q.wait_full();
            turn.wait(of_rows, task.block);
            add_floats(p.rows.d_q_sums + row * Policy::head_dim,
                       base + Shared::d_q + d_q.stage() * Shared::d_q_bytes, Shared::d_q_bytes);
            commit_stores();
            turn.pass_previous(of_rows, task.block);
            wait_until_stores_have_read();
            d_q.empty().arrive();
            d_q.advance();
        }
        turn.pass_last(task.block);
    }
    await_stores<0>();
}

/// A consumer warpgroup. It computes dK and dV of 64 keys of each task, and its part of dQ.
template <class T, class Policy>
class BackwardConsumer {
    using Shared = HopperBackwardShared<Policy>;
    using KvTile = typename Shared::KvTile;
    using RowTile = typename Shared::RowTile;
    using DsTile = typename Shared::DsTile;
    using Task = TaskOf<Policy>;
    static constexpr HopperBackwardTiles tiles = Policy::tiles;
    static constexpr int rows = tiles.rows;
    using Scores = FragmentC[1][rows / 8];                ///< S^T and P^T, or dP^T and dS^T
    using LeftOperand = FragmentA[rows / 16][1];          ///< P^T or dS^T in 16 bits
    using Gradient = FragmentC[1][Policy::head_dim / 8];  ///< dK or dV
    using Kept = KeptQueries<rows>;
    // A warpgroup computes 64 rows of dQ: all columns of half a block of 128 rows, or half of the columns of
    // a block of 64 rows.
    static constexpr int d_q_columns = rows == 128 ? Policy::head_dim : Policy::head_dim / 2;
    using DqFragments = FragmentC[1][d_q_columns / 8];

  public:
    __device__ __forceinline__ BackwardConsumer(const HopperBackwardParameters& p, std::uint32_t base,
                                                typename Shared::Rings& rings, int warpgroup)
        : p_(p),
          base_(base),
          rings_(rings),
          kv_(rings.kv),
          tasks_(rings.tasks),
          d_q_(rings.d_q),
          biases_(base, rings, warpgroup * 64 + warp_index() % 4 * 16),
          warpgroup_(warpgroup),
          warp_(warp_index() % 4),
          added_(base + Shared::added) {}

    __device__ __forceinline__ void consume() {
        for (;;) {
            tasks_.wait_full();
            const auto announced = rings_.task[tasks_.stage()];
            release(tasks_);
            if (Task::is_end(p_, announced)) break;
            differentiate(Task(p_, announced));
        }
        if (is_first_of_warpgroup()) wait_until_stores_have_read();
    }

  private:
    __device__ __forceinline__ void differentiate(const Task& task) {
        Gradient d_k, d_v;
        clear(d_k);
        clear(d_v);
        if (task.has_rows()) {
            biases_.begin(p_, task);
            kv_.wait_full();
            if constexpr (Policy::sums_in_ring)
                sums_offset_ = (task.slot(p_) - task.head) * p_.rows.sizes.group;
            if constexpr (tiles.overlaps_blocks) {
                add_all_overlapped(d_k, d_v, task);
            } else {
                add_all(d_k, d_v, task);
            }
            release(kv_);
        }
        const float dropout_scale = Policy::may_drop ? p_.rows.dropout_scale : 1.0f;
        scale(d_k, p_.rows.scale * dropout_scale);
        scale(d_v, 1 / p_factor * dropout_scale);
        store(d_k, d_v, task);
    }

    __device__ __forceinline__ void add_all(Gradient& d_k, Gradient& d_v, const Task& task) {
        Scores s;
        start_scores(s, stage_, round_);
        const int end_head = (task.head + 1) * p_.rows.sizes.group;
        const RowBlocks<rows> row_blocks{task.begin_row, task.end_row};
        RowPosition at{task.head * p_.rows.sizes.group, task.begin_row};
        draw(task, at);
        await_products<0>(s[0]);
        for (RowPosition next = row_blocks.after(at); next.head < end_head; next = row_blocks.after(at)) {
            add_rows</*has_next=*/true>(d_k, d_v, s, task, at, next);
            at = next;
        }
        add_rows</*has_next=*/false>(d_k, d_v, s, task, at, at);
    }

    /// add_all() if tiles.overlaps_blocks. The tensor cores get the products in this order, where dK and dQ
    /// belong to the previous block of rows:
    ///
    ///     dK, dQ, dP    while P is computed
    ///     dV, next S    while dS is computed
    ///
    /// So the tensor cores have work while both warpgroups compute, although the warpgroups wait for each
    /// other's dS.
    __device__ __forceinline__ void add_all_overlapped(Gradient& d_k, Gradient& d_v, const Task& task) {
        Scores s, d_p;
        LeftOperand p, d_s;
        DqFragments d_q;
        const int end_head = (task.head + 1) * p_.rows.sizes.group;
        const RowBlocks<rows> row_blocks{task.begin_row, task.end_row};
        RowPosition at{task.head * p_.rows.sizes.group, task.begin_row}, previous = at;
        start_scores(s, stage_, round_);
        await_products<0>(s[0]);
        // All products lie in one loop body, so that ptxas gives an operand the same registers in all rounds.
        for (bool is_first = true;; is_first = false) {
            start_d_p(d_p, stage_, round_);
            await_products<3>(s[0]);
            make_probabilities<Policy>(s, base_ + Shared::lse + stage_ * Shared::statistics_bytes, p_.rows,
                                       task.mask(p_), at, task.key + warpgroup_ * 64 + warp_ * 16);
            as_operand_a<T>(p, s);
            start_with_left(d_v, p, Shared::d_o, stage_);
            await_products<2>(d_k[0], d_q[0]);
            if (!is_first) {
                release_stage(Shared::q_ring, stage_before(stage_));
                add_d_q(d_q, task, previous);
            }
            await_products<1>(d_p[0]);
            make_d_s(d_p, s);
            as_operand_a<T>(d_s, d_p);
            stage_d_s(d_p);
            const RowPosition next = row_blocks.after(at);
            if (next.head == end_head) break;
            previous = at;
            at = next;
            advance_stage();
            start_scores(s, stage_, round_);
            await_products<1>(d_v[0]);
            finish_d_s(d_k, d_q, d_s, stage_before(stage_));
        }
        await_products<0>(d_v[0]);
        finish_d_s(d_k, d_q, d_s, stage_);
        await_products<0>(d_k[0], d_q[0]);
        release_stage(Shared::q_ring, stage_);
        add_d_q(d_q, task, at);
        advance_stage();
    }

    /// Starts dK += dS^T Q and, when dS of both warpgroups is in shared memory, dQ. `stage` is that of Q and
    /// of dO, which is no longer used.
    __device__ __forceinline__ void finish_d_s(Gradient& d_k, DqFragments& d_q, const LeftOperand& d_s,
                                               int stage) {
        release_stage(Shared::d_o_ring, stage);
        start_with_left(d_k, d_s, Shared::q, stage);
        if constexpr (Policy::adds_in_bulk) {
            if (is_first_of_warpgroup()) wait_until_stores_have_read();  // then dQ may use their memory
        }
        wait_at(1, 2 * warpgroup_threads);
        begin_products();
        start_at_b<T, DsTile, KvTile>(d_q[0], base_ + Shared::d_s + d_s_buffer_ * DsTile::bytes,
                                      base_ + Shared::k + KvTile::column_offset(warpgroup_ * d_q_columns));
        commit_products();
        d_s_buffer_ ^= 1;
    }
    /// Starts gradient += left * the tile of a stage.
    __device__ __forceinline__ void start_with_left(Gradient& gradient, const LeftOperand& left, int tiles_of,
                                                    int stage) const {
        begin_products();
        start_a_b<T, RowTile>(gradient[0], left, base_ + tiles_of + stage * RowTile::bytes);
        commit_products();
    }
    /// Writes dS^T to shared memory, for dQ.
    __device__ __forceinline__ void stage_d_s(const Scores& d_s) const {
        stage_rows<T, DsTile>(base_ + Shared::d_s + d_s_buffer_ * DsTile::bytes +
                                  (warpgroup_ * 64 + warp_ * 16) * DsTile::row_bytes,
                              d_s);
        publish_shared_writes();
    }
    __device__ __forceinline__ void advance_stage() {
        stage_ = (stage_ + 1) & (tiles.stages - 1);
        round_ ^= stage_ == 0 ? 1 : 0;
    }
    __device__ __forceinline__ static int stage_before(int stage) {
        return (stage + tiles.stages - 1) & (tiles.stages - 1);
    }
    __device__ __forceinline__ void release_stage(int ring, int stage) const {
        Barrier(base_ + ring + 8 * (tiles.stages + stage)).arrive_as_warp();
    }

    /// Starts S^T = K Q^T for the rows of a stage.
    __device__ __forceinline__ void start_scores(Scores& s, int stage, int round) const {
        Barrier(base_ + Shared::q_ring + 8 * stage).wait(round);
        begin_products();
        start_a_bt<T, KvTile, RowTile>(s[0], base_ + Shared::k + warpgroup_ * 64 * KvTile::row_bytes,
                                       base_ + Shared::q + stage * RowTile::bytes);
        commit_products();
    }

    /// Starts dP^T = V dO^T for the rows of a stage.
    __device__ __forceinline__ void start_d_p(Scores& d_p, int stage, int round) const {
        Barrier(base_ + Shared::d_o_ring + 8 * stage).wait(round);
        begin_products();
        start_a_bt<T, KvTile, RowTile>(d_p[0], base_ + Shared::v + warpgroup_ * 64 * KvTile::row_bytes,
                                       base_ + Shared::d_o + stage * RowTile::bytes);
        commit_products();
    }

    /// Adds the part of a block of rows to dK and dV, and the part of the keys to the rows' dQ.
    /// S of these rows is complete. This function computes the next S while dS waits for the other warpgroup,
    /// and draws for the next rows while tensor cores compute dK and dQ.
    template <bool has_next>
    __device__ __forceinline__ void add_rows(Gradient& d_k, Gradient& d_v, Scores& p, const Task& task,
                                             RowPosition at, RowPosition next) {
        const std::uint32_t q = base_ + Shared::q + stage_ * RowTile::bytes,
                            d_o = base_ + Shared::d_o + stage_ * RowTile::bytes,
                            d_s = base_ + Shared::d_s + stage_ * DsTile::bytes;
        Scores d_p;
        start_d_p(d_p, stage_, round_);
        biases_.add_to(p_, p, at.head);
        const std::uint32_t lse = base_ + Shared::lse + stage_ * Shared::statistics_bytes;
        const int key = warp_key(task);
        LeftOperand left;
        if constexpr (Policy::may_drop) {
            make_left_operand<T, Policy>(left, p, lse, p_.rows, task.mask(p_), at, key, kept_);
        } else {
            make_probabilities<Policy>(p, lse, p_.rows, task.mask(p_), at, key);
            as_operand_a<T>(left, p);
        }
        begin_products();
        start_a_b<T, RowTile>(d_v[0], left, d_o);
        commit_products();

        await_products<1>(d_p[0]);
        make_d_s(d_p, p);
        stage_rows<T, DsTile>(d_s + (warpgroup_ * 64 + warp_ * 16) * DsTile::row_bytes, d_p);
        publish_shared_writes();
        await_products<0>(d_v[0]);  // frees the registers of P before the next S needs them
        if constexpr (has_next) start_scores(p, stage_ ^ 1, round_ ^ stage_);
        if constexpr (Policy::adds_in_bulk) {
            if (is_first_of_warpgroup()) wait_until_stores_have_read();  // then dQ may use their memory
        }
        wait_at(1, 2 * warpgroup_threads);  // dS of both warpgroups is in shared memory
        begin_products();
        start_a_b<T, DsTile, RowTile>(d_k[0], d_s + warpgroup_ * 64 * DsTile::row_bytes, q);
        commit_products();
        DqFragments d_q;
        begin_products();
        if constexpr (rows == 128) {
            start_at_b<T, DsTile, KvTile>(d_q[0], d_s + warpgroup_ * DsTile::panel_bytes, base_ + Shared::k);
        } else {
            const int column = warpgroup_ * d_q_columns;
            start_at_b<T, DsTile, KvTile>(d_q[0], d_s,
                                          base_ + Shared::k +
                                              column / KvTile::panel_columns * KvTile::panel_bytes +
                                              column % KvTile::panel_columns * 2);
        }
        commit_products();
        if constexpr (has_next) draw(task, next);
        await_products<0>(d_k[0], d_q[0], p[0]);
        Barrier(base_ + Shared::q_ring + 8 * (tiles.stages + stage_)).arrive_as_warp();
        Barrier(base_ + Shared::d_o_ring + 8 * (tiles.stages + stage_)).arrive_as_warp();
        round_ ^= stage_;
        stage_ ^= 1;
        add_d_q(d_q, task, at);
    }

    /// Replaces dP^T by dS^T.
    __device__ __forceinline__ void make_d_s(Scores& d_p, const Scores& p) const {
        const std::uint32_t deltas = base_ + Shared::delta + stage_ * Shared::statistics_bytes;
#pragma unroll
        for (int n = 0; n < rows / 8; ++n) {
            const float2 delta = row_statistics(deltas, n);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float of_dropped = e % 2 == 0 ? -delta.x : -delta.y;
                float difference = fmaf(d_p[0][n][e], 1 / p_factor, of_dropped);
                if constexpr (Policy::may_drop) difference = kept_(n, e) ? difference : of_dropped;
                d_p[0][n][e] = p[0][n][e] * difference;
            }
        }
    }
    /// Draws which elements of a block of rows are kept.
    __device__ __forceinline__ void draw(const Task& task, RowPosition at) {
        if constexpr (!Policy::may_drop) return;
        if (Policy::rule == HopperRule::formula && !drops(p_.rows.scores)) return kept_.keep_all();
        kept_.draw(head_draws(p_.rows.scores.dropout, rings_.dropout_key, task.sequence_index(), at.head),
                   at.row, warp_key(task));
    }
    __device__ __forceinline__ int warp_key(const Task& task) const {
        return task.key + warpgroup_ * 64 + warp_ * 16;
    }
    /// Adds dQ atomically, because other blocks of keys add to the same rows, or copies dQ to shared memory
    /// for the thread that adds in bulk.
    __device__ __forceinline__ void add_d_q(const DqFragments& d_q, const Task& task, RowPosition at) {
        const int first_row = (rows == 128 ? warpgroup_ * 64 : 0) + warp_ * 16,
                  first_column = rows == 128 ? 0 : warpgroup_ * d_q_columns;
        if constexpr (Policy::adds_in_bulk) {
            d_q_.wait_empty();
            const std::uint32_t to = base_ + Shared::d_q + d_q_.stage() * Shared::d_q_bytes +
                                     (first_row / 16 * (Policy::head_dim / 8) + first_column / 8) * 512 +
                                     lane_index() * 16;
#pragma unroll
            for (int n = 0; n < d_q_columns / 8; ++n)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + n * 512),
                             "f"(d_q[0][n][0]), "f"(d_q[0][n][1]), "f"(d_q[0][n][2]), "f"(d_q[0][n][3])
                             : "memory");
            publish_shared_writes();
            d_q_.full().arrive_as_warp();
            d_q_.advance();
        } else {
            const int sums_head = head_of_sums(task, at.head);
            const DqSums sums{p_.rows.d_q_sums, p_.rows.padded_rows};
            // The fragments of adjacent columns are adjacent.
            float* const to = sums.fragment<Policy::head_dim>(
                sums_head, task.first_padded_row() + at.row + first_row, first_column);
#pragma unroll
            for (int n = 0; n < d_q_columns / 8; ++n) add_float4(to + n * 128, d_q[0][n]);
            if constexpr (Policy::sums_in_ring) {
                Barrier(added_).arrive_as_warp();
                added_ += 8;
                if (added_ == base_ + Shared::end_added) added_ = base_ + Shared::added;
            }
        }
    }

    /// The number of a query head among those that have sums.
    __device__ __forceinline__ int head_of_sums(const Task& task, int head) const {
        if constexpr (Policy::sums_in_ring) return sums_offset_ + head;
        return task.batch_head(p_, head);
    }

    /// Stores dK and dV through shared memory.
    __device__ __forceinline__ void store(const Gradient& d_k, const Gradient& d_v, const Task& task) const {
        const std::uint32_t own_keys = base_ + warpgroup_ * 64 * KvTile::row_bytes,
                            warp_keys = own_keys + warp_ * 16 * KvTile::row_bytes;
        if (is_first_of_warpgroup()) wait_until_stores_have_read();
        wait_for_warpgroup();
        if constexpr (Policy::adds_in_bulk && !Shared::d_q_has_memory) {
            RingPosition<2> d_q = d_q_;
            for (int i = 0; i < 2; ++i, d_q.advance()) d_q.wait_empty();
        }
        stage_rows<T, KvTile>(warp_keys + Shared::d_k, d_k);
        stage_rows<T, KvTile>(warp_keys + Shared::d_v, d_v);
        publish_shared_writes();
        wait_for_warpgroup();
        const int key = task.key + warpgroup_ * 64;
        if (!is_first_of_warpgroup()) return;
        if (key < task.mask(p_).keys) {
#pragma unroll
            for (int i = 0; i < KvTile::panels; ++i) {
                const BoxPosition at = task.key_box(p_, i * KvTile::panel_columns, key);
                store_box(p_.d_k, at, own_keys + Shared::d_k + i * KvTile::panel_bytes);
                store_box(p_.d_v, at, own_keys + Shared::d_v + i * KvTile::panel_bytes);
            }
        }
        commit_stores();
    }

    __device__ __forceinline__ void wait_for_warpgroup() const {
        wait_at(2 + warpgroup_, warpgroup_threads);
    }

    const HopperBackwardParameters& p_;
    std::uint32_t base_;
    typename Shared::Rings& rings_;
    RingPosition<1> kv_;
    RingPosition<2> tasks_;
    RingPosition<2> d_q_;
    [[no_unique_address]] BackwardBiasReader<T, Policy, Shared> biases_;
    int stage_ = 0, round_ = 0;  ///< of Q and dO; round_ is the round's parity
    int d_s_buffer_ = 0;         ///< of the two buffers, if overlaps_blocks; else stage_
    int warpgroup_, warp_;       ///< warp_ is the warp's number in its warpgroup
    int sums_offset_ = 0;        ///< a query head's sums in the ring, minus its number in the batch
    Kept kept_;                  ///< of the rows whose S is complete or next
    std::uint32_t added_;        ///< the barrier of the next additions, if sums_in_ring
};

template <class T, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), 1)
    hopper_backward_kernel(const __grid_constant__ HopperBackwardParameters p) {
    using Shared = HopperBackwardShared<Policy>;
    constexpr HopperBackwardTiles tiles = Policy::tiles;
    extern __shared__ __align__(1024) unsigned char shared[];
    auto& rings = *reinterpret_cast<typename Shared::Rings*>(shared + Shared::rings);
    if (threadIdx.x == 0) {
        constexpr int consumer_warps = 4 * tiles.consumers;
        initialize(rings.kv, consumer_warps);
        initialize(rings.q, consumer_warps);
        initialize(rings.d_o, consumer_warps);
        initialize(rings.tasks, consumer_warps + (Policy::adds_in_bulk ? 1 : 0) +
                                    (Policy::sums_in_ring ? d_q_finishers : 0));
        if constexpr (Policy::sums_in_ring) initialize(rings.added, 1, consumer_warps);
        if constexpr (Policy::adds_in_bulk) initialize(rings.d_q, 1, consumer_warps);
        rings.biases.initialize_all(consumer_warps);
        publish_barriers();
    }
    __syncthreads();
    gradtile::cuda::device::await_predecessor();
    if constexpr (Policy::may_drop) {
        if (threadIdx.x == 0) rings.dropout_key = p.rows.scores.dropout.key();
        __syncthreads();
    }
    const std::uint32_t base = shared_address(shared);
    const int warpgroup = warpgroup_index();
    if (warpgroup == tiles.consumers) {
        release_registers_down_to<Policy::producer_registers>();
        if (threadIdx.x == tiles.consumers * warpgroup_threads) produce<Policy, Shared>(p, base, rings);
        if constexpr (Policy::adds_in_bulk) {
            if (threadIdx.x == tiles.consumers * warpgroup_threads + 32) add_in_bulk<Policy>(p, base, rings);
        }
        if constexpr (Policy::sums_in_ring) {
            const int finisher = warp_index() - 4 * tiles.consumers - 1;
            if (finisher >= 0) finish_d_q_sums<T, Policy, KeyTask<Policy>>(p, rings, finisher);
        }
    } else {
        take_registers_up_to<Policy::consumer_registers>();
        BackwardConsumer<T, Policy>(p, base, rings, warpgroup).consume();
    }
}

}  // namespace device

template <int head_dim_, bool in_turns_, bool is_packed_, HopperRule rule_,
          HopperBackwardTiles tiles_ =
              hopper_backward_tiles(head_dim_, cuda::may_drop(rule_) || rule_ == HopperRule::biases)>
struct HopperBackwardPolicy {
    static constexpr HopperRule rule = rule_;
    static constexpr bool may_drop = cuda::may_drop(rule);
    static constexpr int head_dim = head_dim_;
    static constexpr bool is_packed = is_packed_;  ///< whether sequences are packed
    static constexpr bool in_turns = in_turns_;    ///< whether additions to dQ have a fixed order
    static constexpr HopperBackwardTiles tiles = tiles_;
    static constexpr bool adds_in_bulk = in_turns || tiles.adds_in_bulk;  ///< whether one thread adds dQ
    /// Whether the sums of dQ exist for the heads in flight only.
    static constexpr bool sums_in_ring = tiles.sums_in_ring && !adds_in_bulk && !is_packed;
    // Finishers, and producers of biases, need more registers than other producers.
    static constexpr int producer_registers = !sums_in_ring    ? (rule == HopperRule::biases ? 40 : 24)
                                              : head_dim == 64 ? 56
                                                               : 40,
                         consumer_registers = 240 - (producer_registers - 24) / 2;
};

/// Completes the ring's parameters.
inline DqRing ring_of(DqRing ring, const Bits16BackwardParameters& p, const HopperBackwardTiles& tiles) {
    ring.row_blocks = p.padded_rows / tiles.rows;
    for (int row = 0; row < p.mask.queries; row += tiles.rows) {
        if (device::additions_to(p.mask, row, tiles.rows, tiles.keys) > 0) {
            ring.finished_per_use += p.sizes.group;
        } else {
            ring.has_unseen_rows = true;
        }
    }
    ring.additions = p.next_task + 1;
    ring.finished = ring.additions + std::int64_t{ring.slots} * p.sizes.group * ring.row_blocks;
    return ring;
}

template <class T, class Policy>
void launch_hopper_backward_kernels(const HopperBackwardTensors& x,
                                    const Bits16BackwardParameters& parameters, const Context& ctx) {
    using namespace gradtile::cuda;
    constexpr int head_dim = Policy::head_dim;
    using Shared = device::HopperBackwardShared<Policy>;
    constexpr HopperBackwardTiles tiles = Policy::tiles;
    constexpr int shared_bytes = Shared::bytes;
    static_assert(shared_bytes <= 227 * 1024);
    const auto map = Policy::is_packed ? packed_tensor_map : tensor_map;
    HopperBackwardParameters p{.q = map(x.q, tiles.rows, Shared::RowTile::swizzle),
                               .d_o = map(x.d_o, tiles.rows, Shared::RowTile::swizzle),
                               .k = map(x.k, tiles.keys, Shared::KvTile::swizzle),
                               .v = map(x.v, tiles.keys, Shared::KvTile::swizzle),
                               .d_k = map(x.d_k, 64, Shared::KvTile::swizzle),
                               .d_v = map(x.d_v, 64, Shared::KvTile::swizzle),
                               .rows = parameters};
    if constexpr (Policy::rule == HopperRule::biases)
        p.biases = HopperBiases(parameters.scores, x.q, parameters.mask, tiles.rows);
    const std::int64_t rows = prepare_tasks<Policy>(p, x, hopper_backward_row_bytes(head_dim, head_dim), ctx);
    constexpr Bits16BackwardTiles turns = tiles_of_turns(tiles);
    static_assert(turns.keys() == tiles.keys && turns.warps() == 4 * tiles.consumers);
    if constexpr (Policy::sums_in_ring) {
        p.ring = ring_of(x.ring, parameters, tiles);
        p.rows.order.cached_heads = p.ring.set_heads;
        launch(ctx, device::clear_d_q_ring_kernel<head_dim, tiles.rows, tiles.keys>,
               dim3(static_cast<unsigned>(4 * processors_of(ctx))), {.threads = 256, .starts_early = true},
               p);
        p.rows.d_q_sums = nullptr;  // the next kernel does not clear them
    }
    launch(ctx, device::prepare_backward_kernel<T>, blocks_for(rows, device::prepared_rows),
           {.threads = 256, .starts_early = true}, p.rows, turns, head_dim);
    p.rows.d_q_sums = parameters.d_q_sums;
    const int blocks = std::min(p.tasks, processors_of(ctx));
    launch(ctx, device::hopper_backward_kernel<T, Policy>, static_cast<unsigned>(blocks),
           {static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true}, p);
    if constexpr (!Policy::sums_in_ring)
        launch(ctx, device::finish_d_q_kernel<T, head_dim>, blocks_for(rows, device::finished_rows),
               {.threads = 128, .starts_early = true}, p.rows);
}

template <class T>
void launch_hopper_backward(const HopperBackwardTensors& x, const Bits16BackwardParameters& parameters,
                            const Context& ctx) {
    visit_head_dim(HopperBackwardHeadDims{}, std::max(parameters.sizes.qk_dim, parameters.sizes.v_dim),
                   [&]<int head_dim>(HeadDim<head_dim>) {
                       const auto launch = [&]<bool in_turns, bool is_packed>() {
                           visit_hopper_backward_rule(parameters.scores, [&]<HopperRule rule>() {
                               constexpr HopperRule of_kernel =
                                   kernel_rule(rule, head_dim, is_packed || in_turns);
                               using Policy = HopperBackwardPolicy<head_dim, in_turns, is_packed, of_kernel>;
                               if constexpr (has_hopper_kernels(of_kernel, head_dim, is_packed))
                                   launch_hopper_backward_kernels<T, Policy>(x, parameters, ctx);
                           });
                       };
                       visit_turns_and_packing(parameters, launch);
                   });
}

}  // namespace gradtile::attention::cuda
