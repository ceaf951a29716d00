#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. FlashAttention-2 forward (Dao 2023,
/// algorithm 1) in bf16 for any tile algebra. The products S = Q K^T and O += P V have bf16 operands and
/// float32 sums; everything else is float32.
#include <gradtile/attention/cpu/bf16/blocks.h>

namespace gradtile::attention::cpu {
namespace {

struct ForwardScratch {
    Operand q, k;            ///< left and right operand, summed over the head dim
    Operand v;               ///< right operand, summed over keys
    Operand p;               ///< left operand, summed over keys; one 32-row strip
    Matrix scores;           ///< [32, keys]; one strip
    Matrix o;                ///< [rows, head dim], unnormalised
    Statistics* statistics;  ///< one for every 16 rows
    float* factors;          ///< [keys]: one row's dropout factors

    ForwardScratch(const Geometry& geometry, const BlockPolicy& block, ScratchPieces& pieces)
        : q(pieces.operand(block.forward_rows, geometry.d_qk)),
          k(pieces.operand(block.forward_keys, geometry.d_qk)),
          v(pieces.operand(geometry.d_v, block.forward_keys)),
          p(pieces.operand(square, block.forward_keys)),
          scores(pieces.matrix(square, block.forward_keys)),
          o(pieces.matrix(block.forward_rows, geometry.d_v)),
          statistics(pieces.piece<Statistics>(block.forward_rows / tile_rows)),
          factors(pieces.piece<float>(block.forward_keys)) {}
};

/// Computes O and LSE for one row block, over all keys that the rows see.
template <class Tiles>
class ForwardBlock {
  public:
    ForwardBlock(const ForwardTask<bfloat16>& task, ScratchPieces pieces)
        : task_(task),
          rule_(without_dropout_scale(task.rule)),
          geometry_(*task.geometry),
          policy_(block_policy(geometry_)),
          scale_(positive_scale(geometry_)),
          strips_(squares_of(task.rows, task.rows.begin).end),
          scratch_(geometry_, policy_, pieces) {}

    void run() {
        load_rows();
        const IndexRange visible = task_.keys();
        for (std::int64_t first = visible.begin / square * square; first < visible.end;
             first += policy_.forward_keys) {
            const IndexRange keys{first, smaller(first + policy_.forward_keys, visible.end)};
            if (task_.coverage(task_.rows, keys) == Coverage::none) continue;
            pack_transposed_right(scratch_.k, task_.k, keys, geometry_.d_qk);
            pack_right(scratch_.v, task_.v, keys, geometry_.d_v);
            for (std::int64_t strip = 0; strip < strips_; ++strip) {
                prefetch_next(strip, keys);
                const IndexRange squares = squares_seen(strip, keys);
                if (squares.end <= squares.begin) continue;
                if (task_.rule != nullptr)
                    prefetch_biases<bfloat16>(*task_.rule, rows_of(strip), keys_of(squares, keys));
                multiply_scores(strip, squares);
                if (task_.rule != nullptr) apply_rule_to(strip, squares, keys);
                mask_scores(strip, squares, first);
                exponentiate(strip, squares, first);
                accumulate_output(strip, squares);
            }
        }
        write_output();
    }

  private:
    IndexRange rows_of(std::int64_t strip) const {
        const std::int64_t row = task_.rows.begin + strip * square;
        return {row, smaller(row + square, task_.rows.end)};
    }

    void load_rows() {
        pack_left(scratch_.q, task_.q, task_.rows, geometry_.d_qk, geometry_.scale < 0);
        clear(scratch_.o, strips_ * square, geometry_.d_v);
        for (std::int64_t i = 0; i < 2 * strips_; ++i)
            reset(scratch_.statistics[i], task_.rule != nullptr ? task_.rule->sink : -infinity);
    }

    /// Prefetches a part of the next key block. Together, the strips in the current block prefetch the whole
    /// next block.
    void prefetch_next(std::int64_t strip, IndexRange keys) {
        const std::int64_t share = round_up(policy_.forward_keys, strips_) / strips_;
        const std::int64_t key = keys.end + strip * share;
        const IndexRange next{
            key, smaller(smaller(key + share, keys.end + policy_.forward_keys), geometry_.mask.keys)};
        prefetch(task_.k, next, geometry_.d_qk);
        prefetch(task_.v, next, geometry_.d_v);
    }

    /// Returns the squares in the key block that contain a key visible to a row strip.
    IndexRange squares_seen(std::int64_t strip, IndexRange keys) const {
        const IndexRange seen = intersection(geometry_.mask.visible_keys(rows_of(strip)), keys);
        if (seen.begin >= seen.end) return {0, 0};
        return without_hidden_ends(squares_of(seen, keys.begin), [&](std::int64_t j) {
            return task_.ranges &&
                   task_.coverage(rows_of(strip), keys_of({j, j + 1}, keys)) == Coverage::none;
        });
    }

    /// Returns the keys in the given squares of a key block.
    static IndexRange keys_of(IndexRange squares, IndexRange keys) {
        return {keys.begin + squares.begin * square, smaller(keys.begin + squares.end * square, keys.end)};
    }

    /// S = Q K^T.
    void multiply_scores(std::int64_t strip, IndexRange squares) {
        for (std::int64_t j = squares.begin; j < squares.end; ++j)
            multiply_square(tiles_, {scratch_.scores.at(0, j * square), scratch_.scores.stride}, scratch_.q,
                            strip, scratch_.k, j, {0, scratch_.q.depth}, Sum::overwrite);
    }

    /// Replaces dot products by scores. Dot products with keys after the last visible key do not change here;
    /// mask_scores() replaces them.
    void apply_rule_to(std::int64_t strip, IndexRange squares, IndexRange keys) {
        const IndexRange rows = rows_of(strip);
        const IndexRange seen = keys_of(squares, keys);
        const std::int64_t n = seen.end - seen.begin;
        const float scale = static_cast<float>(geometry_.scale < 0 ? -geometry_.scale : geometry_.scale);
        for (std::int64_t i = rows.begin; i < rows.end; ++i) {
            float* const s = scratch_.scores.at(i - rows.begin, squares.begin * square);
            for (std::int64_t j = 0; j < n; ++j) s[j] *= scale;
            apply_rule<bfloat16>(*task_.rule, i, seen.begin, n, s);
        }
    }

    void mask_scores(std::int64_t strip, IndexRange squares, std::int64_t first_key) {
        for (std::int64_t j = squares.begin; j < squares.end; ++j) {
            const IndexRange keys{first_key + j * square, first_key + (j + 1) * square};
            if (task_.coverage(rows_of(strip), keys) != Coverage::full)
                mask_square(geometry_.mask, task_.ranges,
                            {scratch_.scores.at(0, j * square), scratch_.scores.stride}, rows_of(strip).begin,
                            keys);
        }
    }

    /// Computes P = exp(S - maximum) and rescales O to the new maximum.
    void exponentiate(std::int64_t strip, IndexRange squares, std::int64_t first_key) {
        const std::int64_t columns = (squares.end - squares.begin) * square;
        for (std::int64_t half = 0; half < 2; ++half) {
            alignas(64) float rescale[16];
            const Matrix s{scratch_.scores.at(half * tile_rows, squares.begin * square),
                           scratch_.scores.stride};
            Statistics& statistics = scratch_.statistics[2 * strip + half];
            if (task_.rule == nullptr) {
                softmax_step(statistics, s, columns, PlainScores{scale_}, scratch_.p, half, squares.begin,
                             rescale);
            } else {
                const RuleScores scores{rule_, rows_of(strip).begin + half * tile_rows,
                                        first_key + squares.begin * square, columns, scratch_.factors};
                softmax_step(statistics, s, columns, scores, scratch_.p, half, squares.begin, rescale);
            }
            for (int r = 0; r < 16; ++r) {
                if (rescale[r] == 1.0f) continue;
                float* const o = scratch_.o.at(strip * square + half * tile_rows + r, 0);
                for (std::int64_t d = 0; d < geometry_.d_v; d += 16)
                    _mm512_storeu_ps(o + d,
                                     _mm512_mul_ps(_mm512_set1_ps(rescale[r]), _mm512_loadu_ps(o + d)));
            }
        }
    }

    /// O += P V.
    void accumulate_output(std::int64_t strip, IndexRange squares) {
        for (std::int64_t d = 0; d < round_up(geometry_.d_v, square); d += square)
            multiply_square(tiles_, {scratch_.o.at(strip * square, d), scratch_.o.stride}, scratch_.p, 0,
                            scratch_.v, d / square, squares, Sum::accumulate);
    }

    /// O = O / sum and LSE = maximum + ln(sum).
    void write_output() {
        const double unit = task_.rule != nullptr ? 1.0 : static_cast<double>(scale_) * std::numbers::ln2;
        const float dropout_scale = task_.rule != nullptr ? task_.rule->dropout_scale : 1.0f;
        for (std::int64_t first = task_.rows.begin; first < task_.rows.end; first += tile_rows) {
            const std::int64_t tile = (first - task_.rows.begin) / tile_rows;
            const std::int64_t count = smaller(tile_rows, task_.rows.end - first);
            const Statistics& statistics = scratch_.statistics[tile];
            alignas(64) float sum[tile_rows];
            for (std::int64_t r = 0; r < count; ++r) {
                sum[r] = _mm512_reduce_add_ps(_mm512_load_ps(statistics.sum[r]));
                // The test reads the sum: a NaN always reaches the sum, but may be lost in the maximum.
                const __m512 factor = _mm512_set1_ps(sum[r] == 0.0f ? 0.0f : dropout_scale / sum[r]);
                const float* const o = scratch_.o.at(tile * tile_rows + r, 0);
                if (task_.part_softmax != nullptr) {
                    task_.part_softmax[first + r] = {unit * static_cast<double>(statistics.maximum[r]),
                                                     static_cast<double>(sum[r])};
                    store_row(task_.part_o.row(first + r), o, geometry_.d_v, factor);
                } else {
                    store_row(task_.o.row(first + r), o, geometry_.d_v, factor);
                }
            }
            if (task_.part_softmax == nullptr) task_.lse.store(first, count, unit, statistics.maximum, sum);
        }
    }

    /// Returns the rule with dropout factors 0 and 1 instead of 0 and dropout's scale. write_output() applies
    /// the scale. The reason: P is 1 for a row's largest score. If P were multiplied by the scale and rounded
    /// to bf16, this 1 would have the same rounding error in every row.
    static ScoreRule<float> without_dropout_scale(const ScoreRule<float>* rule) {
        ScoreRule<float> result{};
        if (rule != nullptr) result = *rule;
        result.dropout_scale = 1;
        return result;
    }

    const ForwardTask<bfloat16>& task_;
    const ScoreRule<float> rule_;
    const Geometry& geometry_;
    const BlockPolicy policy_;
    const float scale_;
    const std::int64_t strips_;
    const ForwardScratch scratch_;
    Tiles tiles_;
};

}  // namespace
}  // namespace gradtile::attention::cpu
