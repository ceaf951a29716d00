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

StepShapes::StepShapes(const TrainConfig& config)
    : window_{config.window_start, largest_window(config.model), config.window_warmup} {}

StepShape StepShapes::at(std::int64_t step) const {
    const std::int64_t window = window_.at(step);
    return {.max_window = window < window_.full ? window : 0};
}

std::vector<StepShape> StepShapes::all() const {
    std::vector<StepShape> shapes;
    for (const std::int64_t step : window_.stage_starts())
        if (const StepShape shape = at(step); std::ranges::find(shapes, shape) == shapes.end())
            shapes.push_back(shape);
    return shapes;
}

}  // namespace gradtile
