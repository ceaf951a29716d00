#include <gradtile/train/config/step_shape.h>

#include <algorithm>

#include <gradtile/core/check.h>

namespace gradtile {

/// How often `start` is doubled until it is `full` or more.
std::int64_t Growth::doublings() const {
    std::int64_t count = 0;
    if (start > 0)
        while (start << count < full) ++count;
    return count;
}

std::int64_t Growth::at(std::int64_t step) const {
    check(step >= 1, "step shape: step ", step, "; steps count from 1");
    if (step > steps || start == 0) return full;
    return std::min(full, start << (step - 1) * doublings() / steps);
}

std::int64_t Growth::sum(std::int64_t step) const {
    std::int64_t total = 0, end = step + 1;
    const std::vector<std::int64_t> starts = stage_starts();
    for (std::size_t i = starts.size(); i-- > 0; end = std::min(end, starts[i]))
        total += std::max<std::int64_t>(0, end - starts[i]) * at(starts[i]);
    return total;
}

std::vector<std::int64_t> Growth::stage_starts() const {
    std::vector<std::int64_t> starts{1};
    const std::int64_t stages = doublings();
    for (std::int64_t stage = 1; stage <= stages; ++stage)
        starts.push_back(ceil_div(stage * steps, stages) + 1);
    return starts;
}

std::int64_t largest_window(const ModelConfig& model) {
    std::int64_t largest = 0;
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
        const std::int64_t window = model.window_of(layer);
        largest = std::max(largest, window == 0 ? model.context : std::min(window, model.context));
    }
    return largest;
}

StepShapes StepShapes::of(const TrainConfig& config, std::int64_t ranks) {
    const std::int64_t groups = config.sequence_groups(ranks);
    return {.sequences = {config.batch_start / groups, config.batch / groups, config.batch_warmup},
            .micro_batch = config.micro_batch_size(ranks),
            .window = {config.window_start, largest_window(config.model), config.window_warmup}};
}

StepShape StepShapes::at(std::int64_t step) const {
    const std::int64_t share = sequences.at(step), keys = window.at(step);
    const std::int64_t micro = std::min(micro_batch, share);
    return {.micro_steps = share / micro, .micro_batch = micro, .max_window = keys < window.full ? keys : 0};
}

std::vector<StepShape> StepShapes::all() const {
    std::vector<StepShape> shapes;
    for (const Growth* growth : {&sequences, &window})
        for (const std::int64_t step : growth->stage_starts())
            if (const StepShape shape = at(step); std::ranges::find(shapes, shape) == shapes.end())
                shapes.push_back(shape);
    return shapes;
}

}  // namespace gradtile
