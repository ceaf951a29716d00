#pragma once
/// 16-bit tiles in shared memory, and their products. The tile layout avoids bank conflicts in row-wise
/// copies and in ldmatrix.
#include <cstdint>

#include <gradtile/attention/cuda/common/mma.cuh>

namespace gradtile::attention::cuda::device {

/// A row-major tile whose 16-byte chunks are permuted within a row (XOR swizzle). ldmatrix reads the same
/// chunk from 8 rows at the same time, so these chunks must be in 8 different 4-bank groups. If the row
/// length is divisible by 128 bytes, all rows start at bank 0, and the chunk number is XORed with the row
/// number. Otherwise the row length is an odd multiple of 64 bytes, and rows start at bank 0 and bank 16
/// alternately. Then two neighbouring rows use the same two-bit XOR.
template <int rows_, int columns_>
struct Tile {
    static constexpr int rows = rows_;
    static constexpr int columns = columns_;
    static constexpr int row_bytes = 2 * columns;
    static constexpr int bytes = rows * row_bytes;
    static constexpr int row_chunks = columns / 8;
    /// Bytes per span; chunks are permuted within a span.
    static constexpr int span_bytes = columns % 64 == 0 ? 128 : 64;
    static constexpr int span_distance = span_bytes;  ///< bytes between a row's spans
    static_assert(columns % 32 == 0 && rows % 8 == 0);

    __device__ static constexpr std::uint32_t offset(int row, int chunk) {
        const int swizzle = span_bytes == 128 ? row & 7 : row >> 1 & 3;
        return static_cast<std::uint32_t>(row * row_bytes + (chunk ^ swizzle) * 16);
    }
};

/// Starts an asynchronous tile copy. Rows from `valid_rows` on and columns from `valid_columns` on (divisible
/// by 8) become 0.
template <class Tile, int threads, class T>
__device__ __forceinline__ void load_tile_async(std::uint32_t tile, const T* source, std::int64_t row_stride,
                                                int valid_rows, int valid_columns) {
    // Each thread copies chunks in one column. If possible, the distance between a thread's rows is divisible
    // by 8, so that the swizzle does not change, and one source address, one target address and constant
    // steps suffice. Some threads may have nothing to copy.
    constexpr int at_once = threads / Tile::row_chunks, step = at_once >= 8 ? at_once / 8 * 8 : at_once;
    const int thread = static_cast<int>(reread_thread_index());
    if (step * Tile::row_chunks != threads && thread >= step * Tile::row_chunks) return;
    const int row = thread / Tile::row_chunks, chunk = thread % Tile::row_chunks;
    const T* from = source + row * row_stride + chunk * 8;
    const std::uint32_t to = tile + Tile::offset(row, chunk);
    const int rows_left = chunk * 8 < valid_columns ? valid_rows - row : 0;
#pragma unroll
    for (int i = 0; i < Tile::rows; i += step) {
        if (Tile::rows % step != 0 && row + i >= Tile::rows) break;
        const std::uint32_t target =
            step % 8 == 0 ? to + i * Tile::row_bytes : tile + Tile::offset(row + i, chunk);
        copy_16_bytes_async(target, from, i < rows_left);
        from += step * row_stride;
    }
}

/// Computes the address that a lane passes to ldmatrix. ldmatrix loads a 16 x 16 block as four 8 x 8
/// matrices, numbered 0 to 3. `stacked` arranges them as [0 2; 1 3] (operand A, or B transposed), `paired` as
/// [0 1; 2 3] (operand B, or A transposed).
template <class Tile>
class LanePointer {
  public:
    __device__ static LanePointer stacked(std::uint32_t tile) {
        const int lane = lane_index();
        return LanePointer(tile + Tile::offset(lane & 15, lane >> 4));
    }
    __device__ static LanePointer paired(std::uint32_t tile) {
        const int lane = lane_index();
        return LanePointer(tile + Tile::offset((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1));
    }
    /// The address for the 16 x 16 block at (row, column), both divisible by 16. In unrolled loops the
    /// address is an XOR, the same for all rows, plus a constant. Tiles must be 128-byte aligned.
    __device__ std::uint32_t at(int row, int column) const {
        const int in_span = column * 2 % Tile::span_bytes, span = column * 2 / Tile::span_bytes;
        return (base_ ^ static_cast<std::uint32_t>(in_span)) +
               static_cast<std::uint32_t>(span * Tile::span_distance + row * Tile::row_bytes);
    }

  private:
    __device__ explicit LanePointer(std::uint32_t base) : base_(base) {}
    std::uint32_t base_;
};

/// c[16 m_tiles, 8 n_tiles] += a * b^T for a [.., depth] and b [8 n_tiles, depth], both in shared memory.
/// Only `unrolled` depth steps (16 elements each) are unrolled: with more the compiler loads so far ahead
/// that registers spill.
template <class T, int depth, int unrolled, class TileA, class TileB, int m_tiles, int n_tiles>
__device__ __forceinline__ void multiply_a_bt(FragmentC (&c)[m_tiles][n_tiles], LanePointer<TileA> a,
                                              LanePointer<TileB> b) {
#pragma unroll unrolled
    for (int k = 0; k < depth; k += 16) {
        FragmentA fragment[m_tiles];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) load_matrices<false>(fragment[m], a.at(m * 16, k));
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            std::uint32_t pair[4];
            load_matrices<false>(pair, b.at(n * 8, k));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma<T>(c[m][n], fragment[m], pair[0], pair[1]);
                mma<T>(c[m][n + 1], fragment[m], pair[2], pair[3]);
            }
        }
    }
}

/// c += a * b, for a in registers and b [16 k_steps, 8 n_tiles] in shared memory.
template <class T, class TileB, int k_steps, int m_tiles, int n_tiles>
__device__ __forceinline__ void multiply_a_b(FragmentC (&c)[m_tiles][n_tiles],
                                             const FragmentA (&a)[k_steps][m_tiles], LanePointer<TileB> b) {
#pragma unroll
    for (int k = 0; k < k_steps; ++k)
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            std::uint32_t pair[4];
            load_matrices<true>(pair, b.at(k * 16, n * 8));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma<T>(c[m][n], a[k][m], pair[0], pair[1]);
                mma<T>(c[m][n + 1], a[k][m], pair[2], pair[3]);
            }
        }
}

/// c += a^T * b for a [depth, 16 m_tiles] and b [depth, 8 n_tiles], both in shared memory, read from columns
/// a_column and b_column on (both divisible by 16).
template <class T, int depth, int unrolled, class TileA, class TileB, int m_tiles, int n_tiles>
__device__ __forceinline__ void multiply_at_b(FragmentC (&c)[m_tiles][n_tiles], LanePointer<TileA> a,
                                              int a_column, LanePointer<TileB> b, int b_column) {
#pragma unroll unrolled
    for (int k = 0; k < depth; k += 16) {
        FragmentA fragment[m_tiles];
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) load_matrices<true>(fragment[m], a.at(k, a_column + m * 16));
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            std::uint32_t pair[4];
            load_matrices<true>(pair, b.at(k, b_column + n * 8));
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                mma<T>(c[m][n], fragment[m], pair[0], pair[1]);
                mma<T>(c[m][n + 1], fragment[m], pair[2], pair[3]);
            }
        }
    }
}

/// Calls f(element, m, n, e) for every accumulator element.
template <int m_tiles, int n_tiles, class F>
__device__ __forceinline__ void for_each_element(FragmentC (&c)[m_tiles][n_tiles], F&& f) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) f(c[m][n][e], m, n, e);
}

template <int m_tiles, int n_tiles>
__device__ __forceinline__ void clear(FragmentC (&c)[m_tiles][n_tiles]) {
    for_each_element(c, [](float& element, int, int, int) { element = 0; });
}

/// c *= factor.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void scale(FragmentC (&c)[m_tiles][n_tiles], float factor) {
    for_each_element(c, [&](float& element, int, int, int) { element *= factor; });
}

/// Multiplies a lane's row i by factor[i]. In row tile m, i = 2 m is row lane/4, and i = 2 m + 1 is row
/// lane/4 + 8.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void scale_rows(FragmentC (&c)[m_tiles][n_tiles],
                                           const float (&factor)[2 * m_tiles]) {
    for_each_element(c, [&](float& element, int m, int, int e) { element *= factor[2 * m + e / 2]; });
}

/// Rounds 16 accumulator columns to operand A for the next product.
template <class T>
__device__ __forceinline__ void pack_fragment(FragmentA& a, const FragmentC& left, const FragmentC& right) {
    a[0] = pack<T>(left[0], left[1]);
    a[1] = pack<T>(left[2], left[3]);
    a[2] = pack<T>(right[0], right[1]);
    a[3] = pack<T>(right[2], right[3]);
}

/// Rounds all accumulators to operand A for the next product; c's columns become the summed axis.
template <class T, int m_tiles, int n_tiles>
__device__ __forceinline__ void as_operand_a(FragmentA (&a)[n_tiles / 2][m_tiles],
                                             const FragmentC (&c)[m_tiles][n_tiles]) {
#pragma unroll
    for (int k = 0; k < n_tiles / 2; ++k)
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) pack_fragment<T>(a[k][m], c[m][2 * k], c[m][2 * k + 1]);
}

/// Writes a warp's results to the warp's rows in a shared tile. store_staged_rows() then copies these rows to
/// global memory, 16 bytes per lane.
template <class T, class Tile, int m_tiles, int n_tiles>
__device__ __forceinline__ void stage_rows(std::uint32_t warp_rows, const FragmentC (&c)[m_tiles][n_tiles]) {
    FragmentA packed[n_tiles / 2][m_tiles];
    as_operand_a<T>(packed, c);
    const auto to = LanePointer<Tile>::stacked(warp_rows);
#pragma unroll
    for (int k = 0; k < n_tiles / 2; ++k)
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) store_matrices(packed[k][m], to.at(m * 16, k * 16));
}

template <class Tile, int rows, class T>
__device__ __forceinline__ void store_staged_rows(T* to, std::int64_t row_stride, std::uint32_t warp_rows,
                                                  int valid_rows, int valid_columns) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < rows * Tile::row_chunks / 32; ++i) {
        const int index = lane + i * 32, row = index / Tile::row_chunks, chunk = index % Tile::row_chunks;
        if (row >= valid_rows || chunk * 8 >= valid_columns) continue;
        uint4 piece;
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                     : "r"(warp_rows + Tile::offset(row, chunk))
                     : "memory");
        *reinterpret_cast<uint4*>(to + row * row_stride + chunk * 8) = piece;
    }
}

}  // namespace gradtile::attention::cuda::device
