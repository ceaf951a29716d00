#pragma once
/// Score terms of the distance between query and key (ALiBi) in the Hopper kernels.
#include <gradtile/attention/cuda/device/mask.cuh>
#include <gradtile/attention/cuda/device/score_rule.cuh>

namespace gradtile::attention::cuda::device {

/// Adds the terms of the distance to S, products that are not scaled yet; scale_log2 = log2(e) * scale. (row,
/// key) is the warp's first pair.
template <RowsAre rows_are, int n_tiles>
__device__ __forceinline__ void add_unscaled_distance_terms(FragmentC (&s)[1][n_tiles],
                                                            const ScoreOptions& scores,
                                                            const DeviceMask& mask, float scale_log2,
                                                            int head, int row, int key) {
    ScoreRule<float> rule = scores.rule_of<float>(0, head);
    rule.formula.alibi_slope *= __fdividef(log2_e, scale_log2);
    rule.offset = mask.offset;
    add_distance_terms<rows_are>(s, rule, row, key);
}

}  // namespace gradtile::attention::cuda::device
