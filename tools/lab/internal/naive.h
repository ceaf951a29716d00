#pragma once
/// INTERNAL. Standard attention (Dao et al. 2022, algorithms 0 and 3). S and P are whole matrices in slow
/// memory. Every operation reads slow memory and writes slow memory.
#include <gradtile/attention/cpu/tiled/unfused.h>
#include <gradtile/tools/lab/internal/slow_memory.h>

namespace gradtile::attention::lab {

using cpu::Geometry;
using namespace cpu::tiled;

/// Computes P = softmax(S), row by row. A row that does not fit the fast memory is read twice.
template <class A>
void softmax_rows(const SlowMatrix<A>& s, const SlowMatrix<A>& p, FastMemory& fast,
                  SourceLine caller = SourceLine::current()) {
    const FastMemory::Scope scope(fast, caller);
    const std::int64_t n = s.columns();
    const std::int64_t block = std::min(n, static_cast<std::int64_t>(fast.free_bytes() / sizeof(A)));
    const auto x = fast.matrix<A>(1, block, "row");
    for (std::int64_t i = 0; i < s.rows(); ++i) {
        A maximum = minus_infinity<A>, sum = 0;
        for_each_block({0, n}, block, n, [&](IndexRange columns) {
            fast.load(s.block({i, i + 1}, columns), x);
            const IndexRange all{0, columns.end - columns.begin};
            const A block_maximum = std::max(maximum, row_maximum(all, x.data));
            sum = sum * std::exp(maximum - block_maximum) + exponentials(all, block_maximum, x.data);
            maximum = block_maximum;
            report_statistics(x, i, maximum, sum);
        });
        for_each_block({0, n}, block, n, [&](IndexRange columns) {
            const IndexRange all{0, columns.end - columns.begin};
            if (block < n) {
                fast.load(s.block({i, i + 1}, columns), x);
                exponentials(all, maximum, x.data);
            }
            for (std::int64_t j = 0; j < all.end; ++j) x.data[j] /= sum;
            fast.store(x, p.block({i, i + 1}, columns));
        });
    }
}

/// Computes dS = P * (dP - D) with D = rowsum(P * dP), row by row. Rows that do not fit the fast memory are
/// read twice.
template <class A>
void differentiate_softmax_rows(const SlowMatrix<A>& p, const SlowMatrix<A>& d_p, const SlowMatrix<A>& d_s,
                                FastMemory& fast, SourceLine caller = SourceLine::current()) {
    const FastMemory::Scope scope(fast, caller);
    const std::int64_t n = p.columns();
    const std::int64_t block = std::min(n, static_cast<std::int64_t>(fast.free_bytes() / (2 * sizeof(A))));
    const auto x = fast.matrix<A>(1, block, "P, dS"), y = fast.matrix<A>(1, block, "dP");
    for (std::int64_t i = 0; i < p.rows(); ++i) {
        const auto load = [&](IndexRange columns) {
            fast.load(p.block({i, i + 1}, columns), x);
            fast.load(d_p.block({i, i + 1}, columns), y);
        };
        A delta = 0;
        for_each_block({0, n}, block, n, [&](IndexRange columns) {
            load(columns);
            delta += cpu::dot<A>(x.data, y.data, columns.end - columns.begin);
        });
        for_each_block({0, n}, block, n, [&](IndexRange columns) {
            if (block < n) load(columns);
            for (std::int64_t j = 0; j < columns.end - columns.begin; ++j) x.data[j] *= y.data[j] - delta;
            fast.store(x, d_s.block({i, i + 1}, columns));
        });
    }
}

/// Returns a tile that contains all pairs of a head.
inline Tile all_pairs(const Geometry& g) {
    return {g.mask, {0, g.mask.queries}, {0, g.mask.keys}};
}

/// Writes O, and P [Sq, Sk] for the backward pass.
template <class T>
void naive_forward(const ForwardHead<T>& head, const SlowMatrix<T>& p, FastMemory& fast, SlowMemory& slow) {
    const Geometry& g = head.geometry;
    const Tile pairs = all_pairs(g);
    {
        SlowTensor<T> s(slow, g.mask.queries, g.mask.keys, "S");
        store_transposed_product(pairs, static_cast<T>(g.scale), head.q, head.k, s.matrix(), fast);
        softmax_rows(s.matrix(), p, fast);
    }
    fill_slow(fast, T(0), head.o);
    add_product_to_slow(pairs, T(1), p, head.v, SlowMatrix<T>(), head.o, fast);
}

template <class T>
void naive_backward(const BackwardHead<T>& heads, const SlowMatrix<T>& p, FastMemory& fast,
                    SlowMemory& slow) {
    const Geometry& g = heads.geometry;
    const QueryHead<T>& head = heads.query_heads.front();
    const Tile pairs = all_pairs(g);
    const T scale = static_cast<T>(g.scale);
    for (const SlowMatrix<T>& x : {head.d_q, heads.d_k, heads.d_v}) fill_slow(fast, T(0), x);
    add_transposed_product_to_slow(pairs, T(1), p, head.d_o, heads.d_v, fast);
    SlowTensor<T> d_s(slow, g.mask.queries, g.mask.keys, "dS");
    {
        SlowTensor<T> d_p(slow, g.mask.queries, g.mask.keys, "dP");
        store_transposed_product(pairs, T(1), head.d_o, heads.v, d_p.matrix(), fast);
        differentiate_softmax_rows(p, d_p.matrix(), d_s.matrix(), fast);
    }
    add_product_to_slow(pairs, scale, d_s.matrix(), heads.k, SlowMatrix<T>(), head.d_q, fast);
    add_transposed_product_to_slow(pairs, scale, d_s.matrix(), head.q, heads.d_k, fast);
}

}  // namespace gradtile::attention::lab
