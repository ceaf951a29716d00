#pragma once
/// Each step's learning rate. Steps count from 1; the horizon is fixed when a run is created.
///
/// Warm-up, all kinds: lr * step / warmup for step <= warmup, so that step = warmup has the full rate. If the
/// warm-up is at least as long as the horizon, the rate still rises until step = warmup. After it, with t =
/// (step - warmup) / (horizon - warmup):
///
///     cosine    min_lr + (lr - min_lr) * (1 + cos(pi t)) / 2
///     linear    lr + (min_lr - lr) * t
///     wsd       lr until the last round(decay * horizon) steps, then lr + (min_lr - lr) * f(u) ("warm-up,
///               stable, decay": Hu et al. 2024, MiniCPM, section 4). u rises from 0 to 1 in these steps;
///               f(u) is u (linear), sqrt(u) (1-sqrt: Haegele et al. 2024, arXiv 2405.18392) or
///               (1 - cos(pi u)) / 2 (cosine)
///     constant  lr
///
/// At step = horizon and later the rate is exactly min_lr (constant: lr).
///
/// A run with a time budget has no horizon in steps. Its t is the fraction of the budget that was used before
/// the step (wsd: the decay is a fraction of the budget), and the rate is multiplied by min(1, step /
/// warmup).
#include <cstdint>

namespace gradtile {

struct TrainConfig;
// train_config.h
enum class ScheduleKind;
enum class CooldownShape;

struct Schedule {
    ScheduleKind kind = {};  ///< cosine
    double lr = 1e-3;
    double min_lr = 1e-4;
    std::int64_t warmup = 0;
    std::int64_t horizon = 1;  ///< steps; 0: the run has a time budget
    double wsd_decay = 0.2;
    CooldownShape wsd_shape = {};  ///< linear

    static Schedule of(const TrainConfig& config);
    /// `used` is the used fraction of the time budget, for runs that have one. Throws Error for a step
    /// below 1.
    double operator()(std::int64_t step, double used = 0.0) const;

  private:
    double falling(CooldownShape shape, double t) const;
    CooldownShape shape() const;
};

}  // namespace gradtile
