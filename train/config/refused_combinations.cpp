#include <gradtile/train/config/refused_combinations.h>

namespace gradtile {

std::span<const RefusedCombination> refused_combinations() {
    static constexpr RefusedCombination list[] = {
        {"wsd-shape",
         [](const TrainConfig& c) {
             return c.wsd_shape != CooldownShape::linear && c.schedule != ScheduleKind::wsd;
         },
         "without schedule wsd; expected linear"},
    };
    return list;
}

}  // namespace gradtile
