#pragma once
/// INTERNAL. The matrices that FlashAttention and FlashAttention-2 hold in fast memory, and one tile's
/// gradients, which both algorithms compute in the same way. d is the head dim. A tile has B_r rows and B_c
/// keys.
#include <gradtile/attention/cpu/tiled/heads.h>

namespace gradtile::attention::cpu::tiled {

template <class A>
struct FlashForwardTiles {
    FastMatrix<A> k, v;           ///< [B_c, d]
    FastMatrix<A> q, o;           ///< [B_r, d]
    FastMatrix<A> l, m;           ///< [B_r, 1]
    FastMatrix<A> s;              ///< [B_r, B_c]
    FastMatrix<A> o_block, part;  ///< [1, d]
    FlashForwardTiles(FastMemory& fast, const Geometry& g, BlockSizes b)
        : k(fast.matrix<A>(b.keys, g.d_qk, "K")),
          v(fast.matrix<A>(b.keys, g.d_v, "V")),
          q(fast.matrix<A>(b.rows, g.d_qk, "Q")),
          o(fast.matrix<A>(b.rows, g.d_v, "O")),
          l(fast.matrix<A>(b.rows, 1, "l")),
          m(fast.matrix<A>(b.rows, 1, "m")),
          s(fast.matrix<A>(b.rows, b.keys, "S")),
          o_block(fast.matrix<A>(1, g.d_v, "P V")),
          part(fast.matrix<A>(1, g.d_v, "sums")) {}
};

/// The backward matrices that both algorithms need.
template <class A>
struct FlashBackwardTiles {
    FastMatrix<A> k, v, d_k, d_v;    ///< [B_c, d]
    FastMatrix<A> q, d_o, d_q;       ///< [B_r, d]
    FastMatrix<A> p, d_s;            ///< [B_r, B_c]
    FastMatrix<A> sums, part;        ///< [1, d]
    FastMatrix<A> bias_columns;      ///< [max_biases, B_c]
    DifferentiationRows<A> scratch;  ///< [1, B_c] each
    FlashBackwardTiles(FastMemory& fast, const Geometry& g, BlockSizes b)
        : k(fast.matrix<A>(b.keys, g.d_qk, "K")),
          v(fast.matrix<A>(b.keys, g.d_v, "V")),
          d_k(fast.matrix<A>(b.keys, g.d_qk, "dK")),
          d_v(fast.matrix<A>(b.keys, g.d_v, "dV")),
          q(fast.matrix<A>(b.rows, g.d_qk, "Q")),
          d_o(fast.matrix<A>(b.rows, g.d_v, "dO")),
          d_q(fast.matrix<A>(b.rows, g.d_qk, "dQ")),
          p(fast.matrix<A>(b.rows, b.keys, "P")),
          d_s(fast.matrix<A>(b.rows, b.keys, "dS")),
          sums(fast.matrix<A>(1, std::max(g.d_qk, g.d_v), "sums")),
          part(fast.matrix<A>(1, std::max(g.d_qk, g.d_v), "sums")),
          bias_columns(fast.matrix<A>(max_biases, b.keys, "dBias")),
          scratch(fast, b.keys) {}
};

/// Adds a tile's contributions to dQ, dK and dV. The tile's Q, K, V, dO, dQ, dK and dV are in fast memory.
/// statistics(r) returns the RowStatistics for row r of the tile.
template <class T, class A, class Statistics>
void add_tile_gradients(const Tile& tile, const QueryHead<T>& head, A scale, Statistics&& statistics,
                        const FlashBackwardTiles<A>& t) {
    multiply_transposed(tile, scale, t.q, t.k, t.p);     // S = scale * Q K^T
    multiply_transposed(tile, A(1), t.d_o, t.v, t.d_s);  // dP = dO V^T
    BlockBiasGradients<A> bias_sums(head.bias_gradients, tile.keys.begin, tile.key_count(),
                                    t.bias_columns.data);
    differentiate_tile<T>(tile, head.rule, statistics, t.p, t.d_s, t.scratch, bias_sums);
    bias_sums.finish();
    add_transposed_product(tile, A(1), t.p, t.d_o, t.d_v, t.sums);
    add_product(tile, scale, t.d_s, t.k, t.d_q, t.sums, t.part);
    add_transposed_product(tile, scale, t.d_s, t.q, t.d_k, t.sums);
}

}  // namespace gradtile::attention::cpu::tiled
