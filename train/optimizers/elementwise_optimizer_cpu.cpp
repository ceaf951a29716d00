#include <utility>

#include <gradtile/train/optimizers/internal/elementwise_optimizer_backend.h>

namespace gradtile::cpu {
namespace {

/// Updates a block's weights. If `value` is another array than `weight`, `weight` holds masters, and `value`
/// receives the rounded weights.
template <class Real, class Value, class Formula, class... Moments>
void update(Real* __restrict weight, Value* __restrict value, const Real* __restrict gradient, std::int64_t n,
            Real scale, Real keep, const Formula formula, Moments* __restrict... moments) {
    for (std::int64_t i = 0; i < n; ++i) {
        const Real updated = formula(weight[i], keep, gradient[i] * scale, moments[i]...);
        weight[i] = updated;
        if constexpr (!std::is_same_v<Real, Value>) value[i] = convert<Value>(updated);
    }
}

template <class Real, class Value, class Formula, std::size_t... moment>
void update_blocks(const Context& ctx, const ElementArrays& arrays, const std::vector<ElementBlock>& blocks,
                   Real scale, Real keep, const Formula& formula, std::index_sequence<moment...>) {
    Real* weights = arrays.weights.data<Real>();
    Value* values = arrays.values.data<Value>();
    const Real* gradients = arrays.gradients.data<Real>();
    Real* const moments[] = {arrays.moments[moment].data<Real>()...};
    parallel_for(ctx, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t index) {
        const ElementBlock& block = blocks[static_cast<std::size_t>(index)];
        update(weights + block.weight, values + block.value, gradients + block.gradient, block.length, scale,
               block.decays != 0 ? keep : Real{1}, formula, (moments[moment] + block.moment)...);
    });
}

}  // namespace

void elementwise_step(const Context& ctx, const ElementArrays& arrays, const ElementBlocks& blocks,
                      const Tensor& updates, const Tensor& rate, const ElementwiseRule& any_rule,
                      const UpdateOptions& options) {
    const double lr = *rate.data<double>();
    const double scale = options.gradient_scale.defined() ? *options.gradient_scale.data<double>() : 1.0;
    if (scale == 0.0) return;
    const std::int32_t t = ++*updates.data<std::int32_t>();
    const auto step = [&]<class Rule>(const Rule& rule) {
        visit_floating(arrays.values.dtype(), [&]<class Value>(TypeTag<Value>) {
            using Real = Accumulator<Value>;
            update_blocks<Real, Value>(ctx, arrays, blocks.list, static_cast<Real>(scale),
                                       static_cast<Real>(1.0 - lr * rule.weight_decay),
                                       rule.template formula<Real>(lr, t),
                                       std::make_index_sequence<Rule::moments.size()>{});
        });
    };
    std::visit(step, any_rule);
}

}  // namespace gradtile::cpu
