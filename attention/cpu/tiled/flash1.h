#pragma once
/// INTERNAL. FlashAttention (Dao et al. 2022): algorithm 1 forward, algorithm 4 backward, with the options in
/// attention.h. In both passes the outer loop is over key blocks. For every key block, the algorithm loads,
/// updates and stores O, and each row's softmax maximum m and sum l.
#include <gradtile/attention/cpu/tiled/flash_tiles.h>

namespace gradtile::attention::cpu::tiled {

template <class A>
struct Flash1BackwardTiles : FlashBackwardTiles<A> {
    FastMatrix<A> o;            ///< [B_r, d]
    FastMatrix<A> l, m, d_lse;  ///< [B_r, 1]
    Flash1BackwardTiles(FastMemory& fast, const Geometry& g, BlockSizes b)
        : FlashBackwardTiles<A>(fast, g, b),
          o(fast.matrix<A>(b.rows, g.d_v, "O")),
          l(fast.matrix<A>(b.rows, 1, "l")),
          m(fast.matrix<A>(b.rows, 1, "m")),
          d_lse(fast.matrix<A>(b.rows, 1, "dLSE")) {}
};

/// The paper's block sizes for a fast memory of M elements, B_c = ceil(M / 4d) and B_r = min(B_c, d). With
/// these sizes S does not fit, since the paper counts orders of magnitude only. fitting_blocks() therefore
/// halves the sizes until all tiles fit.
template <class A, class Tiles>
BlockSizes flash1_blocks(const Geometry& g, std::size_t fast_memory_bytes) {
    const std::int64_t d = std::max(g.d_qk, g.d_v);
    const std::int64_t m = static_cast<std::int64_t>(fast_memory_bytes / sizeof(A));
    const std::int64_t keys = std::max(ceil_div(m, 4 * d), std::int64_t{1});
    const BlockSizes wanted{
        .rows = std::clamp<std::int64_t>(std::min(keys, d), 1, std::max<std::int64_t>(g.mask.queries, 1)),
        .keys = std::clamp<std::int64_t>(keys, 1, std::max<std::int64_t>(g.mask.keys, 1))};
    return fitting_blocks(wanted, fast_memory_bytes,
                          [&](FastMemory& fast, BlockSizes blocks) { Tiles(fast, g, blocks); });
}

/// Algorithm 1, lines 10 to 13, for row r of the tile: computes the tile's P~, m~ and l~, then merges them
/// with m, l and O from the keys before the tile.
template <class A>
void update_flash1_row(const Tile& tile, std::int64_t r, const ScoreRule<A>& rule,
                       const FlashForwardTiles<A>& tiles) {
    const IndexRange visible = tile.visible(r);
    if (visible.begin == visible.end) return;
    A *const p = tiles.s.row(r), *const o = tiles.o.row(r);
    const A tile_max = row_maximum(visible, p);
    const A tile_sum = exponentials(visible, finite_reference(tile_max), p);
    apply_dropout(rule, tile.rows.begin + r, tile.keys.begin + visible.begin, visible.end - visible.begin,
                  p + visible.begin);
    multiply_row(tile, r, p, tiles.v, tiles.o_block, tiles.part);

    const A m = std::max(tiles.m[r], tile_max), reference = finite_reference(m);
    const A old_part = tiles.l[r] * std::exp(tiles.m[r] - reference);
    const A tile_scale = std::exp(tile_max - reference);
    const A l = old_part + tile_scale * tile_sum;
    const A inverse = l == 0 ? A(0) : A(1) / l;
    for (std::int64_t c = 0; c < tiles.o.columns; ++c)
        o[c] = (old_part * o[c] + tile_scale * tiles.o_block.data[c]) * inverse;
    tiles.m[r] = m;
    tiles.l[r] = l;
    report_statistics(tiles.m, tile.rows.begin + r, m, l);
}

/// One head's forward pass, algorithm 1.
template <class T>
void flash1_forward(const ForwardHead<T>& head, BlockSizes blocks, FastMemory& fast) {
    using A = Accumulator<T>;
    const Geometry& g = head.geometry;
    const A sink = head.rule.sink;  // the sink counts as a key whose value is 0
    fill_slow(fast, A(0), head.o);
    fill_slow(fast, sink > minus_infinity<A> ? A(1) : A(0), head.row_sum);
    fill_slow(fast, sink, head.row_max);
    const FastMemory::Scope scope(fast);
    const FlashForwardTiles<A> tiles(fast, g, blocks);
    for_each_block({0, g.mask.keys}, blocks.keys, g.mask.keys, [&](IndexRange keys) {
        fast.load(head.k.rows(keys), tiles.k);
        fast.load(head.v.rows(keys), tiles.v);
        for_each_block(g.mask.seeing_rows(keys), blocks.rows, g.mask.queries, [&](IndexRange rows) {
            const Tile tile{g.mask, rows, keys};
            fast.load(head.q.rows(rows), tiles.q);
            fast.load(head.o.rows(rows), tiles.o);
            fast.load(head.row_sum.rows(rows), tiles.l);
            fast.load(head.row_max.rows(rows), tiles.m);
            multiply_transposed(tile, static_cast<A>(g.scale), tiles.q, tiles.k, tiles.s);
            apply_rule_to_tile<T>(tile, head.rule, tiles.s);
            for (std::int64_t r = 0; r < tile.row_count(); ++r) update_flash1_row(tile, r, head.rule, tiles);
            fast.store(tiles.o, head.o.rows(rows));
            fast.store(tiles.l, head.row_sum.rows(rows));
            fast.store(tiles.m, head.row_max.rows(rows));
        });
    });
    // Computes the LSE. Later versions of the paper's program keep the LSE instead of l and m.
    for_each_block({0, g.mask.queries}, blocks.rows, g.mask.queries, [&](IndexRange rows) {
        fast.load(head.row_sum.rows(rows), tiles.l);
        fast.load(head.row_max.rows(rows), tiles.m);
        lse_of_statistics(tiles.l, tiles.m, rows.end - rows.begin);
        fast.store(tiles.l, head.lse.rows(rows));
        if (head.lse_remainder.columns() > 0) fast.store(tiles.m, head.lse_remainder.rows(rows));
    });
}

/// Algorithm 4's inner loop, lines 9 to 25. For one query head and one key block, adds the rows'
/// contributions to the block's dK and dV, and the block's contributions to dQ.
template <class T, class A>
void add_flash1_gradients(const BackwardHead<T>& heads, const QueryHead<T>& head, IndexRange keys,
                          BlockSizes blocks, const Flash1BackwardTiles<A>& t, FastMemory& fast) {
    const Geometry& g = heads.geometry;
    const A scale = static_cast<A>(g.scale);
    for_each_block(g.mask.seeing_rows(keys), blocks.rows, g.mask.queries, [&](IndexRange rows) {
        const Tile tile{g.mask, rows, keys};
        fast.load(head.q.rows(rows), t.q);
        fast.load(head.o.rows(rows), t.o);
        fast.load(head.d_o.rows(rows), t.d_o);
        fast.load(head.d_q.rows(rows), t.d_q);
        fast.load(head.row_sum.rows(rows), t.l);
        fast.load(head.row_max.rows(rows), t.m);
        if (head.d_lse.columns() > 0) fast.load(head.d_lse.rows(rows), t.d_lse);
        const auto statistics = [&](std::int64_t r) {
            const A l = t.l[r], d_lse = head.d_lse.columns() > 0 ? t.d_lse[r] : A(0);
            return RowStatistics<A>{.reference = finite_reference(t.m[r]),
                                    .inverse_sum = l == 0 ? A(0) : A(1) / l,
                                    .delta = delta_of(g.d_v, t.d_o.row(r), t.o.row(r), d_lse, l != 0)};
        };
        add_tile_gradients(tile, head, scale, statistics, t);
        fast.store(t.d_q, head.d_q.rows(rows));
    });
}

/// One K/V head's backward pass, algorithm 4.
template <class T>
void flash1_backward(const BackwardHead<T>& heads, BlockSizes blocks, FastMemory& fast) {
    using A = Accumulator<T>;
    const Geometry& g = heads.geometry;
    for (const QueryHead<T>& head : heads.query_heads) fill_slow(fast, A(0), head.d_q);
    const FastMemory::Scope scope(fast);
    const Flash1BackwardTiles<A> tiles(fast, g, blocks);
    for_each_block({0, g.mask.keys}, blocks.keys, g.mask.keys, [&](IndexRange keys) {
        fast.load(heads.k.rows(keys), tiles.k);
        fast.load(heads.v.rows(keys), tiles.v);
        fill(tiles.d_k, A(0));
        fill(tiles.d_v, A(0));
        for (const QueryHead<T>& head : heads.query_heads)
            add_flash1_gradients(heads, head, keys, blocks, tiles, fast);
        fast.store(tiles.d_k, heads.d_k.rows(keys));
        fast.store(tiles.d_v, heads.d_v.rows(keys));
    });
}

}  // namespace gradtile::attention::cpu::tiled
