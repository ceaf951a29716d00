// The layers' CUDA functions in a build without the CUDA toolkit. Each function throws Error.
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/internal/column_sums_backend.h>
#include <gradtile/layers/internal/cross_entropy_backend.h>
#include <gradtile/layers/internal/dropout_backend.h>
#include <gradtile/layers/internal/embedding_backend.h>
#include <gradtile/layers/internal/fused_linear_backend.h>
#include <gradtile/layers/internal/head_gate_backend.h>
#include <gradtile/layers/internal/head_transform_backend.h>
#include <gradtile/layers/internal/linear_activation_backend.h>
#include <gradtile/layers/internal/most_likely_backend.h>
#include <gradtile/layers/internal/norm_backend.h>
#include <gradtile/layers/internal/weighted_sum_backend.h>

namespace gradtile::cuda {

void norm_forward(const Context&, const NormOutputs&, const Residual&, const NormParameters&) {
    operator_absent();
}
void norm_backward(const Context&, const NormGradients&, const NormInputs&) {
    operator_absent();
}
std::int64_t norm_partials(std::int64_t, std::int64_t) {
    operator_absent();
}
void sum_columns(const Context&, const Tensor&, const Tensor&) {
    operator_absent();
}
void add_parts(const Context&, const GradientTarget&, const Tensor&) {
    operator_absent();
}
bool fuses_products(const Tensor&) {
    operator_absent();
}
bool fused_linear(const Context&, const Tensor&, const Tensor&, const FusedLinear&) {
    operator_absent();
}
void most_likely_tokens(const Context&, const Tensor&, const Tensor&) {
    operator_absent();
}
void linear_activation_forward(const Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&, Activation) {
    operator_absent();
}
void linear_activation_backward(const Context&, const SummedGradient&, const Tensor&, const Tensor&,
                                const Tensor&, Activation, const Tensor&) {
    operator_absent();
}
void activation_forward(const Context&, const Tensor&, const Tensor&, Activation) {
    operator_absent();
}
void activation_backward(const Context&, const Tensor&, const Tensor&, const Tensor&, Activation) {
    operator_absent();
}
void activation_backward_summed(const Context&, const SummedGradient&, const Tensor&, const Tensor&,
                                Activation) {
    operator_absent();
}
void dropout(const Context&, const Tensor&, const Tensor&, const Tensor&, const DropoutMask&) {
    operator_absent();
}
void embedding_forward(const Context&, const Tensor&, const Tensor&, const Tensor&) {
    operator_absent();
}
void embedding_backward(const Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
    operator_absent();
}
std::int64_t token_order_elements(std::int64_t) {
    operator_absent();
}
void order_by_token(const Context&, const Tensor&, const Tensor&, std::int64_t) {
    operator_absent();
}
Shape embedding_backward_scratch(std::int64_t, std::int64_t) {
    operator_absent();
}
void position_embedding_forward(const Context&, const Tensor&, const Tensor&, const Tensor&) {
    operator_absent();
}
void position_embedding_backward(const Context&, const Tensor&, const Tensor&) {
    operator_absent();
}
void gate_heads(const Context&, const GatedHeads&) {
    operator_absent();
}
void differentiate_gated_heads(const Context&, const GatedHeadsGradient&) {
    operator_absent();
}
void transform_heads(const Context&, const Tensor&, const Tensor&, const Tensor&, const HeadTransform&,
                     bool) {
    operator_absent();
}
void differentiate_heads(const Context&, const Tensor&, const Tensor&, const Tensor&, const HeadTransform&,
                         const HeadWeightGradients&, const Tensor&) {
    operator_absent();
}
std::int64_t head_partials(std::int64_t, std::int64_t) {
    operator_absent();
}
void count_targets(const Context&, const Tensor&, const Tensor&, std::int64_t) {
    operator_absent();
}
void cross_entropy_rows(const Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const Tensor&, double, const LogitSoftcap&) {
    operator_absent();
}
void cap_logits(const Context&, const Tensor&, const LogitSoftcap&) {
    operator_absent();
}
void weighted_sum(const Context&, const Tensor&, std::span<const WeightedTerm>) {
    operator_absent();
}
void weighted_sum_backward(const Context&, const Tensor&, const Tensor&, std::span<const WeightedTerm>) {
    operator_absent();
}
std::int64_t weighted_sum_parts(std::int64_t) {
    operator_absent();
}
void sum_losses(const Context&, const Tensor&, const Tensor&, const Tensor&) {
    operator_absent();
}

}  // namespace gradtile::cuda
