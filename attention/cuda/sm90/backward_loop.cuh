#pragma once
/// The loop over row blocks, and add_rows(), the form with the fewest registers, where dK reads dS from
/// shared memory:
///
///     S^T = K Q^T                        started one row block ahead
///     P^T = exp(S^T - LSE)
///     dV += P^T dO
///     dS^T = P^T (dP^T - D)              with dP^T = V dO^T
///     dK += dS^T Q,  dQ = dS K           when both warpgroups' dS is in shared memory
#include <gradtile/attention/cuda/sm90/backward_16_bit_p.cuh>

namespace gradtile::attention::cuda::device {

template <class T, class Policy>
__device__ __forceinline__ void BackwardConsumer<T, Policy>::loop_over_rows(Gradient& d_k, Gradient& d_v,
                                                                            const Task& task) {
    if constexpr (Policy::has_ranges) return loop_over_seen_rows(d_k, d_v, task);
    Scores s;
    start_scores(s, stage_, round_);
    const int end_head = (task.head + 1) * p_.params.sizes.group;
    const RowBlocks<rows> row_blocks{task.begin_row, task.end_row};
    RowPosition position{task.head * p_.params.sizes.group, task.begin_row};
    draw(task, position);
    await_products<0>(s[0]);
    const auto add = [&]<bool has_next>(RowPosition next) {
        if constexpr (tiles.keeps_p_in_16_bits) {
            add_rows_with_16_bit_p<has_next>(d_k, d_v, s, task, position);
        } else {
            add_rows<has_next>(d_k, d_v, s, task, position, next);
        }
    };
    for (RowPosition next = row_blocks.after(position); next.head < end_head;
         next = row_blocks.after(position)) {
        add.template operator()</*has_next=*/true>(next);
        position = next;
    }
    add.template operator()</*has_next=*/false>(position);
}

template <class T, class Policy>
__device__ __forceinline__ void BackwardConsumer<T, Policy>::loop_over_seen_rows(Gradient& d_k, Gradient& d_v,
                                                                                 const Task& task) {
    if constexpr (Policy::has_ranges) {
        Scores s;
        start_scores(s, stage_, round_);
        await_products<0>(s[0]);
        const auto add = [&]<bool has_next>(const SeenRows& rows_of_stage) {
            const RowPosition position{rows_of_stage.head, rows_of_stage.row};
            if constexpr (tiles.keeps_p_in_16_bits) {
                add_rows_with_16_bit_p<has_next>(d_k, d_v, s, task, position);
            } else {
                add_rows<has_next>(d_k, d_v, s, task, position, position);
            }
        };
        // The stage's Q is in shared memory: start_scores() has waited for it.
        SeenRows seen = SeenRows::load(rings_.seen.rows[stage_]);
        while (!seen.is_last) {
            add.template operator()</*has_next=*/true>(seen);
            seen = SeenRows::load(rings_.seen.rows[stage_]);
        }
        add.template operator()</*has_next=*/false>(seen);
    }
}

/// Adds a row block whose S^T is complete in `p`. Computes the next S while the warpgroup waits for the other
/// warpgroup's dS, and draws the next rows' dropout mask while tensor cores compute dK and dQ.
template <class T, class Policy>
template <bool has_next>
__device__ __forceinline__ void BackwardConsumer<T, Policy>::add_rows(Gradient& d_k, Gradient& d_v, Scores& p,
                                                                      const Task& task, RowPosition position,
                                                                      RowPosition next) {
    const std::uint32_t q = q_tile(stage_), d_o = d_o_tile(stage_), d_s = d_s_tile(stage_);
    mask_by_ranges(p, task, position);
    Scores d_p;
    start_d_p(d_p, stage_, round_);
    biases_.add_to(p_, p, position.head);
    const std::uint32_t lse = lse_of_rows(stage_);
    const int key = warp_key(task);
    LeftOperand left;
    if constexpr (Policy::may_drop) {
        make_left_operand<T, Policy>(left, p, lse, p_.params, task.mask(p_), position, key, kept_);
    } else {
        if (!biases_.make_large_probabilities(p_, p, task.mask(p_), position, key))
            make_probabilities<Policy>(p, lse, p_.params, task.mask(p_), position, key);
        as_operand_a<T>(left, p);
    }
    start_with_left(d_v, left, d_o);

    await_products<1>(d_p[0]);
    make_d_s(d_p, p);
    stage_d_s(d_s, d_p);
    await_products<0>(d_v[0]);  // frees P's registers before the next S needs them
    if constexpr (has_next) start_scores(p, stage_ ^ 1, round_ ^ stage_);

    wait_for_d_s();
    begin_products();
    start_a_b<T, DsTile, RowTile>(d_k[0], d_s + warpgroup_ * 64 * DsTile::row_bytes, q);
    commit_products();
    DqFragments d_q;
    start_d_q(d_q, d_s);
    if constexpr (has_next) draw(task, next);
    await_products<0>(d_k[0], d_q[0], p[0]);
    release_stage(Shared::q_ring, stage_);
    release_stage(Shared::d_o_ring, stage_);
    advance_stage();
    stage_d_q(d_q);
}

}  // namespace gradtile::attention::cuda::device
