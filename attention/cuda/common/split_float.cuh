#pragma once
/// float32 matrix products on tensor cores, with float32 accuracy.
///
/// A float32 number x is represented by two binary16 numbers: x = high + 2^-11 low. Each part has 11
/// significant bits, and `low` has its own sign, so the relative error is at most 2^-23. Binary16 has only
/// five exponent bits. Therefore the low part is stored multiplied by 2^11, so that it has the same range as
/// the high part. For the same reason, every head is first multiplied by a power of two that brings its
/// largest number just below 2^14 (magnitude.cuh). Numbers down to 2^-28 times the largest then keep
/// all 22 bits. For smaller numbers the error is at most 2^-50 times the largest.
///
/// The product of two such numbers has four terms. Three are computed. The fourth, low * low, is at most
/// 2^-22 times the product, 2^-24 on average. Three bf16 products would have only 16 bits. Six bf16 products
/// have 24 bits and cost twice as much. Three tf32 products also cost twice as much.
///
/// Tensor cores truncate the sums that a float32 addition rounds, so errors in long sums would add up in one
/// direction. Therefore there are two accumulators. `large` sums only the product high * high, over a few
/// steps. `large` is then added, with rounding, to a sum outside the tensor cores. `small` sums the other two
/// products; its truncation errors are 2^-11 times those in `large`.
#include <cstdint>

#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/mma.cuh>
#include <gradtile/attention/cuda/common/shared_tile.cuh>

namespace gradtile::attention::cuda::device {

enum Plane { high, low };
inline constexpr int planes = 2;
inline constexpr float low_factor = 2048;  ///< low = (x - high) * low_factor

/// Splits x and y: pair[high] and pair[low] each hold two packed binary16 numbers.
__device__ __forceinline__ void split(std::uint32_t (&pair)[planes], float x, float y) {
    pair[high] = pack<float16>(x, y);
    const float2 taken = unpack<float16>(pair[high]);
    pair[low] = pack<float16>((x - taken.x) * low_factor, (y - taken.y) * low_factor);
}

/// Hides x from the optimizer, so that a loop recomputes the addresses that it derives from x instead of
/// keeping each in a register.
__device__ __forceinline__ std::uint32_t rematerialize(std::uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

/// Shared-memory bytes per split tile: one Tile per plane, one after the other.
template <class Tile>
inline constexpr int split_bytes = planes* Tile::bytes;

/// Copies a float32 tile from global memory to shared memory and splits it into planes. Between load() and
/// store() the tile is in registers, so its loads can run while the previous tile is still in use. An
/// asynchronous copy could not split the tile.
template <class Tile, int threads>
class SplitTile {
  public:
    /// Rows from valid_rows on and columns from valid_columns on become 0. `vectors` requires that rows are
    /// 16-byte aligned and that valid_columns is divisible by 4.
    __device__ __forceinline__ void load(StridedRows<const float> rows, int first, int valid_rows,
                                         int valid_columns, bool vectors) {
        const int thread = reread_thread_index();
        const int row = thread / Tile::row_chunks, column = thread % Tile::row_chunks * 8;
        const float* from = rows.row(first + row) + column;
#pragma unroll
        for (int i = 0; i < rounds; ++i, from += step * rows.stride) {
            const int columns = row + i * step < min(valid_rows, Tile::rows) ? valid_columns - column : 0;
#pragma unroll
            for (int c = 0; c < 8; c += 4) {
                if (vectors) {
                    const float4 four = c < columns ? *reinterpret_cast<const float4*>(from + c) : float4{};
                    x_[i][c] = four.x;
                    x_[i][c + 1] = four.y;
                    x_[i][c + 2] = four.z;
                    x_[i][c + 3] = four.w;
                } else {
#pragma unroll
                    for (int e = c; e < c + 4; ++e) x_[i][e] = e < columns ? from[e] : 0.0f;
                }
            }
        }
    }

    /// Stores the rows times `factor`, a power of two. plane_bytes is the distance between the two planes in
    /// bytes; it exceeds the default if this tile is a part of a longer tile.
    __device__ __forceinline__ void store(std::uint32_t tile, float factor,
                                          int plane_bytes = Tile::bytes) const {
        const int thread = reread_thread_index();
        const int row = thread / Tile::row_chunks, chunk = thread % Tile::row_chunks;
#pragma unroll
        for (int i = 0; i < rounds; ++i) {
            if (Tile::rows % step != 0 && row + i * step >= Tile::rows) break;
            std::uint32_t pair[4][planes];
#pragma unroll
            for (int p = 0; p < 4; ++p) split(pair[p], x_[i][2 * p] * factor, x_[i][2 * p + 1] * factor);
            // If `step` is divisible by 8, the swizzle does not change, so one address and constant offsets
            // suffice.
            const std::uint32_t to = step % 8 == 0
                                         ? tile + Tile::offset(row, chunk) + i * step * Tile::row_bytes
                                         : tile + Tile::offset(row + i * step, chunk);
#pragma unroll
            for (int plane = 0; plane < planes; ++plane)
                asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to + plane * plane_bytes),
                             "r"(pair[0][plane]), "r"(pair[1][plane]), "r"(pair[2][plane]),
                             "r"(pair[3][plane])
                             : "memory");
        }
    }

  private:
    // Rows between two rounds. A thread has the same columns in every round.
    static constexpr int step = threads / Tile::row_chunks;
    static constexpr int rounds = (Tile::rows + step - 1) / step;
    float x_[rounds][8];
};

/// Split operands in registers: A has 16 columns, B has 16 rows.
template <int m_tiles>
using SplitA = FragmentA[planes][m_tiles];
template <int n_tiles>
using SplitB = std::uint32_t[planes][n_tiles][2];

/// Loads A's block [16 m_tiles, 16] at (row, column) from a tile that holds A or, if `transposed`, A^T.
template <bool transposed = false, class Tile, int m_tiles>
__device__ __forceinline__ void load_a(SplitA<m_tiles>& a, const LanePointer<Tile>& from, int row,
                                       int column) {
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
            load_matrices<transposed>(
                a[plane][m], from.at(row + (transposed ? 0 : m * 16), column + (transposed ? m * 16 : 0)) +
                                 plane * Tile::bytes);
}

/// Loads B [16, 8 n_tiles] from a tile that holds B^T or, if `transposed`, B. (row, column) is the tile's
/// first element to load.
template <bool transposed, class Tile, int n_tiles>
__device__ __forceinline__ void load_b(SplitB<n_tiles>& b, const LanePointer<Tile>& from, int row,
                                       int column) {
#pragma unroll
    for (int plane = 0; plane < planes; ++plane)
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            std::uint32_t two[4];
            load_matrices<transposed>(
                two, from.at(row + (transposed ? 0 : n * 8), column + (transposed ? n * 8 : 0)) +
                         plane * Tile::bytes);
            b[plane][n][0] = two[0];
            b[plane][n][1] = two[1];
            b[plane][n + 1][0] = two[2];
            b[plane][n + 1][1] = two[3];
        }
}

/// Splits accumulator columns [16 k, 16 k + 16) into operand A for the next product.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void split_operand_a(SplitA<m_tiles>& a, const FragmentC (&c)[m_tiles][n_tiles],
                                                int k) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        // Rows 0-7 and 8-15 in the left eight columns, then in the right eight columns.
        for (int i = 0; i < 4; ++i) {
            const FragmentC& from = c[m][2 * k + i / 2];
            std::uint32_t pair[planes];
            split(pair, from[i % 2 * 2], from[i % 2 * 2 + 1]);
#pragma unroll
            for (int plane = 0; plane < planes; ++plane) a[plane][m][i] = pair[plane];
        }
}

/// Splits all accumulator columns into operand A for the next product: a[0] .. a[n_tiles / 2 - 1].
template <int k_steps, int m_tiles, int n_tiles>
__device__ __forceinline__ void split_operands_a(SplitA<m_tiles> (&a)[k_steps],
                                                 const FragmentC (&c)[m_tiles][n_tiles]) {
#pragma unroll
    for (int k = 0; k < n_tiles / 2; ++k) split_operand_a(a[k], c, k);
}

/// Accumulators for a product of split operands.
template <int m_tiles, int n_tiles>
class SplitSum {
  public:
    __device__ __forceinline__ SplitSum() {
        clear(large_);
        clear(small_);
    }
    /// += a * b
    __device__ __forceinline__ void add_product(const SplitA<m_tiles>& a, const SplitB<n_tiles>& b) {
        add(small_, a[low], b[high]);
        add(large_, a[high], b[high]);
        add(small_, a[high], b[low]);
    }
    __device__ __forceinline__ float value(int m, int n, int element) const {
        return fmaf(small_[m][n][element], 1 / low_factor, large_[m][n][element]);
    }

  private:
    __device__ static __forceinline__ void add(FragmentC (&c)[m_tiles][n_tiles],
                                               const FragmentA (&a)[m_tiles],
                                               const std::uint32_t (&b)[n_tiles][2]) {
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) mma<float16>(c[m][n], a[m], b[n][0], b[n][1]);
    }
    FragmentC large_[m_tiles][n_tiles], small_[m_tiles][n_tiles];
};

/// c [16 m_tiles, 8 n_tiles] = a * b^T, summed over `depth` columns. a and b are tiles [.., depth], read from
/// row row_a or row_b on.
template <int depth, class TileA, class TileB, int m_tiles, int n_tiles>
__device__ __forceinline__ void multiply_split_a_bt(FragmentC (&c)[m_tiles][n_tiles],
                                                    const LanePointer<TileA>& a, int row_a,
                                                    const LanePointer<TileB>& b, int row_b) {
    constexpr int max_depth = 64;  // columns per partial sum; partial sums are added with rounding
#pragma unroll
    for (int begin = 0; begin < depth; begin += max_depth) {
        SplitSum<m_tiles, n_tiles> sum;
#pragma unroll
        for (int k = begin; k < begin + max_depth && k < depth; k += 16) {
            SplitA<m_tiles> fragment_a;
            SplitB<n_tiles> fragment_b;
            load_a(fragment_a, a, row_a, k);
            load_b<false>(fragment_b, b, row_b, k);
            sum.add_product(fragment_a, fragment_b);
        }
        for_each_element(c, [&](float& element, int m, int n, int e) {
            element = begin == 0 ? sum.value(m, n, e) : element + sum.value(m, n, e);
        });
    }
}

/// sum += a * b, for a in registers and b [16 k_steps, ..] in shared memory, read from `column` on.
template <class TileB, int k_steps, int m_tiles, int n_tiles>
__device__ __forceinline__ void multiply_split_a_b(SplitSum<m_tiles, n_tiles>& sum,
                                                   const SplitA<m_tiles> (&a)[k_steps],
                                                   const LanePointer<TileB>& b, int column) {
#pragma unroll
    for (int k = 0; k < k_steps; ++k) {
        SplitB<n_tiles> fragment_b;
        load_b<true>(fragment_b, b, k * 16, column);
        sum.add_product(a[k], fragment_b);
    }
}

/// Stores two adjacent elements in a row. `pairs` requires that rows are 8-byte aligned and have even
/// lengths.
__device__ __forceinline__ void store_pair(float* row, int column, int columns, float first, float second,
                                           bool pairs) {
    if (pairs) {
        if (column < columns) *reinterpret_cast<float2*>(row + column) = {first, second};
    } else {
        if (column < columns) row[column] = first;
        if (column + 1 < columns) row[column + 1] = second;
    }
}

}  // namespace gradtile::attention::cuda::device
