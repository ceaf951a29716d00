#pragma once
/// Steps that the Hopper kernels of the backward pass share: their tasks, the copies to shared memory, P, and
/// the additions to dQ.
#include <gradtile/attention/cuda/hopper/parameters.h>
#include <gradtile/attention/cuda/16bit/backward_rows.cuh>
#include <gradtile/attention/cuda/device/panel_tile.cuh>
#include <gradtile/attention/cuda/device/turns.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>

namespace gradtile::attention::cuda::device {

/// A block of keys of one K/V head, and the rows that see them: those of all heads of its group.
template <class Policy>
struct KeyTask {
    int batch, head, key, block;
    int begin_row, end_row;  ///< the same for every head of the group; begin_row is a multiple of the rows

    __device__ KeyTask(const Bits16BackwardParameters& p, int index) {
        constexpr auto tiles = Policy::tiles;
        const TaskOrder::Task task = p.order(index);
        const int key_heads = p.sizes.heads / p.sizes.group;
        batch = task.batch_head / key_heads;
        head = task.batch_head - batch * key_heads;
        // The first keys come first: under a causal mask most rows see them. In turns the last keys come
        // first: blocks of keys that run at the same time then reach a block of rows one after the other.
        block = Policy::in_turns ? p.order.parts - 1 - task.part : task.part;
        key = block * tiles.keys;
        begin_row = p.mask.first_row(key) / tiles.rows * tiles.rows;
        end_row = p.mask.end_row(min(key + tiles.keys, p.mask.keys) - 1);
    }
    __device__ bool has_rows() const { return begin_row < end_row; }
};

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
    RingPosition tasks(rings.tasks), q(rings.q), d_o(rings.d_o);
    for (;;) {
        const int index = atomicAdd(p.rows.next_task, 1);
        tasks.wait_empty();
        rings.task[tasks.stage()] = index;
        tasks.full().arrive();
        tasks.advance();
        if (index >= p.tasks) return;
        const KeyTask<Policy> task(p.rows, index);
        // Consumers that stage dK and dV in the memory of K and V wait for K and V in any case.
        if (!Shared::stages_in_kv && !task.has_rows()) continue;
        kv.wait_empty();
        kv.full().arrive_and_expect(KTile::bytes + VTile::bytes);
        const BoxPosition keys{0, task.key, task.head, task.batch};
        KTile::load(base + Shared::k, p.k, keys, kv.full());
        VTile::load(base + Shared::v, p.v, keys, kv.full());
        kv.advance();
        const int group = p.rows.sizes.group, first_head = task.head * group;
        for (int head = first_head; head < first_head + group; ++head) {
            const std::int64_t first_statistic =
                (static_cast<std::int64_t>(task.batch) * p.rows.sizes.heads + head) * p.rows.padded_rows;
            for (int row = task.begin_row; row < task.end_row; row += tiles.rows) {
                const BoxPosition rows{0, row, head, task.batch};
                q.wait_empty();
                q.full().arrive_and_expect(QTile::bytes + Shared::statistics_bytes);
                QTile::load(base + Shared::q + q.stage() * QTile::bytes, p.q, rows, q.full());
                load_bytes(base + Shared::lse + q.stage() * Shared::statistics_bytes,
                           p.rows.lse_log2 + first_statistic + row, Shared::statistics_bytes, q.full());
                q.advance();
                d_o.wait_empty();
                d_o.full().arrive_and_expect(DoTile::bytes + Shared::statistics_bytes);
                DoTile::load(base + Shared::d_o + d_o.stage() * DoTile::bytes, p.d_o, rows, d_o.full());
                load_bytes(base + Shared::delta + d_o.stage() * Shared::statistics_bytes,
                           p.rows.delta + first_statistic + row, Shared::statistics_bytes, d_o.full());
                d_o.advance();
            }
        }
    }
}

/// The numbers of the two rows that a lane has in column tile n of accumulators whose columns are rows of Q.
__device__ __forceinline__ float2 row_statistics(std::uint32_t of_rows, int n) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "r"(of_rows + n * 32 + lane_index() % 4 * 8));
    return pair;
}

/// Replaces S^T by P^T times p_factor. `lse` is the address of the rows' LSE in shared memory, and (row, key)
/// the warp's first pair.
template <int n_tiles>
__device__ __forceinline__ void make_probabilities(FragmentC (&s)[1][n_tiles], std::uint32_t lse,
                                                   const Bits16BackwardParameters& p, int row, int key) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        const float2 shift = row_statistics(lse, n);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            s[0][n][e] = exp2_fast(fmaf(s[0][n][e], p.scale_log2, e % 2 == 0 ? -shift.x : -shift.y));
    }
    if (!p.mask.sees_all(row, n_tiles * 8, key, 16)) mask_transposed_probabilities(s, p.mask, key, row);
}

/// The turn in which a warp of a deterministic kernel adds to its piece of dQ. Without `in_turns`, the
/// functions do nothing.
template <bool in_turns>
class DqTurn {
  public:
    /// Waits until all blocks of keys after `block` have added.
    __device__ __forceinline__ void wait(std::int32_t* turn, int block) {
        if constexpr (in_turns) {
            turn_ = turn;
            next_turn_ = block - 1;
            WarpTurn::wait(turn_, block);
        }
    }
    /// Passes the turn of the latest additions. Later than right after them: until they are complete, the
    /// warp would wait here.
    __device__ __forceinline__ void pass() {
        if constexpr (in_turns) {
            if (turn_ == nullptr) return;
            WarpTurn::pass(turn_, next_turn_);
            turn_ = nullptr;
        }
    }

  private:
    std::int32_t* turn_ = nullptr;  ///< to be passed
    int next_turn_ = 0;
};

}  // namespace gradtile::attention::cuda::device
