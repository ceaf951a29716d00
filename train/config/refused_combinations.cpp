#include <gradtile/train/config/refused_combinations.h>

#include <gradtile/train/config/step_shape.h>

namespace gradtile {

std::span<const RefusedCombination> refused_combinations() {
    static constexpr RefusedCombination list[] = {
        {"wsd-shape",
         [](const TrainConfig& c) {
             return c.wsd_shape != CooldownShape::linear && c.schedule != ScheduleKind::wsd;
         },
         "without schedule wsd; expected linear"},
        {"window-start", [](const TrainConfig& c) { return c.window_start > 0 && c.window_warmup == 0; },
         "without window-warmup; expected the steps in which the window grows"},
        {"window-warmup", [](const TrainConfig& c) { return c.window_warmup > 0 && c.window_start == 0; },
         "without window-start; expected the first window"},
        {"window-start",
         [](const TrainConfig& c) { return c.window_start > 0 && c.window_start >= largest_window(c.model); },
         "is not smaller than the window or the context of every layer; expected fewer keys"},
    };
    return list;
}

}  // namespace gradtile
