#pragma once
/// The kernel of lab/warp_partition.h: FlashAttention-2's forward loop, whose warps divide a tile by rows or
/// by keys.
#include <gradtile/tools/lab/warp_partition.h>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>

namespace gradtile::attention::cuda::partition {

using namespace device;
using lab::GridOrder, lab::WarpPartition;

template <class T>
struct Parameters {
    TensorView<const T> q, k, v;
    TensorView<T> o;
    float* lse;  ///< [B, H, Sq]
    int heads, head_dim;
    DeviceMask mask;
    float scale_log2;
    GridOrder order;
};

inline constexpr int warps = lab::partition_warps, rows = lab::partition_rows, keys = lab::partition_keys,
                     threads = 32 * warps, warp_rows = rows / warps, warp_keys = keys / warps;
static_assert(warp_rows == 16 && warp_keys == 16);

/// Offsets in shared memory. Only split K has the memory through which warps exchange their parts.
template <int head_dim, WarpPartition partition>
struct Layout {
    using QTile = Tile<rows, head_dim>;
    using KeyTile = Tile<keys, head_dim>;
    /// Row stride of a partial O in floats, such that eight neighbouring rows use different banks.
    static constexpr int part_row = head_dim + 8;
    static constexpr int q = 0, kv = QTile::bytes, stages = 2, stage_bytes = 2 * KeyTile::bytes,
                         parts = kv + stages * stage_bytes, parts_bytes = warps * rows * part_row * 4,
                         maxima = parts + parts_bytes, sums = maxima + warps * rows * 4,
                         running = sums + warps * rows * 4;
    static constexpr int bytes = partition == WarpPartition::split_k ? running + rows * 4 : parts;
};

/// O and the softmax state for the 16 rows that a warp owns. A lane holds numbers in the rows lane/4 and
/// lane/4 + 8.
template <int head_dim>
struct OwnRows {
    FragmentC o[1][head_dim / 8];
    OnlineSoftmax<1> softmax;
};

/// Split Q: processes the warp's rows and all keys in the tile.
template <class T, int head_dim>
__device__ __forceinline__ void add_keys_split_q(OwnRows<head_dim>& own, const Parameters<T>& p,
                                                 std::uint32_t q, std::uint32_t k, std::uint32_t v,
                                                 int first_row, int key) {
    using L = Layout<head_dim, WarpPartition::split_q>;
    const int row = first_row + warp_index() * warp_rows;
    if (!p.mask.sees_any(row, warp_rows, key, keys)) return;
    FragmentC s[1][keys / 8];
    clear(s);
    multiply_a_bt<T, head_dim, 4>(
        s, LanePointer<typename L::QTile>::stacked(q + warp_index() * warp_rows * L::QTile::row_bytes),
        LanePointer<typename L::KeyTile>::paired(k));
    scale(s, p.scale_log2);
    if (!p.mask.sees_all(row, warp_rows, key, keys)) mask_scores(s, p.mask, row, key);
    float factor[2];
    own.softmax.update(s, factor);
    scale_rows(own.o, factor);
    FragmentA probabilities[keys / 16][1];
    as_operand_a<T>(probabilities, s);
    multiply_a_b<T>(own.o, probabilities, LanePointer<typename L::KeyTile>::stacked(v));
}

/// The shared memory through which warps exchange partial results.
struct Exchange {
    float *parts, *maxima, *sums, *running;

    /// The row's largest score up to and including this tile.
    __device__ __forceinline__ float maximum(int row) const {
        float result = running[row];
#pragma unroll
        for (int warp = 0; warp < warps; ++warp) result = fmaxf(result, maxima[warp * rows + row]);
        return result;
    }
};

/// Split K: processes all rows and the warp's keys in the tile. All threads of the block must call this
/// function.
template <class T, int head_dim>
__device__ __forceinline__ void add_keys_split_k(OwnRows<head_dim>& own, const Parameters<T>& p,
                                                 const Exchange& exchange, std::uint32_t q, std::uint32_t k,
                                                 std::uint32_t v, int first_row, int key) {
    using L = Layout<head_dim, WarpPartition::split_k>;
    constexpr int m_tiles = rows / 16, lane_rows = 2 * m_tiles;
    const int warp = warp_index(), lane = lane_index();
    const auto row_of = [&](int i) { return i / 2 * 16 + i % 2 * 8 + lane / 4; };
    FragmentC s[m_tiles][warp_keys / 8];
    clear(s);
    multiply_a_bt<T, head_dim, 4>(
        s, LanePointer<typename L::QTile>::stacked(q),
        LanePointer<typename L::KeyTile>::paired(k + warp * warp_keys * L::KeyTile::row_bytes));
    scale(s, p.scale_log2);
    mask_scores(s, p.mask, first_row, key + warp * warp_keys);

    // Each warp's row maxima.
#pragma unroll
    for (int i = 0; i < lane_rows; ++i) {
        const FragmentC(&row_scores)[warp_keys / 8] = s[i / 2];
        const int e = i % 2 * 2;
        const float largest = row_max(fmaxf(fmaxf(row_scores[0][e], row_scores[0][e + 1]),
                                            fmaxf(row_scores[1][e], row_scores[1][e + 1])));
        if (lane % 4 == 0) exchange.maxima[warp * rows + row_of(i)] = largest;
    }
    __syncthreads();

    // P, its row sums, and each warp's partial O.
#pragma unroll
    for (int i = 0; i < lane_rows; ++i) {
        const float maximum = exchange.maximum(row_of(i)), reference = maximum == -INFINITY ? 0.0f : maximum;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < warp_keys / 8; ++n)
#pragma unroll
            for (int e = i % 2 * 2; e < i % 2 * 2 + 2; ++e) {
                s[i / 2][n][e] = power_of_two(s[i / 2][n][e] - reference);
                sum += s[i / 2][n][e];
            }
        sum = row_sum(sum);
        if (lane % 4 == 0) exchange.sums[warp * rows + row_of(i)] = sum;
    }
    FragmentA probabilities[1][m_tiles];
    as_operand_a<T>(probabilities, s);
    const auto v_lane =
        LanePointer<typename L::KeyTile>::stacked(v + warp * warp_keys * L::KeyTile::row_bytes);
    constexpr int group = 4;  // tiles computed at a time, eight columns each
#pragma unroll
    for (int column = 0; column < head_dim; column += 8 * group) {
        FragmentC part[m_tiles][group];
        clear(part);
#pragma unroll
        for (int n = 0; n < group; n += 2) {
            std::uint32_t pair[4];
            load_matrices<true>(pair, v_lane.at(0, column + n * 8));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma<T>(part[m][n], probabilities[0][m], pair[0], pair[1]);
                mma<T>(part[m][n + 1], probabilities[0][m], pair[2], pair[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < lane_rows; ++i)
#pragma unroll
            for (int n = 0; n < group; ++n)
                *reinterpret_cast<float2*>(exchange.parts + (warp * rows + row_of(i)) * L::part_row + column +
                                           n * 8 + lane % 4 * 2) = {part[i / 2][n][i % 2 * 2],
                                                                    part[i / 2][n][i % 2 * 2 + 1]};
    }
    __syncthreads();

    // The warp adds the partial results for the rows that it owns.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = warp * warp_rows + i * 8 + lane / 4;
        const float maximum = exchange.maximum(row), reference = maximum == -INFINITY ? 0.0f : maximum;
        const float factor = power_of_two(own.softmax.maximum(i) - reference);
        float sum = own.softmax.sum(i) * factor;
#pragma unroll
        for (int part = 0; part < warps; ++part) sum += exchange.sums[part * rows + row];
        own.softmax.set(i, maximum, lane % 4 == 0 ? sum : 0.0f);
#pragma unroll
        for (int n = 0; n < head_dim / 8; ++n) {
            float* const pair = &own.o[0][n][i * 2];
            pair[0] *= factor;
            pair[1] *= factor;
#pragma unroll
            for (int part = 0; part < warps; ++part) {
                const float2 two = *reinterpret_cast<const float2*>(
                    exchange.parts + (part * rows + row) * L::part_row + n * 8 + lane % 4 * 2);
                pair[0] += two.x;
                pair[1] += two.y;
            }
        }
        __syncwarp();  // all lanes have read the row's maximum
        if (lane % 4 == 0) exchange.running[row] = maximum;
    }
}

template <class T, int head_dim, WarpPartition partition>
__global__ void __launch_bounds__(threads, 1)
    partitioned_forward_kernel(const __grid_constant__ Parameters<T> p) {
    using L = Layout<head_dim, partition>;
    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    const int row_blocks = (p.mask.queries + rows - 1) / rows,
              batch_heads = static_cast<int>(gridDim.x) / row_blocks;
    const bool blocks_fastest = p.order == GridOrder::blocks_fastest;
    const int index = static_cast<int>(blockIdx.x);
    const int batch_head = blocks_fastest ? index / row_blocks : index % batch_heads,
              row_block = blocks_fastest ? index % row_blocks : index / batch_heads;
    // The last rows come first: under a causal mask they have the most work.
    const int first_row = (row_blocks - 1 - row_block) * rows;
    const int batch = batch_head / p.heads, head = batch_head % p.heads;
    const StridedRows<const T> k = p.k.head(batch, head), v = p.v.head(batch, head);
    const int end_key = p.mask.end_key(min(first_row + rows, p.mask.queries) - 1);

    const auto k_tile = [&](int key) { return base + L::kv + key / keys % L::stages * L::stage_bytes; };
    const auto load_keys = [&](int key) {
        if (key < end_key) {
            load_tile_async<typename L::KeyTile, threads>(k_tile(key), k.row(key), k.stride,
                                                          p.mask.keys - key, head_dim);
            load_tile_async<typename L::KeyTile, threads>(k_tile(key) + L::KeyTile::bytes, v.row(key),
                                                          v.stride, p.mask.keys - key, head_dim);
        }
        commit_copies();
    };
    const StridedRows<const T> q = p.q.head(batch, head);
    load_tile_async<typename L::QTile, threads>(base + L::q, q.row(first_row), q.stride,
                                                p.mask.queries - first_row, head_dim);
    load_keys(0);
    const Exchange exchange{
        reinterpret_cast<float*>(shared + L::parts), reinterpret_cast<float*>(shared + L::maxima),
        reinterpret_cast<float*>(shared + L::sums), reinterpret_cast<float*>(shared + L::running)};
    if constexpr (partition == WarpPartition::split_k) {
        if (threadIdx.x < rows) exchange.running[threadIdx.x] = -INFINITY;
    }
    OwnRows<head_dim> own;
    clear(own.o);
    for (int key = 0; key < end_key; key += keys) {
        wait_for_copies<0>();
        __syncthreads();  // the keys are in shared memory; no warp reads the other stage or exchanged numbers
        load_keys(key + keys);
        if constexpr (partition == WarpPartition::split_q) {
            add_keys_split_q<T, head_dim>(own, p, base + L::q, k_tile(key), k_tile(key) + L::KeyTile::bytes,
                                          first_row, key);
        } else {
            add_keys_split_k<T, head_dim>(own, p, exchange, base + L::q, k_tile(key),
                                          k_tile(key) + L::KeyTile::bytes, first_row, key);
        }
    }
    wait_for_copies<0>();
    const int warp_row = first_row + warp_index() * warp_rows, lane = lane_index();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = warp_row + i * 8 + lane / 4;
        const float sum = own.softmax.sum(i), inverse = sum == 0 ? 0.0f : 1 / sum;
        if (row >= p.mask.queries) continue;
        T* const o_row = p.o.head(batch, head).row(row);
#pragma unroll
        for (int n = 0; n < head_dim / 8; ++n)
            *reinterpret_cast<std::uint32_t*>(o_row + n * 8 + lane % 4 * 2) =
                pack<T>(own.o[0][n][i * 2] * inverse, own.o[0][n][i * 2 + 1] * inverse);
        if (lane % 4 == 0)
            p.lse[std::int64_t{batch_head} * p.mask.queries + row] = own.softmax.lse(i, sum).lse;
    }
}

}  // namespace gradtile::attention::cuda::partition
