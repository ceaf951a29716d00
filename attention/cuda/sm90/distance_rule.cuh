#pragma once
/// Score rules in the Hopper kernels.
#include <gradtile/attention/cuda/sm90/parameters.h>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/attention/cuda/sm90/kept_elements.cuh>

namespace gradtile::attention::cuda::device {

/// Returns the head's formula for products that are not scaled yet and scores that are divided by the scale;
/// scale_log2 = log2(e) * scale.
__device__ __forceinline__ ScoreFormula<float> unscaled_formula(const ScoreOptions& scores, float scale_log2,
                                                                int head) {
    return scores.formula_of<float>(0, head).in_units(__fdividef(log2_e, scale_log2));
}

/// Adds the distance terms to S, which holds products that are not scaled yet. (row, key) is the warp's first
/// pair.
template <RowsAre rows_are, int n_tiles>
__device__ __forceinline__ void add_unscaled_distance_terms(FragmentC (&s)[1][n_tiles],
                                                            const ScoreOptions& scores,
                                                            const DeviceMask& mask, float scale_log2,
                                                            int head, int row, int key) {
    const ScoreRule<float> rule{.formula = unscaled_formula(scores, scale_log2, head), .offset = mask.offset};
    add_distance_terms<rows_are>(s, rule, row, key);
}

/// The mathematical functions that ScoreFormula calls. quotient() multiplies by an approximate reciprocal,
/// because a correctly rounded division has branches.
struct HopperMath : FastMath {
    __device__ __forceinline__ static float quotient(float x, float y) { return x * __fdividef(1.0f, y); }
};
/// Applies the formula's function to products that are not scaled yet. Calls f(n, e, derivative) for each
/// element.
template <int n_tiles, class F>
__device__ __forceinline__ void apply_to_unscaled_products(FragmentC (&s)[1][n_tiles],
                                                           const ScoreOptions& scores, float scale_log2,
                                                           int head, F&& f) {
    const ScoreFormula<float> formula = unscaled_formula(scores, scale_log2, head);
    for_each_element(s, [&](float& element, int, int n, int e) {
        const Score<float> score = formula.transform_product<HopperMath>(element);
        element = score.value;
        f(n, e, score.derivative);
    });
}

/// Turns products that are not scaled yet into scores divided by the scale; (row, key) is the warp's first
/// pair.
template <HopperRule rule, RowsAre rows_are, int n_tiles>
__device__ __forceinline__ void apply_unscaled_rule(FragmentC (&s)[1][n_tiles], const ScoreOptions& scores,
                                                    const DeviceMask& mask, float scale_log2, int head,
                                                    int row, int key) {
    if constexpr (rule == HopperRule::formula) {
        if (scores.changes_products())
            apply_to_unscaled_products(s, scores, scale_log2, head, [](int, int, float) {});
        if (!scores.has_distance_terms()) return;
    }
    if constexpr (rule == HopperRule::distance_terms || rule == HopperRule::formula)
        add_unscaled_distance_terms<rows_are>(s, scores, mask, scale_log2, head, row, key);
}

}  // namespace gradtile::attention::cuda::device
