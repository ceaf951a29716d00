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
    return {config.schedule, config.lr, config.min_lr, config.warmup, config.steps, config.wsd_decay};
}

double Schedule::operator()(std::int64_t step) const {
    check(step >= 1, "schedule: step ", step, "; steps count from 1");
    if (step <= warmup) return lr * static_cast<double>(step) / static_cast<double>(warmup);
    if (kind == ScheduleKind::constant) return lr;
    if (step >= horizon) return min_lr;
    switch (kind) {
        case ScheduleKind::cosine:
            return min_lr +
                   (lr - min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress(step, warmup, horizon)));
        case ScheduleKind::linear:
            return lr + (min_lr - lr) * progress(step, warmup, horizon);
        case ScheduleKind::wsd: {
            const auto decay_steps = std::llround(wsd_decay * static_cast<double>(horizon));
            const std::int64_t stable_until = std::max<std::int64_t>(warmup, horizon - decay_steps);
            return step <= stable_until ? lr : lr + (min_lr - lr) * progress(step, stable_until, horizon);
        }
        case ScheduleKind::constant:
            return lr;
    }
    throw Error("schedule: unknown kind");
}

}  // namespace gradtile
