#pragma once
/// INTERNAL. Matrix operations that read their operands from slow memory and write their results to slow
/// memory. A framework that runs one operation after the other works in this way. An operation loads,
/// computes and stores one tile at a time. The argument `pairs` gives the matrices' rows and keys. In every
/// result, pairs that the mask hides are 0.
#include <gradtile/attention/cpu/tiled/heads.h>

namespace gradtile::attention::cpu::tiled {

/// Returns the largest tile sizes with which `allocate` fits the fast memory's free bytes. They are at most
/// 128 x 128.
template <class Allocate>
BlockSizes tiles_for(const FastMemory& fast, const Tile& pairs, Allocate&& allocate) {
    constexpr std::int64_t largest = 128;
    return fitting_blocks({.rows = std::clamp<std::int64_t>(pairs.row_count(), 1, largest),
                           .keys = std::clamp<std::int64_t>(pairs.key_count(), 1, largest)},
                          fast.free_bytes(), allocate);
}

/// Converts an index range to offsets from the beginning of the range `of`.
inline IndexRange within(IndexRange range, IndexRange of) {
    return {range.begin - of.begin, range.end - of.begin};
}

/// Calls body(tile) for every tile of the pairs, row by row.
template <class Body>
void for_each_tile(const Tile& pairs, BlockSizes sizes, Body&& body) {
    for (std::int64_t i = pairs.rows.begin; i < pairs.rows.end; i += sizes.rows)
        for (std::int64_t j = pairs.keys.begin; j < pairs.keys.end; j += sizes.keys)
            body(Tile{pairs.mask,
                      {i, std::min(i + sizes.rows, pairs.rows.end)},
                      {j, std::min(j + sizes.keys, pairs.keys.end)}});
}

/// out [rows, keys] = scale * x y^T. x has the rows in `pairs`, and y the keys.
template <class A, class X, class Y>
void store_transposed_product(const Tile& pairs, A scale, const SlowMatrix<X>& x, const SlowMatrix<Y>& y,
                              const SlowMatrix<A>& out, FastMemory& fast,
                              SourceLine caller = SourceLine::current()) {
    const FastMemory::Scope scope(fast, caller);
    struct Tiles {
        FastMatrix<A> x, y, out;
        Tiles(FastMemory& memory, std::int64_t d, BlockSizes b)
            : x(memory.matrix<A>(b.rows, d, "x")),
              y(memory.matrix<A>(b.keys, d, "y")),
              out(memory.matrix<A>(b.rows, b.keys, "x yᵀ")) {}
    };
    const BlockSizes sizes =
        tiles_for(fast, pairs, [&](FastMemory& memory, BlockSizes b) { Tiles(memory, x.columns(), b); });
    const Tiles tiles(fast, x.columns(), sizes);
    std::int64_t loaded = -1;  // the first row of x that is in tiles.x; -1 if tiles.x is empty
    for_each_tile(pairs, sizes, [&](const Tile& tile) {
        const IndexRange rows = within(tile.rows, pairs.rows), keys = within(tile.keys, pairs.keys);
        if (loaded != rows.begin) fast.load(x.rows(rows), tiles.x);
        loaded = rows.begin;
        fast.load(y.rows(keys), tiles.y);
        fill(tiles.out, A(0));
        multiply_transposed(tile, scale, tiles.x, tiles.y, tiles.out);
        fast.store(tiles.out, out.block(rows, keys));
    });
}

/// out [rows, d] = factors * out + scale * p y, with one factor per row in `factors` [rows, 1]. If `factors`
/// has no columns, all factors are 1. p [rows, keys], y [keys, d].
template <class A, class Y>
void add_product_to_slow(const Tile& pairs, A scale, const SlowMatrix<A>& p, const SlowMatrix<Y>& y,
                         const SlowMatrix<A>& factors, const SlowMatrix<A>& out, FastMemory& fast,
                         SourceLine caller = SourceLine::current()) {
    const FastMemory::Scope scope(fast, caller);
    struct Tiles {
        FastMatrix<A> p, y, out, factors, sums, part;
        Tiles(FastMemory& memory, std::int64_t d, BlockSizes b)
            : p(memory.matrix<A>(b.rows, b.keys, "p")),
              y(memory.matrix<A>(b.keys, d, "y")),
              out(memory.matrix<A>(b.rows, d, "p y")),
              factors(memory.matrix<A>(b.rows, 1, "factors")),
              sums(memory.matrix<A>(1, d, "sums")),
              part(memory.matrix<A>(1, d, "sums")) {}
    };
    const std::int64_t d = y.columns();
    const BlockSizes sizes =
        tiles_for(fast, pairs, [&](FastMemory& memory, BlockSizes b) { Tiles(memory, d, b); });
    const Tiles tiles(fast, d, sizes);
    for_each_tile(pairs, sizes, [&](const Tile& tile) {
        const IndexRange rows = within(tile.rows, pairs.rows), keys = within(tile.keys, pairs.keys);
        if (keys.begin == 0) fast.load(out.rows(rows), tiles.out);
        if (keys.begin == 0 && factors.columns() > 0) {
            fast.load(factors.rows(rows), tiles.factors);
            for (std::int64_t r = 0; r < tile.row_count(); ++r)
                for (std::int64_t c = 0; c < d; ++c) tiles.out.row(r)[c] *= tiles.factors[r];
        }
        fast.load(p.block(rows, keys), tiles.p);
        fast.load(y.rows(keys), tiles.y);
        add_product(tile, scale, tiles.p, tiles.y, tiles.out, tiles.sums, tiles.part);
        if (tile.keys.end == pairs.keys.end) fast.store(tiles.out, out.rows(rows));
    });
}

/// out [keys, d] += scale * p^T y. p [rows, keys], y [rows, d].
template <class A, class Y>
void add_transposed_product_to_slow(const Tile& pairs, A scale, const SlowMatrix<A>& p,
                                    const SlowMatrix<Y>& y, const SlowMatrix<A>& out, FastMemory& fast,
                                    SourceLine caller = SourceLine::current()) {
    const FastMemory::Scope scope(fast, caller);
    struct Tiles {
        FastMatrix<A> p, y, out, sums;
        Tiles(FastMemory& memory, std::int64_t d, BlockSizes b)
            : p(memory.matrix<A>(b.rows, b.keys, "p")),
              y(memory.matrix<A>(b.rows, d, "y")),
              out(memory.matrix<A>(b.keys, d, "pᵀ y")),
              sums(memory.matrix<A>(1, d, "sums")) {}
    };
    const std::int64_t d = y.columns();
    const BlockSizes sizes =
        tiles_for(fast, pairs, [&](FastMemory& memory, BlockSizes b) { Tiles(memory, d, b); });
    const Tiles tiles(fast, d, sizes);
    for_each_block({0, pairs.key_count()}, sizes.keys, pairs.key_count(), [&](IndexRange keys) {
        fast.load(out.rows(keys), tiles.out);
        for_each_block({0, pairs.row_count()}, sizes.rows, pairs.row_count(), [&](IndexRange rows) {
            const Tile tile{pairs.mask,
                            {pairs.rows.begin + rows.begin, pairs.rows.begin + rows.end},
                            {pairs.keys.begin + keys.begin, pairs.keys.begin + keys.end}};
            fast.load(p.block(rows, keys), tiles.p);
            fast.load(y.rows(rows), tiles.y);
            add_transposed_product(tile, scale, tiles.p, tiles.y, tiles.out, tiles.sums);
        });
        fast.store(tiles.out, out.rows(keys));
    });
}

/// Divides each row of x by its element of sums [rows, 1]; a row whose sum is 0 becomes 0.
template <class A>
void divide_rows(const SlowMatrix<A>& sums, const SlowMatrix<A>& x, FastMemory& fast,
                 SourceLine caller = SourceLine::current()) {
    const FastMemory::Scope scope(fast, caller);
    const auto row = fast.matrix<A>(1, x.columns(), "x"), sum = fast.matrix<A>(1, 1, "sum");
    for (std::int64_t i = 0; i < x.rows(); ++i) {
        fast.load(sums.rows({i, i + 1}), sum);
        fast.load(x.rows({i, i + 1}), row);
        const A inverse = sum[0] == 0 ? A(0) : A(1) / sum[0];
        for (std::int64_t c = 0; c < x.columns(); ++c) row.data[c] *= inverse;
        fast.store(row, x.rows({i, i + 1}));
    }
}

}  // namespace gradtile::attention::cpu::tiled
