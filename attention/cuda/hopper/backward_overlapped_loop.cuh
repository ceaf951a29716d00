#pragma once
/// The loop over blocks of rows in which dK takes dS from registers (tiles.overlaps_blocks), so that the
/// products with dS run during the exponentials of the next block of rows. The tensor cores get the products
/// in this order, where dK and dQ belong to the previous block of rows:
///
///     dK, dQ, dP    while P is computed
///     dV, next S    while dS is computed
///
/// So the tensor cores have work while both warpgroups compute, although the warpgroups wait for each other's
/// dS.
#include <gradtile/attention/cuda/hopper/backward_consumer.cuh>

namespace gradtile::attention::cuda::device {

template <class T, class Policy>
__device__ __forceinline__ void BackwardConsumer<T, Policy>::loop_over_rows_overlapped(Gradient& d_k,
                                                                                       Gradient& d_v,
                                                                                       const Task& task) {
    Scores s, d_p;
    LeftOperand p, d_s;
    DqFragments d_q;
    const int end_head = (task.head + 1) * p_.rows.sizes.group;
    const RowBlocks<rows> row_blocks{task.begin_row, task.end_row};
    RowPosition at{task.head * p_.rows.sizes.group, task.begin_row}, previous = at;
    start_scores(s, stage_, round_);
    await_products<0>(s[0]);
    // All products lie in one loop body, so that ptxas gives an operand the same registers in all rounds.
    for (bool is_first = true;; is_first = false) {
        start_d_p(d_p, stage_, round_);
        await_products<3>(s[0]);
        make_probabilities<Policy>(s, lse_of_rows(stage_), p_.rows, task.mask(p_), at, warp_key(task));
        as_operand_a<T>(p, s);
        start_with_left(d_v, p, d_o_tile(stage_));
        await_products<2>(d_k[0], d_q[0]);
        if (!is_first) {
            release_stage(Shared::q_ring, stage_before(stage_));
            add_d_q(d_q, task, previous);
        }
        await_products<1>(d_p[0]);
        make_d_s(d_p, s);
        as_operand_a<T>(d_s, d_p);
        stage_d_s(d_s_tile(d_s_buffer_), d_p);
        const RowPosition next = row_blocks.after(at);
        if (next.head == end_head) break;
        previous = at;
        at = next;
        advance_stage();
        start_scores(s, stage_, round_);
        await_products<1>(d_v[0]);
        finish_d_s(d_k, d_q, d_s, stage_before(stage_));
    }
    await_products<0>(d_v[0]);
    finish_d_s(d_k, d_q, d_s, stage_);
    await_products<0>(d_k[0], d_q[0]);
    release_stage(Shared::q_ring, stage_);
    add_d_q(d_q, task, at);
    advance_stage();
}

/// Starts dK += dS^T Q and, when dS of both warpgroups is in shared memory, dQ. `stage` is the stage of Q and
/// dO; releases dO, which is no longer used.
template <class T, class Policy>
__device__ __forceinline__ void BackwardConsumer<T, Policy>::finish_d_s(Gradient& d_k, DqFragments& d_q,
                                                                        const LeftOperand& d_s, int stage) {
    release_stage(Shared::d_o_ring, stage);
    start_with_left(d_k, d_s, q_tile(stage));
    wait_for_d_s();
    start_d_q(d_q, d_s_tile(d_s_buffer_),
              base_ + Shared::k + KvTile::column_offset(warpgroup_ * d_q_columns));
    d_s_buffer_ ^= 1;
}

}  // namespace gradtile::attention::cuda::device
