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
/// The function that the formula applies to products that are not scaled yet (softcap), by exponentials.
class ProductFunction {
  public:
    __device__ __forceinline__ ProductFunction(const ScoreOptions& scores, float scale_log2, int head)
        : formula_(unscaled_formula(scores, scale_log2, head)),
          rate_(log2_e * formula_.exponent_rate<HopperMath>()) {}

    __device__ __forceinline__ Score<float> operator()(float product) const {
        return formula_.transform_reciprocal<HopperMath>(reciprocal(1 + power_of_two(product * rate_)));
    }
    /// Replaces four products by their scores. A product that is NaN makes all four NaN.
    __device__ __forceinline__ void apply_to(float& a, float& b, float& c, float& d) const {
        const float x = divisor(a), y = divisor(b), z = divisor(c), w = divisor(d), xy = x * y, zw = z * w;
        // One reciprocal for four: exponentials and reciprocals bound the time, at a quarter of the rate of
        // products.
        const float all = reciprocal(xy * zw), of_xy = all * zw, of_zw = all * xy;
        a = score(of_xy * y), b = score(of_xy * x), c = score(of_zw * w), d = score(of_zw * z);
    }

  private:
    /// 1 + exp of the product. The limit keeps the product of four divisors finite; beyond it 1 - 2 r is 1.
    __device__ __forceinline__ float divisor(float product) const {
        float exponent;
        asm("min.NaN.f32 %0, %1, 0f41F00000;" : "=f"(exponent) : "f"(product * rate_));  // 30
        return 1 + power_of_two(exponent);
    }
    __device__ __forceinline__ float score(float r) const {
        return formula_.transform_reciprocal<HopperMath>(r).value;
    }

    ScoreFormula<float> formula_;
    float rate_;
};

/// Applies the function to products; accumulator rows are queries. A NaN in a row makes others in the row
/// NaN, so products of keys that the row does not see must not be NaN.
template <int n_tiles>
__device__ __forceinline__ void apply_to_unscaled_products(FragmentC (&s)[1][n_tiles],
                                                           const ProductFunction& function) {
    static_assert(n_tiles % 2 == 0);
#pragma unroll
    for (int n = 0; n < n_tiles; n += 2)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
            function.apply_to(s[0][n][e], s[0][n][e + 1], s[0][n + 1][e], s[0][n + 1][e + 1]);
}

/// Turns products that are not scaled yet into scores divided by the scale; (row, key) is the warp's first
/// pair. With the rule `formula`, products of keys that a row does not see must not be NaN.
template <HopperRule rule, RowsAre rows_are, int n_tiles>
__device__ __forceinline__ void apply_unscaled_rule(FragmentC (&s)[1][n_tiles], const ScoreOptions& scores,
                                                    const DeviceMask& mask, float scale_log2, int head,
                                                    int row, int key) {
    if constexpr (rule == HopperRule::formula) {
        static_assert(rows_are == RowsAre::queries);
        if (scores.changes_products())
            apply_to_unscaled_products(s, ProductFunction(scores, scale_log2, head));
        if (!scores.has_distance_terms()) return;
    }
    if constexpr (rule == HopperRule::distance_terms || rule == HopperRule::formula)
        add_unscaled_distance_terms<rows_are>(s, scores, mask, scale_log2, head, row, key);
}

}  // namespace gradtile::attention::cuda::device
