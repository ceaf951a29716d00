#pragma once
/// INTERNAL. The tiled algorithms' arguments: one head's matrices, all in slow memory. Sums accumulate in
/// matrices with the accumulator type A, so a result of a 16-bit type T is rounded once, at the end.
#include <span>

#include <gradtile/attention/cpu/tiled/tile.h>

namespace gradtile::attention::cpu::tiled {

/// One (batch, query head)'s forward pass.
template <class T>
struct ForwardHead {
    using A = Accumulator<T>;
    Geometry geometry;
    ScoreRule<A> rule;
    SlowMatrix<const T> q, k, v;
    SlowMatrix<A> o;              ///< written
    SlowMatrix<A> lse;            ///< [Sq, 1], written
    SlowMatrix<A> lse_remainder;  ///< [Sq, 1], written; no columns: not wanted
    SlowMatrix<A> row_max;        ///< [Sq, 1]: m
    SlowMatrix<A> row_sum;        ///< [Sq, 1]: l
};

/// The backward pass of one of the query heads that share a (batch, K/V head).
template <class T>
struct QueryHead {
    using A = Accumulator<T>;
    ScoreRule<A> rule;
    SlowMatrix<const T> q, o, d_o;
    SlowMatrix<const A> lse, lse_remainder, d_lse;  ///< [Sq, 1]; the last two may have no columns: 0
    SlowMatrix<const A> row_max, row_sum;           ///< [Sq, 1]: m and l, which only flash1 reads
    SlowMatrix<A> delta;                            ///< [Sq, 1]: D = rowsum(dO * O) - dLSE
    SlowMatrix<A> d_q;                              ///< written
    const BiasGradientsOfHead<A>* bias_gradients = nullptr;
};

/// One (batch, K/V head)'s backward pass.
template <class T>
struct BackwardHead {
    using A = Accumulator<T>;
    Geometry geometry;
    SlowMatrix<const T> k, v;
    SlowMatrix<A> d_k, d_v;  ///< written
    std::span<const QueryHead<T>> query_heads;
};

/// Sets all elements in a slow-memory matrix to a number.
template <class A>
void fill_slow(FastMemory& fast, A value, const SlowMatrix<A>& to,
               SourceLine caller = SourceLine::current()) {
    const FastMemory::Scope scope(fast, caller);
    const std::int64_t fitting =
        static_cast<std::int64_t>(fast.free_bytes() / sizeof(A)) / std::max<std::int64_t>(to.columns(), 1);
    const std::int64_t rows = std::clamp<std::int64_t>(fitting, 1, 16);
    const FastMatrix<A> block = fast.matrix<A>(rows, to.columns(), "block");
    fill(block, value);
    for_each_block({0, to.rows()}, rows, to.rows(),
                   [&](IndexRange range) { fast.store(block, to.rows(range)); });
}

/// Returns one row's D. A row that sees no key has a constant LSE, so the row's dLSE is ignored.
template <class A>
A delta_of(std::int64_t d_v, const A* d_o, const A* o, A d_lse, bool sees_a_key) {
    return dot<A>(d_o, o, d_v) - (sees_a_key ? d_lse : A(0));
}

/// Computes head.delta from O, dO, LSE and dLSE.
template <class T>
void store_deltas(const Geometry& g, const QueryHead<T>& head, FastMemory& fast,
                  SourceLine caller = SourceLine::current()) {
    using A = Accumulator<T>;
    const FastMemory::Scope scope(fast, caller);
    const auto o = fast.matrix<A>(1, g.d_v, "O"), d_o = fast.matrix<A>(1, g.d_v, "dO");
    const auto lse = fast.matrix<A>(1, 1, "LSE"), d_lse = fast.matrix<A>(1, 1, "dLSE");
    const auto delta = fast.matrix<A>(1, 1, "D");
    d_lse[0] = 0;
    for (std::int64_t i = 0; i < g.mask.queries; ++i) {
        const IndexRange row{i, i + 1};
        fast.load(head.o.rows(row), o);
        fast.load(head.d_o.rows(row), d_o);
        fast.load(head.lse.rows(row), lse);
        fast.load(head.d_lse.rows(row), d_lse);
        delta[0] = delta_of(g.d_v, d_o.data, o.data, d_lse[0], lse[0] != minus_infinity<A>);
        fast.store(delta, head.delta.rows(row));
    }
}

}  // namespace gradtile::attention::cpu::tiled
