#pragma once
/// Adds a 128-row block at head dim 64. In float32, S^T, dP^T, dK and dV take all registers but 48, so P^T is
/// rounded at once: to the left operand of dV, and to binary16 for dS^T. Binary16 has 11 significant bits,
/// which cost dS no accuracy, since dS is rounded to 16 bits, too. Then S^T's registers are free for the next
/// S^T, and dK takes dS^T from registers:
///
///     P^T = exp(S^T - LSE)               during dP^T = V dO^T
///     dS^T = P^T (dP^T - D)              during dV += P^T dO
///     dQ = dS K                          when both warpgroups' dS is in shared memory, after the next S^T
///     dQ to shared memory                during dK += dS^T Q
#include <gradtile/attention/cuda/sm90/backward_consumer.cuh>

namespace gradtile::attention::cuda::device {

template <class T, class Policy>
template <bool has_next>
__device__ __forceinline__ void BackwardConsumer<T, Policy>::add_rows_with_16_bit_p(Gradient& d_k,
                                                                                    Gradient& d_v, Scores& s,
                                                                                    const Task& task,
                                                                                    RowPosition position) {
    static_assert(rows == 128 && Policy::head_dim == 64 && !takes_registers(Policy::rule));
    mask_by_ranges(s, task, position);
    Scores d_p;
    start_d_p(d_p, stage_, round_);
    const DeviceMask& seen = task.mask(p_);
    const int key = warp_key(task);
    apply_unscaled_rule<Policy::rule, RowsAre::keys>(s, p_.params.scores, seen, p_.params.scale_log2,
                                                     position.head, position.row, key);
    // The mask comes before the exponentials: after them, all of P would be in registers in float32.
    if (!seen.sees_all(position.row, rows, key, 16)) mask_transposed(s, -INFINITY, seen, key, position.row);
    exponentiate<Policy>(s, lse_of_rows(stage_), p_.params);
    LeftOperand p, d_s;
    FragmentA p_in_binary16[rows / 16];
#pragma unroll
    for (int i = 0; i < rows / 16; ++i) {
        pack_fragment<T>(p[i][0], s[0][2 * i], s[0][2 * i + 1]);
        pack_fragment<float16>(p_in_binary16[i], s[0][2 * i], s[0][2 * i + 1]);
    }
    start_with_left(d_v, p, d_o_tile(stage_));
    await_products<1>(d_p[0]);
    make_d_s_of_binary16(d_p, p_in_binary16, base_ + Shared::delta + stage_ * Shared::statistics_bytes);
    as_operand_a<T>(d_s, d_p);
    await_products<0>(d_v[0]);
    release_stage(Shared::d_o_ring, stage_);
    const std::uint32_t d_s_of_rows = d_s_tile(stage_);
    stage_d_s(d_s_of_rows, d_s);
    if constexpr (has_next) start_scores(s, stage_ ^ 1, round_ ^ stage_);
    wait_for_d_s();
    DqFragments d_q;
    start_d_q(d_q, d_s_of_rows);
    start_with_left(d_k, d_s, q_tile(stage_));
    await_products<1>(s[0], d_q[0]);
    stage_d_q(d_q);
    await_products<0>(d_k[0]);
    release_stage(Shared::q_ring, stage_);
    advance_stage();
}

}  // namespace gradtile::attention::cuda::device
