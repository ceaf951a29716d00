#pragma once
/// Tiles of 16-bit elements in shared memory, laid out so that neither row-wise copies nor ldmatrix meet bank
/// conflicts, and the products of such tiles.
#include <cstdint>

#include <gradtile/attention/cuda/device/mma.cuh>

namespace gradtile::attention::cuda::device {

/// A row-major tile whose 16-byte chunks are permuted within a row (XOR swizzle). ldmatrix reads the same
/// chunk of 8 rows at once: these must lie in 8 different groups of 4 banks. Rows of 128 k bytes all start at
/// bank 0, so the chunk number is XORed with the row's; rows of 128 k + 64 bytes alternate between banks 0
/// and 16, so that two rows share a XOR of two bits.
template <int rows_, int columns_>
struct Tile {
    static constexpr int rows = rows_;
    static constexpr int columns = columns_;
    static constexpr int row_bytes = 2 * columns;
    static constexpr int bytes = rows * row_bytes;
    static constexpr int row_chunks = columns / 8;
    static constexpr int span_bytes = columns % 64 == 0 ? 128 : 64;  ///< chunks stay within such a stretch
    static_assert(columns % 32 == 0 && rows % 8 == 0);

    __device__ static constexpr std::uint32_t offset(int row, int chunk) {
        const int swizzle = span_bytes == 128 ? row & 7 : row >> 1 & 3;
        return static_cast<std::uint32_t>(row * row_bytes + (chunk ^ swizzle) * 16);
    }
};

/// Starts copying a tile: rows from `valid_rows` and columns from `valid_columns` (a multiple of 8) on become
/// zero.
template <class Tile, int threads, class T>
__device__ __forceinline__ void load_tile_async(std::uint32_t tile, const T* source, std::int64_t row_stride,
                                                int valid_rows, int valid_columns) {
    // A thread keeps its column, and its rows lie so far apart that the swizzle does not change: one address
    // on each side and constant steps. A few threads may have nothing to do.
    constexpr int at_once = threads / Tile::row_chunks, step = at_once >= 8 ? at_once / 8 * 8 : at_once;
    const int thread = static_cast<int>(thread_index_anew());
    if (step * Tile::row_chunks != threads && thread >= step * Tile::row_chunks) return;
    const int row = thread / Tile::row_chunks, chunk = thread % Tile::row_chunks;
    const T* from = source + row * row_stride + chunk * 8;
    const std::uint32_t to = tile + Tile::offset(row, chunk);
    const int rows_left = chunk * 8 < valid_columns ? valid_rows - row : 0;
#pragma unroll
    for (int i = 0; i < Tile::rows; i += step) {
        if (Tile::rows % step != 0 && row + i >= Tile::rows) break;
        const std::uint32_t at =
            step % 8 == 0 ? to + i * Tile::row_bytes : tile + Tile::offset(row + i, chunk);
        copy_16_bytes_async(at, from, i < rows_left);
        from += step * row_stride;
    }
}

/// Where a lane points ldmatrix at a tile. With the matrices numbered 0-3, `stacked` takes them as
/// [0 2; 1 3] blocks of 8 x 8 (operand A, or B transposed), `paired` as [0 1; 2 3] (B, or A transposed).
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
    /// The 16 x 16 block at (row, column), both multiples of 16. Constants, when loops are unrolled: a XOR
    /// shared by all rows and an immediate offset. Tiles start at multiples of 128 bytes.
    __device__ std::uint32_t at(int row, int column) const {
        const int in_span = column * 2 % Tile::span_bytes, spans = column * 2 - in_span;
        return (base_ ^ static_cast<std::uint32_t>(in_span)) +
               static_cast<std::uint32_t>(spans + row * Tile::row_bytes);
    }

  private:
    __device__ explicit LanePointer(std::uint32_t base) : base_(base) {}
    std::uint32_t base_;
};

/// c[16 m_tiles, 8 n_tiles] += a * b^T for a [.., depth], b [8 n_tiles, depth], both in shared memory. Only
/// `unrolled` steps of 16 in depth are unrolled: with more the compiler loads so far ahead that registers
/// spill.
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

/// c += a * b for a in registers, b [16 k_steps, 8 n_tiles] in shared memory.
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

/// c += a^T * b for a [depth, 16 m_tiles], b [depth, 8 n_tiles], both in shared memory and from the given
/// columns of their tiles on (multiples of 16).
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

template <int m_tiles, int n_tiles>
__device__ __forceinline__ void clear(FragmentC (&c)[m_tiles][n_tiles]) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) c[m][n][e] = 0;
}

/// c *= factor.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void scale(FragmentC (&c)[m_tiles][n_tiles], float factor) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (float& element : c[m][n]) element *= factor;
}

/// 16 columns of a product's accumulators, rounded, as an operand A of the next one.
template <class T>
__device__ __forceinline__ void pack_fragment(FragmentA& a, const FragmentC& left, const FragmentC& right) {
    a[0] = pack<T>(left[0], left[1]);
    a[1] = pack<T>(left[2], left[3]);
    a[2] = pack<T>(right[0], right[1]);
    a[3] = pack<T>(right[2], right[3]);
}

/// All the accumulators of a product as the operand A of the next one: c's columns become k.
template <class T, int m_tiles, int n_tiles>
__device__ __forceinline__ void as_operand_a(FragmentA (&a)[n_tiles / 2][m_tiles],
                                             const FragmentC (&c)[m_tiles][n_tiles]) {
#pragma unroll
    for (int k = 0; k < n_tiles / 2; ++k)
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) pack_fragment<T>(a[k][m], c[m][2 * k], c[m][2 * k + 1]);
}

/// Rows of a warp's results on their way out: fragments to the warp's own rows of a shared tile, from where
/// they leave 16 bytes a lane.
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
