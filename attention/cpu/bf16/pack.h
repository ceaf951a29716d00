#pragma once
/// INTERNAL, for per-instruction-set sources only (see attention/cpu/bf16/tiles.h). Between rows of bf16 in
/// memory and operand tiles. Whatever lies outside the given rows and columns becomes zero.
#include <immintrin.h>

#include <gradtile/attention/cpu/bf16/tiles.h>
#include <gradtile/attention/cpu/kernels.h>

namespace gradtile::attention::cpu {
namespace {

using InputRows = StridedRows<const bfloat16>;

/// Sixteen rows of sixteen 32-bit words, transposed in place.
inline void transpose_words(__m512i (&row)[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {  // words of neighbouring rows
        t[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4;
         ++i) {  // pairs of words: row[4 i + c] holds column c of rows 4 i .. 4 i + 3, by lanes
        row[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        row[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        row[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        row[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {  // 128-bit lanes, a 4 x 4 transposition in two steps
        const __m512i even_low = _mm512_shuffle_i32x4(row[c], row[4 + c], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(row[c], row[4 + c], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        t[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        t[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) row[i] = t[i];
}

/// The first n of `lanes` lanes; none for n <= 0.
template <class LaneMask>
inline LaneMask first_lanes(std::int64_t n) {
    constexpr std::int64_t lanes = 8 * sizeof(LaneMask);
    return static_cast<LaneMask>(n >= lanes ? ~0ull : n <= 0 ? 0ull : (1ull << n) - 1);
}

/// A band of 32 columns of some rows of a matrix.
struct Band {
    InputRows x;
    std::int64_t end;  ///< of the rows
    std::int64_t column;
    __mmask32 lanes;

    Band(const InputRows& rows, IndexRange range, std::int64_t first, std::int64_t columns)
        : x(rows), end(range.end), column(first), lanes(first_lanes<__mmask32>(columns - first)) {}
    /// The band of row i; zero where there is nothing.
    __m512i row(std::int64_t i) const {
        return i < end ? _mm512_maskz_loadu_epi16(lanes, x.row(i) + column) : _mm512_setzero_si512();
    }
};

/// Two rows interleaved element by element: elements 0..15, and 16..31.
struct Interleave {
    // Word j of `low` picks element j of the first row and, 32 further, element j of the second.
    __m512i low = _mm512_add_epi32(
        _mm512_set1_epi32(32 << 16),
        _mm512_mullo_epi32(_mm512_set1_epi32(0x10001),
                           _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
    __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __m512i first(__m512i even, __m512i odd) const { return _mm512_permutex2var_epi16(even, low, odd); }
    __m512i second(__m512i even, __m512i odd) const { return _mm512_permutex2var_epi16(even, high, odd); }
};

/// Asks for rows of x that will be packed soon: rows of one head lie far apart, and no hardware prefetcher
/// follows them.
template <class T>
inline void prefetch(const StridedRows<T>& x, IndexRange range, std::int64_t columns) {
    constexpr std::int64_t elements_per_line = 64 / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t i = range.begin; i < range.end; ++i)
        for (std::int64_t d = 0; d < columns; d += elements_per_line) _mm_prefetch(x.row(i) + d, _MM_HINT_T1);
}

// The four ways a matrix x [rows, columns] becomes an operand. Rows are those of `range`, padded to whole
// squares by zeros, columns likewise.

/// x, or -x, as left operand: tile(rows, columns).
inline void pack_left(const Operand& out, const InputRows& x, IndexRange range, std::int64_t columns,
                      bool negate = false) {
    const __m512i sign = _mm512_set1_epi16(static_cast<short>(negate ? 0x8000 : 0));
    const std::int64_t rows = round_up(range.end - range.begin, square);
    for (std::int64_t k = 0; k < out.depth; ++k) {
        const Band band(x, range, k * tile_depth, columns);
        for (std::int64_t r = 0; r < rows; ++r)
            _mm512_store_si512(out.tile(r / tile_rows, k) + r % tile_rows * tile_depth,
                               _mm512_xor_si512(sign, band.row(range.begin + r)));
    }
}

/// x^T as right operand, summed over x's columns: tile(rows, columns).
inline void pack_transposed_right(const Operand& out, const InputRows& x, IndexRange range,
                                  std::int64_t columns) {
    const std::int64_t groups = round_up(range.end - range.begin, square) / tile_rows;
    for (std::int64_t k = 0; k < out.depth; ++k) {
        const Band band(x, range, k * tile_depth, columns);
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

/// x as right operand, summed over its rows: tile(columns, rows).
inline void pack_right(const Operand& out, const InputRows& x, IndexRange range, std::int64_t columns) {
    const Interleave interleave;
    const std::int64_t rows = round_up(range.end - range.begin, square);
    for (std::int64_t n = 0; n < round_up(columns, square) / tile_rows; n += 2) {
        const Band band(x, range, n * tile_rows, columns);
        for (std::int64_t r = 0; r < rows; r += 2) {
            const __m512i even = band.row(range.begin + r), odd = band.row(range.begin + r + 1);
            const std::int64_t pair = r % tile_depth / 2 * tile_depth;
            _mm512_store_si512(out.tile(n, r / tile_depth) + pair, interleave.first(even, odd));
            _mm512_store_si512(out.tile(n + 1, r / tile_depth) + pair, interleave.second(even, odd));
        }
    }
}

/// x^T as left operand, summed over x's rows: tile(columns, rows).
inline void pack_transposed_left(const Operand& out, const InputRows& x, IndexRange range,
                                 std::int64_t columns) {
    const Interleave interleave;
    const std::int64_t depth = round_up(range.end - range.begin, square) / tile_depth;
    for (std::int64_t m = 0; m < round_up(columns, square) / tile_rows; m += 2) {
        const Band band(x, range, m * tile_rows, columns);
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

/// to[0 .. columns) = factor * from, rounded to bf16.
inline void store_row(bfloat16* to, const float* from, std::int64_t columns, __m512 factor) {
    for (std::int64_t d = 0; d < columns; d += 16) {
        const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_mul_ps(factor, _mm512_loadu_ps(from + d)));
        _mm256_mask_storeu_epi16(to + d, first_lanes<__mmask16>(columns - d),
                                 reinterpret_cast<__m256i>(rounded));
    }
}

/// Rows `range` of x = factor * (the transpose of sums [columns, rows]), rounded to bf16.
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
