#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. Packs bf16 rows into operand tiles,
/// and stores results as bf16 rows. Tile elements outside the given rows and columns become 0.
#include <immintrin.h>

#include <gradtile/attention/cpu/bf16/tiles.h>
#include <gradtile/attention/cpu/isa/avx512.h>
#include <gradtile/attention/cpu/kernels.h>

namespace gradtile::attention::cpu {
namespace {

using InputRows = StridedRows<const bfloat16>;

/// Returns a mask that selects the first n lanes; none if n <= 0. Without branches, because n changes from
/// row to row.
template <class LaneMask>
inline LaneMask first_lanes(std::int64_t n) {
    constexpr std::int64_t lanes = 8 * sizeof(LaneMask);
    static_assert(lanes < 64);
    return static_cast<LaneMask>((std::uint64_t{1} << smaller(larger(n, 0), lanes)) - 1);
}

/// The 32 matrix columns from `column` on.
struct ColumnBand {
    InputRows x;
    std::int64_t end_row;
    std::int64_t column;
    __mmask32 lanes;

    ColumnBand(const InputRows& rows, IndexRange range, std::int64_t first, std::int64_t columns)
        : x(rows), end_row(range.end), column(first), lanes(first_lanes<__mmask32>(columns - first)) {}
    /// Returns row i's 32 elements. Elements outside the given rows and columns are 0.
    __m512i row(std::int64_t i) const {
        return i < end_row ? _mm512_maskz_loadu_epi16(lanes, x.row(i) + column) : _mm512_setzero_si512();
    }
};

/// Interleaves two 32-element rows. first() gives elements 0 .. 15 of both rows, second() elements 16 .. 31.
struct Interleave {
    // Word j of `low` selects element j of the first row (index j) and of the second row (index 32 + j).
    __m512i low = _mm512_add_epi32(
        _mm512_set1_epi32(32 << 16),
        _mm512_mullo_epi32(_mm512_set1_epi32(0x10001),
                           _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
    __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __m512i first(__m512i even, __m512i odd) const { return _mm512_permutex2var_epi16(even, low, odd); }
    __m512i second(__m512i even, __m512i odd) const { return _mm512_permutex2var_epi16(even, high, odd); }
};

/// Prefetches rows of x that will be packed soon. A head's rows are far apart, so hardware prefetchers do not
/// predict them.
template <class T>
inline void prefetch(const StridedRows<T>& x, IndexRange range, std::int64_t columns) {
    constexpr std::int64_t elements_per_line = 64 / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t i = range.begin; i < range.end; ++i)
        for (std::int64_t d = 0; d < columns; d += elements_per_line) _mm_prefetch(x.row(i) + d, _MM_HINT_T1);
}

// The next four functions pack a matrix x [rows, columns] as an operand. They pack the rows in `range`. Zeros
// pad the rows and the columns to whole squares.

/// Packs x, or -x, as a left operand summed over its columns: tile(rows, columns).
inline void pack_left(const Operand& out, const InputRows& x, IndexRange range, std::int64_t columns,
                      bool negate = false) {
    const __m512i sign = _mm512_set1_epi16(static_cast<short>(negate ? 0x8000 : 0));
    const std::int64_t rows = round_up(range.end - range.begin, square);
    for (std::int64_t k = 0; k < out.depth; ++k) {
        const ColumnBand band(x, range, k * tile_depth, columns);
        for (std::int64_t r = 0; r < rows; ++r)
            _mm512_store_si512(out.tile(r / tile_rows, k) + r % tile_rows * tile_depth,
                               _mm512_xor_si512(sign, band.row(range.begin + r)));
    }
}

/// Packs x^T as a right operand summed over x's columns: tile(rows, columns).
inline void pack_transposed_right(const Operand& out, const InputRows& x, IndexRange range,
                                  std::int64_t columns) {
    const std::int64_t groups = round_up(range.end - range.begin, square) / tile_rows;
    for (std::int64_t k = 0; k < out.depth; ++k) {
        const ColumnBand band(x, range, k * tile_depth, columns);
        for (std::int64_t n = 0; n < groups; ++n) {
            __m512i words[16];
#pragma GCC unroll 16
            for (int r = 0; r < 16; ++r) words[r] = band.row(range.begin + n * tile_rows + r);
            transpose_words(words);
            bfloat16* const tile = out.tile(n, k);
#pragma GCC unroll 16
            for (int p = 0; p < 16; ++p) _mm512_store_si512(tile + p * tile_depth, words[p]);
        }
    }
}

/// Packs x as a right operand summed over its rows: tile(columns, rows).
inline void pack_right(const Operand& out, const InputRows& x, IndexRange range, std::int64_t columns) {
    const Interleave interleave;
    const std::int64_t rows = round_up(range.end - range.begin, square);
    for (std::int64_t n = 0; n < round_up(columns, square) / tile_rows; n += 2) {
        const ColumnBand band(x, range, n * tile_rows, columns);
        for (std::int64_t r = 0; r < rows; r += 2) {
            const __m512i even = band.row(range.begin + r), odd = band.row(range.begin + r + 1);
            const std::int64_t pair = r % tile_depth / 2 * tile_depth;
            _mm512_store_si512(out.tile(n, r / tile_depth) + pair, interleave.first(even, odd));
            _mm512_store_si512(out.tile(n + 1, r / tile_depth) + pair, interleave.second(even, odd));
        }
    }
}

/// Packs x^T as a left operand summed over x's rows: tile(columns, rows).
inline void pack_transposed_left(const Operand& out, const InputRows& x, IndexRange range,
                                 std::int64_t columns) {
    const Interleave interleave;
    const std::int64_t depth = round_up(range.end - range.begin, square) / tile_depth;
    for (std::int64_t m = 0; m < round_up(columns, square) / tile_rows; m += 2) {
        const ColumnBand band(x, range, m * tile_rows, columns);
        for (std::int64_t k = 0; k < depth; ++k) {
            __m512i first[16], second[16];
            for (int p = 0; p < 16; ++p) {
                const std::int64_t row = range.begin + k * tile_depth + 2 * p;
                const __m512i even = band.row(row), odd = band.row(row + 1);
                first[p] = interleave.first(even, odd);
                second[p] = interleave.second(even, odd);
            }
            transpose_words(first);
            transpose_words(second);
            for (int p = 0; p < 16; ++p) {
                _mm512_store_si512(out.tile(m, k) + p * tile_depth, first[p]);
                _mm512_store_si512(out.tile(m + 1, k) + p * tile_depth, second[p]);
            }
        }
    }
}

/// Stores to[0 .. columns) = factor * from, rounded to bf16.
inline void store_row(bfloat16* to, const float* from, std::int64_t columns, __m512 factor) {
    for (std::int64_t d = 0; d < columns; d += 16) {
        const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_mul_ps(factor, _mm512_loadu_ps(from + d)));
        _mm256_mask_storeu_epi16(to + d, first_lanes<__mmask16>(columns - d),
                                 reinterpret_cast<__m256i>(rounded));
    }
}

/// Stores to[0 .. columns) = factor * from.
inline void store_row(float* to, const float* from, std::int64_t columns, __m512 factor) {
    for (std::int64_t d = 0; d < columns; d += 16)
        _mm512_mask_storeu_ps(to + d, first_lanes<__mmask16>(columns - d),
                              _mm512_mul_ps(factor, _mm512_loadu_ps(from + d)));
}

/// Stores factor * sums^T, rounded to bf16, to the rows `range` of x. sums is [columns, rows].
inline void store_transposed(const StridedRows<bfloat16>& x, IndexRange range, std::int64_t columns,
                             const Matrix& sums, float factor) {
    for (std::int64_t first = range.begin; first < range.end; first += tile_rows) {
        for (std::int64_t d = 0; d < columns; d += 16) {
            __m512i words[16];
#pragma GCC unroll 16
            for (int r = 0; r < 16; ++r) words[r] = _mm512_loadu_si512(sums.at(d + r, first - range.begin));
            transpose_words(words);
            alignas(64) float rows[16][16];
#pragma GCC unroll 16
            for (int r = 0; r < 16; ++r) _mm512_store_si512(rows[r], words[r]);
            for (std::int64_t r = 0; r < smaller(16, range.end - first); ++r)
                store_row(x.row(first + r) + d, rows[r], smaller(16, columns - d), _mm512_set1_ps(factor));
        }
    }
}

}  // namespace
}  // namespace gradtile::attention::cpu
