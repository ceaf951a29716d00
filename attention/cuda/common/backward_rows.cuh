#pragma once
/// The 16-bit backward kernels that run before and after the kernel over key blocks: one computes D and LSE
/// for each row, the other rounds the float32 dQ accumulators.
#include <cfloat>

#include <gradtile/attention/cuda/common/parameters.h>
#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda::device {

/// The float32 dQ accumulators, in mma fragment order: 16 rows x 8 columns at a time, so that a warp adds to
/// 512 adjacent bytes.
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

/// Rounds 16 rows of dQ from their float32 accumulators to 16 bits and stores them. The warp writes them to
/// `warp_rows`, its rows of a shared tile, and from there to global memory.
template <class T, int head_dim, class RowTile>
__device__ __forceinline__ void finish_d_q(const Bits16BackwardParameters& p, const DqSums& sums,
                                           int sums_batch_head, const BlockSequence& sequence, int head,
                                           int row, std::uint32_t warp_rows) {
    FragmentC d_q[1][head_dim / 8];
#pragma unroll
    for (int n = 0; n < head_dim / 8; ++n) {
        const float4 x = *reinterpret_cast<const float4*>(
            sums.fragment<head_dim>(sums_batch_head, sequence.first_padded_row + row, n * 8));
        const float factor = p.scale * p.dropout_scale;
        d_q[0][n][0] = x.x * factor;
        d_q[0][n][1] = x.y * factor;
        d_q[0][n][2] = x.z * factor;
        d_q[0][n][3] = x.w * factor;
    }
    if (p.non_finite != nullptr && !is_finite(d_q)) *p.non_finite = 1;
    stage_rows<T, RowTile>(warp_rows, d_q);
    __syncwarp();
    store_staged_rows<RowTile, 16>(sequence.queries(p.d_q, head).row(row), p.d_q.row_stride, warp_rows,
                                   sequence.mask.queries - row, p.sizes.qk_dim);
}

constexpr int prepared_rows = 32, finished_rows = 64;  // rows per thread block; both divide padded_rows

/// The `rows` padded rows of one sequence and head that a thread block processes.
template <int rows>
struct PaddedRows {
    BlockSequence sequence;
    int head, first_row;
    bool exist = true;

    __device__ explicit PaddedRows(const Bits16BackwardParameters& p) {
        constexpr int parts = backward_row_padding / rows;
        const int index = static_cast<int>(blockIdx.x);
        if (p.packed) {
            const int block = index / parts;
            head = block / p.padded_tasks.count;
            const PackedTask task = p.padded_tasks.first[block % p.padded_tasks.count];
            sequence = BlockSequence::from_task(p.mask, p.packed, task);
            first_row = task.block * backward_row_padding + index % parts * rows;
            exist = task.sequence >= 0;
        } else {
            const int blocks = p.padded_rows / rows, batch_head = index / blocks;
            head = batch_head % p.sizes.heads;
            sequence = BlockSequence::from_batch(p.mask, p.first_batch + batch_head / p.sizes.heads);
            first_row = (index - batch_head * blocks) * rows;
        }
    }
    __device__ int batch_head(const Sizes& sizes) const { return sequence.batch * sizes.heads + head; }
};

/// Runs before backward_kernel. Computes LSE in base 2 and D = rowsum(dO * O) - dLSE, sets the turn counters,
/// and sets the dQ accumulators to 0 unless dQ is kept in shared memory. Eight lanes per row.
template <class T>
__global__ void __launch_bounds__(256)
    prepare_backward_kernel(const __grid_constant__ Bits16BackwardParameters p, TurnTiles tiles,
                            int head_dim) {
    gradtile::cuda::device::await_predecessor();
    if (p.next_task != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *p.next_task = 0;
    const PaddedRows<prepared_rows> block_rows(p);
    if (!block_rows.exist) return;
    const BlockSequence& sequence = block_rows.sequence;
    const int batch_head = block_rows.batch_head(p.sizes);
    const int row = block_rows.first_row + static_cast<int>(threadIdx.x) / 8;
    const std::int64_t index =
        static_cast<std::int64_t>(batch_head) * p.padded_rows + sequence.first_padded_row + row;
    const int lane = static_cast<int>(threadIdx.x % 8);
    for (int column = lane * 4; p.d_q_sums != nullptr && column < head_dim; column += 32)
        *reinterpret_cast<float4*>(p.d_q_sums + index * head_dim + column) = float4{};
    const bool exists = row < sequence.mask.queries;
    float sum = 0;
    if (exists) {
        const std::uint16_t* const o = sequence.queries(p.o, block_rows.head).row(row);
        const std::uint16_t* const d_o = sequence.queries(p.d_o, block_rows.head).row(row);
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
        const std::int64_t lse_index =
            static_cast<std::int64_t>(batch_head) * p.mask.queries + sequence.first_query + row;
        const float lse = exists ? p.lse[lse_index] : -INFINITY;
        // If all scores in a row are near the lowest float32, its LSE overflows here, and the row's P becomes
        // 0.
        if (p.has_large_lse != nullptr && is_large(lse)) *p.has_large_lse = 1;
        p.lse_log2[index] = lse == -INFINITY ? INFINITY : fmaxf(fmaf(lse, log2_e, -p_exponent), -FLT_MAX);
        if (p.d_lse != nullptr && lse != -INFINITY) sum -= p.d_lse[lse_index];
        p.delta[index] = sum / (p_factor * p.dropout_scale);
    }
    if (p.turns != nullptr && row % tiles.rows == 0) {
        const int first_turn = (p.last_keys_first ? sequence.mask.end_key(row + tiles.rows - 1) - 1
                                                  : sequence.mask.first_key(row)) /
                               tiles.keys();
        for (int warp = lane; warp < tiles.warps(); warp += 8)
            p.turns[index / tiles.rows * tiles.warps() + warp] = first_turn;
    }
}

/// Runs after backward_kernel. Rounds dQ to 16 bits; each warp processes 16 rows.
template <class T, int head_dim>
__global__ void __launch_bounds__(128) finish_d_q_kernel(const __grid_constant__ Bits16BackwardParameters p) {
    using RowTile = Tile<finished_rows, head_dim>;
    __shared__ __align__(128) unsigned char shared[RowTile::bytes];
    gradtile::cuda::device::await_predecessor();
    const PaddedRows<finished_rows> block_rows(p);
    const int row = block_rows.first_row + static_cast<int>(threadIdx.x) / 32 * 16;
    if (!block_rows.exist || row >= block_rows.sequence.mask.queries) return;
    const std::uint32_t warp_rows = shared_address(shared) + threadIdx.x / 32 * 16 * RowTile::row_bytes;
    finish_d_q<T, head_dim, RowTile>(p, {p.d_q_sums, p.padded_rows}, block_rows.batch_head(p.sizes),
                                     block_rows.sequence, block_rows.head, row, warp_rows);
}

}  // namespace gradtile::attention::cuda::device
