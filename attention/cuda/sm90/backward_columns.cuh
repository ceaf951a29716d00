#pragma once
/// FlashAttention-2 backward (Dao 2023, algorithm 2) on Hopper for head dims above 128. dK and dV for 64 keys
/// take all registers of two warpgroups, so the warpgroups divide the dK, dV and dQ columns, and each score
/// is computed by only one warpgroup:
///
///     warpgroup 0                                    warpgroup 1
///     S^T = K Q^T, P^T                               dP^T = V dO^T
///         ---- P^T in shared memory ---->
///     dV += P^T dO, its columns                      dV += P^T dO, its columns
///     dQ = dS K of the previous rows, its columns    dS^T = P^T (dP^T - D)
///         <---- dS^T in shared memory ----
///     S^T of the next rows; dK += dS^T Q             dQ = dS K, dK += dS^T Q, its columns
///
/// Warpgroup 0 computes the next rows' exponentials while warpgroup 1 multiplies and adds to dQ. If the order
/// in which they add is fixed, the producer warpgroup waits for their turns: column_turns.cuh.
///
/// P is multiplied by p_factor until dV and dS are complete, so that small P are also normal numbers in
/// binary16. The warpgroups exchange P in binary16, whose 11 significant bits, unlike bfloat16's 8, cost dS
/// no accuracy.
#include <gradtile/attention/cuda/sm90/tiles.h>
#include <gradtile/attention/cuda/sm90/backward_steps.cuh>
#include <gradtile/attention/cuda/sm90/column_turns.cuh>

namespace gradtile::attention::cuda {

namespace device {

/// A thread block's shared memory.
template <class Policy>
struct HopperColumnsShared {
    static constexpr HopperColumnsTiles tiles = Policy::tiles;
    // A warpgroup reads half the columns, which must be whole panels.
    static constexpr int panel_columns(int columns) { return columns % 128 == 0 ? 64 : 32; }
    using KTile = PanelTile<tiles.keys, Policy::qk_dim, panel_columns(Policy::qk_dim)>;
    using VTile = PanelTile<tiles.keys, Policy::v_dim, panel_columns(Policy::v_dim)>;
    using QTile = PanelTile<tiles.rows, Policy::qk_dim, panel_columns(Policy::qk_dim)>;
    using DoTile = PanelTile<tiles.rows, Policy::v_dim, panel_columns(Policy::v_dim)>;
    using DsTile = PanelTile<tiles.keys, tiles.rows>;            ///< dS^T
    static constexpr int p_bytes = 2 * tiles.keys * tiles.rows;  ///< P^T, in lane order
    static constexpr bool stages_in_kv = true;  ///< whether dK and dV are staged in K's and V's memory
    static constexpr int statistics_bytes = 4 * tiles.rows;
    static constexpr int k = 0, v = k + KTile::bytes, q = v + VTile::bytes,
                         d_o = q + tiles.stages * QTile::bytes, d_s = d_o + tiles.stages * DoTile::bytes,
                         p = d_s + tiles.stages * DsTile::bytes, lse = p + p_bytes,
                         delta = lse + tiles.stages * statistics_bytes,
                         rings = delta + tiles.stages * statistics_bytes;
    struct Rings {
        Ring<1> kv;
        Ring<tiles.stages> q, d_o, tasks;
        typename TaskOf<Policy>::Descriptor task[tiles.stages];
        TurnBarriers turns[tiles.consumers];  ///< only if Policy::in_turns
    };
    static constexpr int q_ring = rings + offsetof(Rings, q), d_o_ring = rings + offsetof(Rings, d_o);
    static_assert(sizeof(Rings) <= HopperColumnsTiles::ring_bytes && tiles.stages == 2);
    static_assert(rings + HopperColumnsTiles::ring_bytes <=
                  tiles.shared_bytes(Policy::qk_dim, Policy::v_dim));
};

/// A consumer warpgroup: warpgroup 0 computes P, warpgroup 1 computes dS.
template <class T, class Policy, int warpgroup>
class ColumnsConsumer {
    using Shared = HopperColumnsShared<Policy>;
    using KTile = typename Shared::KTile;
    using VTile = typename Shared::VTile;
    using QTile = typename Shared::QTile;
    using DoTile = typename Shared::DoTile;
    using DsTile = typename Shared::DsTile;
    using Task = TaskOf<Policy>;
    static constexpr HopperColumnsTiles tiles = Policy::tiles;
    static constexpr int rows = tiles.rows;
    static constexpr int qk_columns = Policy::qk_dim / 2, v_columns = Policy::v_dim / 2;  ///< per warpgroup
    static constexpr int first_qk_column = warpgroup * qk_columns, first_v_column = warpgroup * v_columns;
    using Scores = FragmentC[1][rows / 8];             ///< S^T and P^T, or dP^T and dS^T
    using LeftOperand = FragmentA[rows / 16][1];       ///< P^T in 16 bits
    using QkFragments = FragmentC[1][qk_columns / 8];  ///< dK or dQ
    using VFragments = FragmentC[1][v_columns / 8];    ///< dV
    /// Barrier numbers.
    static constexpr int p_is_ready = 1, d_s_is_ready = 2, warpgroup_barrier = 3 + warpgroup;

  public:
    __device__ __forceinline__ ColumnsConsumer(const HopperBackwardParameters& p, std::uint32_t base,
                                               typename Shared::Rings& rings)
        : p_(p),
          base_(base),
          rings_(rings),
          kv_(rings.kv),
          tasks_(rings.tasks),
          warp_(warp_index() % 4),
          turns_(rings.turns[warpgroup]) {}

    __device__ __forceinline__ void consume() {
        for (;;) {
            tasks_.wait_full();
            const auto descriptor = rings_.task[tasks_.stage()];
            release(tasks_);
            if (Task::is_end(p_, descriptor)) return;
            const Task task(p_, descriptor);
            QkFragments d_k;
            VFragments d_v;
            clear(d_k);
            clear(d_v);
            kv_.wait_full();
            if (task.has_rows()) {
                if constexpr (warpgroup == 0) {
                    loop_over_rows_with_p(d_k, d_v, task);
                } else {
                    loop_over_rows_with_d_s(d_k, d_v, task);
                }
            }
            scale(d_k, p_.params.scale);
            scale(d_v, 1 / p_factor);
            store(d_k, d_v, task);
        }
    }

  private:
    __device__ __forceinline__ std::uint32_t q() const { return base_ + Shared::q + stage_ * QTile::bytes; }
    __device__ __forceinline__ std::uint32_t d_o() const {
        return base_ + Shared::d_o + stage_ * DoTile::bytes;
    }
    __device__ __forceinline__ std::uint32_t d_s() const {
        return base_ + Shared::d_s + stage_ * DsTile::bytes;
    }
    __device__ __forceinline__ void wait_for_q() const {
        Barrier(base_ + Shared::q_ring + 8 * stage_).wait(round_);
    }
    __device__ __forceinline__ void wait_for_d_o() const {
        Barrier(base_ + Shared::d_o_ring + 8 * stage_).wait(round_);
    }
    __device__ __forceinline__ void release_stage(int ring, int stage) const {
        Barrier(base_ + ring + 8 * (tiles.stages + stage)).arrive_as_warp();
    }
    __device__ __forceinline__ void advance() {
        round_ ^= stage_;
        stage_ ^= 1;
    }

    /// Warpgroup 0 adds the contributions from all rows in a task to dK, dV and dQ.
    __device__ __forceinline__ void loop_over_rows_with_p(QkFragments& d_k, VFragments& d_v,
                                                          const Task& task) {
        const int end_head = (task.head + 1) * p_.params.sizes.group;
        const RowBlocks<rows> row_blocks{task.begin_row, task.end_row};
        RowPosition position{task.head * p_.params.sizes.group, task.begin_row};
        {
            Scores s;
            start_scores(s);
            await_products<0>(s[0]);
            LeftOperand left;
            make_p(left, s, task, position);
            start_d_v(d_v, left);
            await_products<0>(d_v[0]);
            release_stage(Shared::d_o_ring, stage_);
        }
        for (RowPosition next = row_blocks.after(position); next.head < end_head;
             next = row_blocks.after(position)) {
            advance();
            Scores s;
            start_scores(s);
            wait_at(d_s_is_ready, 2 * warpgroup_threads);
            const int previous = stage_ ^ 1;
            start_d_k(d_k, previous);
            await_products<1>(s[0]);
            LeftOperand left;
            make_p(left, s, task, next);
            await_products<0>(d_k[0]);
            release_stage(Shared::q_ring, previous);
            start_d_v(d_v, left);
            QkFragments d_q;
            start_d_q(d_q, previous);
            await_products<0>(d_v[0], d_q[0]);
            release_stage(Shared::d_o_ring, stage_);
            add_d_q(d_q, task, position);
            position = next;
        }
        wait_at(d_s_is_ready, 2 * warpgroup_threads);
        QkFragments d_q;
        start_d_q(d_q, stage_);
        start_d_k(d_k, stage_);
        await_products<1>(d_q[0]);
        add_d_q(d_q, task, position);
        await_products<0>(d_k[0]);
        release_stage(Shared::q_ring, stage_);
        advance();
    }

    /// Warpgroup 1 adds the contributions from all rows in a task to dK, dV and dQ.
    __device__ __forceinline__ void loop_over_rows_with_d_s(QkFragments& d_k, VFragments& d_v,
                                                            const Task& task) {
        const int end_head = (task.head + 1) * p_.params.sizes.group;
        const RowBlocks<rows> row_blocks{task.begin_row, task.end_row};
        for (RowPosition position{task.head * p_.params.sizes.group, task.begin_row};
             position.head < end_head; position = row_blocks.after(position)) {
            Scores d_p;
            start_d_p(d_p);
            LeftOperand left;
            FragmentA p[rows / 16];
            receive_p(left, p);
            start_d_v(d_v, left);
            await_products<1>(d_p[0]);
            make_d_s(d_p, p);
            wait_for_q();
            QkFragments d_q;
            start_d_q(d_q, stage_);
            start_d_k(d_k, stage_);
            await_products<1>(d_v[0], d_q[0]);
            release_stage(Shared::d_o_ring, stage_);
            add_d_q(d_q, task, position);
            await_products<0>(d_k[0]);
            release_stage(Shared::q_ring, stage_);
            advance();
        }
    }

    /// Starts S^T = K Q^T.
    __device__ __forceinline__ void start_scores(Scores& s) const {
        wait_for_q();
        begin_products();
        start_a_bt<T, KTile, QTile>(s[0], base_ + Shared::k, q());
        commit_products();
    }
    /// Starts dP^T = V dO^T.
    __device__ __forceinline__ void start_d_p(Scores& d_p) const {
        wait_for_d_o();
        begin_products();
        start_a_bt<T, VTile, DoTile>(d_p[0], base_ + Shared::v, d_o());
        commit_products();
    }
    /// Starts dV += P^T dO, this warpgroup's columns.
    __device__ __forceinline__ void start_d_v(VFragments& d_v, const LeftOperand& left) const {
        if constexpr (warpgroup == 0) wait_for_d_o();
        begin_products();
        start_a_b<T, DoTile>(d_v[0], left, d_o() + DoTile::column_offset(first_v_column));
        commit_products();
    }
    /// Starts dK += dS^T Q, this warpgroup's columns, for a stage's rows.
    __device__ __forceinline__ void start_d_k(QkFragments& d_k, int stage) const {
        begin_products();
        start_a_b<T, DsTile, QTile>(
            d_k[0], base_ + Shared::d_s + stage * DsTile::bytes,
            base_ + Shared::q + stage * QTile::bytes + QTile::column_offset(first_qk_column));
        commit_products();
    }
    /// Starts dQ = dS K, this warpgroup's columns, for a stage's rows.
    __device__ __forceinline__ void start_d_q(QkFragments& d_q, int stage) const {
        begin_products();
        start_at_b<T, DsTile, KTile>(d_q[0], base_ + Shared::d_s + stage * DsTile::bytes,
                                     base_ + Shared::k + KTile::column_offset(first_qk_column));
        commit_products();
    }

    /// Turns S^T into P^T times p_factor, for the product with dO, and stores it for warpgroup 1.
    __device__ __forceinline__ void make_p(LeftOperand& left, Scores& s, const Task& task,
                                           RowPosition position) const {
        make_probabilities<Policy>(s, base_ + Shared::lse + stage_ * Shared::statistics_bytes, p_.params,
                                   task.mask(p_), position, task.key + warp_ * 16);
        as_operand_a<T>(left, s);
#pragma unroll
        for (int i = 0; i < rows / 16; ++i) {
            FragmentA half;
            pack_fragment<float16>(half, s[0][2 * i], s[0][2 * i + 1]);
            asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(lane_address(i)), "r"(half[0]),
                         "r"(half[1]), "r"(half[2]), "r"(half[3])
                         : "memory");
        }
        arrive_at(p_is_ready, 2 * warpgroup_threads);
    }
    /// Waits for P^T. `p` is in binary16.
    __device__ __forceinline__ void receive_p(LeftOperand& left, FragmentA (&p)[rows / 16]) const {
        wait_at(p_is_ready, 2 * warpgroup_threads);
#pragma unroll
        for (int i = 0; i < rows / 16; ++i) {
            asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(p[i][0]), "=r"(p[i][1]), "=r"(p[i][2]), "=r"(p[i][3])
                         : "r"(lane_address(i))
                         : "memory");
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 pair = unpack<float16>(p[i][j]);
                left[i][0][j] = std::is_same_v<T, float16> ? p[i][j] : pack<T>(pair.x, pair.y);
            }
        }
    }
    /// The shared-memory address of the lane's piece i in P^T.
    __device__ __forceinline__ std::uint32_t lane_address(int i) const {
        return base_ + Shared::p + i * 16 * warpgroup_threads + (warp_ * 32 + lane_index()) * 16;
    }

    /// Turns dP^T into dS^T and stores it for both warpgroups.
    __device__ __forceinline__ void make_d_s(Scores& d_p, const FragmentA (&p)[rows / 16]) const {
        make_d_s_of_binary16(d_p, p, base_ + Shared::delta + stage_ * Shared::statistics_bytes);
        stage_rows<T, DsTile>(d_s() + warp_ * 16 * DsTile::row_bytes, d_p);
        publish_shared_writes();
        arrive_at(d_s_is_ready, 2 * warpgroup_threads);
        wait_for_warpgroup();
    }

    /// Uses atomic additions, because other key blocks add to the same rows, in any order or, if
    /// deterministic, in turns.
    __device__ __forceinline__ void add_d_q(const QkFragments& d_q, const Task& task, RowPosition position) {
        const int batch_head = task.batch_head(p_, position.head),
                  padded_row = task.first_padded_row() + position.row;
        turns_.wait();
        const DqSums sums{p_.params.d_q_sums, p_.params.padded_rows};
#pragma unroll
        for (int n = 0; n < qk_columns / 8; ++n)
            add_float4(
                sums.fragment<Policy::qk_dim>(batch_head, padded_row + warp_ * 16, first_qk_column + n * 8),
                d_q[0][n]);
        turns_.has_added();
    }

    /// Stores this warpgroup's dK and dV columns. They are staged in the memory of the same columns of K and
    /// V, which no product reads any more: the other warpgroup's products with all columns precede its last
    /// barrier.
    __device__ __forceinline__ void store(const QkFragments& d_k, const VFragments& d_v, const Task& task) {
        const std::uint32_t k = base_ + Shared::k + KTile::column_offset(first_qk_column),
                            v = base_ + Shared::v + VTile::column_offset(first_v_column);
        wait_for_warpgroup();
        stage_rows<T, KTile>(k + warp_ * 16 * KTile::row_bytes, d_k);
        stage_rows<T, VTile>(v + warp_ * 16 * VTile::row_bytes, d_v);
        publish_shared_writes();
        wait_for_warpgroup();
        if (is_first_of_warpgroup()) {
            const auto start_stores = [&]<class Tile>(const gradtile::cuda::TensorMap& map, int column,
                                                      int columns, std::uint32_t from) {
#pragma unroll
                for (int i = 0; i < columns / Tile::panel_columns; ++i)
                    store_box(map, task.key_box(p_, column + i * Tile::panel_columns, task.key),
                              from + i * Tile::panel_bytes);
            };
            start_stores.template operator()<KTile>(p_.d_k, first_qk_column, qk_columns, k);
            start_stores.template operator()<VTile>(p_.d_v, first_v_column, v_columns, v);
            commit_stores();
            wait_until_stores_have_read();
            kv_.empty().arrive();
        }
        kv_.advance();
    }

    __device__ __forceinline__ void wait_for_warpgroup() const {
        wait_at(warpgroup_barrier, warpgroup_threads);
    }

    const HopperBackwardParameters& p_;
    std::uint32_t base_;
    typename Shared::Rings& rings_;
    RingPosition<1> kv_;
    RingPosition<tiles.stages> tasks_;
    int stage_ = 0, round_ = 0;  ///< for Q, dO and dS; round_ is the round's parity
    int warp_;                   ///< the warp's number in its warpgroup
    TurnsOfConsumer<Policy::in_turns> turns_;
};

template <class T, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), 1)
    hopper_backward_columns_kernel(const __grid_constant__ HopperBackwardParameters p) {
    using Shared = HopperColumnsShared<Policy>;
    constexpr HopperColumnsTiles tiles = Policy::tiles;
    extern __shared__ __align__(1024) unsigned char shared[];
    auto& rings = *reinterpret_cast<typename Shared::Rings*>(shared + Shared::rings);
    if (threadIdx.x == 0) {
        constexpr int consumer_warps = 4 * tiles.consumers;
        initialize(rings.kv, tiles.consumers);
        initialize(rings.q, consumer_warps);
        initialize(rings.d_o, consumer_warps);
        initialize(rings.tasks, consumer_warps + (Policy::in_turns ? 1 + tiles.consumers : 0));
        if constexpr (Policy::in_turns)
            for (TurnBarriers& turns : rings.turns) turns.initialize();
        publish_barriers();
    }
    __syncthreads();
    gradtile::cuda::device::await_predecessor();
    const std::uint32_t base = shared_address(shared);
    const int warpgroup = warpgroup_index();
    if (warpgroup == tiles.consumers) {
        release_registers_down_to<24>();
        if (threadIdx.x == tiles.consumers * warpgroup_threads) produce<Policy, Shared>(p, base, rings);
        if constexpr (Policy::in_turns) {
            const int warp = warp_index() - 4 * tiles.consumers;
            if (warp == 1 && lane_index() == 0) wait_for_turns<Policy>(p, rings);
            if (warp >= 2 && lane_index() == 0) pass_turns<Policy>(p, rings, /*warpgroup=*/warp - 2);
        }
    } else {
        take_registers_up_to<240>();
        if (warpgroup == 0) {
            ColumnsConsumer<T, Policy, 0>(p, base, rings).consume();
        } else {
            ColumnsConsumer<T, Policy, 1>(p, base, rings).consume();
        }
    }
}

}  // namespace device

template <int qk_dim_, int v_dim_, bool in_turns_, bool is_packed_>
struct HopperColumnsPolicy {
    static constexpr int qk_dim = qk_dim_, v_dim = v_dim_;
    static constexpr bool is_packed = is_packed_;  ///< whether sequences are packed
    static constexpr HopperRule rule = HopperRule::products;
    static constexpr bool in_turns = in_turns_;  ///< whether additions to dQ have a fixed order
    static constexpr bool may_sum_in_ring = false, has_ranges = false;
    static constexpr HopperColumnsTiles tiles;
};

template <class T, class Policy>
void launch_hopper_columns_kernels(const HopperBackwardTensors& x, const Bits16BackwardParameters& parameters,
                                   const Context& ctx) {
    using namespace gradtile::cuda;
    using Shared = device::HopperColumnsShared<Policy>;
    constexpr HopperColumnsTiles tiles = Policy::tiles;
    constexpr int shared_bytes = tiles.shared_bytes(Policy::qk_dim, Policy::v_dim);
    static_assert(shared_bytes <= 227 * 1024);
    const auto map = Policy::is_packed ? packed_tensor_map : tensor_map;
    HopperBackwardParameters p{.q = map(x.q, tiles.rows, Shared::QTile::swizzle),
                               .d_o = map(x.d_o, tiles.rows, Shared::DoTile::swizzle),
                               .k = map(x.k, tiles.keys, Shared::KTile::swizzle),
                               .v = map(x.v, tiles.keys, Shared::VTile::swizzle),
                               .d_k = map(x.d_k, tiles.keys, Shared::KTile::swizzle),
                               .d_v = map(x.d_v, tiles.keys, Shared::VTile::swizzle),
                               .params = parameters};
    const std::int64_t rows = prepare_tasks<Policy>(p, x, ctx);
    constexpr TurnTiles turns = turn_tiles(tiles);
    static_assert(turns.keys() == tiles.keys && turns.warps() == 4 * tiles.consumers);
    launch(ctx, device::prepare_backward_kernel<T>, blocks_for(rows, device::prepared_rows),
           {.threads = 256, .starts_early = true}, p.params, turns, Policy::qk_dim);
    const int blocks = std::min(p.tasks, processors_of(ctx));
    launch(ctx, device::hopper_backward_columns_kernel<T, Policy>, static_cast<unsigned>(blocks),
           {static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true}, p);
    launch(ctx, device::finish_d_q_kernel<T, Policy::qk_dim>, blocks_for(rows, device::finished_rows),
           {.threads = 128, .starts_early = true}, p.params);
}

template <class T>
void launch_hopper_backward_columns(const HopperBackwardTensors& x,
                                    const Bits16BackwardParameters& parameters, const Context& ctx) {
    const auto launch = [&]<int qk_dim, int v_dim>() {
        visit_turns_and_packing(parameters, [&]<bool in_turns, bool is_packed>() {
            launch_hopper_columns_kernels<T, HopperColumnsPolicy<qk_dim, v_dim, in_turns, is_packed>>(
                x, parameters, ctx);
        });
    };
    const device::Sizes& sizes = parameters.sizes;
    if (std::max(sizes.qk_dim, sizes.v_dim) > 192) return launch.template operator()<256, 256>();
    if (sizes.v_dim > 128) return launch.template operator()<192, 192>();
    launch.template operator()<192, 128>();
}

}  // namespace gradtile::attention::cuda
