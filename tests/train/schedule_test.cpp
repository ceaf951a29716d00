#include <gradtile/train/schedule.h>

#include <cmath>

#include <gtest/gtest.h>

#include <gradtile/train/config/train_config.h>

namespace gradtile {
namespace {

constexpr double top_lr = 1e-3, min_lr = 1e-4;

Schedule schedule(ScheduleKind kind) {
    return {.kind = kind, .lr = top_lr, .min_lr = min_lr, .warmup = 100, .horizon = 2000, .wsd_decay = 0.2};
}

constexpr auto all = {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd, ScheduleKind::constant};

TEST(Schedule, WarmsUpLinearlyToTheFullRateAtTheLastWarmUpStep) {
    for (const ScheduleKind kind : all) {
        const Schedule rate = schedule(kind);
        EXPECT_DOUBLE_EQ(rate(1), top_lr / 100);
        EXPECT_DOUBLE_EQ(rate(50), top_lr / 2);
        EXPECT_DOUBLE_EQ(rate(100), top_lr);
        EXPECT_LE(rate(101), top_lr);
    }
}

TEST(Schedule, HasItsMinimumAtTheHorizonAndBeyond) {
    for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
        const Schedule rate = schedule(kind);
        EXPECT_GT(rate(1999), min_lr);
        EXPECT_EQ(rate(2000), min_lr);
        EXPECT_EQ(rate(2001), min_lr);
        EXPECT_EQ(rate(1000000), min_lr);
    }
    EXPECT_EQ(schedule(ScheduleKind::constant)(1000000), top_lr);
}

TEST(Schedule, NeverRisesAfterWarmUp) {
    for (const ScheduleKind kind : all) {
        const Schedule rate = schedule(kind);
        for (std::int64_t step = 100; step < 2100; ++step) EXPECT_LE(rate(step + 1), rate(step)) << step;
    }
}

TEST(Schedule, CosineIsHalfWayInTheMiddle) {
    const Schedule rate = schedule(ScheduleKind::cosine);
    EXPECT_NEAR(rate(1050), (top_lr + min_lr) / 2, 1e-18);
    EXPECT_NEAR(rate(575), min_lr + (top_lr - min_lr) * (0.5 + std::sqrt(0.125)),
                1e-18);  // a quarter: cos 45 deg
}

TEST(Schedule, LinearFallsByEqualAmounts) {
    const Schedule rate = schedule(ScheduleKind::linear);
    EXPECT_NEAR(rate(575), top_lr - (top_lr - min_lr) / 4, 1e-18);
    EXPECT_NEAR(rate(101) - rate(102), (top_lr - min_lr) / 1900, 1e-18);
}

TEST(Schedule, WsdIsStableUntilItsLastPart) {
    const Schedule rate = schedule(ScheduleKind::wsd);
    EXPECT_EQ(rate(1600), top_lr);
    EXPECT_NEAR(rate(1601), top_lr - (top_lr - min_lr) / 400, 1e-18);
    EXPECT_NEAR(rate(1800), (top_lr + min_lr) / 2, 1e-18);
}

TEST(Schedule, WsdDecayAsLongAsTheHorizonStartsAfterWarmUp) {
    Schedule rate = schedule(ScheduleKind::wsd);
    rate.wsd_decay = 1.0;
    EXPECT_EQ(rate(100), top_lr);
    EXPECT_NEAR(rate(1050), (top_lr + min_lr) / 2, 1e-18);
    rate.wsd_decay = 0.0;
    EXPECT_EQ(rate(1999), top_lr);
    EXPECT_EQ(rate(2000), min_lr);
}

/// The rate at a quarter and in the middle of the cooldown, from the formulas in schedule.h.
TEST(Schedule, WsdFallsInTheChosenShape) {
    const auto fallen = [](CooldownShape shape, std::int64_t step) {
        Schedule rate = schedule(ScheduleKind::wsd);
        rate.wsd_shape = shape;
        EXPECT_EQ(rate(1600), top_lr);
        EXPECT_EQ(rate(2000), min_lr);
        for (std::int64_t s = 1600; s < 2000; ++s) EXPECT_LT(rate(s + 1), rate(s)) << s;
        const double of_steps = rate(step);
        rate.horizon = 0;
        const double used = static_cast<double>(step) / 2000;
        EXPECT_NEAR(rate(200, used), of_steps, 1e-15) << "a time budget has the same shape";
        return (top_lr - of_steps) / (top_lr - min_lr);
    };
    EXPECT_NEAR(fallen(CooldownShape::linear, 1700), 0.25, 1e-15);
    EXPECT_NEAR(fallen(CooldownShape::one_minus_sqrt, 1700), 0.5, 1e-15);
    EXPECT_NEAR(fallen(CooldownShape::one_minus_sqrt, 1900), std::sqrt(0.75), 1e-15);
    EXPECT_NEAR(fallen(CooldownShape::cosine, 1700), 0.5 - std::sqrt(0.125), 1e-15);
    EXPECT_NEAR(fallen(CooldownShape::cosine, 1800), 0.5, 1e-15);
}

TEST(Schedule, WithoutWarmUpStartsAtOnce) {
    Schedule rate = schedule(ScheduleKind::linear);
    rate.warmup = 0;
    EXPECT_NEAR(rate(1), top_lr - (top_lr - min_lr) / 2000, 1e-18);
}

TEST(Schedule, WarmUpLongerThanTheHorizonKeepsRising) {
    Schedule rate = schedule(ScheduleKind::cosine);
    rate.horizon = 40;
    EXPECT_DOUBLE_EQ(rate(40), top_lr * 0.4);
    EXPECT_DOUBLE_EQ(rate(60), top_lr * 0.6);
    EXPECT_EQ(rate(101), min_lr);
}

TEST(Schedule, FollowsATimeBudget) {
    for (const ScheduleKind kind : all) {
        Schedule rate = schedule(kind);
        rate.horizon = 0;
        EXPECT_EQ(rate(100, 0.0), top_lr);
        EXPECT_DOUBLE_EQ(rate(50, 0.0), top_lr / 2) << "warm-up counts steps";
        EXPECT_EQ(rate(5000, 1.0), kind == ScheduleKind::constant ? top_lr : min_lr);
        for (int i = 0; i < 100; ++i) EXPECT_LE(rate(200, (i + 1) / 100.0), rate(200, i / 100.0));
    }
    const auto of = [](ScheduleKind kind, double used) {
        Schedule rate = schedule(kind);
        rate.horizon = 0;
        return rate(1000, used);
    };
    EXPECT_NEAR(of(ScheduleKind::cosine, 0.5), (top_lr + min_lr) / 2, 1e-18);
    EXPECT_NEAR(of(ScheduleKind::linear, 0.25), top_lr - (top_lr - min_lr) / 4, 1e-18);
    EXPECT_EQ(of(ScheduleKind::wsd, 0.8), top_lr);
    EXPECT_NEAR(of(ScheduleKind::wsd, 0.9), (top_lr + min_lr) / 2, 1e-15);
}

TEST(TimeBudget, HasHoursMinutesAndSeconds) {
    EXPECT_EQ(seconds_of("90s"), 90.0);
    EXPECT_EQ(seconds_of("5m"), 300.0);
    EXPECT_EQ(seconds_of("1h30m"), 5400.0);
    EXPECT_EQ(seconds_of("0.5h1.5s"), 1801.5);
    for (const char* wrong : {"", "5", "m", "5x", "5m1h", "5m5m", "-5m", "0s", "9000h", "1e9s", "5 m", "nans",
                              "infs", "0x10s", "-0h5m", "1e999h5s", "5m "})
        EXPECT_THROW(seconds_of(wrong), Error) << wrong;
}

TEST(Schedule, RefusesStepsBelowOne) {
    EXPECT_THROW(schedule(ScheduleKind::cosine)(0), Error);
}

}  // namespace
}  // namespace gradtile
