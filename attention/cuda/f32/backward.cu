// The backward pass of FlashAttention-2 in float32 on the GPU (Dao 2023, algorithm 2): a block of keys stays,
// with its dK and dV in registers; steps of query rows pass by and take what it adds to dQ with them.
//
// S and P are computed transposed, keys down: then the accumulators of P^T and dS^T are already operand A of
// dV += P^T dO and dK += dS^T Q, and only dQ += dS K needs dS in shared memory.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include <gradtile/attention/cuda/f32/tiles.h>
#include <gradtile/attention/cuda/kernels.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/core/cuda/internal/cuda_check.h>
#include <gradtile/attention/cuda/device/head_rows.cuh>
#include <gradtile/attention/cuda/device/magnitude.cuh>
#include <gradtile/attention/cuda/device/mask.cuh>
#include <gradtile/attention/cuda/device/row_statistics.cuh>
#include <gradtile/attention/cuda/device/softmax.cuh>
#include <gradtile/attention/cuda/device/split_float.cuh>
#include <gradtile/attention/cuda/device/task_order.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace device;
using gradtile::cuda::cuda_check;

/// What F32BackwardTiles mean for a kernel.
template <int head_dim, int shared_limit>
struct BackwardTiles {
    static constexpr F32BackwardTiles tiles = F32Backward<head_dim>::tiles(shared_limit);
    static constexpr int rows = tiles.rows, keys = tiles.keys();
    static constexpr int warps = tiles.warps(), threads = tiles.threads();
    static constexpr int warps_per_keys = tiles.warps_per_keys;
    static constexpr int row_tiles = rows / warps_per_keys / 8;  // of a warp's S
    static constexpr int columns = head_dim / warps_per_keys;    // of a warp's dK and dV
    static constexpr int d_q_columns = head_dim / (warps / 2);   // of a warp's part of dQ, 16 rows
    using K = Tile<keys, head_dim>;
    using KPiece = Tile < keys<32 ? keys : 32, head_dim>;  // on its way
    using Q = Tile<rows, head_dim>;
    using S = Tile<keys, rows>;
    static constexpr int shared_bytes = tiles.shared_bytes(head_dim);
    static_assert(shared_bytes == 2 * split_bytes<K> + 2 * split_bytes<Q> +
                                      tiles.factor_tiles() * split_bytes<S> + 2 * rows * int{sizeof(float)});
};

struct BackwardParameters {
    HeadRows<const float> q, k, v, d_o;
    HeadRows<float> d_q, d_k, d_v;
    const float* lse;                 ///< [B, H, Sq], in units of log2(e); +inf for rows that see nothing
    const float* delta;               ///< [B, H, Sq]: rowsum(dO * O)
    const std::uint32_t* magnitudes;  ///< of q, k, v, d_o: see measure()
    DeviceMask mask;
    Sizes sizes;
    int batches;
    float scale, scale_log2;
    TaskOrder order;
    bool q_vectors, k_vectors, v_vectors, d_o_vectors;  ///< has_vector_rows
    bool d_q_pairs, d_k_pairs, d_v_pairs;
    int* turns;  ///< deterministic: see Turns; else null
};

/// Adds to memory that other blocks add to as well.
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

/// Keeps the additions to dQ in one order. Blocks of keys add to a step of rows from the last block that it
/// sees down to the first; a counter per (batch, head, step) says how many have. Downwards, because a causal
/// block begins at the rows where it is the last: nobody waits there, and further down the one before is a
/// step ahead. Blocks are numbered in the order in which they start, so that a block waits for running ones
/// alone.
struct Turns {
    int* next_task;  ///< then the counters, [B * H, steps]
    int steps;

    __device__ int take_task() const { return atomicAdd(next_task, 1); }
    __device__ int* counter(std::int64_t matrix, int step) const {
        return next_task + 1 + matrix * steps + step;
    }
    __device__ static void wait(const int* counter, int turn) {
        // Far longer than any kernel runs: only a defect gets there, and an error is better than a hang.
        constexpr int most_polls = 1 << 28;
        for (int polls = 0;; ++polls) {
            int now;
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
            if (now == turn) return;
            if (polls == most_polls) __trap();
            __nanosleep(40);
        }
    }
    __device__ static void pass(int* counter) {
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
    }
};

/// What the numbers of a block's tiles are multiplied by, all powers of two (but for the caller's scale).
///
/// P <= 1 takes 2^14 with it. |dP - D| <= 2 columns max|V| max|dO|, since O lies among the rows of V; in
/// units of V and dO that is 2^29 columns, so that dS comes below 2^15.
struct Units {
    PowerOfTwo q, k, v, d_o;
    float score, d_p;     ///< S (log2) and dP as they are summed -> as P and dS take them
    float d_q, d_k, d_v;  ///< sums -> gradients
    static constexpr float p = 16384;

    /// D as dS takes it. Factors of heads that are 0 are so large that their product alone would overflow.
    __device__ __forceinline__ float delta(float of_row) const {
        return of_row * v.factor * d_p * d_o.factor;
    }

    __device__ Units(const BackwardParameters& parameters, int batch, int key_head, int columns)
        : q(range(parameters, 0, batch, key_head)),
          k(range(parameters, 1, batch, key_head)),
          v(range(parameters, 2, batch, key_head)),
          d_o(range(parameters, 3, batch, key_head)) {
        const float d_s = 1.0f / (16384.0f * static_cast<float>(columns));
        score = parameters.scale_log2 * q.inverse * k.inverse;
        d_p = d_s / p;
        d_v = d_o.inverse / p;
        const float d_s_inverse = v.inverse / d_s * d_o.inverse * parameters.scale;
        d_q = d_s_inverse * k.inverse;
        d_k = d_s_inverse * q.inverse;
    }

  private:
    __device__ static PowerOfTwo range(const BackwardParameters& p, int tensor, int batch, int key_head) {
        return PowerOfTwo(
            p.magnitudes[(tensor * p.batches + batch) * (p.sizes.heads / p.sizes.group) + key_head]);
    }
};

/// A step of rows on its way: Q, dO and the two numbers a row.
template <class Tiles>
class RowStep {
  public:
    __device__ __forceinline__ RowStep(const BackwardParameters& p, int batch, std::uint32_t q_tile,
                                       std::uint32_t d_o_tile, float* statistics, const Units& units)
        : p_(p),
          batch_(batch),
          q_tile_(q_tile),
          d_o_tile_(d_o_tile),
          statistics_(statistics),
          units_(units) {}

    __device__ __forceinline__ void load(int head, int row) {
        head_ = head;
        row_ = row;
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < Tiles::rows) {
            const bool valid = row + thread < p_.mask.queries;
            const std::int64_t at =
                (static_cast<std::int64_t>(batch_) * p_.sizes.heads + head) * p_.mask.queries + row + thread;
            lse_ = valid ? p_.lse[at] : INFINITY;  // P = 2^-inf = 0
            delta_ = valid ? units_.delta(p_.delta[at]) : 0.0f;
        }
        if constexpr (Tiles::tiles.loads_ahead) {
            q_.load(p_.q.of(batch_, head), row, p_.mask.queries - row, p_.sizes.d_qk, p_.q_vectors);
            d_o_.load(p_.d_o.of(batch_, head), row, p_.mask.queries - row, p_.sizes.d_v, p_.d_o_vectors);
        }
    }
    __device__ __forceinline__ void store() {
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < Tiles::rows) {
            statistics_[thread] = lse_;
            statistics_[Tiles::rows + thread] = delta_;
        }
        if constexpr (!Tiles::tiles.loads_ahead) {
#pragma unroll 1
            for (int r = 0; r < Tiles::rows; r += Piece::rows) {
                const int first = row_ + r, valid = p_.mask.queries - first;
                q_.load(p_.q.of(batch_, head_), first, valid, p_.sizes.d_qk, p_.q_vectors);
                q_.store(q_tile_ + r * Tiles::Q::row_bytes, units_.q.factor, Tiles::Q::bytes);
                d_o_.load(p_.d_o.of(batch_, head_), first, valid, p_.sizes.d_v, p_.d_o_vectors);
                d_o_.store(d_o_tile_ + r * Tiles::Q::row_bytes, units_.d_o.factor, Tiles::Q::bytes);
            }
        } else {
            q_.store(q_tile_, units_.q.factor);
            d_o_.store(d_o_tile_, units_.d_o.factor);
        }
    }

  private:
    using Piece = std::conditional_t<Tiles::tiles.loads_ahead, typename Tiles::Q, Tile<8, Tiles::Q::columns>>;
    const BackwardParameters& p_;
    int batch_, head_ = 0, row_ = 0;
    std::uint32_t q_tile_, d_o_tile_;
    float* statistics_;
    const Units& units_;
    float lse_ = 0, delta_ = 0;
    SplitTile<Piece, Tiles::threads> q_, d_o_;
};

/// c += P^T dO or dS^T Q, 32 columns at a time.
template <class TileB, int k_steps, int n_tiles>
__device__ __forceinline__ void add_to(FragmentC (&c)[1][n_tiles], const SplitA<1> (&a)[k_steps],
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

template <int n_tiles>
__device__ __forceinline__ void store_rows(const FragmentC (&c)[1][n_tiles], Rows<float> to, int row, int end,
                                           int column, int columns, float factor, bool pairs) {
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

template <int head_dim, int shared_limit>
__global__ void __launch_bounds__(F32Backward<head_dim>::tiles(shared_limit).threads(),
                                  F32Backward<head_dim>::tiles(shared_limit).blocks_per_multiprocessor)
    backward_kernel(const __grid_constant__ BackwardParameters p) {
    using Tiles = BackwardTiles<head_dim, shared_limit>;
    constexpr int row_tiles = Tiles::row_tiles;
    extern __shared__ __align__(1024) unsigned char shared[];
    const auto k_tile = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
    const std::uint32_t v_tile = k_tile + split_bytes<typename Tiles::K>;
    const std::uint32_t q_tile = v_tile + split_bytes<typename Tiles::K>;
    const std::uint32_t d_o_tile = q_tile + split_bytes<typename Tiles::Q>;
    const std::uint32_t d_s_tile = d_o_tile + split_bytes<typename Tiles::Q>;
    // Unless P stays in registers or is read before dS comes.
    const std::uint32_t p_tile =
        d_s_tile + (Tiles::tiles.factor_tiles() - 1) * split_bytes<typename Tiles::S>;
    auto* const statistics =
        reinterpret_cast<float*>(shared + Tiles::shared_bytes - 2 * Tiles::rows * sizeof(float));

    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_key = warp / Tiles::warps_per_keys * 16, share = warp % Tiles::warps_per_keys;
    const int warp_row = share * row_tiles * 8, warp_column = share * Tiles::columns;

    const Turns turns{p.turns, (p.mask.queries + Tiles::rows - 1) / Tiles::rows};
    int task = static_cast<int>(blockIdx.x);
    if (p.turns) {
        if (threadIdx.x == 0) statistics[0] = __int_as_float(turns.take_task());
        __syncthreads();
        task = __float_as_int(statistics[0]);
        __syncthreads();
    }
    const int key_heads = p.sizes.heads / p.sizes.group;
    const auto [matrix, part] = p.order(task);
    const int batch = matrix / key_heads, key_head = matrix % key_heads;
    // Upwards, because a causal mask gives the first keys the most rows; see Turns for downwards.
    const int key_block = p.turns ? p.order.parts - 1 - part : part;
    const int first_key = key_block * Tiles::keys;
    const Units units(p, batch, key_head, head_dim);

#pragma unroll 1
    for (int key = 0; key < Tiles::keys; key += Tiles::KPiece::rows) {
        SplitTile<typename Tiles::KPiece, Tiles::threads> piece;
        const int first = first_key + key, valid = p.mask.keys - first, offset = key * Tiles::K::row_bytes;
        piece.load(p.k.of(batch, key_head), first, valid, p.sizes.d_qk, p.k_vectors);
        piece.store(k_tile + offset, units.k.factor, Tiles::K::bytes);
        piece.load(p.v.of(batch, key_head), first, valid, p.sizes.d_v, p.v_vectors);
        piece.store(v_tile + offset, units.v.factor, Tiles::K::bytes);
    }
    const int first_row = p.mask.first_row(first_key) / Tiles::rows * Tiles::rows;
    const int past_row = p.mask.past_row(min(first_key + Tiles::keys, p.mask.keys) - 1);
    const bool is_seen = p.mask.first_row(first_key) < past_row;
    const int past_head = is_seen ? (key_head + 1) * p.sizes.group : 0;

    FragmentC d_k[1][Tiles::columns / 8], d_v[1][Tiles::columns / 8];
    clear(d_k);
    clear(d_v);
    RowStep<Tiles> step(p, batch, q_tile, d_o_tile, statistics, units);
    int head = key_head * p.sizes.group, row = first_row;
    if (head < past_head) {
        step.load(head, row);
        step.store();
    }
    __syncthreads();
    while (head < past_head) {
        const bool head_goes_on = row + Tiles::rows < past_row;
        const int next_head = head_goes_on ? head : head + 1;
        const int next_row = head_goes_on ? row + Tiles::rows : first_row;
        if (next_head < past_head) step.load(next_head, next_row);

        const std::uint32_t tiles = anew(k_tile);
        const auto k_lane = LanePointer<typename Tiles::K>::stacked(tiles);
        const auto v_lane = LanePointer<typename Tiles::K>::stacked(tiles + (v_tile - k_tile));
        const auto q_lane = LanePointer<typename Tiles::Q>::paired(tiles + (q_tile - k_tile));
        const auto d_o_lane = LanePointer<typename Tiles::Q>::paired(tiles + (d_o_tile - k_tile));
        const auto q_lane_transposed = LanePointer<typename Tiles::Q>::stacked(tiles + (q_tile - k_tile));
        const auto d_o_lane_transposed = LanePointer<typename Tiles::Q>::stacked(tiles + (d_o_tile - k_tile));
        const auto d_s_lane = LanePointer<typename Tiles::S>::stacked(tiles + (d_s_tile - k_tile));
        const auto d_s_lane_transposed = LanePointer<typename Tiles::S>::paired(tiles + (d_s_tile - k_tile));
        const auto p_lane = LanePointer<typename Tiles::S>::stacked(tiles + (p_tile - k_tile));

        // P^T and dS^T of this warp's keys and rows.
        FragmentC probabilities[1][row_tiles], d_s[1][row_tiles];
        if (p.mask.sees_any(row + warp_row, row_tiles * 8, first_key + warp_key, 16)) {
            const float* const lse = statistics + warp_row + lane % 4 * 2;
            const float* const delta = lse + Tiles::rows;
            multiply_split_a_bt<head_dim>(probabilities, k_lane, warp_key, q_lane, warp_row);
#pragma unroll
            for (int n = 0; n < row_tiles; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    probabilities[0][n][e] =
                        exp2_fast(fmaf(probabilities[0][n][e], units.score, -lse[n * 8 + e % 2])) * Units::p;
            if (!p.mask.sees_all(row + warp_row, row_tiles * 8, first_key + warp_key, 16))
                mask_transposed_probabilities(probabilities, p.mask, first_key + warp_key, row + warp_row);
            multiply_split_a_bt<head_dim>(d_s, v_lane, warp_key, d_o_lane, warp_row);
#pragma unroll
            for (int n = 0; n < row_tiles; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    d_s[0][n][e] =
                        probabilities[0][n][e] * fmaf(d_s[0][n][e], units.d_p, -delta[n * 8 + e % 2]);
        } else {
            clear(probabilities);
            clear(d_s);
        }

        // dV += P^T dO, dK += dS^T Q; dS, and P when warps share keys, into shared memory.
        SplitA<1> factor[Tiles::rows / 16];
        const auto split_factor = [&](const FragmentC(&c)[1][row_tiles]) {
#pragma unroll
            for (int k = 0; k < row_tiles / 2; ++k) split_operand_a(factor[k], c, k);
        };
        const auto store_factor = [&](const LanePointer<typename Tiles::S>& to) {
#pragma unroll
            for (int k = 0; k < row_tiles / 2; ++k)
#pragma unroll
                for (int plane = 0; plane < planes; ++plane)
                    store_matrices(factor[k][plane][0],
                                   to.at(warp_key, warp_row + k * 16) + plane * Tiles::S::bytes);
        };
        int* turn = nullptr;
        if (p.turns) {
            const int last_row = min(row + Tiles::rows, p.mask.queries) - 1;
            const int last_block = (p.mask.past_key(last_row) - 1) / Tiles::keys;
            turn = turns.counter(static_cast<std::int64_t>(batch) * p.sizes.heads + head, row / Tiles::rows);
            if (threadIdx.x == 0) Turns::wait(turn, last_block - key_block);
        }
        if constexpr (Tiles::warps_per_keys == 1) {
            split_factor(probabilities);
            add_to(d_v, factor, d_o_lane_transposed, 0);
            split_factor(d_s);
            store_factor(d_s_lane);
            add_to(d_k, factor, q_lane_transposed, 0);
            __syncthreads();  // dS is there; all warps have read Q and dO
        } else {
            const auto load_factor = [&](const LanePointer<typename Tiles::S>& from) {
#pragma unroll
                for (int k = 0; k < Tiles::rows / 16; ++k) load_a(factor[k], from, warp_key, k * 16);
            };
            split_factor(probabilities);
            store_factor(p_lane);
            if constexpr (Tiles::tiles.separate_factors) {
                split_factor(d_s);
                store_factor(d_s_lane);
            }
            __syncthreads();
            load_factor(p_lane);
            add_to(d_v, factor, d_o_lane_transposed, warp_column);
            if constexpr (!Tiles::tiles.separate_factors) {
                __syncthreads();  // all warps have read P
                split_factor(d_s);
                store_factor(d_s_lane);
                __syncthreads();
            }
            load_factor(d_s_lane);
            add_to(d_k, factor, q_lane_transposed, warp_column);
            __syncthreads();
        }
        if (next_head < past_head) step.store();

        // dQ += scale dS K: sixteen rows and a part of the columns a warp.
        const int d_q_row = row + warp % 2 * 16 + lane / 4;
        const Rows<float> d_q_rows = p.d_q.of(batch, head);
        constexpr int group = Tiles::d_q_columns >= 32 ? 4 : 2;
#pragma unroll
        for (int c = 0; c < Tiles::d_q_columns; c += group * 8) {
            const int column = warp / 2 * Tiles::d_q_columns + c;
            SplitSum<1, group> sum;
#pragma unroll
            for (int k = 0; k < Tiles::keys; k += 16) {
                SplitA<1> a;
                SplitB<group> b;
                load_a<true>(a, d_s_lane_transposed, k, warp % 2 * 16);
                load_b<true>(b, k_lane, k, column);
                sum.add_product(a, b);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (d_q_row + half * 8 >= p.mask.queries) continue;
                float* const to = d_q_rows.row(d_q_row + half * 8);
#pragma unroll
                for (int n = 0; n < group; ++n)
                    add_pair(to, column + n * 8 + lane % 4 * 2, p.sizes.d_qk,
                             sum.value(0, n, half * 2) * units.d_q, sum.value(0, n, half * 2 + 1) * units.d_q,
                             p.d_q_pairs);
            }
        }
        if (p.turns) __threadfence();
        __syncthreads();  // the next step is there; all warps have read dS
        if (p.turns && threadIdx.x == 0) Turns::pass(turn);
        head = next_head;
        row = next_row;
    }

    const int key = first_key + warp_key + lane / 4, column = warp_column + lane % 4 * 2;
    store_rows(d_k, p.d_k.of(batch, key_head), key, p.mask.keys, column, p.sizes.d_qk, units.d_k,
               p.d_k_pairs);
    store_rows(d_v, p.d_v.of(batch, key_head), key, p.mask.keys, column, p.sizes.d_v, units.d_v, p.d_v_pairs);
}

template <int head_dim>
void launch(const Context& ctx, BackwardParameters parameters, std::int64_t matrices) {
    gradtile::cuda::use_device(ctx.device());
    visit_shared_memory<F32Backward<head_dim>>(
        gradtile::cuda::shared_memory_of_a_block(), [&]<int limit>(SharedMemory<limit>) {
            using Tiles = BackwardTiles<head_dim, limit>;
            const int key_blocks = (parameters.mask.keys + Tiles::keys - 1) / Tiles::keys;
            const std::int64_t blocks = matrices * key_blocks;
            if (blocks == 0) return;
            check(blocks <= INT32_MAX, "attention: ", blocks,
                  " blocks of keys; CUDA launches at most 2^31 - 1");
            const Sizes& sizes = parameters.sizes;
            const std::int64_t row_bytes =
                static_cast<std::int64_t>(sizeof(float)) * (2 * sizes.d_qk + sizes.d_v);
            parameters.order =
                TaskOrder(matrices, key_blocks, parameters.mask.queries * row_bytes * sizes.group);
            const auto kernel = backward_kernel<head_dim, limit>;
            cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            Tiles::shared_bytes));
            kernel<<<static_cast<unsigned>(blocks), Tiles::threads, Tiles::shared_bytes,
                     static_cast<cudaStream_t>(ctx.stream())>>>(parameters);
            cuda_check(cudaGetLastError());
        });
}

}  // namespace

void flash_f32_backward(const Context& ctx, const Resolved& options, const Saved& saved, const Tensor& d_o_in,
                        const Gradients& into) {
    const std::int64_t batch = saved.q.size(0), queries = saved.q.size(1), heads = saved.q.size(2);
    const Readable q(ctx, saved.q), k(ctx, saved.k), v(ctx, saved.v), o(ctx, saved.o), d_o(ctx, d_o_in);
    const Writable d_q(ctx, into.q, DType::f32), d_k(ctx, into.k, DType::f32), d_v(ctx, into.v, DType::f32);
    const Tensor lse = empty_like(ctx, saved.lse), delta = empty_like(ctx, saved.lse);
    constexpr std::int64_t rows_per_step = F32BackwardTiles::rows;
    const Tensor magnitudes = empty_magnitudes(ctx, 4, saved.k);
    const std::int64_t steps = (queries + rows_per_step - 1) / rows_per_step;
    Tensor turns;
    if (options.deterministic) turns = empty(ctx, {1 + batch * heads * steps}, DType::i32);
    if (ctx.is_planning()) return;
    check(std::max(queries, saved.k.size(1)) <= DeviceMask::longest, "attention: a sequence of ",
          std::max(queries, saved.k.size(1)), " tokens; CUDA kernels take at most ", DeviceMask::longest);
    for (const Readable* x : {&q, &k, &v, &o, &d_o}) x->load(ctx);
    constexpr double log2_e = 1.44269504088896340736;
    measure(ctx, magnitudes, {&q.tensor(), &k.tensor(), &v.tensor(), &d_o.tensor()});
    launch_row_statistics<float>(ctx, delta, lse, saved.lse, log2_e, o.tensor(), d_o.tensor(), d_q.tensor());
    if (turns.defined()) fill(ctx, turns, 0.0);
    const BackwardParameters parameters{.q = head_rows<const float>(q.tensor()),
                                        .k = head_rows<const float>(k.tensor()),
                                        .v = head_rows<const float>(v.tensor()),
                                        .d_o = head_rows<const float>(d_o.tensor()),
                                        .d_q = head_rows<float>(d_q.tensor()),
                                        .d_k = head_rows<float>(d_k.tensor()),
                                        .d_v = head_rows<float>(d_v.tensor()),
                                        .lse = lse.data<float>(),
                                        .delta = delta.data<float>(),
                                        .magnitudes = largest_of(magnitudes),
                                        .mask = DeviceMask(options.mask),
                                        .sizes = sizes_of(saved.q, saved.k, saved.v),
                                        .batches = static_cast<int>(batch),
                                        .scale = static_cast<float>(options.scale),
                                        .scale_log2 = static_cast<float>(options.scale * log2_e),
                                        .order = {},
                                        .q_vectors = has_vector_rows(q.tensor()),
                                        .k_vectors = has_vector_rows(k.tensor()),
                                        .v_vectors = has_vector_rows(v.tensor()),
                                        .d_o_vectors = has_vector_rows(d_o.tensor()),
                                        .d_q_pairs = has_vector_rows(d_q.tensor(), 8),
                                        .d_k_pairs = has_vector_rows(d_k.tensor(), 8),
                                        .d_v_pairs = has_vector_rows(d_v.tensor(), 8),
                                        .turns = turns.defined() ? turns.data<std::int32_t>() : nullptr};
    const std::int64_t head_dim = std::max(saved.q.size(3), saved.v.size(3));
    const auto launch_for = head_dim <= 32    ? launch<32>
                            : head_dim <= 64  ? launch<64>
                            : head_dim <= 128 ? launch<128>
                                              : launch<256>;
    launch_for(ctx, parameters, batch * saved.k.size(2));
    for (const Writable* x : {&d_q, &d_k, &d_v}) x->store(ctx);
}

}  // namespace gradtile::attention::cuda
