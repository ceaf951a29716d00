#include <gradtile/train/optimizers/adamw.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <gradtile/train/optimizers/internal/adamw_backend.h>

namespace gradtile {
namespace {

constexpr std::int64_t block_elements =
    1 << 14;  // m, v, gradient and weight of a block fit the second-level cache

Tensor upload(const Context& ctx, const std::vector<AdamWBlock>& blocks) {
    std::vector<std::int32_t> words(blocks.size() * sizeof(AdamWBlock) / sizeof(std::int32_t));
    std::memcpy(words.data(), blocks.data(), blocks.size() * sizeof(AdamWBlock));
    return from_host(ctx, words, {std::ssize(words)});
}

}  // namespace

AdamW::AdamW(const Context& ctx, const ParameterStore& store, const AdamWOptions& options)
    : AdamW(ctx, store, store.parameters(), options) {}

AdamW::AdamW(const Context& ctx, const ParameterStore& store, std::span<const Parameter> parameters,
             const AdamWOptions& options)
    : store_(store), parameters_(parameters.begin(), parameters.end()), options_(options) {
    check(store.allocated(), "adamw: the parameter store is not allocated");
    // Neighbours that decay alike are one stretch.
    std::vector<AdamWBlock> stretches;
    std::int64_t state_elements = 0;
    for (const Parameter& parameter : parameters_) {
        const std::int64_t offset = parameter.offset(),
                           length = rounded_up(parameter.shape().elements(), parameter_alignment);
        state_offsets_.push_back(state_elements);
        if (!stretches.empty() && stretches.back().decays == parameter.decays() &&
            stretches.back().value + stretches.back().length == offset) {
            stretches.back().length += length;
        } else {
            stretches.push_back({offset, offset, offset, state_elements, length, parameter.decays()});
        }
        state_elements += length;
    }
    arrays_ = {.values = store.values(), .weights = store.master(), .gradients = store.gradients()};
    allocate(ctx, stretches, state_elements);
}

AdamW::AdamW(const Context& ctx, const ParameterStore& store, std::span<const Parameter> parameters,
             const OptimizerShard& shard, const AdamWOptions& options)
    : store_(store),
      parameters_(parameters.begin(), parameters.end()),
      shard_ranges_(std::in_place),
      options_(options) {
    const bool has_masters = shard.masters.defined();
    std::vector<AdamWBlock> stretches;
    std::int64_t state_elements = 0;
    // Only where a parameter lies is there something to update; what pads it stays zero.
    for (const Parameter& parameter : parameters_) {
        for (const auto& [range, packed] : pieces_of(store, parameter, shard)) {
            stretches.push_back({range.begin, has_masters ? packed : range.begin, packed, state_elements,
                                 range.length, parameter.decays()});
            shard_ranges_->push_back(range);
            state_elements += range.length;
        }
    }
    arrays_ = {.values = store.values(),
               .weights = has_masters ? shard.masters : store.values(),
               .gradients = shard.gradients};
    allocate(ctx, stretches, state_elements);
}

/// Cuts stretches into blocks.
void AdamW::allocate(const Context& ctx, const std::vector<AdamWBlock>& stretches,
                     std::int64_t state_elements) {
    for (const AdamWBlock& stretch : stretches)
        for (std::int64_t begin = 0; begin < stretch.length; begin += block_elements)
            blocks_.list.push_back({stretch.value + begin, stretch.weight + begin, stretch.gradient + begin,
                                    stretch.state + begin, std::min(block_elements, stretch.length - begin),
                                    stretch.decays});
    if (ctx.device().is_cuda()) {
        blocks_.on_device = upload(ctx, blocks_.list);
        blocks_.scratch = zeros(ctx, {4}, DType::f64);
    }
    arrays_.m = zeros(ctx, {state_elements}, arrays_.gradients.dtype());
    arrays_.v = zeros(ctx, {state_elements}, arrays_.gradients.dtype());
    updates_ = zeros(ctx, {1}, DType::i32);
}

void AdamW::step(const Context& ctx, const Tensor& rate, const UpdateOptions& options) {
    on_device(ctx, cpu::adamw_step, cuda::adamw_step, arrays_, blocks_, updates_, rate, options_, options);
}

std::vector<StateTensor> AdamW::state() const {
    std::vector<StateTensor> state;
    for (const auto& [moment, flat] : {std::pair{"m", arrays_.m}, std::pair{"v", arrays_.v}}) {
        if (shard_ranges_) {
            state.push_back({moment, flat, parameters_, *shard_ranges_});
            continue;
        }
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            const Shape& shape = parameters_[i].shape();
            state.push_back({concat(moment, '/', parameters_[i].name()),
                             flat.slice(0, state_offsets_[i], shape.elements()).reshape(shape)});
        }
    }
    state.push_back({"updates", updates_});
    return state;
}

}  // namespace gradtile
