#pragma once
/// INTERNAL, for per-instruction-set sources only: they define Vector, then include this. The float32 block
/// algorithms of FlashAttention-2 on one mini matrix product.
///
/// Scores are computed transposed, S^T [keys, queries], with queries in the lanes of a register: then softmax
/// statistics, masks, LSE and D are one number a lane, and no reduction runs across lanes. All five products
/// have one form, C[m, lanes] (+)= sum over k of A(m, k) B[k, lanes], A read one number at a time and
/// broadcast.
#include <gradtile/attention/flash_kernels_cpu.h>

namespace gradtile::attention::cpu {
namespace {

using Index = std::int64_t;

constexpr float infinity = __builtin_inff();
constexpr float log2_e = 1.44269504088896341f;
constexpr float ln_2 = 0.69314718055994531f;

/// Queries whose scores are computed together: three registers. Two leave the broadcasts no slack, four leave
/// no room for enough rows.
constexpr Index tile_queries = 3 * Vector::lanes;
/// Keys whose probabilities lie in the first-level cache at a time (P^T and dS^T: 64 x 48 x 4 bytes = 12 KB
/// each).
constexpr Index tile_keys = 64;
/// Query tiles a forward task takes: they share one packed copy of each K/V tile.
constexpr Index forward_tiles = 4;
/// Keys a backward task owns: K, V, dK and dV of 256 x 64 floats are 256 KB of the second-level cache, and Q
/// and dO are packed once for that many keys.
constexpr Index backward_keys = 256;

inline Index min(Index a, Index b) {
    return a < b ? a : b;
}
inline Index max(Index a, Index b) {
    return a > b ? a : b;
}
inline Index padded(Index columns) {
    return (columns + Vector::lanes - 1) / Vector::lanes * Vector::lanes;
}

/// A matrix given by one step for each index.
struct Factor {
    const float* data;
    Index row_step, column_step;
};

enum class Start { zero, keep, rescale };

/// C[0 .. rows) x [0 .. columns * lanes) (+)= A B over `depth`; with Start::rescale C is first multiplied,
/// lane by lane, with factor[columns * lanes].
template <int rows, int columns, Start start>
inline void product_tile(float* c, Index c_stride, const Factor& a, const float* b, Index b_stride,
                         Index depth, const float* factor) {
    Vector sum[rows][columns];
    for (int m = 0; m < rows; ++m)
        for (int n = 0; n < columns; ++n) {
            if constexpr (start == Start::zero) {
                sum[m][n] = Vector::zero();
            } else {
                sum[m][n] = Vector::load(c + m * c_stride + n * Vector::lanes);
                if constexpr (start == Start::rescale)
                    sum[m][n] = sum[m][n] * Vector::load(factor + n * Vector::lanes);
            }
        }
    const float* a_k = a.data;
    for (Index k = 0; k < depth; ++k, a_k += a.column_step, b += b_stride) {
        Vector b_k[columns];
        for (int n = 0; n < columns; ++n) b_k[n] = Vector::load(b + n * Vector::lanes);
        for (int m = 0; m < rows; ++m) {
            const Vector a_mk = Vector::all(a_k[m * a.row_step]);
            for (int n = 0; n < columns; ++n) sum[m][n] = Vector::fma(a_mk, b_k[n], sum[m][n]);
        }
    }
    for (int m = 0; m < rows; ++m)
        for (int n = 0; n < columns; ++n) sum[m][n].store(c + m * c_stride + n * Vector::lanes);
}

template <int columns, Start start>
inline void product_columns(float* c, Index c_stride, Factor a, const float* b, Index b_stride, Index rows,
                            Index depth, const float* factor) {
    constexpr int most = Vector::tile_rows(columns);
    const auto advance = [&](Index done) {
        c += done * c_stride;
        a.data += done * a.row_step;
        rows -= done;
    };
    for (; rows >= most; advance(most))
        product_tile<most, columns, start>(c, c_stride, a, b, b_stride, depth, factor);
    for (; rows >= 4; advance(4)) product_tile<4, columns, start>(c, c_stride, a, b, b_stride, depth, factor);
    for (; rows >= 1; advance(1)) product_tile<1, columns, start>(c, c_stride, a, b, b_stride, depth, factor);
}

/// C [rows, width] (+)= A [rows, depth] B [depth, width], width a multiple of the lanes.
template <Start start>
inline void product(float* c, Index c_stride, const Factor& a, const float* b, Index b_stride, Index rows,
                    Index width, Index depth, const float* factor = nullptr) {
    for (Index left = width / Vector::lanes; left > 0;) {
        const Index columns = min(left, Vector::max_columns);
        if constexpr (Vector::max_columns >= 4) {
            if (columns == 4) product_columns<4, start>(c, c_stride, a, b, b_stride, rows, depth, factor);
        }
        if (columns == 3) product_columns<3, start>(c, c_stride, a, b, b_stride, rows, depth, factor);
        if (columns == 2) product_columns<2, start>(c, c_stride, a, b, b_stride, rows, depth, factor);
        if (columns == 1) product_columns<1, start>(c, c_stride, a, b, b_stride, rows, depth, factor);
        left -= columns;
        c += columns * Vector::lanes;
        b += columns * Vector::lanes;
        if (start == Start::rescale) factor += columns * Vector::lanes;
    }
}

/// Hands out consecutive 64-byte aligned arrays of one scratch piece; with no piece it only counts.
class Carver {
  public:
    explicit Carver(std::byte* scratch) : base_(reinterpret_cast<float*>(scratch)) {}
    float* take(Index count) {
        float* const taken = base_ + used_;
        used_ += (count + 15) / 16 * 16;
        return taken;
    }
    std::size_t bytes() const { return static_cast<std::size_t>(used_) * sizeof(float); }

  private:
    float* base_;
    Index used_ = 0;
};

/// to [rows, padded(columns)] = rows of x, zeros in the padding.
inline void pack(float* to, Rows<const float> x, IndexRange rows, Index columns) {
    const Index whole = columns / Vector::lanes * Vector::lanes;
    for (Index i = rows.begin; i < rows.end; ++i, to += padded(columns)) {
        const float* const from = x.row(i);
        for (Index c = 0; c < whole; c += Vector::lanes) Vector::load(from + c).store(to + c);
        if (whole < columns) Vector::load_first(from + whole, columns - whole).store(to + whole);
    }
}

/// Columns [c, c + lanes) of row i, zeros past the last column.
inline Vector load_part(const float* row, Index c, Index columns) {
    return columns - c >= Vector::lanes ? Vector::load(row + c) : Vector::load_first(row + c, columns - c);
}

/// to [columns, width] = factor * x^T, zeros in the lanes past the last row.
inline void pack_transposed(float* to, Index width, Rows<const float> x, IndexRange rows, Index columns,
                            float factor) {
    Vector square[Vector::lanes];
    for (Index lane = 0; lane < width; lane += Vector::lanes) {
        for (Index c = 0; c < columns; c += Vector::lanes) {
            for (Index i = 0; i < Vector::lanes; ++i) {
                const Index row = rows.begin + lane + i;
                square[i] =
                    row < rows.end ? Vector::all(factor) * load_part(x.row(row), c, columns) : Vector::zero();
            }
            Vector::transpose(square);
            const Index count = min(Vector::lanes, columns - c);
            for (Index i = 0; i < count; ++i) square[i].store(to + (c + i) * width + lane);
        }
    }
}

/// The keys each lane's query sees, counted from a tile's first key; lanes past the last row see none.
struct VisibleKeys {
    alignas(64) std::int32_t first[tile_queries];
    alignas(64) std::int32_t past[tile_queries];

    VisibleKeys(const Mask& mask, IndexRange rows, Index first_key) {
        for (Index lane = 0; lane < tile_queries; ++lane) {
            const Index i = rows.begin + lane;
            const IndexRange seen = i < rows.end ? mask.visible_keys(i) : IndexRange{0, 0};
            first[lane] = static_cast<std::int32_t>(max(seen.begin - first_key, 0));
            past[lane] = static_cast<std::int32_t>(max(min(seen.end - first_key, tile_keys), 0));
        }
    }
    Vector apply(Index lane, Index j, Vector shown, Vector hidden) const {
        return Vector::where_visible(first + lane, past + lane, static_cast<std::int32_t>(j), shown, hidden);
    }
};

/// One tile of queries during the forward pass: what the online softmax keeps from K/V tile to K/V tile.
struct QueryTile {
    IndexRange rows;
    Index width;        // lanes in use, a multiple of Vector::lanes
    float* q_t;         // [Dqk, width], Q^T times scale * log2(e)
    float* o_t;         // [Dv, width], the unnormalised O^T
    float* maximum;     // [width], of the scores in base-2 units
    float* sum;         // [width], of 2^(score - maximum)
    float* correction;  // [width], what this K/V tile multiplies the former sums with
};

/// S^T -> P^T in place, keys x width; updates maximum and sum, leaves the former sums' factor in correction.
template <bool masked>
inline void online_softmax(const QueryTile& t, float* s, Index keys, const VisibleKeys* visible) {
    for (Index lane = 0; lane < t.width; lane += Vector::lanes) {
        const Vector hidden = Vector::all(-infinity);
        const Vector old_maximum = Vector::load(t.maximum + lane);
        Vector maximum = old_maximum;
        for (Index j = 0; j < keys; ++j) {
            float* const at = s + j * t.width + lane;
            Vector score = Vector::load(at);
            if constexpr (masked) {
                score = visible->apply(lane, j, score, hidden);
                score.store(at);
            }
            maximum = Vector::max(maximum, score);
        }
        // A query that has seen nothing yet has maximum -inf; any finite reference then gives 2^-inf = 0.
        const Vector reference = Vector::max(maximum, Vector::all(-3e38f));
        Vector sum = Vector::zero(), other_sum = Vector::zero();
        Index j = 0;
        for (; j + 2 <= keys; j += 2) {
            float* const at = s + j * t.width + lane;
            const Vector p = Vector::exp2(Vector::load(at) - reference);
            const Vector q = Vector::exp2(Vector::load(at + t.width) - reference);
            p.store(at);
            q.store(at + t.width);
            sum = sum + p;
            other_sum = other_sum + q;
        }
        if (j < keys) {
            float* const at = s + j * t.width + lane;
            const Vector p = Vector::exp2(Vector::load(at) - reference);
            p.store(at);
            sum = sum + p;
        }
        const Vector correction = Vector::exp2(old_maximum - reference);
        correction.store(t.correction + lane);
        maximum.store(t.maximum + lane);
        Vector::fma(Vector::load(t.sum + lane), correction, sum + other_sum).store(t.sum + lane);
    }
}

struct ForwardScratch {
    float *k, *v, *p;
    QueryTile tiles[forward_tiles];
    std::size_t bytes;

    ForwardScratch(const Geometry& g, std::byte* scratch) {
        Carver carver(scratch);
        k = carver.take(tile_keys * padded(g.d_qk));
        v = carver.take(tile_keys * padded(g.d_v));
        p = carver.take(tile_keys * tile_queries);
        for (QueryTile& tile : tiles) {
            tile.q_t = carver.take(g.d_qk * tile_queries);
            tile.o_t = carver.take(g.d_v * tile_queries);
            tile.maximum = carver.take(tile_queries);
            tile.sum = carver.take(tile_queries);
            tile.correction = carver.take(tile_queries);
        }
        bytes = carver.bytes();
    }
};

inline void begin_tile(QueryTile& tile, const ForwardTask<float>& task, IndexRange rows) {
    const Geometry& g = *task.geometry;
    tile.rows = rows;
    tile.width = padded(rows.end - rows.begin);
    pack_transposed(tile.q_t, tile.width, task.q, rows, g.d_qk, static_cast<float>(g.scale) * log2_e);
    for (Index lane = 0; lane < tile.width; lane += Vector::lanes) {
        Vector::all(-infinity).store(tile.maximum + lane);
        Vector::zero().store(tile.sum + lane);
    }
    for (Index i = 0; i < g.d_v * tile.width; i += Vector::lanes) Vector::zero().store(tile.o_t + i);
}

inline void add_keys(QueryTile& tile, const Geometry& g, const ForwardScratch& s, IndexRange keys) {
    const Coverage coverage = g.mask.coverage(tile.rows, keys);
    if (coverage == Coverage::none) return;
    const Index count = keys.end - keys.begin;
    product<Start::zero>(s.p, tile.width, {s.k, padded(g.d_qk), 1}, tile.q_t, tile.width, count, tile.width,
                         g.d_qk);
    if (coverage == Coverage::full) {
        online_softmax<false>(tile, s.p, count, nullptr);
    } else {
        const VisibleKeys visible(g.mask, tile.rows, keys.begin);
        online_softmax<true>(tile, s.p, count, &visible);
    }
    product<Start::rescale>(tile.o_t, tile.width, {s.v, 1, padded(g.d_v)}, s.p, tile.width, g.d_v, tile.width,
                            count, tile.correction);
}

/// O and LSE of the tile's queries; those that saw nothing get 0 and -inf.
inline void finish_tile(const QueryTile& tile, const ForwardTask<float>& task) {
    const Index d_v = task.geometry->d_v, queries = tile.rows.end - tile.rows.begin;
    for (Index lane = 0; lane < queries; ++lane) {
        const bool sees_nothing = tile.maximum[lane] == -infinity;
        tile.correction[lane] = sees_nothing ? 0.0f : 1.0f / tile.sum[lane];
        task.lse[tile.rows.begin + lane] =
            sees_nothing ? -infinity : (tile.maximum[lane] + __builtin_log2f(tile.sum[lane])) * ln_2;
    }
    Vector square[Vector::lanes];
    for (Index lane = 0; lane < tile.width; lane += Vector::lanes) {
        const Vector normaliser = Vector::load(tile.correction + lane);
        for (Index c = 0; c < d_v; c += Vector::lanes) {
            const Index columns = min(Vector::lanes, d_v - c);
            for (Index i = 0; i < Vector::lanes; ++i)
                square[i] = i < columns ? Vector::load(tile.o_t + (c + i) * tile.width + lane) * normaliser
                                        : Vector::zero();
            Vector::transpose(square);
            for (Index i = 0; i < min(Vector::lanes, queries - lane); ++i) {
                float* const o = task.o.row(tile.rows.begin + lane + i) + c;
                if (columns == Vector::lanes) {
                    square[i].store(o);
                } else {
                    square[i].store_first(o, columns);
                }
            }
        }
    }
}

void forward(const ForwardTask<float>& task, std::byte* scratch) {
    const Geometry& g = *task.geometry;
    ForwardScratch s(g, scratch);
    Index tiles = 0;
    for (Index begin = task.rows.begin; begin < task.rows.end; begin += tile_queries)
        begin_tile(s.tiles[tiles++], task, {begin, min(begin + tile_queries, task.rows.end)});

    const IndexRange visible = g.mask.visible_keys(task.rows);
    for (Index begin = visible.begin; begin < visible.end; begin += tile_keys) {
        const IndexRange keys{begin, min(begin + tile_keys, visible.end)};
        pack(s.k, task.k, keys, g.d_qk);
        pack(s.v, task.v, keys, g.d_v);
        for (Index t = 0; t < tiles; ++t) add_keys(s.tiles[t], g, s, keys);
    }
    for (Index t = 0; t < tiles; ++t) finish_tile(s.tiles[t], task);
}

struct BackwardScratch {
    float *k, *v, *d_k, *d_v;  // [backward_keys, padded D], this task's keys
    float *q, *d_o;            // [tile_queries, padded D]
    float *q_t, *d_o_t;        // [D, tile_queries]; Q^T times scale * log2(e)
    float *p, *d_s;            // [tile_keys, tile_queries]: P^T and dS^T
    float* d_q;                // [tile_queries, padded Dqk]
    float *lse, *delta;        // [tile_queries], LSE in base-2 units
    std::size_t bytes;

    BackwardScratch(const Geometry& g, std::byte* scratch) {
        Carver carver(scratch);
        const Index keys = min(backward_keys, (g.mask.keys + tile_keys - 1) / tile_keys * tile_keys);
        k = carver.take(keys * padded(g.d_qk));
        v = carver.take(keys * padded(g.d_v));
        d_k = carver.take(keys * padded(g.d_qk));
        d_v = carver.take(keys * padded(g.d_v));
        q = carver.take(tile_queries * padded(g.d_qk));
        d_o = carver.take(tile_queries * padded(g.d_v));
        q_t = carver.take(tile_queries * g.d_qk);
        d_o_t = carver.take(tile_queries * g.d_v);
        p = carver.take(tile_keys * tile_queries);
        d_s = carver.take(tile_keys * tile_queries);
        d_q = carver.take(tile_queries * padded(g.d_qk));
        lse = carver.take(tile_queries);
        delta = carver.take(tile_queries);
        bytes = carver.bytes();
    }
};

/// P^T = 2^(S^T - LSE) and dS^T = P^T * (dP^T - D), in place of S^T and dP^T.
template <bool masked>
inline void softmax_backward(const BackwardScratch& s, Index width, Index keys, const VisibleKeys* visible) {
    for (Index lane = 0; lane < width; lane += Vector::lanes) {
        const Vector lse = Vector::load(s.lse + lane), delta = Vector::load(s.delta + lane);
        for (Index j = 0; j < keys; ++j) {
            float* const p_at = s.p + j * width + lane;
            float* const d_s_at = s.d_s + j * width + lane;
            Vector p = Vector::exp2(Vector::load(p_at) - lse);
            if constexpr (masked) p = visible->apply(lane, j, p, Vector::zero());
            p.store(p_at);
            (p * (Vector::load(d_s_at) - delta)).store(d_s_at);
        }
    }
}

/// to[i] = or += scale * from[i] for one row of dQ.
inline void put_row(float* to, const float* from, Index columns, float scale, bool overwrite) {
    const Vector factor = Vector::all(scale);
    Index c = 0;
    for (; c + Vector::lanes <= columns; c += Vector::lanes) {
        const Vector before = overwrite ? Vector::zero() : Vector::load(to + c);
        Vector::fma(factor, Vector::load(from + c), before).store(to + c);
    }
    if (c < columns) {
        const Vector before = overwrite ? Vector::zero() : Vector::load_first(to + c, columns - c);
        Vector::fma(factor, Vector::load(from + c), before).store_first(to + c, columns - c);
    }
}

void backward(const BackwardTask<float>& task, std::byte* scratch) {
    const Geometry& g = *task.geometry;
    const BackwardScratch s(g, scratch);
    const Index qk_stride = padded(g.d_qk), v_stride = padded(g.d_v), keys = task.keys.end - task.keys.begin;
    const float scale = static_cast<float>(g.scale);
    pack(s.k, task.k, task.keys, g.d_qk);
    pack(s.v, task.v, task.keys, g.d_v);
    for (Index i = 0; i < keys * qk_stride; i += Vector::lanes) Vector::zero().store(s.d_k + i);
    for (Index i = 0; i < keys * v_stride; i += Vector::lanes) Vector::zero().store(s.d_v + i);

    const IndexRange seeing = g.mask.seeing_rows(task.keys);
    for (Index head = 0; head < task.group; ++head) {
        const Rows<const float> q{task.q.data + head * task.q_head_stride, task.q.stride};
        const Rows<const float> d_o{task.d_o.data + head * task.d_o_head_stride, task.d_o.stride};
        const Rows<float> d_q{task.d_q.data + head * task.d_q_head_stride, task.d_q.stride};
        const float* const lse = task.lse + head * g.mask.queries;
        const float* const delta = task.delta + head * g.mask.queries;
        for (Index block = seeing.begin / tile_queries; block * tile_queries < seeing.end; ++block) {
            const IndexRange rows{block * tile_queries, min((block + 1) * tile_queries, g.mask.queries)};
            const Index count = rows.end - rows.begin, width = padded(count);
            pack(s.q, q, rows, g.d_qk);
            pack(s.d_o, d_o, rows, g.d_v);
            pack_transposed(s.q_t, width, q, rows, g.d_qk, scale * log2_e);
            pack_transposed(s.d_o_t, width, d_o, rows, g.d_v, 1.0f);
            for (Index lane = 0; lane < width; ++lane) {  // lanes past the last row: P = 2^-inf = 0
                s.lse[lane] = lane < count ? lse[rows.begin + lane] * log2_e : infinity;
                s.delta[lane] = lane < count ? delta[rows.begin + lane] : 0.0f;
            }

            bool first_tile = true;
            for (Index j = 0; j < keys; j += tile_keys) {
                const IndexRange columns{task.keys.begin + j,
                                         min(task.keys.begin + j + tile_keys, task.keys.end)};
                const Coverage coverage = g.mask.coverage(rows, columns);
                if (coverage == Coverage::none) continue;
                const Index n = columns.end - columns.begin;
                const float* const k = s.k + j * qk_stride;
                product<Start::zero>(s.p, width, {k, qk_stride, 1}, s.q_t, width, n, width, g.d_qk);
                product<Start::zero>(s.d_s, width, {s.v + j * v_stride, v_stride, 1}, s.d_o_t, width, n,
                                     width, g.d_v);
                if (coverage == Coverage::full) {
                    softmax_backward<false>(s, width, n, nullptr);
                } else {
                    const VisibleKeys visible(g.mask, rows, columns.begin);
                    softmax_backward<true>(s, width, n, &visible);
                }
                product<Start::keep>(s.d_v + j * v_stride, v_stride, {s.p, width, 1}, s.d_o, v_stride, n,
                                     v_stride, count);
                product<Start::keep>(s.d_k + j * qk_stride, qk_stride, {s.d_s, width, 1}, s.q, qk_stride, n,
                                     qk_stride, count);
                if (first_tile) {
                    product<Start::zero>(s.d_q, qk_stride, {s.d_s, 1, width}, k, qk_stride, count, qk_stride,
                                         n);
                } else {
                    product<Start::keep>(s.d_q, qk_stride, {s.d_s, 1, width}, k, qk_stride, count, qk_stride,
                                         n);
                }
                first_tile = false;
            }

            wait_for_dq_turn(task.turns, head, block, task.key_block);
            const bool overwrite = task.starts_dq(rows);
            for (Index i = 0; i < count && !first_tile; ++i)
                put_row(d_q.row(rows.begin + i), s.d_q + i * qk_stride, g.d_qk, scale, overwrite);
            pass_dq_turn(task.turns, head, block, task.key_block);
        }
    }
    for (Index j = 0; j < keys; ++j) {
        put_row(task.d_k.row(task.keys.begin + j), s.d_k + j * qk_stride, g.d_qk, scale, /*overwrite=*/true);
        put_row(task.d_v.row(task.keys.begin + j), s.d_v + j * v_stride, g.d_v, 1.0f, /*overwrite=*/true);
    }
}

Blocks blocks(const Geometry&) {
    return {.forward_rows = forward_tiles * tile_queries,
            .backward_keys = backward_keys,
            .backward_rows = tile_queries};
}
std::size_t forward_scratch_bytes(const Geometry& g) {
    return ForwardScratch(g, nullptr).bytes;
}
std::size_t backward_scratch_bytes(const Geometry& g) {
    return BackwardScratch(g, nullptr).bytes;
}

constexpr FlashKernels<float> make_kernels(const char* name) {
    return {name, blocks, forward_scratch_bytes, backward_scratch_bytes, forward, backward};
}

}  // namespace
}  // namespace gradtile::attention::cpu
