#include <gradtile/train/run_clock.h>

#include <cmath>

#include <gtest/gtest.h>

#include <gradtile/train/run/metrics_file.h>

#include <support/error_message.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

TrainConfig minute() {
    TrainConfig config;
    config.steps = 0;
    config.time_budget = "1m";
    return config;
}

/// A run in simulated time.
struct SimulatedRun {
    double step_seconds, after_seconds;
    std::int64_t evaluation_every = 0;  ///< an evaluation takes after_seconds

    std::int64_t steps = 0;
    double seconds = 0.0;
    std::vector<double> used = {};

    void run(RunClock& clock) {
        for (bool last = false; !last;) {
            ++steps;
            // Steps vary by a tenth, and the first one is slow.
            seconds += step_seconds * (1.0 + 0.1 * std::sin(static_cast<double>(steps)));
            if (steps == 1) seconds += 5.0;
            const bool is_evaluated = evaluation_every > 0 && steps > evaluation_every;
            last = clock.count(steps, {.run_seconds = seconds,
                                       .step_seconds = steps == 1 ? seconds : step_seconds,
                                       .evaluation_seconds = is_evaluated ? after_seconds : 0.0,
                                       .steps_in_evaluation = after_seconds / step_seconds});
            used.push_back(clock.used());
            if (last || (evaluation_every > 0 && steps % evaluation_every == 0)) seconds += after_seconds;
        }
    }
};

TEST(RunClock, EndsARunWithinTwoPercentOfItsBudget) {
    for (const double step_seconds : {0.01, 0.1, 0.7, 2.0})
        for (const double after_seconds : {0.0, 1.0, 5.0})
            for (const std::int64_t evaluation_every : {0, 10}) {
                // If an evaluation that is due anyway takes 5 s, the end can be 5 s away.
                if (evaluation_every > 0 && after_seconds > 1.0) continue;
                ProcessGroup group;
                RunClock clock(minute(), group);
                SimulatedRun run{step_seconds, after_seconds, evaluation_every};
                run.run(clock);
                EXPECT_NEAR(run.seconds, 60.0, 1.2) << step_seconds << ' ' << after_seconds;
                EXPECT_GT(run.used.back(), 1.0 - (after_seconds + 1.2) / 60.0);
                EXPECT_LE(run.used.back(), 1.0);
            }
}

TEST(RunClock, EndsAFirstStepThatUsesUpTheBudget) {
    ProcessGroup group;
    RunClock clock(minute(), group);
    EXPECT_TRUE(clock.count(1, {.run_seconds = 61.0, .step_seconds = 61.0}));
    EXPECT_EQ(clock.used(), 1.0);
}

TEST(RunClock, ReplaysTheClockOfARunToTheBit) {
    const test::TemporaryDirectory place;
    ProcessGroup group;
    RunClock clock(minute(), group);
    SimulatedRun first{0.7, 1.0};
    first.run(clock);
    {
        MetricsFile metrics(place / "metrics.jsonl");
        for (std::size_t i = 0; i < first.used.size(); ++i) {
            StepReport report{.step = static_cast<std::int64_t>(i) + 1};
            report.budget_used = first.used[i];
            metrics.write(report);
        }
    }
    TrainConfig config = minute();
    config.replay_clock = place.path().string();
    RunClock replayed(config, group);
    SimulatedRun second{0.01, 1.0};  // a faster machine
    second.run(replayed);
    EXPECT_EQ(second.steps, first.steps);
    EXPECT_EQ(second.used, first.used);
}

TEST(RunClock, RefusesMetricsWithoutAWholeClock) {
    const test::TemporaryDirectory place;
    const auto refusal = [&](const std::string& text) {
        place.write("metrics.jsonl", text);
        return test::message_of([&] { MetricsFile::read_clock(place / "metrics.jsonl"); });
    };
    EXPECT_EQ(test::message_of([&] { MetricsFile::read_clock(place / "none/metrics.jsonl"); }),
              "replay-clock " + (place / "none/metrics.jsonl").string() +
                  ": cannot be opened: No such file or directory");
    EXPECT_NE(refusal("{\"step\":1,\"loss\":2}\n").find("no step has budget_used"), std::string::npos);
    for (const char* line : {"{\"step\":2,\"budget_used\":0.5}", "{\"step\":1,\"budget_used\":1.5}",
                             "{\"step\":1,\"budget_used\":-1}", "{\"step\":1,\"budget_used\":\"x\"}",
                             "{\"step\":1,\"budget_used\":null}",
                             "{\"step\":1,\"budget_used\":0.5}\n{\"step\":2,\"budget_used\":0.4}"}) {
        const std::string message = refusal(std::string(line) + "\n");
        EXPECT_NE(message.find("has budget_used"), std::string::npos) << line << ": " << message;
        EXPECT_NE(message.find("metrics.jsonl"), std::string::npos) << message;
    }
}

}  // namespace
}  // namespace gradtile
