#pragma once
/// The float32 backward kernel loops over query rows in steps. RowStep copies a step to shared memory. Turns
/// fixes the order in which key blocks add to a step's dQ.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/split_float.cuh>
#include <gradtile/attention/cuda/common/task_order.cuh>
#include <gradtile/attention/cuda/common/turns.cuh>
#include <gradtile/attention/cuda/f32/backward_units.cuh>

namespace gradtile::attention::cuda::device {

/// Fixes the order in which key blocks add to a row step's dQ: from the last key block that the rows see to
/// the first. The step's counter says how many blocks have added. With a causal mask, blocks then rarely
/// wait: a block starts at the rows that see no later block, where it adds first. At later rows, the block
/// before it in the order is usually one step ahead.
template <class Policy>
struct Turns {
    static constexpr int rows = Policy::tiles.rows;
    std::int32_t* next_task;  ///< followed by the counters [B * Hq, steps]; null: no fixed order
    int steps;

    __device__ __forceinline__ explicit Turns(const F32BackwardParameters& p)
        : next_task(p.turns), steps(p.turn_steps) {}
    /// Returns the address of a step's counter. `padded_row` is the step's first row; if sequences are
    /// packed, padded rows count.
    __device__ __forceinline__ std::int32_t* counter(std::int64_t batch_head, int padded_row) const {
        return next_task + 1 + batch_head * steps + padded_row / rows;
    }
    /// Waits until block `key_block` may add to the step at `row`.
    __device__ __forceinline__ static void wait(const DeviceMask& mask, const std::int32_t* counter, int row,
                                                int key_block) {
        const int last_row = min(row + rows, mask.queries) - 1;
        const int last_block = (mask.end_key(last_row) - 1) / Policy::tiles.keys();
        if (threadIdx.x == 0) BlockTurn::wait(counter, last_block - key_block);
    }
};

/// Copies a row step to shared memory: Q, dO, LSE and D. load() starts to load the next step while the kernel
/// uses this step. store() writes the next step to shared memory.
template <class Policy>
class RowStep {
  public:
    __device__ __forceinline__ RowStep(const F32BackwardParameters& p, const BlockSequence& sequence,
                                       std::uint32_t base, float* statistics, const Units& units)
        : p_(p), sequence_(sequence), base_(base), statistics_(statistics), units_(units) {}

    __device__ __forceinline__ void load(RowPosition position) {
        position_ = position;
        const auto [head, row] = position;
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < rows) {
            const bool valid = row + thread < sequence_.mask.queries;
            const std::int64_t index =
                (std::int64_t{sequence_.batch} * p_.sizes.heads + head) * p_.mask.queries +
                sequence_.first_query + row + thread;
            lse_ = valid ? p_.lse_log2[index] : INFINITY;  // for rows that do not exist, P = 2^-inf = 0
            delta_ = valid ? units_.delta(p_.delta[index]) : 0.0f;
        }
        if constexpr (Policy::tiles.loads_ahead) {
            q_.load(sequence_.queries(p_.q, head), row, sequence_.mask.queries - row, p_.sizes.qk_dim,
                    p_.q_vectors);
            d_o_.load(sequence_.queries(p_.d_o, head), row, sequence_.mask.queries - row, p_.sizes.v_dim,
                      p_.d_o_vectors);
        }
    }
    __device__ __forceinline__ void store() {
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < rows) {
            statistics_[thread] = lse_;
            statistics_[rows + thread] = delta_;
        }
        if constexpr (!Policy::tiles.loads_ahead) {
#pragma unroll 1
            for (int r = 0; r < rows; r += Piece::rows) {
                const int first = position_.row + r, valid = sequence_.mask.queries - first;
                q_.load(sequence_.queries(p_.q, position_.head), first, valid, p_.sizes.qk_dim, p_.q_vectors);
                q_.store(base_ + Policy::q + r * RowTile::row_bytes, units_.q.factor, RowTile::bytes);
                d_o_.load(sequence_.queries(p_.d_o, position_.head), first, valid, p_.sizes.v_dim,
                          p_.d_o_vectors);
                d_o_.store(base_ + Policy::d_o + r * RowTile::row_bytes, units_.d_o.factor, RowTile::bytes);
            }
        } else {
            q_.store(base_ + Policy::q, units_.q.factor);
            d_o_.store(base_ + Policy::d_o, units_.d_o.factor);
        }
    }

  private:
    static constexpr int rows = Policy::tiles.rows;
    using RowTile = typename Policy::RowTile;
    using Piece = std::conditional_t<Policy::tiles.loads_ahead, RowTile, Tile<8, RowTile::columns>>;
    const F32BackwardParameters& p_;
    const BlockSequence& sequence_;
    RowPosition position_{};
    std::uint32_t base_;
    float* statistics_;
    const Units& units_;
    float lse_ = 0, delta_ = 0;
    SplitTile<Piece, Policy::tiles.threads()> q_, d_o_;
};

}  // namespace gradtile::attention::cuda::device
