#pragma once
/// FlashAttention-2 backward on 16-bit tensor cores (Dao 2023, algorithm 2): a block of keys per thread
/// block, rows of Q and dO streamed past it.
///
/// S^T = K Q^T and dP^T = V dO^T have keys as rows, so that P^T and dS^T come out of their accumulators as
/// the left operands of dV = P^T dO and dK = dS^T Q. Both halves of that are the same two products on
/// different tiles, hence the division of labour: warps come in pairs that share their keys. The first makes
/// S^T, P^T and dV, the second dP^T, dS^T and dK; P^T crosses over through shared memory. A warp so
/// accumulates one gradient instead of two, registers allow twice the keys a warp, and each fragment that
/// ldmatrix brings serves two products. P^T's place takes dS^T, which all warps read for dQ += dS K one block
/// of rows later, so that neither waits for the other's arithmetic. dQ is summed in float32 in global memory.
#include <gradtile/attention/cuda/16bit/parameters.h>
#include <gradtile/attention/cuda/16bit/tiles.h>
#include <gradtile/attention/cuda/device/shared_tile.cuh>
#include <gradtile/attention/cuda/device/softmax.cuh>
#include <gradtile/attention/cuda/device/turns.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace device {

// P carries this power of two until dV and dS are complete: the second warp takes it in binary16, whose 11
// bits, other than bfloat16's 8, cost dS no accuracy; P <= 1 so uses its whole range, down to 2^-29 at full
// precision.
constexpr float p_exponent = 15, p_factor = 32768;

/// The order of dQ's float32 sums: accumulators as they are, 16 rows x 8 columns at a time, so that a warp
/// adds 512 adjacent bytes.
struct DqSums {
    float* data;
    int padded_rows;

    template <int head_dim>
    __device__ float* fragment(int batch_head, int row, int column) const {
        const std::int64_t strip = (static_cast<std::int64_t>(batch_head) * padded_rows + row) / 16;
        return data + (strip * (head_dim / 8) + column / 8) * 128 + threadIdx.x % 32 * 4;
    }
};

__device__ __forceinline__ void add_float4(float* to, const FragmentC& x) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
#else
    for (int e = 0; e < 4; ++e) atomicAdd(to + e, x[e]);
#endif
}

/// Barriers of one pair of warps: the first says that P is there, the second waits for it.
__device__ __forceinline__ void await(int pair) {
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
}
__device__ __forceinline__ void announce(int pair) {
#ifdef GRADTILE_RACECHECK
    // After bar.arrive racecheck takes the loads behind the next __syncthreads for hazards with reads before
    // it. No announcement lies between the two, so what is clean this way is clean with bar.arrive. (For
    // racecheck alone: synccheck calls every bar.sync that not all warps reach by the same branch divergent.)
    await(pair);
#else
    asm volatile("bar.arrive %0, 64;" ::"r"(pair + 1) : "memory");
#endif
}

/// 16 rows of dQ in 16 bits, from their float32 sums and by way of a warp's rows of a tile.
template <class T, int head_dim, class RowTile>
__device__ __forceinline__ void finish_d_q(const Bits16BackwardParameters& p, const DqSums& sums,
                                           int sums_batch_head, int batch_head, int row,
                                           std::uint32_t warp_rows) {
    FragmentC d_q[1][head_dim / 8];
#pragma unroll
    for (int n = 0; n < head_dim / 8; ++n) {
        const float4 x =
            *reinterpret_cast<const float4*>(sums.fragment<head_dim>(sums_batch_head, row, n * 8));
        d_q[0][n][0] = x.x * p.scale;
        d_q[0][n][1] = x.y * p.scale;
        d_q[0][n][2] = x.z * p.scale;
        d_q[0][n][3] = x.w * p.scale;
    }
    stage_rows<T, RowTile>(warp_rows, d_q);
    __syncwarp();
    store_staged_rows<RowTile, 16>(
        p.d_q.head(batch_head / p.sizes.heads, batch_head % p.sizes.heads).row(row), p.d_q.row_stride,
        warp_rows, p.mask.queries - row, p.sizes.qk_dim);
}

/// What a block has in shared memory, in bytes from its beginning.
template <int head_dim, class Policy>
struct Bits16BackwardShared {
    static constexpr Bits16BackwardTiles tiles = Policy::tiles;
    using KvTile = Tile<tiles.keys(), head_dim>;
    using RowTile = Tile<tiles.rows, head_dim>;
    using DsTile = Tile<tiles.keys(), tiles.rows>;
    static constexpr int row_stage_bytes = 2 * RowTile::bytes, statistics_bytes = 2 * tiles.rows * 4;
    static constexpr int k = 0, v = k + KvTile::bytes, row_stages = v + KvTile::bytes,
                         d_s = row_stages + 2 * row_stage_bytes, statistics = d_s + 2 * DsTile::bytes,
                         d_q = statistics + 2 * statistics_bytes;  // of a whole head
};

/// dK and dV of a block of keys, and what it adds to dQ.
template <class T, int head_dim, class Policy>
__device__ __forceinline__ void differentiate_keys(const Bits16BackwardParameters& p, unsigned char* shared,
                                                   int batch_head, int key_block) {
    using Shared = Bits16BackwardShared<head_dim, Policy>;
    using KvTile = typename Shared::KvTile;
    using RowTile = typename Shared::RowTile;
    using DsTile = typename Shared::DsTile;
    constexpr Bits16BackwardTiles tiles = Policy::tiles;
    constexpr int rows = tiles.rows;
    constexpr bool whole_head = Policy::whole_head_rows > 0;
    constexpr int m_tiles = tiles.pair_keys / 16, s_tiles = rows / 8, d_tiles = head_dim / 8;
    constexpr int row_stage_bytes = Shared::row_stage_bytes, statistics_bytes = Shared::statistics_bytes;
    const std::uint32_t base = shared_address(shared), k_tile = base + Shared::k, v_tile = base + Shared::v,
                        row_tiles = base + Shared::row_stages, d_s_tiles = base + Shared::d_s,
                        statistics = base + Shared::statistics;

    const int key_heads = p.sizes.heads / p.sizes.group;
    const int batch = batch_head / key_heads, key_head = batch_head % key_heads;
    const int block_key = key_block * tiles.keys(), block_keys = min(tiles.keys(), p.mask.keys - block_key);
    const int first_row = p.mask.first_row(block_key);
    const int end_row = p.mask.end_row(block_key + block_keys - 1);
    const int iterations =
        first_row < end_row ? ((end_row - 1) / rows - first_row / rows + 1) * p.sizes.group : 0;

    const int warp = warp_index();
    const bool makes_p = warp < tiles.pairs;  // and dV; the other of the pair makes dS and dK
    const int pair = warp % tiles.pairs, warp_key = pair * tiles.pair_keys;

    // What is needed seldom waits in shared memory: the gradient and S fill the registers.
    __shared__ struct {
        std::uint16_t *d_k, *d_v;
        int batch, key, keys;
        int2 positions[4];
    } volatile kept;
    if (threadIdx.x == 0) {
        kept.d_k = p.d_k.head(batch, key_head).row(block_key);
        kept.d_v = p.d_v.head(batch, key_head).row(block_key);
        kept.batch = batch;
        kept.key = block_key;
        kept.keys = block_keys;
    }

    // Every block of rows, query head after query head of the group.
    struct Position {
        int head, row;
    };
    const auto position_of = [&](int iteration) {
        return Position{kept.positions[iteration % 4].x, kept.positions[iteration % 4].y};
    };
    const auto remember = [&](int iteration, Position at) {
        if (thread_index_anew() != 0) return;
        kept.positions[iteration % 4].x = at.head;
        kept.positions[iteration % 4].y = at.row;
    };
    const int begin_row = first_row / rows * rows;
    const auto after = [&](Position at) {
        return at.row + rows < end_row ? Position{at.head, at.row + rows} : Position{at.head + 1, begin_row};
    };
    const auto load_rows = [&](int iteration, int batch, Position at) {
        const auto [head, row] = at;
        const std::uint32_t stage = row_tiles + iteration % 2 * row_stage_bytes;
        load_tile_async<RowTile, tiles.threads()>(stage, p.q.head(batch, head).row(row), p.q.row_stride,
                                                  p.mask.queries - row, p.sizes.qk_dim);
        load_tile_async<RowTile, tiles.threads()>(stage + RowTile::bytes, p.d_o.head(batch, head).row(row),
                                                  p.d_o.row_stride, p.mask.queries - row, p.sizes.v_dim);
        // LSE, then D: rows / 4 threads each.
        if (const int thread = static_cast<int>(threadIdx.x); thread < rows / 2) {
            const std::int64_t first =
                static_cast<std::int64_t>(batch * p.sizes.heads + head) * p.padded_rows + row;
            const float* const from = thread < rows / 4 ? p.lse_log2 : p.delta;
            copy_16_bytes_async(statistics + iteration % 2 * statistics_bytes + thread * 16,
                                from + first + thread % (rows / 4) * 4, true);
        }
    };

    /// This warp's part of dQ += dS K for the rows of an iteration whose dS is complete.
    const auto add_d_q = [&](int iteration) {
        constexpr int warp_rows = rows / tiles.d_q_row_warps;
        constexpr int warp_columns = head_dim * tiles.d_q_row_warps / tiles.warps();
        const int row = warp % tiles.d_q_row_warps * warp_rows;
        const int column = warp / tiles.d_q_row_warps * warp_columns;
        FragmentC d_q[warp_rows / 16][warp_columns / 8];
        clear(d_q);
        multiply_at_b<T, tiles.keys(), tiles.d_q_unrolled>(
            d_q, LanePointer<DsTile>::paired(d_s_tiles + iteration % 2 * DsTile::bytes), row,
            LanePointer<KvTile>::stacked(k_tile), column);

        const auto [head, block_row] = position_of(iteration);
        if constexpr (whole_head) {  // a warp's part of a tile is always the same: nobody else adds to it
            const DqSums sums{reinterpret_cast<float*>(shared + Shared::d_q), Policy::whole_head_rows};
#pragma unroll
            for (int m = 0; m < warp_rows / 16; ++m)
#pragma unroll
                for (int n = 0; n < warp_columns / 8; ++n) {
                    float4* const to = reinterpret_cast<float4*>(
                        sums.fragment<head_dim>(0, block_row + row + m * 16, column + n * 8));
                    const float4 sum = *to;
                    *to = float4{sum.x + d_q[m][n][0], sum.y + d_q[m][n][1], sum.z + d_q[m][n][2],
                                 sum.w + d_q[m][n][3]};
                }
            return;
        }
        const int q_batch_head = kept.batch * p.sizes.heads + head;
        std::int32_t* turn = nullptr;
        if (p.turns != nullptr) {
            const std::int64_t row_block =
                (static_cast<std::int64_t>(q_batch_head) * p.padded_rows + block_row) / rows;
            turn = p.turns + row_block * tiles.warps() + warp;
            WarpTurn::wait(turn, key_block);
        }
        const DqSums sums{p.d_q_sums, p.padded_rows};
#pragma unroll
        for (int m = 0; m < warp_rows / 16; ++m)
#pragma unroll
            for (int n = 0; n < warp_columns / 8; ++n)
                add_float4(sums.fragment<head_dim>(q_batch_head, block_row + row + m * 16, column + n * 8),
                           d_q[m][n]);
        if (turn != nullptr) WarpTurn::pass(turn, key_block + 1);
    };

    load_tile_async<KvTile, tiles.threads()>(k_tile, p.k.head(batch, key_head).row(block_key), p.k.row_stride,
                                             block_keys, p.sizes.qk_dim);
    load_tile_async<KvTile, tiles.threads()>(v_tile, p.v.head(batch, key_head).row(block_key), p.v.row_stride,
                                             block_keys, p.sizes.v_dim);
    if (const Position first{key_head * p.sizes.group, begin_row}; iterations > 0) {
        load_rows(0, batch, first);
        remember(0, first);
    }
    commit_copies();

    const std::uint32_t own_rows = (makes_p ? k_tile : v_tile) + warp_key * KvTile::row_bytes;
    const auto own_operand = LanePointer<KvTile>::stacked(own_rows);
    FragmentC gradient[m_tiles][d_tiles];  // of V or of K, rows are keys
    clear(gradient);
    for (int i = 0; i < iterations; ++i) {
        wait_for_copies<0>();
        __syncthreads();  // rows i are there, dS of i - 1 is complete, nobody needs the other stage's rows
        if (i + 1 < iterations) {
            const Position next = after(position_of(i));
            load_rows(i + 1, kept.batch, next);
            remember(i + 1, next);
        }
        commit_copies();
        // One warp of a pair does this first and the other last: the second waits for P no longer than the
        // first takes to make it.
        if (!makes_p && i > 0) add_d_q(i - 1);

        const std::uint32_t q_rows = row_tiles + i % 2 * row_stage_bytes, d_o_rows = q_rows + RowTile::bytes;
        FragmentC x[m_tiles][s_tiles];  // S^T, P^T or dP^T, dS^T
        clear(x);
        multiply_a_bt<T, head_dim, tiles.unrolled>(x, own_operand,
                                                   LanePointer<RowTile>::paired(makes_p ? q_rows : d_o_rows));
        FragmentA left[s_tiles / 2][m_tiles];  // P^T or dS^T in 16 bits
        const auto exchange =
            LanePointer<DsTile>::stacked(d_s_tiles + i % 2 * DsTile::bytes + warp_key * DsTile::row_bytes);
        const std::uint32_t row_statistic =
            statistics + i % 2 * statistics_bytes + (makes_p ? 0 : rows * 4) + lane_index() % 4 * 8;
        const auto statistic_of = [&](int n) {
            float2 two;
            asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                         : "=f"(two.x), "=f"(two.y)
                         : "r"(row_statistic + n * 32)
                         : "memory");
            return two;
        };
        if (makes_p) {
#pragma unroll
            for (int n = 0; n < s_tiles; ++n) {
                const float2 lse = statistic_of(n);
#pragma unroll
                for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        x[m][n][e] = exp2_fast(fmaf(x[m][n][e], p.scale_log2, e % 2 == 0 ? -lse.x : -lse.y));
            }
            const int row = position_of(i).row, key = kept.key + warp_key;
            if (!p.mask.sees_all(row, rows, key, tiles.pair_keys))
                mask_transposed_probabilities(x, p.mask, key, row);
#pragma unroll
            for (int k = 0; k < s_tiles / 2; ++k)
#pragma unroll
                for (int m = 0; m < m_tiles; ++m) {
                    FragmentA half;
                    pack_fragment<float16>(half, x[m][2 * k], x[m][2 * k + 1]);
                    store_matrices(half, exchange.at(m * 16, k * 16));
                    pack_fragment<T>(left[k][m], x[m][2 * k], x[m][2 * k + 1]);
                }
            announce(pair);
        } else {
            await(pair);
#pragma unroll
            for (int n = 0; n < s_tiles; ++n) {
                const float2 delta = statistic_of(n);
#pragma unroll
                for (int m = 0; m < m_tiles; ++m) {
                    if (n % 2 == 0) load_matrices<false>(left[n / 2][m], exchange.at(m * 16, n * 8));
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const float2 probability = unpack<float16>(left[n / 2][m][n % 2 * 2 + half]);
                        const float* const d_p = &x[m][n][half * 2];
                        left[n / 2][m][n % 2 * 2 + half] =
                            pack<T>(probability.x * fmaf(d_p[0], 1 / p_factor, -delta.x),
                                    probability.y * fmaf(d_p[1], 1 / p_factor, -delta.y));
                    }
                    if (n % 2 == 1) store_matrices(left[n / 2][m], exchange.at(m * 16, n / 2 * 16));
                }
            }
        }
        multiply_a_b<T>(gradient, left, LanePointer<RowTile>::stacked(makes_p ? d_o_rows : q_rows));
        if (makes_p && i > 0) add_d_q(i - 1);
    }
    wait_for_copies<0>();
    __syncthreads();
    if (iterations > 0) add_d_q(iterations - 1);
    __syncthreads();  // K has been read for the last time: gradients leave through the tiles

    const float factor = makes_p ? 1 / p_factor : p.scale;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < d_tiles; ++n)
#pragma unroll
            for (float& e : gradient[m][n]) e *= factor;
    const int out_warp = warp_index(), out_key = out_warp % tiles.pairs * tiles.pair_keys;
    const std::uint32_t out_rows = (out_warp < tiles.pairs ? k_tile : v_tile) + out_key * KvTile::row_bytes;
    stage_rows<T, KvTile>(out_rows, gradient);
    __syncwarp();
    const std::int64_t row_stride = out_warp < tiles.pairs ? p.d_v.row_stride : p.d_k.row_stride;
    store_staged_rows<KvTile, tiles.pair_keys>(
        (out_warp < tiles.pairs ? kept.d_v : kept.d_k) + out_key * row_stride, row_stride, out_rows,
        kept.keys - out_key, out_warp < tiles.pairs ? p.sizes.v_dim : p.sizes.qk_dim);
}

/// Policy::tiles are Bits16BackwardTiles; a type, since nvcc does not launch kernels with parameters of class
/// types.
template <class T, int head_dim, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), Policy::tiles.blocks_per_sm)
    backward_kernel(const __grid_constant__ Bits16BackwardParameters p) {
    extern __shared__ __align__(128) unsigned char shared[];
    // The first keys, which most rows see under a causal mask, are started first; what a group of heads reads
    // and adds to stays in the L2 meanwhile.
    gradtile::cuda::device::await_predecessor();  // before a task is taken: the kernel ahead sets the counter
                                                  // to 0
    const TaskOrder::Task task =
        p.order(p.next_task != nullptr ? take_task(p.next_task, shared) : static_cast<int>(blockIdx.x));
    if constexpr (Policy::whole_head_rows == 0) {
        differentiate_keys<T, head_dim, Policy>(p, shared, task.batch_head, task.part);
    } else {
        constexpr Bits16BackwardTiles tiles = Policy::tiles;
        using Shared = Bits16BackwardShared<head_dim, Policy>;
        for (int i = static_cast<int>(threadIdx.x); i < p.padded_rows * head_dim / 4; i += tiles.threads())
            reinterpret_cast<float4*>(shared + Shared::d_q)[i] = float4{};
        for (int key_block = 0; key_block * tiles.keys() < p.mask.keys; ++key_block) {
            differentiate_keys<T, head_dim, Policy>(p, shared, task.batch_head, key_block);
            __syncthreads();  // gradients have left through the tiles of K and V, dQ's sums are complete
        }
        const DqSums sums{reinterpret_cast<float*>(shared + Shared::d_q), Policy::whole_head_rows};
        const std::uint32_t warp_rows =
            shared_address(shared) + Shared::row_stages + warp_index() * 16 * Shared::RowTile::row_bytes;
        for (int row = warp_index() * 16; row < p.mask.queries; row += tiles.warps() * 16) {
            finish_d_q<T, head_dim, typename Shared::RowTile>(p, sums, 0, task.batch_head, row, warp_rows);
            __syncwarp();
        }
    }
}

constexpr int prepared_rows = 32, finished_rows = 64;  // of a block; padded rows are a multiple

/// Before: LSE in base 2, D = rowsum(dO * O), whose turn it is to add to dQ, which begins at 0 (unless that
/// is kept on chip). Eight lanes a row.
template <class T>
__global__ void __launch_bounds__(256)
    prepare_backward_kernel(const __grid_constant__ Bits16BackwardParameters p, Bits16BackwardTiles tiles,
                            int head_dim) {
    gradtile::cuda::device::await_predecessor();
    const int blocks = p.padded_rows / prepared_rows, batch_head = static_cast<int>(blockIdx.x) / blocks;
    const int row = (static_cast<int>(blockIdx.x) - batch_head * blocks) * prepared_rows +
                    static_cast<int>(threadIdx.x) / 8;
    const std::int64_t index = static_cast<std::int64_t>(batch_head) * p.padded_rows + row;
    const int lane = static_cast<int>(threadIdx.x % 8);
    for (int column = lane * 4; p.d_q_sums != nullptr && column < head_dim; column += 32)
        *reinterpret_cast<float4*>(p.d_q_sums + index * head_dim + column) = float4{};
    const int batch = batch_head / p.sizes.heads, head = batch_head % p.sizes.heads;
    const bool exists = row < p.mask.queries;
    float sum = 0;
    if (exists) {
        const std::uint16_t* const o = p.o.head(batch, head).row(row);
        const std::uint16_t* const d_o = p.d_o.head(batch, head).row(row);
        for (int column = lane * 8; column < p.sizes.v_dim; column += 64) {
            const uint4 a = *reinterpret_cast<const uint4*>(o + column);
            const uint4 b = *reinterpret_cast<const uint4*>(d_o + column);
            const std::uint32_t as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 x = unpack<T>(as[i]), y = unpack<T>(bs[i]);
                sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
            }
        }
    }
    for (int distance = 1; distance < 8; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane == 0) {
        constexpr float log2_e = 1.44269504088896341f;
        const float lse =
            exists ? p.lse[static_cast<std::int64_t>(batch_head) * p.mask.queries + row] : -INFINITY;
        p.lse_log2[index] = lse == -INFINITY ? INFINITY : fmaf(lse, log2_e, -p_exponent);
        p.delta[index] = sum / p_factor;
    }
    if (p.next_task != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *p.next_task = 0;
    if (p.turns != nullptr && row % tiles.rows == 0)
        for (int warp = lane; warp < tiles.warps(); warp += 8)
            p.turns[index / tiles.rows * tiles.warps() + warp] = p.mask.first_key(row) / tiles.keys();
}

/// After: dQ in 16 bits. A warp takes 16 rows.
template <class T, int head_dim>
__global__ void __launch_bounds__(128) finish_d_q_kernel(const __grid_constant__ Bits16BackwardParameters p) {
    using RowTile = Tile<finished_rows, head_dim>;
    __shared__ __align__(128) unsigned char shared[RowTile::bytes];
    gradtile::cuda::device::await_predecessor();
    const int blocks = p.padded_rows / finished_rows, batch_head = static_cast<int>(blockIdx.x) / blocks;
    const int row = (static_cast<int>(blockIdx.x) - batch_head * blocks) * finished_rows +
                    static_cast<int>(threadIdx.x) / 32 * 16;
    if (row >= p.mask.queries) return;
    const std::uint32_t warp_rows = shared_address(shared) + threadIdx.x / 32 * 16 * RowTile::row_bytes;
    finish_d_q<T, head_dim, RowTile>(p, {p.d_q_sums, p.padded_rows}, batch_head, batch_head, row, warp_rows);
}

}  // namespace device
}  // namespace gradtile::attention::cuda
