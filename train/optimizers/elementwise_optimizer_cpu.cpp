#include <utility>

#include <gradtile/core/internal/master_weights.h>
#include <gradtile/train/optimizers/internal/elementwise_optimizer_backend.h>
#include <gradtile/train/optimizers/internal/rounded_moments_cpu.h>

namespace gradtile::cpu {
namespace {

/// Updates a block's weights. If `value` is another array than `weight`, `weight` holds masters or their
/// remainders, and `value` receives the rounded weights.
template <class Real, class Weight, class Value, class Gradient, class Formula, class... Moments>
void update(Weight* __restrict weight, Value* __restrict value, const Gradient* __restrict gradient,
            std::int64_t n, Real scale, const DecayFactors<Real> decay, const Formula formula,
            Moments* __restrict... moments) {
    for (std::int64_t i = 0; i < n; ++i) {
        const Real step = formula(convert<Real>(gradient[i]) * scale, moments[i]...);
        const Real updated = decay.decayed(loaded_weight<Real>(weight[i], value[i]), step) - step;
        weight[i] = kept_weight<Weight>(updated);
        if constexpr (!std::is_same_v<Real, Value>) value[i] = value_of_weight<Value>(updated);
    }
}

/// What a group's elements have in common in a step.
template <class Real, class Formula>
struct GroupStep {
    DecayFactors<Real> decay;
    Formula formula;
};

template <class Gradient, class Moment, class Weight, class Real, class Value, class Formula,
          std::size_t... moment>
void update_blocks(const Context& ctx, const ElementArrays& arrays, const std::vector<ElementBlock>& blocks,
                   Real scale, const std::vector<GroupStep<Real, Formula>>& groups, const MomentDraws& draws,
                   std::index_sequence<moment...>) {
    Weight* weights = weight_data<Weight>(arrays.weights);
    Value* values = arrays.values.data<Value>();
    const Gradient* gradients = arrays.gradients.data<Gradient>();
    parallel_for(ctx, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t index) {
        const ElementBlock& block = blocks[static_cast<std::size_t>(index)];
        const GroupStep<Real, Formula>& group = groups[static_cast<std::size_t>(block.group)];
        const auto update_range = [&](std::int64_t begin, std::int64_t n, auto*... at) {
            update(weights + block.weight + begin, values + block.value + begin,
                   gradients + block.gradient + begin, n, scale, group.decay, group.formula, at...);
        };
        if constexpr (std::is_same_v<Moment, Real>) {
            update_range(0, block.length, moments_at<Moment>(arrays.moments[moment], block.moment)...);
        } else {
            with_float_moments(block.length, draws, block.element,
                               std::array{moments_at<Moment>(arrays.moments[moment], block.moment)...},
                               [&](std::int64_t begin, std::int64_t n, auto& in_float) {
                                   update_range(begin, n, in_float[moment]...);
                               });
        }
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
            visit_kept_type<Real>(arrays.gradients.dtype(), [&]<class Gradient>(TypeTag<Gradient>) {
                visit_stored_moments<Real>(
                    arrays.moments.front().dtype(), [&]<class Moment>(TypeTag<Moment>) {
                        visit_weight_type<Real, Value>(
                            arrays.weights.dtype(), [&]<class Weight>(TypeTag<Weight>) {
                                update_blocks<Gradient, Moment, Weight, Real, Value>(
                                    ctx, arrays, blocks.list, static_cast<Real>(scale), groups,
                                    MomentDraws::of(arrays.seed, t),
                                    std::make_index_sequence<Rule::moments.size()>{});
                            });
                    });
            });
        });
    };
    std::visit(step, any_rule);
}

}  // namespace gradtile::cpu
