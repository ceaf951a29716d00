#pragma once
/// INTERNAL. Memory-efficient attention (Rabe & Staats 2021). The forward pass computes one block (rows x
/// keys) after the other. Each row keeps a running maximum and a running sum, and its output is rescaled when
/// the maximum changes. Memory is linear in the length. As in the paper's JAX program, every operation reads
/// its operands from slow memory and writes its results to slow memory, including a block's scores and
/// probabilities. The traffic is therefore quadratic, like naive attention's traffic. The backward pass
/// recomputes the probabilities from the LSE, block by block.
#include <gradtile/attention/cpu/tiled/unfused.h>

namespace gradtile::attention::cpu::tiled {

/// The operator's block sizes. With at most 64 rows per block, a sum over many rows is a sum of partial sums,
/// which is more accurate than one long sum.
inline constexpr BlockSizes memory_efficient_blocks{.rows = 64, .keys = 128};

/// One block's matrices in slow memory. s holds scores, then probabilities; d_p holds dP, then dS. Both are
/// as large as the blocks. rescale [rows, 1].
template <class A>
struct BlockMatrices {
    SlowMatrix<A> s, d_p, rescale;
};

/// Replaces S by P~ = exp(S - m), in place, and updates the rows' maximum m and sum l. Writes exp(m_old - m),
/// the factor that corrects earlier results, to `rescale`.
template <class T, class A>
void update_softmax(const Tile& tile, const ForwardHead<T>& head, const BlockMatrices<A>& block,
                    FastMemory& fast, SourceLine caller = SourceLine::current()) {
    const FastMemory::Scope scope(fast, caller);
    const auto s = fast.matrix<A>(1, tile.key_count(), "S");
    const auto m = fast.matrix<A>(1, 1, "m"), l = fast.matrix<A>(1, 1, "l");
    const auto rescale = fast.matrix<A>(1, 1, "rescale");
    for (std::int64_t i = tile.rows.begin; i < tile.rows.end; ++i) {
        const Tile row{tile.mask, {i, i + 1}, tile.keys};
        const IndexRange in_block = within(row.rows, tile.rows), visible = row.visible(0);
        const SlowMatrix<A> scores = block.s.block(in_block, {0, tile.key_count()});
        fast.load(scores, s);
        fast.load(head.row_max.rows(row.rows), m);
        fast.load(head.row_sum.rows(row.rows), l);
        apply_rule_to_tile<T>(row, head.rule, s);
        const A maximum = std::max(m[0], row_maximum(visible, s.data)), reference = finite_reference(maximum);
        rescale[0] = std::exp(m[0] - reference);
        l[0] = l[0] * rescale[0] + exponentials(visible, reference, s.data);
        m[0] = maximum;
        report_statistics(m, i, m[0], l[0]);
        apply_dropout_to_tile(row, head.rule, s);
        fast.store(s, scores);
        fast.store(m, head.row_max.rows(row.rows));
        fast.store(l, head.row_sum.rows(row.rows));
        fast.store(rescale, block.rescale.rows(in_block));
    }
}

/// Writes LSE = m + ln l, and what this number lost when it was rounded.
template <class T>
void store_lse(const ForwardHead<T>& head, FastMemory& fast, SourceLine caller = SourceLine::current()) {
    using A = Accumulator<T>;
    const FastMemory::Scope scope(fast, caller);
    const auto m = fast.matrix<A>(1, 1, "m"), l = fast.matrix<A>(1, 1, "l");
    for (std::int64_t i = 0; i < head.lse.rows(); ++i) {
        const IndexRange row{i, i + 1};
        fast.load(head.row_max.rows(row), m);
        fast.load(head.row_sum.rows(row), l);
        lse_of_statistics(l, m, 1);
        fast.store(l, head.lse.rows(row));
        if (head.lse_remainder.columns() > 0) fast.store(m, head.lse_remainder.rows(row));
    }
}

template <class T, class A>
void memory_efficient_forward(const ForwardHead<T>& head, BlockSizes sizes, const BlockMatrices<A>& block,
                              FastMemory& fast) {
    const Geometry& g = head.geometry;
    const A sink = head.rule.sink;  // the sink counts as a key whose value is 0
    fill_slow(fast, A(0), head.o);
    fill_slow(fast, sink > minus_infinity<A> ? A(1) : A(0), head.row_sum);
    fill_slow(fast, sink, head.row_max);
    for_each_block({0, g.mask.queries}, sizes.rows, g.mask.queries, [&](IndexRange rows) {
        for_each_block(g.mask.visible_keys(rows), sizes.keys, g.mask.keys, [&](IndexRange keys) {
            const Tile tile{g.mask, rows, keys};
            const SlowMatrix<A> s = block.s.block({0, tile.row_count()}, {0, tile.key_count()});
            store_transposed_product(tile, static_cast<A>(g.scale), head.q.rows(rows), head.k.rows(keys), s,
                                     fast);
            update_softmax(tile, head, block, fast);
            add_product_to_slow(tile, A(1), s, head.v.rows(keys), block.rescale.rows({0, tile.row_count()}),
                                head.o.rows(rows), fast);
        });
    });
    divide_rows(head.row_sum, head.o, fast);
    store_lse(head, fast);
}

/// Replaces the products by the probabilities that multiply V, and dP by dS, in place.
template <class T, class A>
void differentiate_block(const Tile& tile, const QueryHead<T>& head, const BlockMatrices<A>& block,
                         FastMemory& fast, SourceLine caller = SourceLine::current()) {
    const FastMemory::Scope scope(fast, caller);
    const std::int64_t keys = tile.key_count();
    const auto s = fast.matrix<A>(1, keys, "S"), d_p = fast.matrix<A>(1, keys, "dP");
    const auto lse = fast.matrix<A>(1, 1, "LSE"), delta = fast.matrix<A>(1, 1, "D");
    const auto lse_remainder = fast.matrix<A>(1, 1, "LSE remainder");
    lse_remainder[0] = 0;
    const auto bias_columns = fast.matrix<A>(max_biases, keys, "dBias");
    const DifferentiationRows<A> scratch(fast, keys);
    BlockBiasGradients<A> bias_sums(head.bias_gradients, tile.keys.begin, keys, bias_columns.data);
    for (std::int64_t i = tile.rows.begin; i < tile.rows.end; ++i) {
        const Tile row{tile.mask, {i, i + 1}, tile.keys};
        const IndexRange in_block = within(row.rows, tile.rows), columns{0, keys};
        fast.load(block.s.block(in_block, columns), s);
        fast.load(block.d_p.block(in_block, columns), d_p);
        fast.load(head.lse.rows(row.rows), lse);
        if (head.lse_remainder.columns() > 0) fast.load(head.lse_remainder.rows(row.rows), lse_remainder);
        fast.load(head.delta.rows(row.rows), delta);
        const auto statistics = [&](std::int64_t) {
            return RowStatistics<A>{.reference = finite_reference(lse[0]),
                                    .inverse_sum = std::exp(-lse_remainder[0]),
                                    .delta = delta[0]};
        };
        differentiate_tile<T>(row, head.rule, statistics, s, d_p, scratch, bias_sums);
        fast.store(s, block.s.block(in_block, columns));
        fast.store(d_p, block.d_p.block(in_block, columns));
    }
    bias_sums.finish();
}

/// Adds one block's contributions to dQ, dK and dV.
template <class T, class A>
void add_block_gradients(const Tile& tile, const BackwardHead<T>& heads, const QueryHead<T>& head,
                         const BlockMatrices<A>& block, FastMemory& fast) {
    const A scale = static_cast<A>(heads.geometry.scale);
    const IndexRange rows{0, tile.row_count()}, keys{0, tile.key_count()};
    const SlowMatrix<A> p = block.s.block(rows, keys), d_s = block.d_p.block(rows, keys);
    store_transposed_product(tile, scale, head.q.rows(tile.rows), heads.k.rows(tile.keys), p, fast);
    store_transposed_product(tile, A(1), head.d_o.rows(tile.rows), heads.v.rows(tile.keys), d_s, fast);
    differentiate_block(tile, head, block, fast);
    add_transposed_product_to_slow(tile, A(1), p, head.d_o.rows(tile.rows), heads.d_v.rows(tile.keys), fast);
    add_product_to_slow(tile, scale, d_s, heads.k.rows(tile.keys), SlowMatrix<A>(), head.d_q.rows(tile.rows),
                        fast);
    add_transposed_product_to_slow(tile, scale, d_s, head.q.rows(tile.rows), heads.d_k.rows(tile.keys), fast);
}

template <class T, class A>
void memory_efficient_backward(const BackwardHead<T>& heads, BlockSizes sizes, const BlockMatrices<A>& block,
                               FastMemory& fast) {
    const Geometry& g = heads.geometry;
    fill_slow(fast, A(0), heads.d_k);
    fill_slow(fast, A(0), heads.d_v);
    for (const QueryHead<T>& head : heads.query_heads) {
        store_deltas(g, head, fast);
        fill_slow(fast, A(0), head.d_q);
        for_each_block({0, g.mask.queries}, sizes.rows, g.mask.queries, [&](IndexRange rows) {
            for_each_block(g.mask.visible_keys(rows), sizes.keys, g.mask.keys, [&](IndexRange keys) {
                add_block_gradients(Tile{g.mask, rows, keys}, heads, head, block, fast);
            });
        });
    }
}

}  // namespace gradtile::attention::cpu::tiled
