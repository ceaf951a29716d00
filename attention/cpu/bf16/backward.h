#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. FlashAttention-2 backward (Dao 2023,
/// algorithm 2) in bf16 for any tile algebra. The five products have bf16 operands and float32 sums;
/// everything else is float32.
///
/// All squares have queries as rows: S = Q K^T and dP = dO V^T. P and dS can then be written, without a
/// transposition, as right operands in dV^T = dO^T P and dK^T = Q^T dS, and dS also as the left operand in dQ
/// = dS K. dK and dV are accumulated as dK^T and dV^T and transposed once, when the task ends.
#include <gradtile/attention/cpu/bf16/blocks.h>
#include <gradtile/attention/cpu/bias_gradient_rows.h>

namespace gradtile::attention::cpu {
namespace {

struct BackwardScratch {
    Operand k, v;                        ///< right operands, summed over the head dim
    Operand k_over_keys;                 ///< right operand, summed over keys
    Operand q, d_o;                      ///< left operands, summed over the head dim
    Operand q_over_rows, d_o_over_rows;  ///< left operands, transposed, summed over rows
    BackwardOperands operands;
    Matrix s, d_p;                       ///< one S square and one dP square
    Matrix d_k, d_v;                     ///< transposed: [head dim, keys]
    Matrix d_q;                          ///< [rows, head dim]
    float *lse, *lse_remainder, *delta;  ///< [rows]
    float* bias_columns;                 ///< [max_biases, keys]

    BackwardScratch(const Geometry& geometry, const BlockPolicy& block, ScratchPieces& pieces)
        : k(pieces.operand(block.backward_keys, geometry.d_qk)),
          v(pieces.operand(block.backward_keys, geometry.d_v)),
          k_over_keys(pieces.operand(geometry.d_qk, block.backward_keys)),
          q(pieces.operand(backward_rows, geometry.d_qk)),
          d_o(pieces.operand(backward_rows, geometry.d_v)),
          q_over_rows(pieces.operand(geometry.d_qk, backward_rows)),
          d_o_over_rows(pieces.operand(geometry.d_v, backward_rows)),
          operands{.p = pieces.operand(block.backward_keys, backward_rows),
                   .ds = pieces.operand(block.backward_keys, backward_rows),
                   .ds_over_keys = pieces.operand(backward_rows, block.backward_keys)},
          s(pieces.matrix(square, square)),
          d_p(pieces.matrix(square, square)),
          d_k(pieces.matrix(geometry.d_qk, block.backward_keys)),
          d_v(pieces.matrix(geometry.d_v, block.backward_keys)),
          d_q(pieces.matrix(backward_rows, geometry.d_qk)),
          lse(pieces.piece<float>(backward_rows)),
          lse_remainder(pieces.piece<float>(backward_rows)),
          delta(pieces.piece<float>(backward_rows)),
          bias_columns(pieces.piece<float>(block.backward_keys * static_cast<std::int64_t>(max_biases))) {}
};

/// A row block of one query head in the group.
struct RowBlock {
    std::int64_t head;
    std::int64_t index;  ///< rows.begin / backward_rows
    IndexRange rows;
};

/// Computes dK and dV for one key block and adds the block's part to dQ, over all rows that see the keys.
template <class Tiles>
class BackwardBlock {
  public:
    BackwardBlock(const BackwardTask<bfloat16>& task, ScratchPieces pieces)
        : task_(task),
          geometry_(*task.geometry),
          policy_(block_policy(geometry_)),
          scale_(positive_scale(geometry_)),
          scratch_(geometry_, policy_, pieces) {}

    void run() {
        load_keys();
        const IndexRange seeing = geometry_.mask.seeing_rows(task_.keys);
        for (std::int64_t head = 0; head < task_.group; ++head) {
            for (std::int64_t i = seeing.begin / backward_rows; i * backward_rows < seeing.end; ++i) {
                const std::int64_t first = i * backward_rows;
                const RowBlock block{
                    head, i, {first, smaller(first + backward_rows, geometry_.mask.queries)}};
                if (task_.coverage(head, block.rows, task_.keys) == Coverage::none) {
                    task_.skip_rows(head, i, block.rows);
                    continue;
                }
                load_rows(block);
                find_coverage(block);
                const BlockBiasGradients<float> bias_sums(
                    task_.bias_gradients != nullptr ? task_.bias_gradients + head : nullptr, task_.keys.begin,
                    task_.keys.end - task_.keys.begin, scratch_.bias_columns);
                for (std::int64_t strip = 0; strip < strips_of(block); ++strip) {
                    prefetch_next(block, strip);
                    recompute(block, strip, bias_sums);
                    multiply_d_q(strip);
                }
                bias_sums.finish();
                accumulate_d_k_and_d_v(block);
                add_to_d_q(block);
            }
        }
        store_transposed(task_.d_k, task_.keys, geometry_.d_qk, scratch_.d_k,
                         static_cast<float>(geometry_.scale));
        store_transposed(task_.d_v, task_.keys, geometry_.d_v, scratch_.d_v, 1.0f);
    }

  private:
    void load_keys() {
        pack_transposed_right(scratch_.k, task_.k, task_.keys, geometry_.d_qk);
        pack_transposed_right(scratch_.v, task_.v, task_.keys, geometry_.d_v);
        pack_right(scratch_.k_over_keys, task_.k, task_.keys, geometry_.d_qk);
        clear(scratch_.d_k, geometry_.d_qk, task_.keys.end - task_.keys.begin);
        clear(scratch_.d_v, geometry_.d_v, task_.keys.end - task_.keys.begin);
    }

    /// Rows beyond the sequence's end get lse = +inf, which gives P = 0.
    void load_rows(const RowBlock& block) {
        const InputRows q = q_of(block.head), d_o = d_o_of(block.head);
        pack_left(scratch_.q, q, block.rows, geometry_.d_qk, geometry_.scale < 0);
        pack_left(scratch_.d_o, d_o, block.rows, geometry_.d_v);
        pack_transposed_left(scratch_.q_over_rows, q, block.rows, geometry_.d_qk);
        pack_transposed_left(scratch_.d_o_over_rows, d_o, block.rows, geometry_.d_v);
        const std::int64_t count = block.rows.end - block.rows.begin;
        const std::int64_t row_offset = block.head * geometry_.mask.queries + block.rows.begin;
        for (std::int64_t r = 0; r < backward_rows; ++r) {
            scratch_.lse[r] = r < count ? task_.lse[row_offset + r] : infinity;
            scratch_.lse_remainder[r] = r < count ? task_.lse_remainder[row_offset + r] : 0.0f;
            scratch_.delta[r] = r < count ? task_.delta[row_offset + r] : 0.0f;
        }
    }

    InputRows q_of(std::int64_t head) const {
        return {task_.q.data + head * task_.q_head_stride, task_.q.stride};
    }
    InputRows d_o_of(std::int64_t head) const {
        return {task_.d_o.data + head * task_.d_o_head_stride, task_.d_o.stride};
    }
    StridedRows<float> d_q_of(std::int64_t head) const {
        return {task_.d_q.data + head * task_.d_q_head_stride, task_.d_q.stride};
    }

    /// Prefetches two things: Q and dO for the strip with the same index in the next row block, and this
    /// strip's dQ rows, which add_to_d_q() updates after this row block.
    void prefetch_next(const RowBlock& block, std::int64_t strip) {
        const std::int64_t row = block.rows.begin + strip * square;
        const std::int64_t next_row = row + backward_rows;
        const IndexRange next{next_row, smaller(next_row + square, geometry_.mask.queries)};
        prefetch(q_of(block.head), next, geometry_.d_qk);
        prefetch(d_o_of(block.head), next, geometry_.d_v);
        prefetch(d_q_of(block.head), rows_of(block, strip), geometry_.d_qk);
    }

    IndexRange rows_of(const RowBlock& block, std::int64_t strip) const {
        const std::int64_t row = block.rows.begin + strip * square;
        return {row, smaller(row + square, block.rows.end)};
    }
    std::int64_t strips_of(const RowBlock& block) const {
        return squares_of(block.rows, block.rows.begin).end;
    }
    std::int64_t squares_of_keys() const { return squares_of(task_.keys, task_.keys.begin).end; }
    /// The square's keys, also those after the last key.
    IndexRange keys_of(std::int64_t j) const {
        return {task_.keys.begin + j * square, task_.keys.begin + (j + 1) * square};
    }

    /// Squares without a visible pair are left out of all products; their P and dS are not computed.
    void find_coverage(const RowBlock& block) {
        for (std::int64_t strip = 0; strip < strips_of(block); ++strip)
            for (std::int64_t j = 0; j < squares_of_keys(); ++j)
                coverage_[strip][j] = task_.coverage(block.head, rows_of(block, strip), keys_of(j));
    }
    bool is_seen(std::int64_t strip, std::int64_t j) const { return coverage_[strip][j] != Coverage::none; }

    /// S = Q K^T, dP = dO V^T, P = exp(S - LSE), dS = P (dP - D), one square after the other.
    void recompute(const RowBlock& block, std::int64_t strip, const BlockBiasGradients<float>& bias_sums) {
        const IndexRange rows = rows_of(block, strip);
        for (std::int64_t j = 0; j < squares_of_keys(); ++j) {
            if (!is_seen(strip, j)) continue;
            const IndexRange keys = keys_of(j), existing = intersection(keys, task_.keys);
            if (task_.rules != nullptr) {
                prefetch_biases<bfloat16>(task_.rules[block.head], rows, existing);
                bias_sums.prefetch(rows, existing);
            }
            multiply_q_k(block, strip, j);
            multiply_square(tiles_, scratch_.d_p, scratch_.d_o, strip, scratch_.v, j, {0, scratch_.d_o.depth},
                            Sum::overwrite);
            if (task_.rules != nullptr) {
                differentiate_square(block, strip, existing, bias_sums);
                store_p_and_d_s(scratch_.operands, strip, j, scratch_.s, scratch_.d_p, interleave_);
                continue;
            }
            if (coverage_[strip][j] != Coverage::full)
                mask_square(geometry_.mask, task_.ranges_of(block.head), scratch_.s, rows.begin, keys);
            const std::int64_t first = strip * square;
            compute_p_and_d_s(scratch_.operands, strip, j, scratch_.s, scratch_.d_p, scale_,
                              {scratch_.lse + first, scratch_.lse_remainder + first, scratch_.delta + first},
                              interleave_);
        }
    }

    /// S = Q K^T, or -Q K^T if the scale is negative, for square j in the task's keys.
    void multiply_q_k(const RowBlock& block, std::int64_t strip, std::int64_t j) {
        if (task_.products.data == nullptr)
            return multiply_square(tiles_, scratch_.s, scratch_.q, strip, scratch_.k, j,
                                   {0, scratch_.q.depth}, Sum::overwrite);
        const IndexRange rows = rows_of(block, strip);
        const __m512 sign = _mm512_set1_ps(geometry_.scale < 0 ? -1.0f : 1.0f);
        for (std::int64_t r = 0; r < square; ++r) {
            const std::int64_t i = smaller(rows.begin + r, rows.end - 1);  // rows after the last have P = 0
            const float* const products = task_.products.row(block.head * geometry_.mask.queries + i);
            for (std::int64_t column = 0; column < square; column += 16)
                _mm512_storeu_ps(scratch_.s.at(r, column),
                                 _mm512_mul_ps(sign, _mm512_loadu_ps(products + j * square + column)));
        }
    }

    /// Only for calls with a score rule. Replaces scratch_.s by the probabilities that multiply V, and
    /// scratch_.d_p by the gradient of the products. Both become 0 for invisible pairs.
    void differentiate_square(const RowBlock& block, std::int64_t strip, IndexRange keys,
                              const BlockBiasGradients<float>& bias_sums) {
        const ScoreRule<float>& rule = task_.rules[block.head];
        const float scale = static_cast<float>(geometry_.scale < 0 ? -geometry_.scale : geometry_.scale);
        const IndexRange rows = rows_of(block, strip);
        alignas(64) float factors[square][square];
        square_dropout_factors(rule, rows.begin, keys.begin, factors);
        for (std::int64_t r = 0; r < square; ++r) {
            const std::int64_t i = rows.begin + r;
            float* const p = scratch_.s.at(r, 0);
            float* const d_s = scratch_.d_p.at(r, 0);
            const IndexRange seen =
                i < rows.end ? intersection(geometry_.mask.visible_keys(i), keys) : IndexRange{0, 0};
            const IndexRange visible{seen.begin - keys.begin, seen.end - keys.begin};
            if (seen.begin < seen.end) {
                alignas(64) float d_score[square], derivatives[square];
                const std::int64_t n = seen.end - seen.begin, row_index = strip * square + r;
                for (std::int64_t j = visible.begin; j < visible.end; ++j) p[j] *= scale;
                differentiate<bfloat16>(
                    rule, i, seen.begin, n,
                    {scratch_.lse[row_index], scratch_.lse_remainder[row_index], scratch_.delta[row_index]},
                    p + visible.begin, d_s + visible.begin,
                    RuleScratch<float>{d_score, derivatives, factors[r] + visible.begin});
                if (const KeyRanges ranges = task_.ranges_of(block.head)) {
                    ranges.hide(i, seen.begin, n, d_score, 0.0f);
                    for (float* const x : {p, d_s}) ranges.hide(i, seen.begin, n, x + visible.begin, 0.0f);
                }
                bias_sums.add(i, {seen.begin - task_.keys.begin, seen.end - task_.keys.begin}, d_score);
            }
            for (std::int64_t j = 0; j < square; j += 16) {
                const auto lanes = static_cast<__mmask16>(first_lanes<__mmask16>(visible.end - j) &
                                                          ~first_lanes<__mmask16>(visible.begin - j));
                _mm512_storeu_ps(p + j, _mm512_maskz_loadu_ps(lanes, p + j));
                _mm512_storeu_ps(d_s + j, _mm512_maskz_loadu_ps(lanes, d_s + j));
            }
        }
    }

    /// Computes a square's dropout factors. The square's first key is a multiple of 32.
    static void square_dropout_factors(const ScoreRule<float>& rule, std::int64_t first_row,
                                       std::int64_t first_key, float (&factors)[square][square]) {
        for (auto& row : factors)
            for (float& factor : row) factor = 1;
        if (!rule.drops()) return;
        constexpr int keys_per_draw = ScoreRule<float>::columns_per_draw, groups = square / keys_per_draw,
                      rows = 4;
        const int threshold = static_cast<int>(rule.dropout_threshold);
        const float scale = rule.dropout_scale;
        for (std::int64_t r = 0; r < square; r += rows) {
            std::uint32_t words[4 * groups * rows];
            Philox::draw_grid<groups, rows>(words, rule.counter_of(first_row + r, first_key / keys_per_draw),
                                            rule.key);
            std::uint16_t bits[rows * square];
            static_assert(sizeof bits == sizeof words);
            __builtin_memcpy(bits, words, sizeof bits);
            for (std::int64_t j = 0; j < rows * square; ++j)
                (&factors[r][0])[j] = bits[j] >= threshold ? scale : 0.0f;
        }
    }

    /// dQ = dS K.
    void multiply_d_q(std::int64_t i) {
        Sum sum = Sum::overwrite;
        const auto multiply = [&](IndexRange squares) {
            for (std::int64_t d = 0; d < round_up(geometry_.d_qk, square); d += square)
                multiply_square(tiles_, {scratch_.d_q.at(i * square, d), scratch_.d_q.stride},
                                scratch_.operands.ds_over_keys, i, scratch_.k_over_keys, d / square, squares,
                                sum);
            sum = Sum::accumulate;
        };
        for_runs(
            squares_of_keys(), [&](std::int64_t j) { return is_seen(i, j); }, multiply);
        if (sum == Sum::overwrite) multiply({0, 0});
    }

    /// dV^T += dO^T P, dK^T += Q^T dS.
    void accumulate_d_k_and_d_v(const RowBlock& block) {
        for (std::int64_t j = 0; j < squares_of_keys(); ++j) {
            const auto accumulate = [&](const Matrix& sums, const Operand& left, std::int64_t columns,
                                        const Operand& right, IndexRange strips) {
                for (std::int64_t d = 0; d < round_up(columns, square); d += square)
                    multiply_square(tiles_, {sums.at(d, j * square), sums.stride}, left, d / square, right, j,
                                    strips, Sum::accumulate);
            };
            for_runs(
                strips_of(block), [&](std::int64_t i) { return is_seen(i, j); },
                [&](IndexRange strips) {
                    accumulate(scratch_.d_v, scratch_.d_o_over_rows, geometry_.d_v, scratch_.operands.p,
                               strips);
                    accumulate(scratch_.d_k, scratch_.q_over_rows, geometry_.d_qk, scratch_.operands.ds,
                               strips);
                });
        }
    }

    /// Waits for this K/V block's turn, then adds its part to dQ, or overwrites dQ with it.
    void add_to_d_q(const RowBlock& block) {
        const StridedRows<float> d_q = d_q_of(block.head);
        const __m512 scale = _mm512_set1_ps(static_cast<float>(geometry_.scale));
        const __mmask16 add = task_.overwrites_dq(block.rows) ? 0 : 0xffff;
        wait_for_dq_turn(task_.turns, block.head, block.index, task_.key_block);
        for (std::int64_t r = 0; r < block.rows.end - block.rows.begin; ++r) {
            float* const row = d_q.row(block.rows.begin + r);
            for (std::int64_t d = 0; d < geometry_.d_qk; d += 16) {
                const __mmask16 lanes = first_lanes<__mmask16>(geometry_.d_qk - d);
                const __m512 before = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes & add), row + d);
                const __m512 part = _mm512_loadu_ps(scratch_.d_q.at(r, d));
                _mm512_mask_storeu_ps(row + d, lanes, _mm512_fmadd_ps(scale, part, before));
            }
        }
        pass_dq_turn(task_.turns, block.head, block.index, task_.key_block);
    }

    const BackwardTask<bfloat16>& task_;
    const Geometry& geometry_;
    const BlockPolicy policy_;
    const float scale_;
    const BackwardScratch scratch_;
    const Interleave interleave_;
    Coverage coverage_[backward_rows / square][max_backward_keys / square];  ///< the row block's squares
    Tiles tiles_;
};

}  // namespace
}  // namespace gradtile::attention::cpu
