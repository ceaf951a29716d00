#include <gradtile/train/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <gradtile/train/config/train_config.h>

namespace gradtile {
namespace {

/// Returns where `step` lies between begin (0) and end (1).
double progress(std::int64_t step, std::int64_t begin, std::int64_t end) {
    return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

}  // namespace

Schedule Schedule::of(const TrainConfig& config) {
    return {config.schedule, config.lr,        config.min_lr,   config.warmup,
            config.steps,    config.wsd_decay, config.wsd_shape};
}

/// The shape of the fall. A constant rate has none.
CooldownShape Schedule::shape() const {
    switch (kind) {
        case ScheduleKind::cosine:
            return CooldownShape::cosine;
        case ScheduleKind::linear:
        case ScheduleKind::constant:
            return CooldownShape::linear;
        case ScheduleKind::wsd:
            return wsd_shape;
    }
    throw Error("schedule: unknown kind");
}

/// Returns the rate at t in [0, 1] of a fall from lr to min_lr.
double Schedule::falling(CooldownShape shape, double t) const {
    switch (shape) {
        case CooldownShape::linear:
            return lr + (min_lr - lr) * t;
        case CooldownShape::one_minus_sqrt:
            return lr + (min_lr - lr) * std::sqrt(t);
        case CooldownShape::cosine:
            return min_lr + (lr - min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * t));
    }
    throw Error("schedule: unknown shape");
}

double Schedule::operator()(std::int64_t step, double used) const {
    check(step >= 1, "schedule: step ", step, "; steps count from 1");
    const bool is_warming_up = step <= warmup;
    const double warmed = is_warming_up ? static_cast<double>(step) / static_cast<double>(warmup) : 1.0;
    if (horizon == 0) {
        const double begin = kind == ScheduleKind::wsd ? 1.0 - wsd_decay : 0.0;
        if (kind == ScheduleKind::constant || used <= begin) return warmed * lr;
        return warmed * (used < 1.0 ? falling(shape(), (used - begin) / (1.0 - begin)) : min_lr);
    }
    if (is_warming_up) return lr * static_cast<double>(step) / static_cast<double>(warmup);
    if (kind == ScheduleKind::constant) return lr;
    if (step >= horizon) return min_lr;
    std::int64_t begin = warmup;
    if (kind == ScheduleKind::wsd)
        begin =
            std::max<std::int64_t>(warmup, horizon - std::llround(wsd_decay * static_cast<double>(horizon)));
    return step <= begin ? lr : falling(shape(), progress(step, begin, horizon));
}

}  // namespace gradtile
