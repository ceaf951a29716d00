#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. FlashAttention-2 forward (Dao 2023,
/// algorithm 1) in float32 for one query row block. S and O are transposed, with the queries in vector lanes.
/// The products S^T = K Q^T and O^T += V^T P^T then read K and V element by element from their rows, and the
/// softmax needs no reductions within a register.
#include <numbers>

#include <gradtile/attention/cpu/f32/score_columns.h>

namespace gradtile::attention::cpu {
namespace {

constexpr std::int64_t forward_keys = 64;

/// The distance between two rows of a packed tile, in floats. The distance is an odd number of cache lines,
/// so that a column's elements are in different cache sets.
inline std::int64_t row_pitch(std::int64_t d) {
    constexpr std::int64_t line = 16;
    const std::int64_t lines = (d + line - 1) / line;
    return (lines % 2 == 0 ? lines + 1 : lines) * line;
}

/// Query rows per task. Long sequences get several tiles per task, which share each packed K/V block. Short
/// sequences get one tile per task, so that there are enough tasks for all threads. Wide heads get fewer
/// tiles, so that these fit the L2 cache.
inline std::int64_t forward_task_rows(const Geometry& g) {
    const std::int64_t d = larger(g.d_qk, g.d_v);
    if (g.mask.queries >= 4096 && d <= 128) return 4 * tile_tokens;
    if (g.mask.queries >= 512) return 2 * tile_tokens;
    return tile_tokens;
}

struct ForwardScratch {
    ForwardScratch(const Geometry& g, ScratchFloats& memory)
        : tiles(forward_task_rows(g) / tile_tokens),
          q(memory.take(tiles * g.d_qk * tile_tokens)),
          o(memory.take(tiles * g.d_v * tile_tokens)),
          maximum(memory.take(tiles * tile_tokens)),
          sum(memory.take(tiles * tile_tokens)),
          sum_error(memory.take(tiles * tile_tokens)),
          k(memory.take(forward_keys * row_pitch(g.d_qk))),
          v(memory.take(forward_keys * row_pitch(g.d_v))),
          p(memory.take(forward_keys * tile_tokens)) {}
    std::int64_t tiles;
    float* q;          // [tiles, Dqk, tile_tokens]
    float* o;          // [tiles, Dv, tile_tokens], not yet divided by the sum
    float* maximum;    // [tiles, tile_tokens]: running maximum of S, in S's units
    float* sum;        // [tiles, tile_tokens]: running sum of P
    float* sum_error;  // [tiles, tile_tokens]: rounding errors from additions to `sum`
    float* k;          // [forward_keys, row_pitch]
    float* v;          // [forward_keys, row_pitch]
    float* p;          // [forward_keys, tile_tokens]: S^T, then P^T
};

/// P = 2^(unit * (S - maximum)). Without a score rule S is Q K^T, and the unit is scale * log2(e). With a
/// score rule S is the score, and the unit is log2(e). The maximum is subtracted before the multiplication: a
/// sink or a bias may be as large as float32 allows, and multiplied by log2(e) it would overflow. The product
/// maximum * unit would also have a rounding error, which reaches 2^6 for scores near 1e9.
template <class V, class T>
class ForwardBlock {
    using Vector = typename V::Vector;

  public:
    ForwardBlock(const ForwardTask<T>& task, ScratchFloats memory)
        : task_(task),
          g_(*task.geometry),
          scratch_(g_, memory),
          // The running maximum needs a positive scale. For a negative scale Q is negated instead. For scale
          // 0, which gives all visible keys the same weight, Q becomes 0.
          q_factor_(g_.scale > 0   ? 1.0f
                    : g_.scale < 0 ? -1.0f
                                   : 0.0f),
          scale_(static_cast<float>(g_.scale < 0 ? -g_.scale : g_.scale)),
          unit_(task.rule != nullptr || g_.scale == 0 ? std::numbers::log2e_v<float> : g_.scale_log2()) {}

    void run() {
        const std::int64_t tiles = tile_count(task_.rows);
        for (std::int64_t t = 0; t < tiles; ++t) start(tile(t));
        const IndexRange visible = task_.keys();
        for (std::int64_t begin = visible.begin; begin < visible.end; begin += forward_keys) {
            const IndexRange keys{begin, smaller(begin + forward_keys, visible.end)};
            if (task_.coverage(task_.rows, keys) == Coverage::none) continue;
            load_rows<V>(task_.k, keys, g_.d_qk, row_pitch(g_.d_qk), scratch_.k);
            load_rows<V>(task_.v, keys, g_.d_v, row_pitch(g_.d_v), scratch_.v);
            for (std::int64_t t = 0; t < tiles; ++t) {
                if (task_.rule != nullptr) {
                    process_tile_under_rule(tile(t), keys);
                } else {
                    process_tile(tile(t), keys);
                }
            }
        }
        for (std::int64_t t = 0; t < tiles; ++t) finish(tile(t));
    }

  private:
    /// One query tile with its running maximum and sums.
    struct Tile {
        IndexRange rows;
        float *q, *o, *maximum, *sum, *sum_error;
    };
    static constexpr int max_strips = forward_keys / strip_tokens;
    /// Some keys of a block, and the query vectors that see at least one of these keys. Key 0 is the block's
    /// first key.
    struct Strip {
        IndexRange keys;
        IndexRange vectors;
    };

    Tile tile(std::int64_t t) const {
        return {.rows = tile_range(task_.rows, t),
                .q = scratch_.q + t * g_.d_qk * tile_tokens,
                .o = scratch_.o + t * g_.d_v * tile_tokens,
                .maximum = scratch_.maximum + t * tile_tokens,
                .sum = scratch_.sum + t * tile_tokens,
                .sum_error = scratch_.sum_error + t * tile_tokens};
    }

    void start(const Tile& tile) const {
        load_transposed<V>(task_.q, tile.rows, g_.d_qk, q_factor_, tile.q);
        for (std::int64_t i = 0; i < g_.d_v * tile_tokens; i += V::lanes) V::store(tile.o + i, V::zero());
        // The sink counts as a key whose value is 0.
        const float sink = task_.rule != nullptr ? task_.rule->sink : -__builtin_inff();
        const float sum = sink > -__builtin_inff() ? 1.0f : 0.0f;
        for (std::int64_t i = 0; i < tile_tokens; i += V::lanes) {
            V::store(tile.maximum + i, V::broadcast(sink));
            V::store(tile.sum + i, V::broadcast(sum));
            V::store(tile.sum_error + i, V::zero());
        }
    }

    void process_tile(const Tile& tile, IndexRange keys) const {
        alignas(64) float maximum[tile_tokens], rescale[tile_tokens];
        for (std::int64_t i = 0; i < tile_tokens; i += V::lanes)
            V::store(maximum + i, V::broadcast(-__builtin_inff()));
        const IndexRange all = vectors_of<V>({0, tile.rows.end - tile.rows.begin});
        const std::int64_t count = keys.end - keys.begin;
        const Coverage coverage = task_.coverage(tile.rows, keys);
        if (coverage == Coverage::none) return;
        if (coverage == Coverage::full) {
            const Strip block{{0, count}, all};
            scores<true>(tile, block, maximum);
            update_maximum(tile, all, maximum, rescale);
            exponentials(tile, block);
            add_values<true>(tile, block, rescale);
            return;
        }
        Strip strips[max_strips];
        const int strip_count = split(tile, keys, strip_tokens, strips);
        for (int s = 0; s < strip_count; ++s) {
            scores<false>(tile, strips[s], maximum);
            mask_scores(tile, strips[s], keys.begin, maximum);
        }
        update_maximum(tile, all, maximum, rescale);
        rescale_outputs(tile, all, rescale);
        for (int s = 0; s < strip_count; ++s) {
            exponentials(tile, strips[s]);
            add_values<false>(tile, strips[s], rescale);
        }
    }

    void process_tile_under_rule(const Tile& tile, IndexRange keys) const {
        alignas(64) float maximum[tile_tokens], rescale[tile_tokens];
        for (std::int64_t i = 0; i < tile_tokens; i += V::lanes)
            V::store(maximum + i, V::broadcast(-__builtin_inff()));
        const IndexRange all = vectors_of<V>({0, tile.rows.end - tile.rows.begin});
        const Coverage coverage = task_.coverage(tile.rows, keys);
        if (coverage == Coverage::none) return;
        Strip strips[max_strips];
        const int strip_count =
            split(tile, keys, coverage == Coverage::full ? forward_keys : strip_tokens, strips);
        for (int s = 0; s < strip_count; ++s) {
            const TransposedBlock block = block_of(tile, strips[s], keys.begin);
            prefetch_biases<T>(*task_.rule, tile.rows, block.keys);
            scores<false>(tile, strips[s], maximum);
            apply_rule<V, T>(*task_.rule, scale_, block);
            mask_scores(tile, strips[s], keys.begin, maximum);
        }
        update_maximum(tile, all, maximum, rescale);
        rescale_outputs(tile, all, rescale);
        for (int s = 0; s < strip_count; ++s) {
            exponentials(tile, strips[s]);
            apply_dropout<V>(*task_.rule, block_of(tile, strips[s], keys.begin));
            add_values<false>(tile, strips[s], rescale);
        }
    }

    /// Divides a key block into strips of `length` keys. Strips that no row of the tile sees are left out.
    int split(const Tile& tile, IndexRange keys, std::int64_t length, Strip (&strips)[max_strips]) const {
        const std::int64_t count = keys.end - keys.begin;
        int found = 0;
        for (std::int64_t j = 0; j < count; j += length) {
            const IndexRange strip{j, smaller(j + length, count)};
            const IndexRange strip_keys{keys.begin + strip.begin, keys.begin + strip.end};
            const IndexRange seeing = intersection(g_.mask.seeing_rows(strip_keys), tile.rows);
            if (is_empty(seeing) || task_.coverage(seeing, strip_keys) == Coverage::none) continue;
            strips[found++] = {strip,
                               vectors_of<V>({seeing.begin - tile.rows.begin, seeing.end - tile.rows.begin})};
        }
        return found;
    }

    /// Returns a strip's pairs. Their numbers are in scratch_.p.
    TransposedBlock block_of(const Tile& tile, const Strip& strip, std::int64_t first_key) const {
        const std::int64_t first_lane = strip.vectors.begin * V::lanes;
        return {.s = scratch_.p + strip.keys.begin * tile_tokens + first_lane,
                .keys = {first_key + strip.keys.begin, first_key + strip.keys.end},
                .first_query = tile.rows.begin + first_lane,
                .lanes = (strip.vectors.end - strip.vectors.begin) * V::lanes,
                .end_query = tile.rows.end};
    }

    void rescale_outputs(const Tile& tile, IndexRange vectors, const float* rescale) const {
        for (std::int64_t d = 0; d < g_.d_v; ++d)
            for (std::int64_t c = vectors.begin; c < vectors.end; ++c) {
                float* const o = tile.o + d * tile_tokens + c * V::lanes;
                V::store(o, V::mul(V::load(o), V::load(rescale + c * V::lanes)));
            }
    }

    /// S^T = K Q^T. If track_maximum is true, the function also sets `maximum` to the maximum over the
    /// strip's keys.
    template <bool track_maximum>
    void scores(const Tile& tile, const Strip& strip, float* maximum) const {
        const std::int64_t pitch = row_pitch(g_.d_qk);
        float* const s = scratch_.p + strip.keys.begin * tile_tokens;
        multiply<V>(strip.keys.end - strip.keys.begin, strip.vectors, g_.d_qk,
                    Scalars{scratch_.k + strip.keys.begin * pitch, pitch, 1}, Vectors{tile.q, tile_tokens},
                    [=](std::int64_t j, std::int64_t c, Vector sum) {
                        V::store(s + j * tile_tokens + c * V::lanes, sum);
                        if constexpr (track_maximum) {
                            float* const m = maximum + c * V::lanes;
                            V::store(m, V::max(V::load(m), sum));
                        }
                    });
    }

    /// Keeps the lanes of the given rows, where lane 0 is first_row.
    static Vector keep_rows(Vector x, IndexRange rows, std::int64_t first_row, Vector otherwise) {
        return V::keep_lanes(x, rows.begin - first_row, larger(0, rows.end - first_row), otherwise);
    }

    /// Sets S = -inf for invisible keys, then takes the maximum over the strip's keys.
    void mask_scores(const Tile& tile, const Strip& strip, std::int64_t first_key, float* maximum) const {
        const Vector minus_infinity = V::broadcast(-__builtin_inff());
        for (std::int64_t j = strip.keys.begin; j < strip.keys.end; ++j) {
            const std::int64_t key = first_key + j;
            const IndexRange by_mask = g_.mask.seeing_rows({key, key + 1});
            const IndexRange seeing =
                task_.ranges ? intersection(by_mask, task_.ranges.rows(0, key)) : by_mask;
            const IndexRange more =
                task_.ranges ? intersection(by_mask, task_.ranges.rows(1, key)) : IndexRange{0, 0};
            for (std::int64_t c = strip.vectors.begin; c < strip.vectors.end; ++c) {
                const std::int64_t first_row = tile.rows.begin + c * V::lanes;
                float* const s = scratch_.p + j * tile_tokens + c * V::lanes;
                const Vector otherwise = keep_rows(V::load(s), more, first_row, minus_infinity);
                const Vector masked = keep_rows(V::load(s), seeing, first_row, otherwise);
                V::store(s, masked);
                V::store(maximum + c * V::lanes, V::max(V::load(maximum + c * V::lanes), masked));
            }
        }
    }

    /// Updates the running maximum by the block's maximum, and rescales the sums so far. Writes the factors
    /// for O to `rescale`.
    void update_maximum(const Tile& tile, IndexRange vectors, const float* maximum, float* rescale) const {
        for (std::int64_t i = vectors.begin * V::lanes; i < vectors.end * V::lanes; i += V::lanes) {
            const Vector old = V::load(tile.maximum + i);
            const Vector now = V::max(old, V::load(maximum + i));
            const Vector factor = power(V::sub(old, V::replace_minus_infinity(now, V::zero())));
            V::store(tile.maximum + i, now);
            V::store(tile.sum + i, V::mul(V::load(tile.sum + i), factor));
            V::store(tile.sum_error + i, V::mul(V::load(tile.sum_error + i), factor));
            V::store(rescale + i, factor);
        }
    }

    /// Returns 2^(unit * x) for x = S minus the running maximum.
    Vector power(Vector x) const { return V::exp2(V::mul(V::broadcast(unit_), x)); }

    /// P^T = 2^(unit * (S^T - maximum)), and its sum over the strip's keys. Every 16 keys are summed
    /// separately, and the rounding errors of the total are kept. Otherwise, if one key outweighs all others,
    /// each addition of another key would lose its last bits.
    void exponentials(const Tile& tile, const Strip& strip) const {
        for (std::int64_t c = strip.vectors.begin; c < strip.vectors.end; ++c) {
            // Rows without visible keys so far have S = -inf, and any finite maximum gives P = 0.
            const Vector maximum = V::replace_minus_infinity(V::load(tile.maximum + c * V::lanes), V::zero());
            Vector sum = V::zero();
            for (std::int64_t first = strip.keys.begin; first < strip.keys.end; first += strip_tokens) {
                Vector partial_sum = V::zero();
                for (std::int64_t j = first; j < smaller(first + strip_tokens, strip.keys.end); ++j) {
                    float* const p = scratch_.p + j * tile_tokens + c * V::lanes;
                    const Vector value = power(V::sub(V::load(p), maximum));
                    V::store(p, value);
                    partial_sum = V::add(partial_sum, value);
                }
                sum = V::add(sum, partial_sum);
            }
            add_with_error(tile.sum + c * V::lanes, tile.sum_error + c * V::lanes, sum);
        }
    }

    /// total += x. The addition's rounding error is added to `error` (Knuth's TwoSum).
    static void add_with_error(float* total, float* error, Vector x) {
        const Vector before = V::load(total), after = V::add(before, x), added = V::sub(after, before);
        const Vector lost = V::add(V::sub(before, V::sub(after, added)), V::sub(x, added));
        V::store(total, after);
        V::store(error, V::add(V::load(error), lost));
    }

    /// O^T += V^T P^T. If with_rescale is true, O^T is multiplied by `rescale` before the addition.
    template <bool with_rescale>
    void add_values(const Tile& tile, const Strip& strip, const float* rescale) const {
        const std::int64_t pitch = row_pitch(g_.d_v);
        float* const o_sums = tile.o;
        multiply<V>(g_.d_v, strip.vectors, strip.keys.end - strip.keys.begin,
                    Scalars{scratch_.v + strip.keys.begin * pitch, 1, pitch},
                    Vectors{scratch_.p + strip.keys.begin * tile_tokens, tile_tokens},
                    [=](std::int64_t d, std::int64_t c, Vector sum) {
                        float* const o = o_sums + d * tile_tokens + c * V::lanes;
                        if constexpr (with_rescale) {
                            V::store(o, V::fma(V::load(o), V::load(rescale + c * V::lanes), sum));
                        } else {
                            V::store(o, V::add(V::load(o), sum));
                        }
                    });
    }

    void finish(const Tile& tile) const {
        alignas(64) float inverse[tile_tokens] = {}, sum[tile_tokens];
        const std::int64_t rows = tile.rows.end - tile.rows.begin;
        const double unit = task_.rule != nullptr ? 1.0 : static_cast<double>(unit_) * std::numbers::ln2;
        for (std::int64_t i = 0; i < rows; ++i) {
            // A row that sees no key has sum 0, which gives O = 0 and LSE = -inf.
            sum[i] = tile.sum[i] + tile.sum_error[i];
            inverse[i] = sum[i] == 0.0f ? 0.0f : 1.0f / sum[i];
        }
        if (task_.part_softmax != nullptr) {
            for (std::int64_t i = 0; i < rows; ++i)
                task_.part_softmax[tile.rows.begin + i] = {static_cast<double>(tile.maximum[i]) * unit,
                                                           static_cast<double>(sum[i])};
            store_transposed<V>(tile.o, inverse, tile.rows, g_.d_v, task_.part_o);
        } else {
            task_.lse.store(tile.rows.begin, rows, unit, tile.maximum, sum);
            store_transposed<V>(tile.o, inverse, tile.rows, g_.d_v, task_.o);
        }
    }

    const ForwardTask<T>& task_;
    const Geometry& g_;
    ForwardScratch scratch_;
    float q_factor_;
    float scale_;  // the call's |scale|
    float unit_;   // turns a difference of two S into a base-2 exponent
};

}  // namespace
}  // namespace gradtile::attention::cpu
