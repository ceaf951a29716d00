// The forward pass of FlashAttention-2 in float32 on the GPU (Dao 2023, algorithm 1): a block of query rows
// stays, K/V tiles pass by.
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
#include <gradtile/attention/cuda/device/softmax.cuh>
#include <gradtile/attention/cuda/device/split_float.cuh>
#include <gradtile/attention/cuda/device/task_order.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace device;
using gradtile::cuda::cuda_check;

struct ForwardParameters {
    HeadRows<const float> q, k, v;
    HeadRows<float> o;
    float* lse;                       ///< [B, H, Sq]
    const std::uint32_t* magnitudes;  ///< of q, k, v: see measure()
    DeviceMask mask;
    Sizes sizes;
    int batches;
    float scale_log2;  ///< scale * log2(e)
    TaskOrder order;
    bool q_vectors, k_vectors, v_vectors;  ///< has_vector_rows
    bool o_pairs;
};

/// The running maximum (in units of log2(e) S, so that an unchanged one rescales by exactly 1) and sum of the
/// rows a lane holds: row lane/4 and lane/4 + 8 of each row tile.
template <int m_tiles>
struct RowSoftmax {
    float maximum[2 * m_tiles], sum[2 * m_tiles];

    __device__ __forceinline__ RowSoftmax() {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            maximum[i] = -INFINITY;
            sum[i] = 0;
        }
    }
    /// s becomes P relative to the new maximum; factor: what was summed before is to be multiplied by.
    template <int n_tiles>
    __device__ __forceinline__ void update(FragmentC (&s)[m_tiles][n_tiles], float (&factor)[2 * m_tiles]) {
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            FragmentC(&row)[n_tiles] = s[i / 2];
            const int e = i % 2 * 2;
            float largest = -INFINITY;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) largest = fmaxf(largest, fmaxf(row[n][e], row[n][e + 1]));
            const float next = fmaxf(maximum[i], row_maximum(largest));
            const float reference = next == -INFINITY ? 0.0f : next;  // nothing visible yet: P = 2^-inf = 0
            factor[i] = exp2_fast(maximum[i] - reference);
            maximum[i] = next;
            float of_lane = 0;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                row[n][e] = exp2_fast(row[n][e] - reference);
                row[n][e + 1] = exp2_fast(row[n][e + 1] - reference);
                of_lane += row[n][e] + row[n][e + 1];
            }
            sum[i] = fmaf(sum[i], factor[i], of_lane);
        }
    }
};

template <int head_dim, int shared_limit>
__global__ void __launch_bounds__(F32Forward<head_dim>::tiles(shared_limit).threads(),
                                  F32Forward<head_dim>::tiles(shared_limit).blocks_per_multiprocessor)
    forward_kernel(const __grid_constant__ ForwardParameters p) {
    constexpr F32ForwardTiles tiles = F32Forward<head_dim>::tiles(shared_limit);
    constexpr int m_tiles = tiles.row_tiles, key_tiles = tiles.keys / 8, columns = head_dim / 8;
    constexpr int rows = tiles.rows(), keys = tiles.keys, threads = tiles.threads();
    using QTile = Tile<rows, head_dim>;
    using KTile = Tile<keys, head_dim>;
    using QPiece = Tile<2 * keys, head_dim>;  // on its way
    static_assert(split_bytes<QTile> + 2 * split_bytes<KTile> == tiles.shared_bytes(head_dim));
    extern __shared__ __align__(1024) unsigned char shared[];
    const auto q_tile = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
    const std::uint32_t k_tile = q_tile + split_bytes<QTile>;
    const std::uint32_t v_tile = k_tile + split_bytes<KTile>;

    // Backwards: under a causal mask the last rows are the most work.
    const auto [matrix, part] = p.order(static_cast<int>(blockIdx.x));
    const int row_block = p.order.parts - 1 - part;
    const int batch = matrix / p.sizes.heads, head = matrix % p.sizes.heads;
    const int first_row = row_block * rows;
    // Under a causal mask the last warp has the most work; blocks take turns which scheduler that burdens.
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row = (row_block % 2 == 0 ? warp : tiles.warps - 1 - warp) * m_tiles * 16;
    const int lane_row = first_row + warp_row + lane / 4;
    const Rows<const float> k_rows = p.k.of(batch, head / p.sizes.group);
    const Rows<const float> v_rows = p.v.of(batch, head / p.sizes.group);

    const int key_heads = p.sizes.heads / p.sizes.group;
    const auto range = [&](int tensor) {
        return PowerOfTwo(p.magnitudes[(tensor * p.batches + batch) * key_heads + head / p.sizes.group]);
    };
    const PowerOfTwo q_range = range(0), k_range = range(1), v_range = range(2);
    const float score_factor = p.scale_log2 * q_range.inverse * k_range.inverse;

    const int last_row = min(first_row + rows, p.mask.queries) - 1;
    const int past_key = p.mask.past_key(last_row);
    const int first_key = p.mask.first_key(first_row) / keys * keys;

    SplitTile<KTile, threads> next;  // K or V, the one needed next
    next.load(k_rows, first_key, past_key - first_key, p.sizes.d_qk, p.k_vectors);
#pragma unroll 1
    for (int row = 0; row < rows; row += QPiece::rows) {
        SplitTile<QPiece, threads> piece;
        piece.load(p.q.of(batch, head), first_row + row, p.mask.queries - first_row - row, p.sizes.d_qk,
                   p.q_vectors);
        piece.store(q_tile + row * QTile::row_bytes, q_range.factor, QTile::bytes);
    }
    next.store(k_tile, k_range.factor);
    __syncthreads();

    RowSoftmax<m_tiles> softmax;
    FragmentC o[m_tiles][columns];
    clear(o);
    for (int key = first_key; key < past_key; key += keys) {
        const bool sees_any = p.mask.sees_any(first_row + warp_row, m_tiles * 16, key, keys);
        SplitA<m_tiles> probabilities[key_tiles / 2];
        float factor[2 * m_tiles];

        const std::uint32_t base = anew(q_tile);
        const auto q_lane = LanePointer<QTile>::stacked(base);
        const auto k_lane = LanePointer<KTile>::paired(base + (k_tile - q_tile));
        const auto v_lane = LanePointer<KTile>::stacked(base + (v_tile - q_tile));
        next.load(v_rows, key, past_key - key, p.sizes.d_v, p.v_vectors);
        if (sees_any) {
            FragmentC s[m_tiles][key_tiles];
            multiply_split_a_bt<head_dim>(s, q_lane, warp_row, k_lane, 0);
#pragma unroll
            for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                for (int n = 0; n < key_tiles; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[m][n][e] *= score_factor;
            if (!p.mask.sees_all(first_row + warp_row, m_tiles * 16, key, keys))
                mask_scores(s, p.mask, first_row + warp_row, key);
            softmax.update(s, factor);
#pragma unroll
            for (int k = 0; k < key_tiles / 2; ++k) split_operand_a(probabilities[k], s, k);
        }
        next.store(v_tile, v_range.factor);
        __syncthreads();  // V is there; all warps have read K

        next.load(k_rows, key + keys, past_key - key - keys, p.sizes.d_qk, p.k_vectors);
        if (sees_any) {
            constexpr int group = 4;  // columns of O at once
#pragma unroll
            for (int column = 0; column < columns; column += group) {
                SplitSum<m_tiles, group> sum;
                multiply_split_a_b(sum, probabilities, v_lane, column * 8);
#pragma unroll
                for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                    for (int n = 0; n < group; ++n)
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            o[m][column + n][e] =
                                fmaf(o[m][column + n][e], factor[2 * m + e / 2], sum.value(m, n, e));
            }
        }
        next.store(k_tile, k_range.factor);
        __syncthreads();  // the next K is there; all warps have read V
    }

    const Rows<float> o_rows = p.o.of(batch, head);
#pragma unroll
    for (int i = 0; i < 2 * m_tiles; ++i) {
        constexpr float ln2 = 0.693147180559945309f;
        const int row = lane_row + i / 2 * 16 + i % 2 * 8;
        const float sum = row_sum(softmax.sum[i]);
        if (row >= p.mask.queries) continue;
        const float inverse =
            sum == 0 ? 0.0f : v_range.inverse / sum;  // the sum of a row that sees a key is at least 1
        float* const o_row = o_rows.row(row);
#pragma unroll
        for (int n = 0; n < columns; ++n) {
            const float* const pair = &o[i / 2][n][i % 2 * 2];
            store_pair(o_row, n * 8 + lane % 4 * 2, p.sizes.d_v, pair[0] * inverse, pair[1] * inverse,
                       p.o_pairs);
        }
        if (lane % 4 == 0)
            p.lse[static_cast<std::int64_t>(matrix) * p.mask.queries + row] =
                sum == 0 ? -INFINITY : fmaf(softmax.maximum[i], ln2, logf(sum));
    }
}

template <int head_dim>
void launch(const Context& ctx, ForwardParameters parameters, std::int64_t matrices) {
    gradtile::cuda::use_device(ctx.device());
    visit_shared_memory<F32Forward<head_dim>>(
        gradtile::cuda::shared_memory_of_a_block(), [&]<int limit>(SharedMemory<limit>) {
            constexpr F32ForwardTiles tiles = F32Forward<head_dim>::tiles(limit);
            constexpr int shared_bytes = tiles.shared_bytes(head_dim);
            const int row_blocks = (parameters.mask.queries + tiles.rows() - 1) / tiles.rows();
            const std::int64_t blocks = matrices * row_blocks;
            check(blocks <= INT32_MAX, "attention: ", blocks,
                  " blocks of rows; CUDA launches at most 2^31 - 1");
            const Sizes& sizes = parameters.sizes;
            const std::int64_t key_bytes =
                static_cast<std::int64_t>(sizeof(float)) * (sizes.d_qk + sizes.d_v);
            parameters.order =
                TaskOrder(matrices, row_blocks, parameters.mask.keys * key_bytes / sizes.group);
            const auto kernel = forward_kernel<head_dim, limit>;
            cuda_check(
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
            kernel<<<static_cast<unsigned>(blocks), tiles.threads(), shared_bytes,
                     static_cast<cudaStream_t>(ctx.stream())>>>(parameters);
            cuda_check(cudaGetLastError());
        });
}

}  // namespace

void flash_f32_forward(const Context& ctx, const Resolved& options, const Tensor& q_in, const Tensor& k_in,
                       const Tensor& v_in, const Tensor& o_out, const Tensor& lse) {
    const Readable q(ctx, q_in), k(ctx, k_in), v(ctx, v_in);
    const Writable o(ctx, o_out, DType::f32);
    const Tensor magnitudes = empty_magnitudes(ctx, 3, k_in);
    if (ctx.is_planning() || lse.elements() == 0) return;
    check(std::max(q_in.size(1), k_in.size(1)) <= DeviceMask::longest, "attention: a sequence of ",
          std::max(q_in.size(1), k_in.size(1)), " tokens; CUDA kernels take at most ", DeviceMask::longest);
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    measure(ctx, magnitudes, {&q.tensor(), &k.tensor(), &v.tensor()});
    constexpr double log2_e = 1.44269504088896340736;
    const ForwardParameters parameters{.q = head_rows<const float>(q.tensor()),
                                       .k = head_rows<const float>(k.tensor()),
                                       .v = head_rows<const float>(v.tensor()),
                                       .o = head_rows<float>(o.tensor()),
                                       .lse = lse.data<float>(),
                                       .magnitudes = largest_of(magnitudes),
                                       .mask = DeviceMask(options.mask),
                                       .sizes = sizes_of(q_in, k_in, v_in),
                                       .batches = static_cast<int>(q_in.size(0)),
                                       .scale_log2 = static_cast<float>(options.scale * log2_e),
                                       .order = {},
                                       .q_vectors = has_vector_rows(q.tensor()),
                                       .k_vectors = has_vector_rows(k.tensor()),
                                       .v_vectors = has_vector_rows(v.tensor()),
                                       .o_pairs = has_vector_rows(o.tensor(), 8)};
    const std::int64_t matrices = q_in.size(0) * q_in.size(2);
    const std::int64_t head_dim = std::max(q_in.size(3), v_in.size(3));
    const auto launch_for = head_dim <= 32    ? launch<32>
                            : head_dim <= 64  ? launch<64>
                            : head_dim <= 128 ? launch<128>
                                              : launch<256>;
    launch_for(ctx, parameters, matrices);
    o.store(ctx);
}

}  // namespace gradtile::attention::cuda
