#pragma once
/// Consumer warpgroups for the Hopper backward kernel (backward.cuh).
#include <gradtile/attention/cuda/sm90/backward_shared.cuh>

namespace gradtile::attention::cuda::device {

/// A consumer warpgroup. It computes dK and dV for 64 keys in each task, and its part of dQ.
///
/// The steps below are in mathematical order. The two functions that add a row block put them in the order in
/// which the tensor cores work best, and are defined in their own files.
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
    // A warpgroup computes 64 dQ rows: all columns of half a 128-row block, or half the columns of a 64-row
    // block.
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
          warp_(warp_index() % 4) {}

    __device__ __forceinline__ void consume() {
        for (;;) {
            tasks_.wait_full();
            const auto descriptor = rings_.task[tasks_.stage()];
            release(tasks_);
            if (Task::is_end(p_, descriptor)) break;
            differentiate(Task(p_, descriptor));
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
            loop_over_rows(d_k, d_v, task);
            release(kv_);
        }
        const float dropout_scale = Policy::may_drop ? p_.params.dropout_scale : 1.0f;
        scale(d_k, p_.params.scale * dropout_scale);
        scale(d_v, 1 / p_factor * dropout_scale);
        if constexpr (Policy::rule == HopperRule::biases || Policy::has_ranges) {
            if (!is_finite(d_k)) *p_.params.non_finite = 1;
        }
        store(d_k, d_v, task);
    }

    /// Adds the contributions from all rows that see the task's keys to dK and dV, and the keys'
    /// contributions to these rows' dQ.
    __device__ __forceinline__ void loop_over_rows(Gradient& d_k, Gradient& d_v, const Task& task);
    /// The same with row ranges: the producer says which row blocks the stages hold.
    __device__ __forceinline__ void loop_over_seen_rows(Gradient& d_k, Gradient& d_v, const Task& task);
    /// Adds the contributions from a row block whose S^T is complete in `s`; defined in backward_loop.cuh or,
    /// if tiles.keeps_p_in_16_bits, backward_16_bit_p.cuh. If there is a next row block, its S^T is complete
    /// afterwards.
    template <bool has_next>
    __device__ __forceinline__ void add_rows(Gradient& d_k, Gradient& d_v, Scores& s, const Task& task,
                                             RowPosition position, RowPosition next);
    template <bool has_next>
    __device__ __forceinline__ void add_rows_with_16_bit_p(Gradient& d_k, Gradient& d_v, Scores& s,
                                                           const Task& task, RowPosition position);

    // Addresses in shared memory: the tiles and LSE for a stage's rows, and a dS^T buffer.
    __device__ __forceinline__ std::uint32_t q_tile(int stage) const {
        return base_ + Shared::q + stage * RowTile::bytes;
    }
    __device__ __forceinline__ std::uint32_t d_o_tile(int stage) const {
        return base_ + Shared::d_o + stage * RowTile::bytes;
    }
    __device__ __forceinline__ std::uint32_t lse_of_rows(int stage) const {
        return base_ + Shared::lse + stage * Shared::statistics_bytes;
    }
    __device__ __forceinline__ std::uint32_t d_s_tile(int buffer) const {
        return base_ + Shared::d_s + buffer * DsTile::bytes;
    }

    /// Starts S^T = K Q^T for a stage's rows.
    __device__ __forceinline__ void start_scores(Scores& s, int stage, int round) const {
        Barrier(base_ + Shared::q_ring + 8 * stage).wait(round);
        begin_products();
        start_a_bt<T, KvTile, RowTile>(s[0], base_ + Shared::k + warpgroup_ * 64 * KvTile::row_bytes,
                                       q_tile(stage));
        commit_products();
    }

    /// Draws which elements in a row block are kept.
    __device__ __forceinline__ void draw(const Task& task, RowPosition position) {
        if constexpr (!Policy::may_drop) return;
        if (Policy::rule == HopperRule::formula && !p_.params.scores.drops()) return kept_.keep_all();
        kept_.draw(
            head_draws(p_.params.scores.dropout, rings_.dropout_key, task.sequence_index(), position.head),
            position.row, warp_key(task));
    }
    __device__ __forceinline__ int warp_key(const Task& task) const {
        return task.key + warpgroup_ * 64 + warp_ * 16;
    }
    /// Sets S = -inf where row ranges hide a key in the stage's row block. Called before dP^T takes
    /// registers.
    __device__ __forceinline__ void mask_by_ranges(Scores& s, const Task& task, RowPosition position) const {
        if constexpr (Policy::has_ranges) {
            const volatile SeenRows& seen = rings_.seen.rows[stage_];
            if (seen.is_partial != 0)
                mask_transposed_by_ranges(
                    s, -INFINITY, p_.params.row_ranges.of(task.batch, position.head).keys + warp_key(task),
                    position.row);
        }
    }
    /// Starts dP^T = V dO^T for a stage's rows.
    __device__ __forceinline__ void start_d_p(Scores& d_p, int stage, int round) const {
        Barrier(base_ + Shared::d_o_ring + 8 * stage).wait(round);
        begin_products();
        start_a_bt<T, KvTile, RowTile>(d_p[0], base_ + Shared::v + warpgroup_ * 64 * KvTile::row_bytes,
                                       d_o_tile(stage));
        commit_products();
    }

    /// Replaces dP^T by dS^T.
    __device__ __forceinline__ void make_d_s(Scores& d_p, const Scores& p) const {
        const std::uint32_t deltas = base_ + Shared::delta + stage_ * Shared::statistics_bytes;
#pragma unroll
        for (int n = 0; n < rows / 8; ++n) {
            const float2 delta = row_statistics(deltas, n);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float minus_delta = e % 2 == 0 ? -delta.x : -delta.y;
                float difference = fmaf(d_p[0][n][e], 1 / p_factor, minus_delta);
                if constexpr (Policy::may_drop) difference = kept_(n, e) ? difference : minus_delta;
                d_p[0][n][e] = p[0][n][e] * difference;
            }
        }
    }
    /// Starts gradient += left * tile: dV += P^T dO, or dK += dS^T Q.
    __device__ __forceinline__ void start_with_left(Gradient& gradient, const LeftOperand& left,
                                                    std::uint32_t tile) const {
        begin_products();
        start_a_b<T, RowTile>(gradient[0], left, tile);
        commit_products();
    }
    /// Writes dS^T to the tile at `to`.
    __device__ __forceinline__ void stage_d_s(std::uint32_t to, const Scores& d_s) const {
        stage_rows<T, DsTile>(to + (warpgroup_ * 64 + warp_ * 16) * DsTile::row_bytes, d_s);
        publish_shared_writes();
    }
    /// The same for dS^T in 16 bits.
    __device__ __forceinline__ void stage_d_s(std::uint32_t to, const LeftOperand& d_s) const {
        const auto rows_of_warp =
            LanePointer<DsTile>::stacked(to + (warpgroup_ * 64 + warp_ * 16) * DsTile::row_bytes);
#pragma unroll
        for (int i = 0; i < rows / 16; ++i) store_matrices(d_s[i][0], rows_of_warp.at(0, i * 16));
        publish_shared_writes();
    }
    /// Waits until both warpgroups' dS is in shared memory.
    __device__ __forceinline__ void wait_for_d_s() const {
        if (is_first_of_warpgroup()) wait_until_stores_have_read();  // dQ may overwrite dK and dV
        wait_at(1, 2 * warpgroup_threads);
    }
    /// Starts this warpgroup's part of dQ = dS K: its dS rows or its K columns.
    __device__ __forceinline__ void start_d_q(DqFragments& d_q, std::uint32_t d_s) const {
        begin_products();
        if constexpr (rows == 128) {
            start_at_b<T, DsTile, KvTile>(d_q[0], d_s + warpgroup_ * DsTile::panel_bytes, base_ + Shared::k);
        } else {
            start_at_b<T, DsTile, KvTile>(
                d_q[0], d_s, base_ + Shared::k + KvTile::column_offset(warpgroup_ * d_q_columns));
        }
        commit_products();
    }
    /// Copies dQ to shared memory for the thread that adds it to the dQ accumulators.
    __device__ __forceinline__ void stage_d_q(const DqFragments& d_q) {
        const int first_row = (rows == 128 ? warpgroup_ * 64 : 0) + warp_ * 16,
                  first_column = rows == 128 ? 0 : warpgroup_ * d_q_columns;
        d_q_.wait_empty();
        const std::uint32_t to = base_ + Shared::d_q + d_q_.stage() * Shared::d_q_bytes +
                                 (first_row / 16 * (Policy::head_dim / 8) + first_column / 8) * 512 +
                                 lane_index() * 16;
#pragma unroll
        for (int n = 0; n < d_q_columns / 8; ++n)
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + n * 512), "f"(d_q[0][n][0]),
                         "f"(d_q[0][n][1]), "f"(d_q[0][n][2]), "f"(d_q[0][n][3])
                         : "memory");
        publish_shared_writes();
        d_q_.full().arrive_as_warp();
        d_q_.advance();
    }

    __device__ __forceinline__ void release_stage(int ring, int stage) const {
        Barrier(base_ + ring + 8 * (Shared::stages + stage)).arrive_as_warp();
    }
    __device__ __forceinline__ void advance_stage() {
        round_ ^= stage_;
        stage_ ^= 1;
    }

    /// Stores dK and dV through shared memory.
    __device__ __forceinline__ void store(const Gradient& d_k, const Gradient& d_v, const Task& task) const {
        const std::uint32_t own_keys = base_ + warpgroup_ * 64 * KvTile::row_bytes,
                            warp_keys = own_keys + warp_ * 16 * KvTile::row_bytes;
        if (is_first_of_warpgroup()) wait_until_stores_have_read();
        wait_for_warpgroup();
        if constexpr (!Shared::d_q_has_memory) {
            RingPosition<tiles.d_q_stages> d_q = d_q_;
            for (int i = 0; i < tiles.d_q_stages; ++i, d_q.advance()) d_q.wait_empty();
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
                const BoxPosition box = task.key_box(p_, i * KvTile::panel_columns, key);
                store_box(p_.d_k, box, own_keys + Shared::d_k + i * KvTile::panel_bytes);
                store_box(p_.d_v, box, own_keys + Shared::d_v + i * KvTile::panel_bytes);
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
    RingPosition<tiles.d_q_stages> d_q_;
    [[no_unique_address]] BackwardBiasReader<T, Policy, Shared> biases_;
    int stage_ = 0, round_ = 0;  ///< for Q and dO; round_ is the round's parity
    int warpgroup_, warp_;       ///< warp_ is the warp's number in its warpgroup
    Kept kept_;                  ///< for the rows whose S is complete or next
};

}  // namespace gradtile::attention::cuda::device
