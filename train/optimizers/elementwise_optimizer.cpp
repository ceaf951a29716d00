#include <gradtile/train/optimizers/elementwise_optimizer.h>

#include <algorithm>

#include <gradtile/train/optimizers/internal/elementwise_optimizer_backend.h>
#include <gradtile/train/optimizers/internal/upload.h>

namespace gradtile {
namespace {

// Elements per block: so few that the block's moments, gradients and weights fit the second-level cache.
constexpr std::int64_t block_elements = 1 << 14;

/// Where parameters are in the arrays. Neighbouring parameters of one rate group form one range.
class BlockLayout {
  public:
    void add(const ElementBlock& added) {
        if (!stretches_.empty() && continues(stretches_.back(), added)) {
            stretches_.back().length += added.length;
        } else {
            stretches_.push_back(added);
        }
    }
    std::vector<ElementBlock> blocks() const {
        std::vector<ElementBlock> blocks;
        for (const ElementBlock& s : stretches_)
            for (std::int64_t begin = 0; begin < s.length; begin += block_elements)
                blocks.push_back({s.element + begin, s.value + begin, s.weight + begin, s.gradient + begin,
                                  s.moment + begin, std::min(block_elements, s.length - begin), s.group});
        return blocks;
    }

  private:
    static bool continues(const ElementBlock& before, const ElementBlock& next) {
        const auto follows = [&](std::int64_t ElementBlock::*offset) {
            return before.*offset + before.length == next.*offset;
        };
        return before.group == next.group && follows(&ElementBlock::element) &&
               follows(&ElementBlock::value) && follows(&ElementBlock::weight) &&
               follows(&ElementBlock::gradient) && follows(&ElementBlock::moment);
    }
    std::vector<ElementBlock> stretches_;
};

/// Returns the group's index in `groups`, to which a new group is added.
std::int64_t index_of(std::vector<RateGroup>& groups, const RateGroup& group) {
    const auto found = std::ranges::find(groups, group);
    const std::int64_t index = found - groups.begin();
    if (found == groups.end()) groups.push_back(group);
    check(groups.size() <= max_rate_groups, "optimizer: parameters have ", groups.size(),
          " different learning rates and decays; expected at most ", max_rate_groups);
    return index;
}

std::span<const char* const> moment_names(const ElementwiseRule& rule) {
    return std::visit([]<class Rule>(const Rule&) { return std::span<const char* const>(Rule::moments); },
                      rule);
}

/// Refuses decays outside the range of the rules' settings.
void check_decays(const ElementwiseRule& rule) {
    const auto check_of = [](const auto& chosen) {
        using setting_limits::proper_fraction;
        if constexpr (requires { chosen.beta1; })
            check_range("optimizer: beta1", chosen.beta1, proper_fraction);
        if constexpr (requires { chosen.beta2; })
            check_range("optimizer: beta2", chosen.beta2, proper_fraction);
    };
    std::visit(check_of, rule);
}

}  // namespace

ElementwiseOptimizer::ElementwiseOptimizer(const Context& ctx, const ParameterStore& store,
                                           const ElementwiseRule& rule)
    : ElementwiseOptimizer(ctx, store, store.parameters(), rule) {}

ElementwiseOptimizer::ElementwiseOptimizer(const Context& ctx, const ParameterStore& store,
                                           std::span<const Parameter> parameters, const ElementwiseRule& rule,
                                           const std::optional<OptimizerShard>& shard,
                                           const LearningRateFactor& lr_factor, const MomentStorage& storage)
    : parameters_(parameters.begin(), parameters.end()),
      is_shard_(shard && !shard->is_whole),
      rule_(rule),
      storage_(storage) {
    check_decays(rule_);
    const OptimizerShard held = shard ? *shard : whole_of(store);
    arrays_ = {.values = held.values_in(store),
               .weights = held.masters.defined() ? held.masters : held.values_in(store),
               .gradients = held.gradients,
               .seed = storage.seed};
    BlockLayout layout;
    std::int64_t elements = 0;
    // Only parameters need moments; the padding at the end of the flat blocks stays zero.
    for (const Parameter& parameter : parameters_) {
        const std::int64_t group =
            index_of(blocks_.groups, {lr_factor ? lr_factor(parameter) : 1.0, parameter.decays()});
        for (const auto& [range, packed] : pieces_of(store, parameter, held)) {
            const std::int64_t value = held.values.defined() ? packed : range.begin;
            layout.add({.element = range.begin,
                        .value = value,
                        .weight = held.masters.defined() ? packed : value,
                        .gradient = packed,
                        .moment = elements,
                        .length = range.length,
                        .group = group});
            ranges_.push_back(range);
            elements += range.length;
        }
    }
    blocks_.list = layout.blocks();
    if (ctx.device().is_cuda()) {
        blocks_.on_device = uploaded(ctx, blocks_.list);
        blocks_.scratch = zeros(ctx, {max_rate_groups, 16}, DType::f64);
    }
    for (std::size_t i = 0; i < moment_names(rule_).size(); ++i)
        arrays_.moments.push_back(zeros(held.state_context(ctx), {storage.numbers(elements)},
                                        moment_dtype(storage, accumulator_of(store.dtype()))));
    updates_ = zeros(ctx, {1}, DType::i32);
}

void ElementwiseOptimizer::step(const Context& ctx, const Tensor& rate, const UpdateOptions& options) {
    on_device(ctx, cpu::elementwise_step, cuda::elementwise_step, arrays_, blocks_, updates_, rate, rule_,
              options);
}

std::vector<StateTensor> ElementwiseOptimizer::state() const {
    std::vector<StateTensor> state;
    const std::span<const char* const> names = moment_names(rule_);
    for (std::size_t i = 0; i < names.size(); ++i) {
        const Tensor& moment = arrays_.moments[i];
        if (is_shard_) {
            // Muon may leave no parameter to AdamW. A state without parameters is a counter.
            if (!parameters_.empty())
                state.push_back(
                    {names[i], moment, parameters_, storage_.numbers(ranges_), storage_.layout()});
            continue;
        }
        std::int64_t begin = 0;  // each parameter is one range
        for (std::size_t k = 0; k < parameters_.size(); ++k) {
            state.push_back({concat(names[i], '/', parameters_[k].name()),
                             moments_of(storage_, moment, parameters_[k], begin)});
            begin += ranges_[k].length;
        }
    }
    state.push_back({"updates", updates_});
    return state;
}

}  // namespace gradtile
