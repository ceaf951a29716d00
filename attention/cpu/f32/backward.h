#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. FlashAttention-2 backward (Dao 2023,
/// algorithm 2) in float32 for one key block. Keys are in vector lanes. K and V are transposed once. All
/// products over the head dim or over the rows read Q and dO element by element. dK^T and dV^T stay in the
/// cache until the end.
#include <gradtile/attention/cpu/bias_gradient_rows.h>
#include <gradtile/attention/cpu/f32/forward.h>

namespace gradtile::attention::cpu {
namespace {

constexpr std::int64_t backward_rows = 64;

/// Keys per task. Long sequences get several tiles per task, which share each packed Q/dO block and each
/// addition to dQ. Short sequences get one tile per task, so that there are enough tasks for all threads.
/// Wide heads get fewer tiles, so that K, V, dK and dV fit the L2 cache.
inline std::int64_t backward_task_keys(const Geometry& g) {
    const std::int64_t d = larger(g.d_qk, g.d_v);
    if (g.mask.keys >= 1024 && d <= 128) return 4 * tile_tokens;
    if (g.mask.keys >= 512) return 2 * tile_tokens;
    return tile_tokens;
}

struct BackwardScratch {
    BackwardScratch(const Geometry& g, ScratchFloats& memory)
        : tiles(backward_task_keys(g) / tile_tokens),
          k(memory.take(tiles * tile_tokens * row_pitch(g.d_qk))),
          k_transposed(memory.take(tiles * g.d_qk * tile_tokens)),
          v_transposed(memory.take(tiles * g.d_v * tile_tokens)),
          d_k(memory.take(tiles * g.d_qk * tile_tokens)),
          d_v(memory.take(tiles * g.d_v * tile_tokens)),
          q(memory.take(backward_rows * row_pitch(g.d_qk))),
          d_o(memory.take(backward_rows * row_pitch(g.d_v))),
          p(memory.take(backward_rows * tile_tokens)),
          d_s(memory.take(backward_rows * tile_tokens)),
          d_q(memory.take(backward_rows * row_pitch(g.d_qk))) {}
    std::int64_t tiles;
    float* k;             // [tiles, tile_tokens, row_pitch]
    float* k_transposed;  // [tiles, Dqk, tile_tokens]
    float* v_transposed;  // [tiles, Dv, tile_tokens]
    float* d_k;           // [tiles, Dqk, tile_tokens], not yet scaled
    float* d_v;           // [tiles, Dv, tile_tokens]
    float* q;             // [backward_rows, row_pitch]
    float* d_o;           // [backward_rows, row_pitch]
    float* p;             // [backward_rows, tile_tokens]
    float* d_s;           // [backward_rows, tile_tokens]
    float* d_q;           // [backward_rows, row_pitch], this task's part, not yet scaled
};

template <class V, class T>
class BackwardBlock {
    using Vector = typename V::Vector;

  public:
    BackwardBlock(const BackwardTask<T>& task, ScratchFloats memory)
        : task_(task),
          g_(*task.geometry),
          scratch_(g_, memory),
          scale_(static_cast<float>(g_.scale)),
          scale_log2_(g_.scale < 0 ? -g_.scale_log2() : g_.scale_log2()) {}

    void run() const {
        const std::int64_t tiles = tile_count(task_.keys);
        for (std::int64_t t = 0; t < tiles; ++t) start(tile(t));
        const IndexRange seeing = g_.mask.seeing_rows(task_.keys);
        for (std::int64_t head = 0; head < task_.group; ++head)
            for (std::int64_t block = seeing.begin / backward_rows; block * backward_rows < seeing.end;
                 ++block)
                process_row_block(head, block, tiles);
        for (std::int64_t t = 0; t < tiles; ++t) finish(tile(t));
    }

  private:
    /// One key tile and its gradient sums.
    struct Tile {
        IndexRange keys;
        float *k, *k_transposed, *v_transposed, *d_k, *d_v;
    };
    /// Some rows of a row block, counted from its first row, and the keys that at least one of these rows
    /// sees, in SIMD vectors counted from the tile's first key.
    struct Strip {
        IndexRange rows;
        IndexRange vectors;
    };

    Tile tile(std::int64_t t) const {
        return {.keys = tile_range(task_.keys, t),
                .k = scratch_.k + t * tile_tokens * row_pitch(g_.d_qk),
                .k_transposed = scratch_.k_transposed + t * g_.d_qk * tile_tokens,
                .v_transposed = scratch_.v_transposed + t * g_.d_v * tile_tokens,
                .d_k = scratch_.d_k + t * g_.d_qk * tile_tokens,
                .d_v = scratch_.d_v + t * g_.d_v * tile_tokens};
    }

    static void clear(float* x, std::int64_t count) {
        for (std::int64_t i = 0; i < count; i += V::lanes) V::store(x + i, V::zero());
    }

    void start(const Tile& tile) const {
        load_rows<V>(task_.k, tile.keys, g_.d_qk, row_pitch(g_.d_qk), tile.k);
        load_transposed<V>(task_.k, tile.keys, g_.d_qk, 1.0f, tile.k_transposed);
        load_transposed<V>(task_.v, tile.keys, g_.d_v, 1.0f, tile.v_transposed);
        clear(tile.d_k, g_.d_qk * tile_tokens);
        clear(tile.d_v, g_.d_v * tile_tokens);
    }

    void finish(const Tile& tile) const {
        alignas(64) float factors[tile_tokens];
        for (float& factor : factors) factor = scale_;
        store_transposed<V>(tile.d_k, factors, tile.keys, g_.d_qk, task_.d_k);
        for (float& factor : factors) factor = 1.0f;
        store_transposed<V>(tile.d_v, factors, tile.keys, g_.d_v, task_.d_v);
    }

    /// Processes one row block of one head: adds the block's part to dK and dV of every key tile, and the
    /// task's part to the block's dQ rows.
    void process_row_block(std::int64_t head, std::int64_t block, std::int64_t tiles) const {
        const IndexRange rows{block * backward_rows, smaller((block + 1) * backward_rows, g_.mask.queries)};
        if (task_.coverage(head, rows, task_.keys) == Coverage::none)
            return task_.skip_rows(head, block, rows);
        const StridedRows<const T> q{task_.q.data + head * task_.q_head_stride, task_.q.stride};
        const StridedRows<const T> d_o{task_.d_o.data + head * task_.d_o_head_stride, task_.d_o.stride};
        load_rows<V>(q, rows, g_.d_qk, row_pitch(g_.d_qk), scratch_.q);
        load_rows<V>(d_o, rows, g_.d_v, row_pitch(g_.d_v), scratch_.d_o);
        clear(scratch_.d_q, (rows.end - rows.begin) * row_pitch(g_.d_qk));
        for (std::int64_t t = 0; t < tiles; ++t) {
            if (task_.rules != nullptr) {
                process_tile_under_rule(head, rows, tile(t));
            } else {
                process_tile(head, rows, tile(t));
            }
        }

        wait_for_dq_turn(task_.turns, head, block, task_.key_block);
        const StridedRows<float> d_q{task_.d_q.data + head * task_.d_q_head_stride, task_.d_q.stride};
        if (task_.overwrites_dq(rows)) {
            add_to_dq<true>(rows, d_q);
        } else {
            add_to_dq<false>(rows, d_q);
        }
        pass_dq_turn(task_.turns, head, block, task_.key_block);
    }

    void process_tile(std::int64_t head, IndexRange rows, const Tile& tile) const {
        const float* delta = task_.delta + head * g_.mask.queries + rows.begin;
        const std::int64_t count = rows.end - rows.begin;
        const Coverage coverage = task_.coverage(head, rows, tile.keys);
        if (coverage == Coverage::none) return;
        if (coverage == Coverage::full) {
            const Strip full_strip{{0, count}, vectors_of<V>({0, tile.keys.end - tile.keys.begin})};
            probabilities(head, rows.begin, tile, full_strip);
            accumulate(tile, full_strip, delta);
            return;
        }
        for (std::int64_t i = 0; i < count; i += strip_tokens) {
            const IndexRange strip_rows{i, smaller(i + strip_tokens, count)};
            const IndexRange visible = keys_seen(head, {rows.begin + i, rows.begin + strip_rows.end}, tile);
            if (is_empty(visible)) continue;
            const Strip strip{
                strip_rows, vectors_of<V>({visible.begin - tile.keys.begin, visible.end - tile.keys.begin})};
            probabilities(head, rows.begin, tile, strip);
            mask_probabilities(head, tile, strip, rows.begin);
            accumulate(tile, strip, delta);
        }
    }

    /// The tile's keys that one of the rows may see.
    IndexRange keys_seen(std::int64_t head, IndexRange rows, const Tile& tile) const {
        const IndexRange seen = intersection(g_.mask.visible_keys(rows), tile.keys);
        if (is_empty(seen) || task_.coverage(head, rows, seen) == Coverage::none) return {0, 0};
        return seen;
    }

    void process_tile_under_rule(std::int64_t head, IndexRange rows, const Tile& tile) const {
        const Coverage coverage = task_.coverage(head, rows, tile.keys);
        if (coverage == Coverage::none) return;
        alignas(64) float columns[max_biases * tile_tokens];
        const BlockBiasGradients<float> bias_sums(
            task_.bias_gradients != nullptr ? task_.bias_gradients + head : nullptr, tile.keys.begin,
            tile.keys.end - tile.keys.begin, columns);
        const std::int64_t count = rows.end - rows.begin;
        const std::int64_t length = coverage == Coverage::full ? count : strip_tokens;
        for (std::int64_t i = 0; i < count; i += length) {
            const IndexRange strip_rows{i, smaller(i + length, count)};
            const IndexRange visible = keys_seen(head, {rows.begin + i, rows.begin + strip_rows.end}, tile);
            if (is_empty(visible)) continue;
            const Strip strip{
                strip_rows, vectors_of<V>({visible.begin - tile.keys.begin, visible.end - tile.keys.begin})};
            prefetch_biases<T>(task_.rules[head],
                               {rows.begin + strip_rows.begin, rows.begin + strip_rows.end}, visible);
            bias_sums.prefetch({rows.begin + strip_rows.begin, rows.begin + strip_rows.end}, visible);
            float* const p = scratch_.p + strip_rows.begin * tile_tokens;
            multiply_q_k(head, rows.begin, tile, strip, [=](std::int64_t r, std::int64_t c, Vector s) {
                V::store(p + r * tile_tokens + c * V::lanes, s);
            });
            float* const d_s = scratch_.d_s + strip_rows.begin * tile_tokens;
            multiply_d_o_v(tile, strip, [=](std::int64_t r, std::int64_t c, Vector d_p) {
                V::store(d_s + r * tile_tokens + c * V::lanes, d_p);
            });
            for (std::int64_t r = strip_rows.begin; r < strip_rows.end; ++r)
                differentiate_row(head, rows.begin, r, tile, strip.vectors, bias_sums);
            add_gradients(tile, strip);
        }
        bias_sums.finish();
    }

    /// Calls epilogue(r, c, sum) for vector c of Q K^T in the strip's row r, as multiply() does. first_row is
    /// the row block's first row.
    template <class Epilogue>
    void multiply_q_k(std::int64_t head, std::int64_t first_row, const Tile& tile, const Strip& strip,
                      Epilogue epilogue) const {
        const std::int64_t pitch = row_pitch(g_.d_qk), first = strip.rows.begin;
        if (task_.products.data == nullptr)
            return multiply<V>(strip.rows.end - first, strip.vectors, g_.d_qk,
                               Scalars{scratch_.q + first * pitch, pitch, 1},
                               Vectors{tile.k_transposed, tile_tokens}, epilogue);
        for (std::int64_t r = first; r < strip.rows.end; ++r) {
            const float* const products = task_.products.row(head * g_.mask.queries + first_row + r) +
                                          (tile.keys.begin - task_.keys.begin);
            for (std::int64_t c = strip.vectors.begin; c < strip.vectors.end; ++c)
                epilogue(r - first, c, V::load(products + c * V::lanes));
        }
    }
    /// Like multiply_q_k(), for dO V^T.
    template <class Epilogue>
    void multiply_d_o_v(const Tile& tile, const Strip& strip, Epilogue epilogue) const {
        const std::int64_t pitch = row_pitch(g_.d_v), first = strip.rows.begin;
        multiply<V>(strip.rows.end - first, strip.vectors, g_.d_v,
                    Scalars{scratch_.d_o + first * pitch, pitch, 1}, Vectors{tile.v_transposed, tile_tokens},
                    epilogue);
    }

    /// For row r of the row block, replaces Q K^T by the probabilities that multiply V, and dO V^T by the
    /// gradient of the products. Both become 0 for invisible keys.
    void differentiate_row(std::int64_t head, std::int64_t first_row, std::int64_t r, const Tile& tile,
                           IndexRange vectors, const BlockBiasGradients<float>& bias_sums) const {
        const std::int64_t i = first_row + r, row_index = head * g_.mask.queries + i;
        const IndexRange seen = intersection(g_.mask.visible_keys(i), tile.keys);
        const std::int64_t n = larger(0, seen.end - seen.begin);
        const IndexRange visible{seen.begin - tile.keys.begin, seen.begin - tile.keys.begin + n};
        float* const p = scratch_.p + r * tile_tokens;
        float* const d_s = scratch_.d_s + r * tile_tokens;
        if (n > 0) {
            alignas(64) float d_score[tile_tokens], derivatives[tile_tokens], factors[tile_tokens];
            for (std::int64_t j = visible.begin; j < visible.end; ++j) p[j] *= scale_;
            dropout_factors(task_.rules[head], i, seen.begin, n, factors);
            differentiate<T>(task_.rules[head], i, seen.begin, n,
                             {task_.lse[row_index], task_.lse_remainder[row_index], task_.delta[row_index]},
                             p + visible.begin, d_s + visible.begin,
                             RuleScratch<float>{d_score, derivatives, factors});
            if (const KeyRanges ranges = task_.ranges_of(head)) {
                ranges.hide(i, seen.begin, n, d_score, 0.0f);
                for (float* const x : {p, d_s}) ranges.hide(i, seen.begin, n, x + visible.begin, 0.0f);
            }
            bias_sums.add(i, visible, d_score);
        }
        for (std::int64_t c = vectors.begin; c < vectors.end; ++c)
            for (float* const x : {p, d_s}) {
                const Vector kept = V::keep_lanes(V::load(x + c * V::lanes), visible.begin - c * V::lanes,
                                                  larger(0, visible.end - c * V::lanes), V::zero());
                V::store(x + c * V::lanes, kept);
            }
    }

    /// Computes dS from P, then adds to dV, dK and dQ.
    void accumulate(const Tile& tile, const Strip& strip, const float* delta) const {
        score_gradients(tile, strip, delta);
        add_gradients(tile, strip);
    }

    /// Adds to dV, dK and dQ.
    void add_gradients(const Tile& tile, const Strip& strip) const {
        add_outer(strip, g_.d_v, scratch_.d_o, row_pitch(g_.d_v), scratch_.p, tile.d_v);
        add_outer(strip, g_.d_qk, scratch_.q, row_pitch(g_.d_qk), scratch_.d_s, tile.d_k);
        add_query_gradients(tile, strip);
    }

    /// P = 2^(scale log2(e) Q K^T - LSE).
    void probabilities(std::int64_t head, std::int64_t first_row, const Tile& tile,
                       const Strip& strip) const {
        const Vector scale = V::broadcast(scale_log2_);
        const std::int64_t row_offset = head * g_.mask.queries + first_row + strip.rows.begin;
        const float *const lse = task_.lse + row_offset, *const remainder = task_.lse_remainder + row_offset;
        float* const p = scratch_.p + strip.rows.begin * tile_tokens;
        multiply_q_k(head, first_row, tile, strip, [=](std::int64_t i, std::int64_t c, Vector s) {
            const Vector x = V::sub(V::fma(s, scale, V::broadcast(-lse[i])), V::broadcast(remainder[i]));
            V::store(p + i * tile_tokens + c * V::lanes, V::exp2(x));
        });
    }

    /// Sets P = 0 for invisible keys.
    void mask_probabilities(std::int64_t head, const Tile& tile, const Strip& strip,
                            std::int64_t first_row) const {
        const KeyRanges ranges = task_.ranges_of(head);
        const std::int64_t first = strip.vectors.begin * V::lanes, end = strip.vectors.end * V::lanes;
        for (std::int64_t i = strip.rows.begin; i < strip.rows.end; ++i) {
            const IndexRange visible = g_.mask.visible_keys(first_row + i);
            if (ranges)
                ranges.hide(first_row + i, tile.keys.begin + first, end - first,
                            scratch_.p + i * tile_tokens + first, 0.0f);
            for (std::int64_t c = strip.vectors.begin; c < strip.vectors.end; ++c) {
                const std::int64_t first_key = tile.keys.begin + c * V::lanes;
                float* const p = scratch_.p + i * tile_tokens + c * V::lanes;
                V::store(p, V::keep_lanes(V::load(p), visible.begin - first_key,
                                          larger(0, visible.end - first_key), V::zero()));
            }
        }
    }

    /// dS = P * (dO V^T - D).
    void score_gradients(const Tile& tile, const Strip& strip, const float* delta) const {
        const std::int64_t first = strip.rows.begin;
        const float* const p = scratch_.p + first * tile_tokens;
        float* const d_s = scratch_.d_s + first * tile_tokens;
        delta += first;
        multiply_d_o_v(tile, strip, [=](std::int64_t i, std::int64_t c, Vector d_p) {
            const std::int64_t place = i * tile_tokens + c * V::lanes;
            const Vector centred = V::sub(d_p, V::broadcast(delta[i]));
            V::store(d_s + place, V::mul(V::load(p + place), centred));
        });
    }

    /// sums [d, keys] += rows^T * weights. Computes dV^T += dO^T P and dK^T += Q^T dS.
    void add_outer(const Strip& strip, std::int64_t d, const float* rows, std::int64_t pitch,
                   const float* weights, float* sums) const {
        const std::int64_t first = strip.rows.begin;
        multiply<V>(d, strip.vectors, strip.rows.end - first, Scalars{rows + first * pitch, 1, pitch},
                    Vectors{weights + first * tile_tokens, tile_tokens},
                    [=](std::int64_t column, std::int64_t c, Vector sum) {
                        float* const target = sums + column * tile_tokens + c * V::lanes;
                        V::store(target, V::add(V::load(target), sum));
                    });
    }

    /// Adds dS K to the task's part of dQ.
    void add_query_gradients(const Tile& tile, const Strip& strip) const {
        const std::int64_t pitch = row_pitch(g_.d_qk), first_key = strip.vectors.begin * V::lanes;
        const std::int64_t end_key = smaller(strip.vectors.end * V::lanes, tile.keys.end - tile.keys.begin);
        float* const d_q = scratch_.d_q + strip.rows.begin * pitch;
        multiply<V>(strip.rows.end - strip.rows.begin, vectors_of<V>({0, g_.d_qk}), end_key - first_key,
                    Scalars{scratch_.d_s + strip.rows.begin * tile_tokens + first_key, tile_tokens, 1},
                    Vectors{tile.k + first_key * pitch, pitch},
                    [=](std::int64_t i, std::int64_t c, Vector sum) {
                        float* const target = d_q + i * pitch + c * V::lanes;
                        V::store(target, V::add(V::load(target), sum));
                    });
    }

    /// Adds scale * (the task's part) to dQ, or overwrites dQ with it.
    template <bool overwrite>
    void add_to_dq(IndexRange rows, StridedRows<float> d_q) const {
        const Vector scale = V::broadcast(scale_);
        const float* part = scratch_.d_q;
        for (std::int64_t i = rows.begin; i < rows.end; ++i, part += row_pitch(g_.d_qk)) {
            float* const target = d_q.row(i);
            std::int64_t c = 0;
            for (; c + V::lanes <= g_.d_qk; c += V::lanes) {
                const Vector before = overwrite ? V::zero() : V::load(target + c);
                V::store(target + c, V::fma(scale, V::load(part + c), before));
            }
            if (c == g_.d_qk) continue;
            const Vector before = overwrite ? V::zero() : V::load_first(target + c, g_.d_qk - c);
            V::store_first(target + c, V::fma(scale, V::load(part + c), before), g_.d_qk - c);
        }
    }

    const BackwardTask<T>& task_;
    const Geometry& g_;
    BackwardScratch scratch_;
    float scale_;
    float scale_log2_;
};

}  // namespace
}  // namespace gradtile::attention::cpu
