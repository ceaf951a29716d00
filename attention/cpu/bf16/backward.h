#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. FlashAttention-2 backward (Dao 2023,
/// algorithm 2) in bf16 for any tile algebra. The five products have bf16 operands and float32 sums;
/// everything else is float32.
///
/// All squares have queries as rows: S = Q K^T and dP = dO V^T. P and dS can then be written, without a
/// transposition, as right operands of dV^T = dO^T P and dK^T = Q^T dS, and dS also as the left operand of dQ
/// = dS K. dK and dV are accumulated as dK^T and dV^T and transposed once, at the end of the task.
#include <gradtile/attention/cpu/bf16/blocks.h>

namespace gradtile::attention::cpu {
namespace {

struct BackwardScratch {
    Operand k, v;                        ///< right operands, summed over the head dim
    Operand k_over_keys;                 ///< right operand, summed over keys
    Operand q, d_o;                      ///< left operands, summed over the head dim
    Operand q_over_rows, d_o_over_rows;  ///< left operands, transposed, summed over rows
    BackwardOperands operands;
    Matrix s, d_p;       ///< one square each
    Matrix d_k, d_v;     ///< transposed: [head dim, keys]
    Matrix d_q;          ///< [rows, head dim]
    float *lse, *delta;  ///< [rows]; lse in base 2

    BackwardScratch(const Geometry& geometry, const BlockPolicy& block, ScratchPieces& pieces)
        : k(pieces.operand(block.backward_keys, geometry.d_qk)),
          v(pieces.operand(block.backward_keys, geometry.d_v)),
          k_over_keys(pieces.operand(geometry.d_qk, block.backward_keys)),
          q(pieces.operand(block.backward_rows, geometry.d_qk)),
          d_o(pieces.operand(block.backward_rows, geometry.d_v)),
          q_over_rows(pieces.operand(geometry.d_qk, block.backward_rows)),
          d_o_over_rows(pieces.operand(geometry.d_v, block.backward_rows)),
          operands{.p = pieces.operand(block.backward_keys, block.backward_rows),
                   .ds = pieces.operand(block.backward_keys, block.backward_rows),
                   .ds_over_keys = pieces.operand(block.backward_rows, block.backward_keys)},
          s(pieces.matrix(square, square)),
          d_p(pieces.matrix(square, square)),
          d_k(pieces.matrix(geometry.d_qk, block.backward_keys)),
          d_v(pieces.matrix(geometry.d_v, block.backward_keys)),
          d_q(pieces.matrix(block.backward_rows, geometry.d_qk)),
          lse(pieces.piece<float>(block.backward_rows)),
          delta(pieces.piece<float>(block.backward_rows)) {}
};

/// A block of rows of one query head of the group.
struct RowBlock {
    std::int64_t head;
    std::int64_t index;  ///< rows.begin / backward_rows
    IndexRange rows;
};

/// Computes dK and dV of one block of keys and adds its part to dQ, over all rows that see the keys.
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
            for (std::int64_t i = seeing.begin / policy_.backward_rows;
                 i * policy_.backward_rows < seeing.end; ++i) {
                const std::int64_t first = i * policy_.backward_rows;
                const RowBlock block{
                    head, i, {first, smaller(first + policy_.backward_rows, geometry_.mask.queries)}};
                load_rows(block);
                for (std::int64_t strip = 0; strip < squares_of(block.rows, first).end; ++strip) {
                    prefetch_next(block, strip);
                    const IndexRange squares = squares_seen(block, strip);
                    recompute(block, strip, squares);
                    multiply_d_q(strip, squares);
                }
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

    /// Rows beyond the end of the sequence get lse = +inf, which gives P = 0.
    void load_rows(const RowBlock& block) {
        const InputRows q = q_of(block.head), d_o = d_o_of(block.head);
        pack_left(scratch_.q, q, block.rows, geometry_.d_qk, geometry_.scale < 0);
        pack_left(scratch_.d_o, d_o, block.rows, geometry_.d_v);
        pack_transposed_left(scratch_.q_over_rows, q, block.rows, geometry_.d_qk);
        pack_transposed_left(scratch_.d_o_over_rows, d_o, block.rows, geometry_.d_v);
        const std::int64_t count = block.rows.end - block.rows.begin;
        const std::int64_t at = block.head * geometry_.mask.queries + block.rows.begin;
        for (std::int64_t r = 0; r < policy_.backward_rows; ++r) {
            scratch_.lse[r] = r < count ? log2_e * task_.lse[at + r] : infinity;
            scratch_.delta[r] = r < count ? task_.delta[at + r] : 0.0f;
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

    /// Prefetches Q and dO of the strip's place in the next row block, and the strip's rows of dQ, which
    /// add_to_d_q() updates at the end of this row block.
    void prefetch_next(const RowBlock& block, std::int64_t strip) {
        const std::int64_t row = block.rows.begin + strip * square;
        const std::int64_t next_row = row + policy_.backward_rows;
        const IndexRange next{next_row, smaller(next_row + square, geometry_.mask.queries)};
        prefetch(q_of(block.head), next, geometry_.d_qk);
        prefetch(d_o_of(block.head), next, geometry_.d_v);
        prefetch(d_q_of(block.head), rows_of(block, strip), geometry_.d_qk);
    }

    IndexRange rows_of(const RowBlock& block, std::int64_t strip) const {
        const std::int64_t row = block.rows.begin + strip * square;
        return {row, smaller(row + square, block.rows.end)};
    }
    /// The squares of the task's keys that a strip of rows sees.
    IndexRange squares_seen(const RowBlock& block, std::int64_t strip) const {
        const IndexRange seen = intersection(geometry_.mask.visible_keys(rows_of(block, strip)), task_.keys);
        return seen.begin < seen.end ? squares_of(seen, task_.keys.begin) : IndexRange{0, 0};
    }

    /// S = Q K^T, dP = dO V^T, P = exp(S - LSE), dS = P (dP - D), one square after the other.
    void recompute(const RowBlock& block, std::int64_t strip, IndexRange squares) {
        const IndexRange rows = rows_of(block, strip);
        for (std::int64_t j = squares.begin; j < squares.end; ++j) {
            multiply_square(tiles_, scratch_.s, scratch_.q, strip, scratch_.k, j, {0, scratch_.q.depth},
                            Sum::overwrite);
            multiply_square(tiles_, scratch_.d_p, scratch_.d_o, strip, scratch_.v, j, {0, scratch_.d_o.depth},
                            Sum::overwrite);
            const IndexRange keys{task_.keys.begin + j * square, task_.keys.begin + (j + 1) * square};
            if (geometry_.mask.coverage(rows, keys) != Coverage::full)
                mask_square(geometry_.mask, scratch_.s, rows.begin, keys);
            compute_p_and_d_s(scratch_.operands, strip, j, scratch_.s, scratch_.d_p, scale_,
                              scratch_.lse + strip * square, scratch_.delta + strip * square, interleave_);
        }
    }

    /// dQ = dS K.
    void multiply_d_q(std::int64_t i, IndexRange squares) {
        for (std::int64_t d = 0; d < round_up(geometry_.d_qk, square); d += square)
            multiply_square(tiles_, {scratch_.d_q.at(i * square, d), scratch_.d_q.stride},
                            scratch_.operands.ds_over_keys, i, scratch_.k_over_keys, d / square, squares,
                            Sum::overwrite);
    }

    /// dV^T += dO^T P, dK^T += Q^T dS.
    void accumulate_d_k_and_d_v(const RowBlock& block) {
        for (std::int64_t j = 0; j < squares_of(task_.keys, task_.keys.begin).end; ++j) {
            const std::int64_t key = task_.keys.begin + j * square;
            const IndexRange keys{key, smaller(key + square, task_.keys.end)};
            const IndexRange rows = intersection(geometry_.mask.seeing_rows(keys), block.rows);
            if (rows.end <= rows.begin) continue;
            const IndexRange strips = squares_of(rows, block.rows.begin);
            for (std::int64_t d = 0; d < round_up(geometry_.d_v, square); d += square)
                multiply_square(tiles_, {scratch_.d_v.at(d, j * square), scratch_.d_v.stride},
                                scratch_.d_o_over_rows, d / square, scratch_.operands.p, j, strips,
                                Sum::accumulate);
            for (std::int64_t d = 0; d < round_up(geometry_.d_qk, square); d += square)
                multiply_square(tiles_, {scratch_.d_k.at(d, j * square), scratch_.d_k.stride},
                                scratch_.q_over_rows, d / square, scratch_.operands.ds, j, strips,
                                Sum::accumulate);
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
    Tiles tiles_;
};

}  // namespace
}  // namespace gradtile::attention::cpu
