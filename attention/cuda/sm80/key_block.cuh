#pragma once
/// One key block's part of the 16-bit backward pass: see backward.cuh.
#include <gradtile/attention/cuda/common/parameters.h>
#include <gradtile/attention/cuda/sm80/tiles.h>
#include <gradtile/attention/cuda/common/backward_rows.cuh>
#include <gradtile/attention/cuda/common/row_ranges.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/attention/cuda/common/turns.cuh>
#include <gradtile/attention/cuda/sm80/backward_shared.cuh>

namespace gradtile::attention::cuda::device {

// P is multiplied by p_factor = 2^p_exponent until dV and dS are complete. The second warp in a pair reads P
// in binary16, whose 11 significant bits, unlike bfloat16's 8, cost dS no accuracy. With the factor, P <= 1
// uses binary16's whole range and has full precision down to 2^-29.

/// Computes dK and dV for a key block, and adds the key block's part to dQ. One iteration processes one row
/// block.
template <class T, int head_dim, class Policy>
class KeyBlock {
    using Shared = Bits16BackwardShared<head_dim, Policy>;
    using KvTile = typename Shared::KvTile;
    using RowTile = typename Shared::RowTile;
    using DsTile = typename Shared::DsTile;
    static constexpr Bits16BackwardTiles tiles = Policy::tiles;
    static constexpr int rows = tiles.rows, keys = tiles.keys();
    static constexpr bool whole_head = Policy::whole_head_rows > 0;
    static constexpr int m_tiles = tiles.pair_keys / 16, s_tiles = rows / 8, d_tiles = head_dim / 8;

    using Scores = FragmentC[m_tiles][s_tiles];           ///< S^T, P^T or dP^T, dS^T
    using LeftOperand = FragmentA[s_tiles / 2][m_tiles];  ///< P^T or dS^T in 16 bits

  public:
    static constexpr RuleKind kind = Policy::rule;
    static constexpr bool may_drop = kind == RuleKind::dropout || kind == RuleKind::any;
    static constexpr bool may_have_ranges = kind == RuleKind::any;
    using BiasTile = typename Shared::BiasTile;
    using Rules = RulesOfHeads<kind != RuleKind::none>;
    __device__ __forceinline__ KeyBlock(const Bits16BackwardParameters& p, unsigned char* shared,
                                        volatile RarelyUsed& kept, Rules& rules,
                                        const BlockSequence& sequence, int key_head, int key_block)
        : p_(p),
          shared_(shared),
          kept_(kept),
          rules_(rules),
          sequence_(sequence),
          base_(shared_address(shared)),
          key_block_(key_block),
          key_head_(key_head),
          first_key_(key_block * keys),
          valid_keys_(min(keys, mask().keys - first_key_)) {
        const int first_row = mask().first_row(first_key_);
        const int end_row = mask().end_row(first_key_ + valid_keys_ - 1);
        iterations_ = first_row < end_row ? ((end_row - 1) / rows - first_row / rows + 1) * p.sizes.group : 0;
        row_blocks_ = {first_row / rows * rows, end_row};
        if (has_ranges() && iterations_ > 0)
            iterations_ = ranged_row_blocks().count(key_head * p.sizes.group);
        warp_ = warp_index();
        makes_p_ = warp_ < tiles.pairs;
        pair_ = warp_ % tiles.pairs;
        warp_key_ = pair_ * tiles.pair_keys;
        if (threadIdx.x == 0) {
            kept_.d_k = sequence.keys(p.d_k, key_head_).row(first_key_);
            kept_.d_v = sequence.keys(p.d_v, key_head_).row(first_key_);
            kept_.bias = bias_of_batch();
            kept_.batch = sequence.batch;
            kept_.key = first_key_;
            kept_.keys = valid_keys_;
        }
    }

    __device__ __forceinline__ void differentiate() {
        if constexpr (has_terms(kind)) has_large_lse_ = p_.has_large_lse != nullptr && *p_.has_large_lse != 0;
        load_keys_and_first_rows();
        const std::uint32_t own_keys =
            base_ + (makes_p_ ? Shared::k : Shared::v) + warp_key_ * KvTile::row_bytes;
        const auto own_operand = LanePointer<KvTile>::stacked(own_keys);
        FragmentC gradient[m_tiles][d_tiles];  // dV or dK; its rows are keys
        clear(gradient);
        for (int i = 0; i < iterations_; ++i) {
            wait_for_copies<0>();
            __syncthreads();  // the rows of iteration i are in shared memory, dS of iteration i - 1 is
                              // complete, no warp reads the other stage
            load_next_rows(i);
            // In each pair, the second warp adds to dQ before its other work, and the first warp after its
            // other work. So the first warp has P ready earlier, and the second warp waits less for P.
            if (!makes_p_ && i > 0) add_d_q(i - 1);

            const std::uint32_t q_rows = base_ + Shared::row_stages + i % 2 * Shared::row_stage_bytes,
                                d_o_rows = q_rows + RowTile::bytes;
            Scores x;
            clear(x);
            multiply_a_bt<T, head_dim, tiles.unrolled>(
                x, own_operand, LanePointer<RowTile>::paired(makes_p_ ? q_rows : d_o_rows));
            LeftOperand left;
            const auto exchange = LanePointer<DsTile>::stacked(base_ + Shared::d_s + i % 2 * DsTile::bytes +
                                                               warp_key_ * DsTile::row_bytes);
            const std::uint32_t lane_statistics = base_ + Shared::statistics +
                                                  i % 2 * Shared::statistics_bytes +
                                                  (makes_p_ ? 0 : rows * 4) + lane_index() % 4 * 8;
            if (makes_p_) {
                if constexpr (kind == RuleKind::any) {
                    make_p_under_rule(left, x, exchange, lane_statistics, i);
                } else {
                    make_p(left, x, exchange, lane_statistics, i);
                }
                arrive_at_pair(pair_);
            } else {
                wait_at_pair(pair_);
                make_d_s(left, x, exchange, lane_statistics);
            }
            multiply_a_b<T>(gradient, left, LanePointer<RowTile>::stacked(makes_p_ ? d_o_rows : q_rows));
            if (makes_p_ && i > 0) add_d_q(i - 1);
        }
        wait_for_copies<0>();
        __syncthreads();
        if (iterations_ > 0) add_d_q(iterations_ - 1);
        __syncthreads();  // all warps have read K: the gradients are stored through the K and V tiles
        scale(gradient, (makes_p_ ? 1 / p_factor : p_.scale) * p_.dropout_scale);
        if constexpr (has_terms(kind)) {
            if (!makes_p_ && p_.non_finite != nullptr && !is_finite(gradient)) *p_.non_finite = 1;
        }
        store(gradient);
    }

  private:
    __device__ __forceinline__ const DeviceMask& mask() const { return sequence_.mask; }
    __device__ __forceinline__ bool has_ranges() const { return may_have_ranges && p_.row_ranges; }
    __device__ __forceinline__ int numbered_sequence() const { return p_.packed ? sequence_.index : 0; }
    __device__ __forceinline__ RangedRowBlocks<rows> ranged_row_blocks() const {
        return {.ranges = p_.row_ranges,
                .limits = {row_blocks_.begin_row, row_blocks_.end_row},
                .batch = sequence_.batch,
                .end_head = (key_head_ + 1) * p_.sizes.group,
                .first_key = sequence_.first_key,
                .sequence = numbered_sequence(),
                .block = key_block_,
                .visits_all = p_.turns != nullptr};
    }
    __device__ __forceinline__ RowPosition first_position() const {
        const int head = key_head_ * p_.sizes.group;
        return has_ranges() ? ranged_row_blocks().first(head) : RowPosition{head, row_blocks_.begin_row};
    }
    __device__ __forceinline__ RowPosition position_after(RowPosition position) const {
        return has_ranges() ? ranged_row_blocks().after(position) : row_blocks_.after(position);
    }
    /// Sets P = 0 where a row is not in a key's ranges. (row, key) is the warp's first pair.
    template <int n_tiles>
    __device__ __forceinline__ void mask_by_ranges(FragmentC (&p)[m_tiles][n_tiles], int head, int row,
                                                   int key) const {
        if (!has_ranges()) return;
        const HeadRowRanges ranges =
            p_.row_ranges.of(sequence_.batch, head, sequence_.first_key, numbered_sequence());
        mask_transposed_by_ranges(p, 0, ranges.keys + key, row);
    }
    __device__ __forceinline__ RowPosition position_of(int iteration) const {
        return {kept_.positions[iteration % 4].x, kept_.positions[iteration % 4].y};
    }
    __device__ __forceinline__ void record_position(int iteration, RowPosition position) const {
        if (reread_thread_index() != 0) return;
        if constexpr (kind != RuleKind::none) {
            if (iteration == 0 || position.head != kept_.positions[(iteration - 1) % 4].x)
                rules_.head_rules[position.head % 2].set(rule_of<float>(sequence_, p_.scores, position.head));
        }
        kept_.positions[iteration % 4].x = position.head;
        kept_.positions[iteration % 4].y = position.row;
    }

    /// See RarelyUsed::bias.
    __device__ __forceinline__ const std::uint16_t* bias_of_batch() const {
        if constexpr (!tiles.reads_bias) return nullptr;
        const std::byte* const rows = p_.scores.biases[0].rows_of(sequence_.batch, 0).data;
        return reinterpret_cast<const std::uint16_t*>(rows) + first_key_;
    }

    /// Starts copying a row block: Q, dO, LSE, D and its bias tile.
    __device__ __forceinline__ void load_rows(int iteration, int batch, RowPosition position,
                                              const std::uint16_t* bias) const {
        const auto [head, row] = position;
        const std::uint32_t stage = base_ + Shared::row_stages + iteration % 2 * Shared::row_stage_bytes;
        const int tensor_row = sequence_.first_query + row;
        load_tile_async<RowTile, tiles.threads()>(stage, p_.q.head(batch, head).row(tensor_row),
                                                  p_.q.row_stride, mask().queries - row, p_.sizes.qk_dim);
        load_tile_async<RowTile, tiles.threads()>(stage + RowTile::bytes,
                                                  p_.d_o.head(batch, head).row(tensor_row), p_.d_o.row_stride,
                                                  mask().queries - row, p_.sizes.v_dim);
        if constexpr (tiles.reads_bias) {
            const auto& strides = p_.scores.biases[0].strides;
            load_tile_async<BiasTile, tiles.threads()>(base_ + Shared::bias + iteration % 2 * BiasTile::bytes,
                                                       bias + head * strides[1] + row * strides[2],
                                                       strides[2], mask().queries - row,
                                                       mask().keys - first_key_);
        }
        // The first rows / 4 threads copy LSE, the next rows / 4 threads D.
        if (const int thread = static_cast<int>(threadIdx.x); thread < rows / 2) {
            const std::int64_t first =
                static_cast<std::int64_t>(batch * p_.sizes.heads + head) * p_.padded_rows +
                sequence_.first_padded_row + row;
            const float* const from = thread < rows / 4 ? p_.lse_log2 : p_.delta;
            copy_16_bytes_async(
                base_ + Shared::statistics + iteration % 2 * Shared::statistics_bytes + thread * 16,
                from + first + thread % (rows / 4) * 4, true);
        }
    }
    __device__ __forceinline__ void load_keys_and_first_rows() const {
        load_tile_async<KvTile, tiles.threads()>(base_ + Shared::k,
                                                 sequence_.keys(p_.k, key_head_).row(first_key_),
                                                 p_.k.row_stride, valid_keys_, p_.sizes.qk_dim);
        load_tile_async<KvTile, tiles.threads()>(base_ + Shared::v,
                                                 sequence_.keys(p_.v, key_head_).row(first_key_),
                                                 p_.v.row_stride, valid_keys_, p_.sizes.v_dim);
        if (const RowPosition first = first_position(); iterations_ > 0) {
            load_rows(0, sequence_.batch, first, bias_of_batch());
            record_position(0, first);
        }
        commit_copies();
    }
    __device__ __forceinline__ void load_next_rows(int iteration) const {
        if (iteration + 1 < iterations_) {
            const RowPosition next = position_after(position_of(iteration));
            load_rows(iteration + 1, kept_.batch, next, kept_.bias);
            record_position(iteration + 1, next);
        }
        commit_copies();
    }

    /// Returns LSE or D for the two rows that correspond to a lane's two columns of tile n.
    __device__ __forceinline__ static float2 statistic(std::uint32_t lane_statistics, int n) {
        float2 two;
        asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                     : "=f"(two.x), "=f"(two.y)
                     : "r"(lane_statistics + n * 32)
                     : "memory");
        return two;
    }

    /// Computes P^T from S^T in x and masks it. Writes it to `left`, in T, as the left operand of dV, and to
    /// `exchange`, in binary16. With dropout, dropped elements are 0 in `left` and have the sign bit set in
    /// `exchange`.
    __device__ __forceinline__ void make_p(LeftOperand& left, Scores& x, const LanePointer<DsTile>& exchange,
                                           std::uint32_t lane_statistics, int iteration) const {
        const RowPosition position = position_of(iteration);
        const int key = kept_.key + warp_key_;
        float key_biases[m_tiles][2] = {};
        if constexpr (tiles.reads_bias) load_key_bias(key_biases, position.head, key);
        [[maybe_unused]] const RowReferences references = row_references(position.head);
#pragma unroll
        for (int n = 0; n < s_tiles; n += 2) {
            const float2 lse[2] = {statistic(lane_statistics, n), statistic(lane_statistics, n + 1)};
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                std::uint32_t bias[4];
                if constexpr (tiles.reads_bias)
                    load_matrices<true>(bias, LanePointer<BiasTile>::paired(base_ + Shared::bias +
                                                                            iteration % 2 * BiasTile::bytes)
                                                  .at(n * 8, warp_key_ + m * 16));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float* const pair = &x[m][n + i / 2][i % 2 * 2];
                    float2 shift{-lse[i / 2].x, -lse[i / 2].y};
                    if constexpr (tiles.reads_bias) {
                        const float2 terms = unpack<T>(bias[i]);
                        const float key_bias = key_biases[m][i % 2];
                        if (has_large_lse_) {
                            const int row = position.row + (n + i / 2) * 8 + lane_index() % 4 * 2;
                            pair[0] = exact_probability(fmaf(pair[0], p_.scale, key_bias) + terms.x,
                                                        references(row), p_exponent);
                            pair[1] = exact_probability(fmaf(pair[1], p_.scale, key_bias) + terms.y,
                                                        references(row + 1), p_exponent);
                            continue;
                        }
                        shift = {fmaf(terms.x, log2_e, fmaf(key_bias, log2_e, shift.x)),
                                 fmaf(terms.y, log2_e, fmaf(key_bias, log2_e, shift.y))};
                    }
                    pair[0] = power_of_two(fmaf(pair[0], p_.scale_log2, shift.x));
                    pair[1] = power_of_two(fmaf(pair[1], p_.scale_log2, shift.y));
                }
            }
        }
        if (!mask().sees_all(position.row, rows, key, tiles.pair_keys))
            mask_transposed(x, 0, mask(), key, position.row);
#pragma unroll
        for (int k = 0; k < s_tiles / 2; ++k) {
            if constexpr (kind == RuleKind::dropout) {
                const ScoreRule<float>& rule = rules_.head_rules[position.head % 2].get();
                const KeptOfColumns<2> kept(rule, position.row + k * 16, key);
#pragma unroll
                for (int m = 0; m < m_tiles; ++m) store_with_dropout(left[k][m], x[m], kept, k, m, exchange);
            } else {
#pragma unroll
                for (int m = 0; m < m_tiles; ++m) {
                    FragmentA half;
                    pack_fragment<float16>(half, x[m][2 * k], x[m][2 * k + 1]);
                    store_matrices(half, exchange.at(m * 16, k * 16));
                    pack_fragment<T>(left[k][m], x[m][2 * k], x[m][2 * k + 1]);
                }
            }
        }
    }
    /// A head's LSE rows, as the forward pass stored them.
    __device__ __forceinline__ RowReferences row_references(int head) const {
        return {p_.lse,
                p_.lse_remainder,
                static_cast<std::int64_t>(sequence_.batch) * p_.sizes.heads + head,
                p_.mask.queries,
                sequence_.first_query,
                mask().queries};
    }
    /// Loads the key bias for a lane's keys.
    __device__ __forceinline__ void load_key_bias(float (&key_biases)[m_tiles][2], int head, int key) const {
        const BiasRows& bias = rules_.head_rules[head % 2].get().biases[1];
        if (bias.data == nullptr) return;
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (const int j = key + m * 16 + half * 8 + lane_index() / 4; j < mask().keys)
                    key_biases[m][half] = bias_at<T, float>(bias, 0, j);
    }
    /// Packs 16 keys x 16 queries of P^T.
    __device__ __forceinline__ static void store_with_dropout(FragmentA& left, FragmentC (&p)[s_tiles],
                                                              const KeptOfColumns<2>& kept, int k, int m,
                                                              const LanePointer<DsTile>& exchange) {
        FragmentC crossing[2];
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& probability = p[2 * k + n][e];
                crossing[n][e] = kept(m, n, e) ? probability : -probability;
                if (!kept(m, n, e)) probability = 0;
            }
        FragmentA half;
        pack_fragment<float16>(half, crossing[0], crossing[1]);
        store_matrices(half, exchange.at(m * 16, k * 16));
        pack_fragment<T>(left, p[2 * k], p[2 * k + 1]);
    }

    /// Like make_p(), for a call with a score rule. `left` receives P^T without dropped elements. `exchange`
    /// receives P^T times the derivative of the scores, with the sign bit set where an element is dropped.
    __device__ __forceinline__ void make_p_under_rule(LeftOperand& left, Scores& x,
                                                      const LanePointer<DsTile>& exchange,
                                                      std::uint32_t lane_statistics, int iteration) const {
        const ScoreRule<float>& rule = rules_.head_rules[position_of(iteration).head % 2].get();
        const bool drops = rule.drops();
        // change_of_products() != 0 is written out, because changes_products() makes the compiler order the
        // four variants differently.
        if (rule.formula.change_of_products() != 0) {
            drops ? make_p_under_rule<true, true>(rule, left, x, exchange, lane_statistics, iteration)
                  : make_p_under_rule<true, false>(rule, left, x, exchange, lane_statistics, iteration);
        } else {
            drops ? make_p_under_rule<false, true>(rule, left, x, exchange, lane_statistics, iteration)
                  : make_p_under_rule<false, false>(rule, left, x, exchange, lane_statistics, iteration);
        }
    }
    template <bool changes_products, bool drops>
    __device__ __forceinline__ void make_p_under_rule(const ScoreRule<float>& rule, LeftOperand& left,
                                                      Scores& x, const LanePointer<DsTile>& exchange,
                                                      std::uint32_t lane_statistics, int iteration) const {
        const int first_row = position_of(iteration).row, key = kept_.key + warp_key_;
        const bool sees_all = mask().sees_all(first_row, rows, key, tiles.pair_keys);
        scale(x, p_.scale);
        // The loop processes 16 queries at a time, because the derivatives also need registers.
#pragma unroll
        for (int k = 0; k < s_tiles / 2; ++k) {
            const int row = first_row + k * 16;
            FragmentC p[m_tiles][2], derivatives[m_tiles][2];
            for_each_element(p, [&](float& score, int m, int n, int e) { score = x[m][2 * k + n][e]; });
            if constexpr (changes_products) apply_to_products(p, rule.formula, derivatives);
            add_terms<T, RowsAre::keys>(p, rule, row, key, mask().queries, mask().keys);
            const float2 lse[2] = {statistic(lane_statistics, 2 * k), statistic(lane_statistics, 2 * k + 1)};
            if (has_large_lse_) {
                const RowReferences references = row_references(position_of(iteration).head);
                for_each_element(p, [&](float& score, int, int n, int e) {
                    score = exact_probability(score, references(row + n * 8 + lane_index() % 4 * 2 + e % 2),
                                              p_exponent);
                });
            } else {
                for_each_element(p, [&](float& score, int, int n, int e) {
                    score = power_of_two(fmaf(score, log2_e, e % 2 == 0 ? -lse[n].x : -lse[n].y));
                });
            }
            if (!sees_all) mask_transposed(p, 0, mask(), key, row);
            mask_by_ranges(p, position_of(iteration).head, row, key);

            FragmentC crossing[m_tiles][2];
            for_each_element(p, [&](float& probability, int m, int n, int e) {
                crossing[m][n][e] = probability;
                if constexpr (changes_products) crossing[m][n][e] *= derivatives[m][n][e];
            });
            if constexpr (drops) {
                const KeptOfColumns<2> kept(rule, row, key);
                for_each_element(p, [&](float& probability, int m, int n, int e) {
                    if (kept(m, n, e)) return;
                    probability = 0;
                    crossing[m][n][e] = -crossing[m][n][e];
                });
            }
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                FragmentA half;
                pack_fragment<float16>(half, crossing[m][0], crossing[m][1]);
                store_matrices(half, exchange.at(m * 16, k * 16));
                pack_fragment<T>(left[k][m], p[m][0], p[m][1]);
            }
        }
    }

    /// Returns dS for one query-key pair. `probability` is the number that the first warp wrote to
    /// `exchange`; it is negative if the element was dropped.
    __device__ __forceinline__ static float d_s_of(float probability, float d_p, float delta) {
        if constexpr (!may_drop) return probability * fmaf(d_p, 1 / p_factor, -delta);
        const bool is_dropped = __float_as_int(probability) < 0;
        return fabsf(probability) * (is_dropped ? -delta : fmaf(d_p, 1 / p_factor, -delta));
    }

    /// Computes dS^T from dP^T in x and from P^T in `exchange`. Writes it to `left`, as the left operand of
    /// dK, and to `exchange`, for dQ.
    __device__ __forceinline__ static void make_d_s(LeftOperand& left, const Scores& x,
                                                    const LanePointer<DsTile>& exchange,
                                                    std::uint32_t lane_statistics) {
#pragma unroll
        for (int n = 0; n < s_tiles; ++n) {
            const float2 delta = statistic(lane_statistics, n);
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                if (n % 2 == 0) load_matrices<false>(left[n / 2][m], exchange.at(m * 16, n * 8));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float2 probability = unpack<float16>(left[n / 2][m][n % 2 * 2 + half]);
                    const float* const d_p = &x[m][n][half * 2];
                    left[n / 2][m][n % 2 * 2 + half] = pack<T>(d_s_of(probability.x, d_p[0], delta.x),
                                                               d_s_of(probability.y, d_p[1], delta.y));
                }
                if (n % 2 == 1) store_matrices(left[n / 2][m], exchange.at(m * 16, n / 2 * 16));
            }
        }
    }

    static constexpr int d_q_rows = rows / tiles.d_q_row_warps;  ///< dQ rows per warp
    static constexpr int d_q_columns = head_dim * tiles.d_q_row_warps / tiles.warps();
    using DqFragments = FragmentC[d_q_rows / 16][d_q_columns / 8];

    /// Adds this warp's part of dS K to dQ, for the rows of an iteration whose dS is complete.
    __device__ __forceinline__ void add_d_q(int iteration) const {
        const int row = warp_ % tiles.d_q_row_warps * d_q_rows;
        const int column = warp_ / tiles.d_q_row_warps * d_q_columns;
        DqFragments d_q;
        clear(d_q);
        multiply_at_b<T, keys, tiles.d_q_unrolled>(
            d_q, LanePointer<DsTile>::paired(base_ + Shared::d_s + iteration % 2 * DsTile::bytes), row,
            LanePointer<KvTile>::stacked(base_ + Shared::k), column);
        if constexpr (whole_head) {
            add_to_shared(d_q, position_of(iteration), row, column);
        } else {
            add_to_global(d_q, position_of(iteration), row, column);
        }
    }
    /// A warp adds to the same part of a tile in every iteration, so no other warp adds to it at the same
    /// time.
    __device__ __forceinline__ void add_to_shared(const DqFragments& d_q, RowPosition position, int row,
                                                  int column) const {
        const DqSums sums{reinterpret_cast<float*>(shared_ + Shared::d_q), Policy::whole_head_rows};
#pragma unroll
        for (int m = 0; m < d_q_rows / 16; ++m)
#pragma unroll
            for (int n = 0; n < d_q_columns / 8; ++n) {
                float4* const to = reinterpret_cast<float4*>(
                    sums.fragment<head_dim>(0, position.row + row + m * 16, column + n * 8));
                const float4 sum = *to;
                *to = float4{sum.x + d_q[m][n][0], sum.y + d_q[m][n][1], sum.z + d_q[m][n][2],
                             sum.w + d_q[m][n][3]};
            }
    }
    /// Uses atomic additions, because other key blocks add to the same rows, in any order or, if
    /// deterministic, in turns.
    __device__ __forceinline__ void add_to_global(const DqFragments& d_q, RowPosition position, int row,
                                                  int column) const {
        const int batch_head = kept_.batch * p_.sizes.heads + position.head,
                  padded_row = sequence_.first_padded_row + position.row;
        std::int32_t* turn = nullptr;
        if (p_.turns != nullptr) {
            const std::int64_t row_block =
                (static_cast<std::int64_t>(batch_head) * p_.padded_rows + padded_row) / rows;
            turn = p_.turns + row_block * tiles.warps() + warp_;
            WarpTurn::wait(turn, key_block_);
        }
        const DqSums sums{p_.d_q_sums, p_.padded_rows};
#pragma unroll
        for (int m = 0; m < d_q_rows / 16; ++m)
#pragma unroll
            for (int n = 0; n < d_q_columns / 8; ++n)
                add_float4(sums.fragment<head_dim>(batch_head, padded_row + row + m * 16, column + n * 8),
                           d_q[m][n]);
        if (turn != nullptr) WarpTurn::pass(turn, key_block_ + 1);
    }

    /// Stores the warp's dV or dK rows, through the warp's rows in the K or V tile.
    __device__ __forceinline__ void store(const FragmentC (&gradient)[m_tiles][d_tiles]) const {
        const int warp = warp_index(), key = warp % tiles.pairs * tiles.pair_keys;
        const bool is_d_v = warp < tiles.pairs;
        const std::uint32_t staged_rows = base_ + (is_d_v ? Shared::k : Shared::v) + key * KvTile::row_bytes;
        stage_rows<T, KvTile>(staged_rows, gradient);
        __syncwarp();
        const std::int64_t row_stride = is_d_v ? p_.d_v.row_stride : p_.d_k.row_stride;
        store_staged_rows<KvTile, tiles.pair_keys>((is_d_v ? kept_.d_v : kept_.d_k) + key * row_stride,
                                                   row_stride, staged_rows, kept_.keys - key,
                                                   is_d_v ? p_.sizes.v_dim : p_.sizes.qk_dim);
    }

    const Bits16BackwardParameters& p_;
    unsigned char* shared_;
    volatile RarelyUsed& kept_;
    Rules& rules_;
    const BlockSequence& sequence_;
    std::uint32_t base_;
    int key_block_, key_head_;
    int first_key_, valid_keys_;
    int iterations_;
    RowBlocks<rows> row_blocks_;
    int warp_, pair_, warp_key_;  ///< warp_key_: the pair's first key, relative to first_key_
    bool has_large_lse_ = false;
    bool makes_p_;  ///< this warp computes P and dV; the other warp in the pair computes dS and dK
};

}  // namespace gradtile::attention::cuda::device
