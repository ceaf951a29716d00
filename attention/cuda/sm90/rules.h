#pragma once
/// INTERNAL. The score rules that the Hopper kernels are compiled for.
#include <gradtile/attention/score_rule.h>

namespace gradtile::attention::cuda {

/// How a Hopper kernel computes scores from products. Each rule has its own kernels, since the plain kernels
/// have no free registers.
enum class HopperRule : std::uint8_t {
    products,        ///< scores are products
    distance_terms,  ///< query-key distance terms (ALiBi) are added
    dropout,         ///< P elements are dropped
    formula,         ///< a function applied to products (softcap), distance terms and dropout, each if needed
    row_ranges,      ///< scores are products; row ranges hide some; only if has_row_ranges_kernels()
    /// biases are added; only in the backward pass, up to hopper_biases_max_head_dim, sequences not packed
    biases
};
constexpr bool may_drop(HopperRule rule) {
    return rule == HopperRule::dropout || rule == HopperRule::formula;
}
/// Whether a rule needs registers in the backward kernels: see hopper_backward_tiles().
constexpr bool takes_registers(HopperRule rule) {
    return may_drop(rule) || rule == HopperRule::biases;
}
inline constexpr int hopper_biases_max_head_dim = 64;
/// The largest softcap with Hopper kernels. Their scores have an absolute error of 2^-20 times the softcap
/// (ScoreFormula::transform_reciprocal), here 2^-12; P is rounded to 8 or 11 bits.
inline constexpr double hopper_max_softcap = 256;
/// Whether row ranges have kernels for this head dim, for sequences that are not packed.
constexpr bool has_row_ranges_kernels(int head_dim) {
    return head_dim == 64 || head_dim == 128;
}
/// Whether a rule has kernels for this head dim.
constexpr bool has_hopper_kernels(HopperRule rule, int head_dim, bool is_packed) {
    if (rule == HopperRule::row_ranges) return has_row_ranges_kernels(head_dim) && !is_packed;
    return rule != HopperRule::biases || (head_dim <= hopper_biases_max_head_dim && !is_packed);
}
inline HopperRule hopper_rule(const ScoreOptions& scores, bool has_row_ranges) {
    if (has_row_ranges) return HopperRule::row_ranges;
    if (scores.has_biases()) return HopperRule::biases;
    if (scores.changes_products()) return HopperRule::formula;
    if (scores.drops()) return scores.has_distance_terms() ? HopperRule::formula : HopperRule::dropout;
    return scores.has_distance_terms() ? HopperRule::distance_terms : HopperRule::products;
}
/// The rule whose kernel computes `rule` at a head dim. Dropout alone has its own kernels only where GPT-2's
/// shapes need them; more kernels would only lengthen the build.
constexpr HopperRule kernel_rule(HopperRule rule, int head_dim, bool is_packed) {
    const bool has_kernel = !is_packed && (head_dim == 64 || head_dim == 128);
    return rule == HopperRule::dropout && !has_kernel ? HopperRule::formula : rule;
}

}  // namespace gradtile::attention::cuda
