#include <gradtile/train/optimizers/elementwise_optimizer.h>

#include <algorithm>
#include <cstring>

#include <gradtile/train/optimizers/internal/elementwise_optimizer_backend.h>

namespace gradtile {
namespace {

// Elements per block: so few that the block's moments, gradients and weights fit the second-level cache.
constexpr std::int64_t block_elements = 1 << 14;

/// Where parameters are in the arrays. Neighbouring parameters that both decay, or both do not, form one
/// range.
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
                blocks.push_back({s.value + begin, s.weight + begin, s.gradient + begin, s.moment + begin,
                                  std::min(block_elements, s.length - begin), s.decays});
        return blocks;
    }

  private:
    static bool continues(const ElementBlock& before, const ElementBlock& next) {
        const auto follows = [&](std::int64_t ElementBlock::*offset) {
            return before.*offset + before.length == next.*offset;
        };
        return before.decays == next.decays && follows(&ElementBlock::value) &&
               follows(&ElementBlock::weight) && follows(&ElementBlock::gradient) &&
               follows(&ElementBlock::moment);
    }
    std::vector<ElementBlock> stretches_;
};

Tensor upload(const Context& ctx, const std::vector<ElementBlock>& blocks) {
    std::vector<std::int32_t> words(blocks.size() * sizeof(ElementBlock) / sizeof(std::int32_t));
    std::memcpy(words.data(), blocks.data(), blocks.size() * sizeof(ElementBlock));
    return from_host(ctx, words, {std::ssize(words)});
}

std::span<const char* const> moment_names(const ElementwiseRule& rule) {
    return std::visit([]<class Rule>(const Rule&) { return std::span<const char* const>(Rule::moments); },
                      rule);
}

}  // namespace

ElementwiseOptimizer::ElementwiseOptimizer(const Context& ctx, const ParameterStore& store,
                                           const ElementwiseRule& rule)
    : ElementwiseOptimizer(ctx, store, store.parameters(), rule) {}

ElementwiseOptimizer::ElementwiseOptimizer(const Context& ctx, const ParameterStore& store,
                                           std::span<const Parameter> parameters, const ElementwiseRule& rule,
                                           const std::optional<OptimizerShard>& shard)
    : parameters_(parameters.begin(), parameters.end()), is_shard_(shard.has_value()), rule_(rule) {
    const OptimizerShard held = shard ? *shard : whole_of(store);
    arrays_ = {.values = store.values(),
               .weights = held.masters.defined() ? held.masters : store.values(),
               .gradients = held.gradients};
    BlockLayout layout;
    std::int64_t elements = 0;
    // Only parameters need moments; the padding at the end of the flat blocks stays zero.
    for (const Parameter& parameter : parameters_)
        for (const auto& [range, packed] : pieces_of(store, parameter, held)) {
            layout.add({.value = range.begin,
                        .weight = held.masters.defined() ? packed : range.begin,
                        .gradient = packed,
                        .moment = elements,
                        .length = range.length,
                        .decays = parameter.decays()});
            ranges_.push_back(range);
            elements += range.length;
        }
    blocks_.list = layout.blocks();
    if (ctx.device().is_cuda()) {
        blocks_.on_device = upload(ctx, blocks_.list);
        blocks_.scratch = zeros(ctx, {16}, DType::f64);
    }
    for (std::size_t i = 0; i < moment_names(rule_).size(); ++i)
        arrays_.moments.push_back(zeros(ctx, {elements}, arrays_.gradients.dtype()));
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
            state.push_back({names[i], moment, parameters_, ranges_});
            continue;
        }
        std::int64_t begin = 0;  // each parameter is one range
        for (std::size_t k = 0; k < parameters_.size(); ++k) {
            const Shape& shape = parameters_[k].shape();
            state.push_back({concat(names[i], '/', parameters_[k].name()),
                             moment.slice(0, begin, shape.elements()).reshape(shape)});
            begin += ranges_[k].length;
        }
    }
    state.push_back({"updates", updates_});
    return state;
}

}  // namespace gradtile
