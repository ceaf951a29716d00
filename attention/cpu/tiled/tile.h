#pragma once
/// INTERNAL. The mathematics for one tile. A tile consists of one head's pairs rows x keys, and its matrices
/// are in fast memory. Functions skip the pairs that the mask hides, so that a NaN in a key reaches only the
/// rows that see the key.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gradtile/attention/cpu/bias_gradient_rows.h>
#include <gradtile/attention/cpu/dot.h>
#include <gradtile/attention/cpu/kernels.h>
#include <gradtile/attention/cpu/score_rows.h>
#include <gradtile/attention/cpu/tiled/memory.h>

namespace gradtile::attention::cpu::tiled {

template <class A>
inline constexpr A minus_infinity = -std::numeric_limits<A>::infinity();

/// The pairs rows x keys. `rows` and `keys` are ranges of the head's rows and keys.
struct Tile {
    const Mask& mask;
    IndexRange rows, keys;

    std::int64_t row_count() const { return rows.end - rows.begin; }
    std::int64_t key_count() const { return keys.end - keys.begin; }
    /// Returns the tile's keys that row r of the tile sees. Key 0 is the tile's first key.
    IndexRange visible(std::int64_t r) const {
        const IndexRange all = mask.visible_keys(rows.begin + r);
        const std::int64_t begin = std::max(all.begin, keys.begin) - keys.begin;
        return {begin, std::max(begin, std::min(all.end, keys.end) - keys.begin)};
    }
};

/// Tells the observer that `result` was computed from a tile's pairs.
template <class A>
void report_computed(const FastMatrix<A>& result, const Tile& tile, SourceLine where) {
    if (result.observer != nullptr) result.observer->computed(result.data, tile.rows, tile.keys, where);
}
/// Tells the observer a row's running maximum and sum. `in_memory` may be any matrix in the fast memory.
template <class A>
void report_statistics(const FastMatrix<A>& in_memory, std::int64_t row, A maximum, A sum,
                       SourceLine where = SourceLine::current()) {
    if (in_memory.observer != nullptr) in_memory.observer->updated_statistics(row, maximum, sum, where);
}

/// Sets all elements to a number.
template <class A>
void fill(const FastMatrix<A>& x, A value, SourceLine where = SourceLine::current()) {
    std::fill_n(x.data, x.rows * x.columns, value);
    if (x.observer != nullptr) x.observer->computed(x.data, {}, {}, where);
}

/// Calls body(block) for the blocks of `size` indices that contain an index in the range. Blocks begin at
/// multiples of `size`. The last block is shorter if it would exceed `end`.
template <class Body>
void for_each_block(IndexRange range, std::int64_t size, std::int64_t end, Body&& body) {
    if (range.begin >= range.end) return;
    for (std::int64_t begin = range.begin / size * size; begin < range.end; begin += size)
        body(IndexRange{begin, std::min(begin + size, end)});
}

/// out = scale * x y^T for the visible pairs; x has a row for each row of the tile, y for each key.
template <class A>
void multiply_transposed(const Tile& tile, A scale, const FastMatrix<A>& x, const FastMatrix<A>& y,
                         const FastMatrix<A>& out, SourceLine where = SourceLine::current()) {
    report_computed(out, tile, where);
    for (std::int64_t r = 0; r < tile.row_count(); ++r) {
        const IndexRange visible = tile.visible(r);
        for (std::int64_t j = visible.begin; j < visible.end; ++j)
            out.row(r)[j] = scale * dot<A>(x.row(r), y.row(j), x.columns);
    }
}

/// Replaces a tile's products by scores, in place.
template <class T, class A>
void apply_rule_to_tile(const Tile& tile, const ScoreRule<A>& rule, const FastMatrix<A>& s) {
    for (std::int64_t r = 0; r < tile.row_count(); ++r) {
        const IndexRange visible = tile.visible(r);
        apply_rule<T>(rule, tile.rows.begin + r, tile.keys.begin + visible.begin, visible.end - visible.begin,
                      s.row(r) + visible.begin);
    }
}

/// Multiplies the probabilities by their dropout factors.
template <class A>
void apply_dropout_to_tile(const Tile& tile, const ScoreRule<A>& rule, const FastMatrix<A>& p) {
    for (std::int64_t r = 0; r < tile.row_count(); ++r) {
        const IndexRange visible = tile.visible(r);
        apply_dropout(rule, tile.rows.begin + r, tile.keys.begin + visible.begin, visible.end - visible.begin,
                      p.row(r) + visible.begin);
    }
}

template <class A>
A row_maximum(IndexRange visible, const A* s) {
    A maximum = minus_infinity<A>;
    for (std::int64_t j = visible.begin; j < visible.end; ++j) maximum = std::max(maximum, s[j]);
    return maximum;
}

/// Returns the number to subtract from scores before the exponential. The number must be finite. If all
/// scores are -inf, any finite number gives P = 0.
template <class A>
A finite_reference(A maximum) {
    return maximum == minus_infinity<A> ? A(0) : maximum;
}

/// Replaces the sum l of `rows` rows by LSE = m + ln l, and the maximum m by what the LSE lost when it was
/// rounded.
template <class A>
void lse_of_statistics(const FastMatrix<A>& l, const FastMatrix<A>& m, std::int64_t rows) {
    for (std::int64_t r = 0; r < rows; ++r) {
        const A maximum = m[r], sum = l[r];
        RowLse<A>{&l[r], &m[r]}.store(0, 1, 1.0, &maximum, &sum);
    }
}

/// s = exp(s - reference). Returns the row's sum, in partial sums, so that a long row loses no digits.
template <class A>
A exponentials(IndexRange visible, A reference, A* s) {
    constexpr std::int64_t terms = 16;
    for (std::int64_t j = visible.begin; j < visible.end; ++j) s[j] = vector_math::exp(s[j] - reference);
    A sum = 0;
    for (std::int64_t first = visible.begin; first < visible.end; first += terms) {
        A partial_sum = 0;
        for (std::int64_t j = first; j < std::min(first + terms, visible.end); ++j) partial_sum += s[j];
        sum += partial_sum;
    }
    return sum;
}

/// sums = p_r v for the tile's row r: a sum over the visible keys, in partial sums of 64 terms. `sums` and
/// `part`, which is scratch, have one row with as many columns as v.
template <class A>
void multiply_row(const Tile& tile, std::int64_t r, const A* p, const FastMatrix<A>& v,
                  const FastMatrix<A>& sums, const FastMatrix<A>& part) {
    constexpr std::int64_t terms = 64;
    const IndexRange visible = tile.visible(r);
    std::fill_n(sums.data, v.columns, A(0));
    for (std::int64_t first = visible.begin; first < visible.end; first += terms) {
        std::fill_n(part.data, v.columns, A(0));
        for (std::int64_t j = first; j < std::min(first + terms, visible.end); ++j)
            add_scaled(v.columns, p[j], v.row(j), part.data);
        add_scaled(v.columns, A(1), part.data, sums.data);
    }
}

/// out += scale * p v.
template <class A>
void add_product(const Tile& tile, A scale, const FastMatrix<A>& p, const FastMatrix<A>& v,
                 const FastMatrix<A>& out, const FastMatrix<A>& sums, const FastMatrix<A>& part,
                 SourceLine where = SourceLine::current()) {
    report_computed(out, tile, where);
    for (std::int64_t r = 0; r < tile.row_count(); ++r) {
        multiply_row(tile, r, p.row(r), v, sums, part);
        add_scaled(v.columns, scale, sums.data, out.row(r));
    }
}

/// out += scale * p^T y. A key's terms are summed over the tile's rows first; their sum is added to `out`.
template <class A>
void add_transposed_product(const Tile& tile, A scale, const FastMatrix<A>& p, const FastMatrix<A>& y,
                            const FastMatrix<A>& out, const FastMatrix<A>& sums,
                            SourceLine where = SourceLine::current()) {
    report_computed(out, tile, where);
    for (std::int64_t j = 0; j < tile.key_count(); ++j) {
        const IndexRange seeing = tile.mask.seeing_rows({tile.keys.begin + j, tile.keys.begin + j + 1});
        const std::int64_t begin = std::max(seeing.begin - tile.rows.begin, std::int64_t{0});
        const std::int64_t end = std::min(seeing.end - tile.rows.begin, tile.row_count());
        if (begin >= end) continue;
        std::fill_n(sums.data, y.columns, A(0));
        for (std::int64_t r = begin; r < end; ++r) add_scaled(y.columns, p.row(r)[j], y.row(r), sums.data);
        add_scaled(y.columns, scale, sums.data, out.row(j));
    }
}

/// Scratch memory for differentiate_tile(): three rows with one number per key.
template <class A>
struct DifferentiationRows {
    FastMatrix<A> factors, derivatives, d_score;
    DifferentiationRows(FastMemory& fast, std::int64_t keys)
        : factors(fast.matrix<A>(1, keys, "factors")),
          derivatives(fast.matrix<A>(1, keys, "derivatives")),
          d_score(fast.matrix<A>(1, keys, "dScore")) {}
};

/// P = exp(score - reference) * inverse_sum; dS = P * (dP - delta).
template <class A>
struct RowStatistics {
    A reference, inverse_sum, delta;
};

/// The backward pass through the softmax. At the beginning s holds the products scale q.k, and d_p holds dO
/// V^T. At the end s holds the probabilities that multiply V, and d_p holds dS, the gradient of the products.
/// statistics(r) returns the RowStatistics for row r of the tile.
template <class T, class A, class Statistics>
void differentiate_tile(const Tile& tile, const ScoreRule<A>& rule, Statistics&& statistics,
                        const FastMatrix<A>& s, const FastMatrix<A>& d_p, const DifferentiationRows<A>& rows,
                        const BlockBiasGradients<A>& bias_gradients,
                        SourceLine where = SourceLine::current()) {
    report_computed(s, tile, where);
    report_computed(d_p, tile, where);
    for (std::int64_t r = 0; r < tile.row_count(); ++r) {
        const IndexRange visible = tile.visible(r);
        const std::int64_t i = tile.rows.begin + r, first_key = tile.keys.begin + visible.begin;
        const std::int64_t n = visible.end - visible.begin;
        if (n == 0) continue;
        const RowStatistics<A> row = statistics(r);
        A *const p = s.row(r) + visible.begin, *const d_s = d_p.row(r) + visible.begin;
        A *const factors = rows.factors.data, *const derivatives = rows.derivatives.data;
        dropout_factors(rule, i, first_key, n, factors);
        apply_rule<T>(rule, i, first_key, n, p, derivatives);
        for (std::int64_t j = 0; j < n; ++j) {
            const A probability = vector_math::exp(p[j] - row.reference) * row.inverse_sum;
            p[j] = factors[j] * probability;
            rows.d_score.data[j] = probability * (factors[j] * d_s[j] - row.delta);
            d_s[j] = rows.d_score.data[j] * derivatives[j];
        }
        bias_gradients.add(i, visible, rows.d_score.data);
    }
}

}  // namespace gradtile::attention::cpu::tiled
