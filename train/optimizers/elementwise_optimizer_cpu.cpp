#include <utility>

#include <gradtile/train/optimizers/internal/elementwise_optimizer_backend.h>

namespace gradtile::cpu {
namespace {

/// Updates a block's weights. If `value` is another array than `weight`, `weight` holds masters, and `value`
/// receives the rounded weights.
template <class Real, class Value, class Formula, class... Moments>
void update(Real* __restrict weight, Value* __restrict value, const Real* __restrict gradient, std::int64_t n,
            Real scale, const DecayFactors<Real> decay, const Formula formula,
            Moments* __restrict... moments) {
    for (std::int64_t i = 0; i < n; ++i) {
        const Real step = formula(gradient[i] * scale, moments[i]...);
        const Real updated = decay.decayed(weight[i], step) - step;
        weight[i] = updated;
        if constexpr (!std::is_same_v<Real, Value>) value[i] = convert<Value>(updated);
    }
}

/// What a group's elements have in common in a step.
template <class Real, class Formula>
struct GroupStep {
    DecayFactors<Real> decay;
    Formula formula;
};

template <class Real, class Value, class Formula, std::size_t... moment>
void update_blocks(const Context& ctx, const ElementArrays& arrays, const std::vector<ElementBlock>& blocks,
                   Real scale, const std::vector<GroupStep<Real, Formula>>& groups,
                   std::index_sequence<moment...>) {
    Real* weights = arrays.weights.data<Real>();
    Value* values = arrays.values.data<Value>();
    const Real* gradients = arrays.gradients.data<Real>();
    Real* const moments[] = {arrays.moments[moment].data<Real>()...};
    parallel_for(ctx, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t index) {
        const ElementBlock& block = blocks[static_cast<std::size_t>(index)];
        const GroupStep<Real, Formula>& group = groups[static_cast<std::size_t>(block.group)];
        update(weights + block.weight, values + block.value, gradients + block.gradient, block.length, scale,
               group.decay, group.formula, (moments[moment] + block.moment)...);
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
            std::vector<GroupStep<Real, decltype(rule.template formula<Real>(lr, t))>> groups;
            for (const RateGroup& group : blocks.groups)
                groups.push_back(
                    {DecayFactors<Real>::at(lr * group.lr_factor, group.decays ? rule.weight_decay : 0.0,
                                            rule.cautious_decay),
                     rule.template formula<Real>(lr * group.lr_factor, t)});
            update_blocks<Real, Value>(ctx, arrays, blocks.list, static_cast<Real>(scale), groups,
                                       std::make_index_sequence<Rule::moments.size()>{});
        });
    };
    std::visit(step, any_rule);
}

}  // namespace gradtile::cpu
