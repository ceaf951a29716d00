// The forward pass of FlashAttention-2 in float32 on the GPU (Dao 2023, algorithm 1): a block of query rows
// stays, K/V tiles pass by.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include <gradtile/attention/flash_kernels_cuda.h>
#include <gradtile/attention/kernel_views.h>
#include <gradtile/core/cuda_check.h>
#include <gradtile/attention/device/head_rows.cuh>
#include <gradtile/attention/device/mask.cuh>
#include <gradtile/attention/device/softmax.cuh>
#include <gradtile/attention/device/split_float.cuh>
#include <gradtile/attention/device/task_order.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace device;
using gradtile::cuda::cuda_check;

/// Block sizes for head dims up to `head_dim`.
template <int head_dim>
struct ForwardTiles {
    // Two row tiles a warp halve the reading of K and V from shared memory, which else takes as long as the
    // products. From 128 columns on O leaves no registers for that.
    static constexpr int m_tiles = head_dim <= 64 ? 2 : 1;
    static constexpr int warps = head_dim == 128 ? 8 : 4;
    static constexpr int rows = warps * m_tiles * 16;
    static constexpr int keys = head_dim <= 128 ? 32 : 16;
    static constexpr int blocks_per_multiprocessor = head_dim <= 64 ? 2 : 1;

    static constexpr int threads = warps * 32;
    using Q = Tile<rows, head_dim>;
    using K = Tile<keys, head_dim>;
    using Piece = Tile<2 * keys, head_dim>;  // of Q on its way
    static constexpr int shared_bytes = split_bytes<Q> + 2 * split_bytes<K>;
    static_assert(blocks_per_multiprocessor * (shared_bytes + 1024) <= 227 * 1024);
};

struct ForwardParameters {
    HeadRows<const float> q, k, v;
    HeadRows<float> o;
    float* lse;  ///< [B, H, Sq]
    DeviceMask mask;
    Sizes sizes;
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

template <int head_dim>
__global__ void __launch_bounds__(ForwardTiles<head_dim>::threads,
                                  ForwardTiles<head_dim>::blocks_per_multiprocessor)
    forward_kernel(const __grid_constant__ ForwardParameters p) {
    using Tiles = ForwardTiles<head_dim>;
    constexpr int m_tiles = Tiles::m_tiles, key_tiles = Tiles::keys / 8, columns = head_dim / 8;
    extern __shared__ __align__(1024) unsigned char shared[];
    const auto q_tile = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
    const std::uint32_t k_tile = q_tile + split_bytes<typename Tiles::Q>;
    const std::uint32_t v_tile = k_tile + split_bytes<typename Tiles::K>;

    // Backwards: under a causal mask the last rows are the most work.
    const auto [matrix, part] = p.order(static_cast<int>(blockIdx.x));
    const int row_block = p.order.parts - 1 - part;
    const int batch = matrix / p.sizes.heads, head = matrix % p.sizes.heads;
    const int first_row = row_block * Tiles::rows;
    // Under a causal mask the last warp has the most work; blocks take turns which scheduler that burdens.
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row = (row_block % 2 == 0 ? warp : Tiles::warps - 1 - warp) * m_tiles * 16;
    const int lane_row = first_row + warp_row + lane / 4;
    const Rows<const float> k_rows = p.k.of(batch, head / p.sizes.group);
    const Rows<const float> v_rows = p.v.of(batch, head / p.sizes.group);

    const int last_row = min(first_row + Tiles::rows, p.mask.queries) - 1;
    const int past_key = p.mask.past_key(last_row);
    const int first_key = p.mask.first_key(first_row) / Tiles::keys * Tiles::keys;

    SplitTile<typename Tiles::K, Tiles::threads> next;  // K or V, the one needed next
    next.load(k_rows, first_key, past_key - first_key, p.sizes.d_qk, p.k_vectors);
#pragma unroll 1
    for (int row = 0; row < Tiles::rows; row += Tiles::Piece::rows) {
        SplitTile<typename Tiles::Piece, Tiles::threads> piece;
        piece.load(p.q.of(batch, head), first_row + row, p.mask.queries - first_row - row, p.sizes.d_qk,
                   p.q_vectors);
        piece.store(q_tile + row * Tiles::Q::row_bytes, Tiles::Q::bytes);
    }
    next.store(k_tile);
    __syncthreads();

    RowSoftmax<m_tiles> softmax;
    FragmentC o[m_tiles][columns];
    clear(o);
    for (int key = first_key; key < past_key; key += Tiles::keys) {
        const bool sees_any = p.mask.sees_any(first_row + warp_row, m_tiles * 16, key, Tiles::keys);
        SplitA<m_tiles> probabilities[key_tiles / 2];
        float factor[2 * m_tiles];

        const std::uint32_t tiles = anew(q_tile);
        const auto q_lane = LanePointer<typename Tiles::Q>::stacked(tiles);
        const auto k_lane = LanePointer<typename Tiles::K>::paired(tiles + (k_tile - q_tile));
        const auto v_lane = LanePointer<typename Tiles::K>::stacked(tiles + (v_tile - q_tile));
        next.load(v_rows, key, past_key - key, p.sizes.d_v, p.v_vectors);
        if (sees_any) {
            FragmentC s[m_tiles][key_tiles];
            multiply_split_a_bt<head_dim>(s, q_lane, warp_row, k_lane, 0);
#pragma unroll
            for (int m = 0; m < m_tiles; ++m)
#pragma unroll
                for (int n = 0; n < key_tiles; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[m][n][e] *= p.scale_log2;
            if (!p.mask.sees_all(first_row + warp_row, m_tiles * 16, key, Tiles::keys))
                mask_scores(s, p.mask, first_row + warp_row, key);
            softmax.update(s, factor);
#pragma unroll
            for (int k = 0; k < key_tiles / 2; ++k) split_operand_a(probabilities[k], s, k);
        }
        next.store(v_tile);
        __syncthreads();  // V is there; all warps have read K

        next.load(k_rows, key + Tiles::keys, past_key - key - Tiles::keys, p.sizes.d_qk, p.k_vectors);
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
        next.store(k_tile);
        __syncthreads();  // the next K is there; all warps have read V
    }

    const Rows<float> o_rows = p.o.of(batch, head);
#pragma unroll
    for (int i = 0; i < 2 * m_tiles; ++i) {
        constexpr float ln2 = 0.693147180559945309f;
        const int row = lane_row + i / 2 * 16 + i % 2 * 8;
        const float sum = row_sum(softmax.sum[i]);
        if (row >= p.mask.queries) continue;
        const float inverse = sum == 0 ? 0.0f : 1 / sum;  // the sum of a row that sees a key is at least 1
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
    using Tiles = ForwardTiles<head_dim>;
    const int row_blocks = (parameters.mask.queries + Tiles::rows - 1) / Tiles::rows;
    const std::int64_t blocks = matrices * row_blocks;
    check(blocks <= INT32_MAX, "attention: ", blocks, " blocks of rows; CUDA launches at most 2^31 - 1");
    const Sizes& sizes = parameters.sizes;
    const std::int64_t key_bytes = static_cast<std::int64_t>(sizeof(float)) * (sizes.d_qk + sizes.d_v);
    parameters.order = TaskOrder(matrices, row_blocks, parameters.mask.keys * key_bytes / sizes.group);
    gradtile::cuda::use_device(ctx.device());
    cuda_check(cudaFuncSetAttribute(forward_kernel<head_dim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    Tiles::shared_bytes));
    forward_kernel<head_dim><<<static_cast<unsigned>(blocks), Tiles::threads, Tiles::shared_bytes,
                               static_cast<cudaStream_t>(ctx.stream())>>>(parameters);
    cuda_check(cudaGetLastError());
}

}  // namespace

void flash_f32_forward(const Context& ctx, const Resolved& options, const Tensor& q_in, const Tensor& k_in,
                       const Tensor& v_in, const Tensor& o_out, const Tensor& lse) {
    const Readable q(ctx, q_in), k(ctx, k_in), v(ctx, v_in);
    const Writable o(ctx, o_out, DType::f32);
    if (ctx.is_planning() || lse.elements() == 0) return;
    check(std::max(q_in.size(1), k_in.size(1)) <= DeviceMask::longest, "attention: a sequence of ",
          std::max(q_in.size(1), k_in.size(1)), " tokens; CUDA kernels take at most ", DeviceMask::longest);
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    constexpr double log2_e = 1.44269504088896340736;
    const ForwardParameters parameters{.q = head_rows<const float>(q.tensor()),
                                       .k = head_rows<const float>(k.tensor()),
                                       .v = head_rows<const float>(v.tensor()),
                                       .o = head_rows<float>(o.tensor()),
                                       .lse = lse.data<float>(),
                                       .mask = DeviceMask(options.mask),
                                       .sizes = sizes_of(q_in, k_in, v_in),
                                       .scale_log2 = static_cast<float>(options.scale * log2_e),
                                       .order = {},
                                       .q_vectors = has_vector_rows(q.tensor()),
                                       .k_vectors = has_vector_rows(k.tensor()),
                                       .v_vectors = has_vector_rows(v.tensor()),
                                       .o_pairs = has_vector_rows(o.tensor(), 2)};
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
