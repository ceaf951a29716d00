#pragma once
/// INTERNAL. FlashAttention-2 (Dao 2023): algorithm 1 forward, with the outer loop over row blocks, so that O
/// and the statistics stay in fast memory; algorithm 2 backward, with the outer loop over key blocks, from
/// the LSE and D alone.
#include <gradtile/attention/cpu/tiled/flash_tiles.h>

namespace gradtile::attention::lab {

using cpu::Geometry;
using namespace cpu::tiled;

template <class A>
struct Flash2BackwardTiles : FlashBackwardTiles<A> {
    FastMatrix<A> lse, delta;  ///< [B_r, 1]
    Flash2BackwardTiles(FastMemory& fast, const Geometry& g, BlockSizes b)
        : FlashBackwardTiles<A>(fast, g, b),
          lse(fast.matrix<A>(b.rows, 1, "LSE")),
          delta(fast.matrix<A>(b.rows, 1, "D")) {}
};

/// The forward pass's block sizes, which the paper leaves open. An outer-loop block has M / 4d rows, as many
/// as FlashAttention's blocks have keys. An inner-loop block has at most d keys. If the tiles do not fit, the
/// key count is halved first.
template <class A>
BlockSizes flash2_forward_blocks(const Geometry& g, std::size_t fast_memory_bytes) {
    const std::int64_t d = std::max(g.d_qk, g.d_v);
    const auto m = static_cast<std::int64_t>(fast_memory_bytes / sizeof(A));
    const std::int64_t outer = ceil_div(m, 4 * d);
    // fitting_blocks() halves `rows` first, so rows and keys are exchanged here.
    const BlockSizes swapped = fitting_blocks(
        {.rows = std::clamp<std::int64_t>(std::min(outer, d), 1, std::max<std::int64_t>(g.mask.keys, 1)),
         .keys = std::clamp<std::int64_t>(outer, 1, std::max<std::int64_t>(g.mask.queries, 1))},
        fast_memory_bytes, [&](FastMemory& fast, BlockSizes b) {
            FlashForwardTiles<A>(fast, g, {.rows = b.keys, .keys = b.rows});
        });
    return {.rows = swapped.keys, .keys = swapped.rows};
}

/// The forward pass, algorithm 1.
template <class T>
void flash2_forward(const ForwardHead<T>& head, BlockSizes blocks, FastMemory& fast) {
    using A = Accumulator<T>;
    const Geometry& g = head.geometry;
    const FastMemory::Scope scope(fast);
    const FlashForwardTiles<A> t(fast, g, blocks);
    for_each_block({0, g.mask.queries}, blocks.rows, g.mask.queries, [&](IndexRange rows) {
        fast.load(head.q.rows(rows), t.q);
        fill(t.o, A(0));
        fill(t.l, head.rule.sink > minus_infinity<A> ? A(1) : A(0));
        fill(t.m, head.rule.sink);
        for_each_block(g.mask.visible_keys(rows), blocks.keys, g.mask.keys, [&](IndexRange keys) {
            const Tile tile{g.mask, rows, keys};
            fast.load(head.k.rows(keys), t.k);
            fast.load(head.v.rows(keys), t.v);
            multiply_transposed(tile, static_cast<A>(g.scale), t.q, t.k, t.s);
            apply_rule_to_tile<T>(tile, head.rule, t.s);
            for (std::int64_t r = 0; r < tile.row_count(); ++r) {
                const IndexRange visible = tile.visible(r);
                const A m = std::max(t.m[r], row_maximum(visible, t.s.row(r)));
                const A reference = finite_reference(m), rescale = std::exp(t.m[r] - reference);
                t.l[r] = rescale * t.l[r] + exponentials(visible, reference, t.s.row(r));
                t.m[r] = m;
                for (std::int64_t c = 0; c < g.d_v; ++c) t.o.row(r)[c] *= rescale;
                report_statistics(t.m, rows.begin + r, m, t.l[r]);
            }
            apply_dropout_to_tile(tile, head.rule, t.s);
            add_product(tile, A(1), t.s, t.v, t.o, t.o_block, t.part);
        });
        for (std::int64_t r = 0; r < rows.end - rows.begin; ++r) {
            const A l = t.l[r], inverse = l == 0 ? A(0) : A(1) / l;
            for (std::int64_t c = 0; c < g.d_v; ++c) t.o.row(r)[c] *= inverse;
            t.l[r] = l == 0 ? minus_infinity<A> : t.m[r] + std::log(l);
        }
        fast.store(t.o, head.o.rows(rows));
        fast.store(t.l, head.lse.rows(rows));
    });
}

/// The backward pass, algorithm 2.
template <class T>
void flash2_backward(const BackwardHead<T>& heads, BlockSizes blocks, FastMemory& fast) {
    using A = Accumulator<T>;
    const Geometry& g = heads.geometry;
    const A scale = static_cast<A>(g.scale);
    for (const QueryHead<T>& head : heads.query_heads) {
        store_deltas(g, head, fast);
        fill_slow(fast, A(0), head.d_q);
    }
    const FastMemory::Scope scope(fast);
    const Flash2BackwardTiles<A> t(fast, g, blocks);
    const auto add_gradients = [&](const QueryHead<T>& head, const Tile& tile) {
        fast.load(head.q.rows(tile.rows), t.q);
        fast.load(head.d_o.rows(tile.rows), t.d_o);
        fast.load(head.d_q.rows(tile.rows), t.d_q);
        fast.load(head.lse.rows(tile.rows), t.lse);
        fast.load(head.delta.rows(tile.rows), t.delta);
        const auto statistics = [&](std::int64_t r) {
            return RowStatistics<A>{
                .reference = finite_reference(t.lse[r]), .inverse_sum = A(1), .delta = t.delta[r]};
        };
        add_tile_gradients(tile, head, scale, statistics, t);
        fast.store(t.d_q, head.d_q.rows(tile.rows));
    };
    for_each_block({0, g.mask.keys}, blocks.keys, g.mask.keys, [&](IndexRange keys) {
        fast.load(heads.k.rows(keys), t.k);
        fast.load(heads.v.rows(keys), t.v);
        fill(t.d_k, A(0));
        fill(t.d_v, A(0));
        for (const QueryHead<T>& head : heads.query_heads)
            for_each_block(g.mask.seeing_rows(keys), blocks.rows, g.mask.queries, [&](IndexRange rows) {
                add_gradients(head, Tile{g.mask, rows, keys});
            });
        fast.store(t.d_k, heads.d_k.rows(keys));
        fast.store(t.d_v, heads.d_v.rows(keys));
    });
}

}  // namespace gradtile::attention::lab
