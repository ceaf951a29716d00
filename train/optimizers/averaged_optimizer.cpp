#include <gradtile/train/optimizers/averaged_optimizer.h>

#include <gradtile/core/internal/master_weights.h>
#include <gradtile/train/optimizers/internal/averaged_optimizer_backend.h>

namespace gradtile {

AveragedOptimizer::AveragedOptimizer(const Context& ctx, const ParameterStore& store,
                                     std::unique_ptr<Optimizer> optimizer, double decay,
                                     const std::optional<OptimizerShard>& shard)
    : parameters_(store.parameters().begin(), store.parameters().end()),
      is_shard_(shard && !shard->is_whole),
      optimizer_(std::move(optimizer)),
      decay_(decay),
      updates_(zeros(ctx, {1}, DType::i32)) {
    const OptimizerShard held = shard ? *shard : whole_of(store);
    ranges_ = held.ranges;
    average_ = zeros(held.state_context(ctx), held.gradients.shape(), held.gradients.dtype());
    std::int64_t packed = 0;
    for (const FlatRange& range : ranges_) {
        const auto packed_part = [&](const Tensor& x) { return x.slice(0, packed, range.length); };
        const Tensor values = held.values.defined() ? packed_part(held.values)
                                                    : store.values().slice(0, range.begin, range.length);
        pieces_.push_back({.weights = held.masters.defined() ? packed_part(held.masters) : values,
                           .average = packed_part(average_),
                           .values = values,
                           .scratch = packed_part(held.gradients)});
        packed += range.length;
    }
}

void AveragedOptimizer::step(const Context& ctx, const Tensor& rate, const UpdateOptions& options) {
    optimizer_->step(ctx, rate, options);
    on_device(ctx, cpu::count_update, cuda::count_update, updates_, options.gradient_scale);
    for (const Piece& piece : pieces_)
        on_device(ctx, cpu::average_weights, cuda::average_weights, piece.weights, piece.average,
                  AverageStep{updates_, decay_, options.gradient_scale});
}

bool AveragedOptimizer::exchange_average(const Context& ctx) {
    if (item(ctx, updates_) == 0.0) return false;
    for (const auto& [weights, average, values, scratch] : pieces_) {
        copy(ctx, scratch, weights);
        copy(ctx, weights, average);
        copy(ctx, average, scratch);
        if (values.raw_data() != weights.raw_data()) round_masters(ctx, weights, values);
    }
    return true;
}

std::vector<StateTensor> AveragedOptimizer::state() const {
    std::vector<StateTensor> state = optimizer_->state();
    if (is_shard_) {
        state.push_back({"average", average_, parameters_, ranges_});
    } else {
        for (const Parameter& parameter : parameters_)
            state.push_back({concat("average/", parameter.name()),
                             average_.slice(0, parameter.offset(), parameter.shape().elements())
                                 .reshape(parameter.shape())});
    }
    state.push_back({"average_updates", updates_});
    return state;
}

}  // namespace gradtile
