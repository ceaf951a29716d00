#include <gradtile/train/run/metrics_file.h>

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <support/error_message.h>
#include <support/temporary_directory.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::TemporaryDirectory;

StepReport report(std::int64_t step) {
    return {.step = step,
            .loss = 2.0 / 3.0,
            .lr = 1e-3,
            .grad_norm = 0.1,
            .tokens_per_s = 61234.5,
            .ms = 12.5,
            .tokens = 100 * step,
            .wall_s = 0.5 * static_cast<double>(step)};
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

TEST(MetricsLine, HasNineDigitsAndItsKeysInOrder) {
    EXPECT_EQ(metrics_line(report(7)),
              R"({"step":7,"loss":0.666666667,"lr":0.001,"grad_norm":0.1,"tokens_per_s":61234.5,"ms":12.5,)"
              R"("tokens":700,"wall_s":3.5})");
}

TEST(MetricsLine, HasTheValidationLossOnlyWhenItWasEvaluated) {
    StepReport evaluated = report(7);
    evaluated.val_loss = 1.5;
    EXPECT_EQ(json::parse(metrics_line(evaluated))["val_loss"], 1.5);
    EXPECT_FALSE(json::parse(metrics_line(report(7))).contains("val_loss"));
}

TEST(MetricsLine, StaysJsonWhenNumbersAreNotFinite) {
    StepReport bad = report(7);
    bad.loss = std::nan("");
    bad.grad_norm = INFINITY;
    bad.not_finite = "h.0.\"odd\"";
    const json line = json::parse(metrics_line(bad));
    EXPECT_TRUE(line["loss"].is_null() && line["grad_norm"].is_null());
    EXPECT_EQ(line["not_finite"], "h.0.\"odd\"");
}

TEST(MetricsFile, NamesTheLossesOfAStepThatAreNotFinite) {
    const TemporaryDirectory directory;
    const auto path = directory / "metrics.jsonl";
    using Names = std::vector<std::string>;
    EXPECT_EQ(MetricsFile::losses_not_finite(path, 1), Names());
    {
        MetricsFile file(path);
        StepReport bad = report(1);
        bad.loss = std::nan("");
        file.write(bad);
        bad.val_loss = INFINITY;
        bad.step = 2;
        file.write(bad);
        bad.loss = 1.0;
        bad.step = 3;
        file.write(bad);
        file.write(report(4));
    }
    EXPECT_EQ(MetricsFile::losses_not_finite(path, 1), Names{"loss"});
    EXPECT_EQ(MetricsFile::losses_not_finite(path, 2), (Names{"loss", "val_loss"}));
    EXPECT_EQ(MetricsFile::losses_not_finite(path, 3), Names{"val_loss"});
    EXPECT_EQ(MetricsFile::losses_not_finite(path, 4), Names());
}

TEST(MetricsFile, IsReadableAfterEveryLine) {
    const TemporaryDirectory directory;
    const auto path = directory / "metrics.jsonl";
    MetricsFile metrics(path);
    for (std::int64_t step = 1; step <= 3; ++step) {
        metrics.write(report(step));
        EXPECT_EQ(lines_of(path).size(), static_cast<std::size_t>(step));
    }
}

/// Writes a metrics file of this many steps, then the events of these checkpoints.
void write_run(const std::filesystem::path& path, std::int64_t steps,
               std::initializer_list<std::int64_t> checkpoints) {
    MetricsFile metrics(path);
    for (std::int64_t step = 1; step <= steps; ++step) metrics.write(report(step));
    for (const std::int64_t step : checkpoints) metrics.write_checkpoint_event(step);
}

TEST(MetricsFile, IsTruncatedToTheCheckpointsStep) {
    const TemporaryDirectory directory;
    const auto path = directory / "metrics.jsonl";
    {
        MetricsFile metrics(path);
        for (std::int64_t step = 1; step <= 6; ++step) {
            metrics.write(report(step));
            if (step == 3) metrics.write_checkpoint_event(2);  // step 2's save is reported at step 3
        }
        metrics.write_checkpoint_event(5);
    }
    std::ofstream(path, std::ios::app) << "not json\n"
                                       << R"({"step":4,"loss":)";
    MetricsFile metrics(path, 4);
    metrics.write(report(5));
    std::vector<std::string> expected;
    for (const std::int64_t step : {1, 2, 3}) expected.push_back(metrics_line(report(step)));
    expected.emplace_back(R"({"event":"checkpoint","step":2})");
    expected.push_back(metrics_line(report(4)));
    expected.emplace_back(R"({"event":"checkpoint","step":4})");  // the checkpoint that is resumed from
    expected.push_back(metrics_line(report(5)));
    EXPECT_EQ(lines_of(path), expected);
}

/// A run saved a step's checkpoint while the step's evaluation was pending, later wrote that step's line, and
/// was killed before the next checkpoint. The resumed run evaluates and writes the line again, so the old
/// line must be removed.
TEST(MetricsFile, IsTruncatedBeforeAnUnwrittenLine) {
    const TemporaryDirectory directory;
    const auto path = directory / "metrics.jsonl";
    write_run(path, 3, {2});
    MetricsFile metrics(path, 2, LastStep::unwritten);
    EXPECT_EQ(lines_of(path),
              (std::vector<std::string>{metrics_line(report(1)), R"({"event":"checkpoint","step":2})"}));
}

TEST(MetricsFile, AddsNoEventForAStepThatWasNotSaved) {
    const TemporaryDirectory directory;
    const auto path = directory / "metrics.jsonl";
    write_run(path, 4, {2, 4});
    MetricsFile metrics(path, 3, LastStep::unsaved);
    EXPECT_EQ(lines_of(path),
              (std::vector<std::string>{metrics_line(report(1)), metrics_line(report(2)),
                                        metrics_line(report(3)), R"({"event":"checkpoint","step":2})"}));
}

TEST(MetricsFile, KeepsTheSamplesOfTheStepsThatItKeeps) {
    const TemporaryDirectory directory;
    const auto path = directory / "metrics.jsonl";
    const auto write_steps = [&](MetricsFile& metrics, std::int64_t first) {
        for (std::int64_t step = first; step <= 4; ++step) {
            metrics.write(report(step));
            metrics.write_sample(step, "One \xff", concat("text ", step));
        }
    };
    {
        MetricsFile metrics(path);
        write_steps(metrics, 1);
    }
    const std::vector<std::string> all = lines_of(path);
    EXPECT_EQ(json::parse(all[1]),
              (json{{"event", "sample"}, {"step", 1}, {"prompt", "One \xEF\xBF\xBD"}, {"text", "text 1"}}));
    // A sample's event is not a checkpoint's event, so the constructor adds the checkpoint's event. If the
    // last step's line is unwritten, its sample is removed, too.
    EXPECT_EQ(MetricsFile::newest_saves(path).announced, 0);
    { MetricsFile metrics(path, 2); }
    EXPECT_EQ(lines_of(path), (std::vector<std::string>{all[0], all[1], all[2], all[3],
                                                        R"({"event":"checkpoint","step":2})"}));
    { MetricsFile metrics(path, 2, LastStep::unwritten); }
    EXPECT_EQ(lines_of(path),
              (std::vector<std::string>{all[0], all[1], R"({"event":"checkpoint","step":2})"}));
}

TEST(MetricsFile, ALongSampleIsShortenedToALineThatCanBeRead) {
    const TemporaryDirectory directory;
    const auto path = directory / "metrics.jsonl";
    {
        MetricsFile metrics(path);
        metrics.write_sample(1, std::string(100'000, '\x01'), std::string(100'000, '\x02'));
    }
    EXPECT_LT(lines_of(path).at(0).size(), MetricsFile::max_line_bytes);
}

TEST(MetricsFile, KnowsTheWallTimeOfTheStepThatIsResumedFrom) {
    const TemporaryDirectory directory;
    const auto path = directory / "metrics.jsonl";
    {
        MetricsFile metrics(path);
        EXPECT_EQ(metrics.wall_s(), 0.0);
        for (std::int64_t step = 1; step <= 6; ++step) metrics.write(report(step));
    }
    EXPECT_EQ(MetricsFile(path, 4, LastStep::unwritten).wall_s(), 1.5);
    EXPECT_EQ(MetricsFile(path, 2).wall_s(), 1.0);
    for (const auto& [wall, expected] :
         {std::pair{"\"7\"", 0.0}, {"-3", 0.0}, {"null", 0.0}, {"1e300", 1e10}, {"2.5", 2.5}}) {
        std::ofstream(path) << R"({"step":1,"loss":2,"wall_s":)" << wall << "}\n";
        EXPECT_EQ(MetricsFile(path, 1).wall_s(), expected) << wall;
    }
    std::ofstream(path) << R"({"step":1,"loss":2,"ms":5})" << '\n';  // a file from an older version
    EXPECT_EQ(MetricsFile(path, 1).wall_s(), 0.0);
}

TEST(MetricsFile, ThatWasRemovedIsReportedAtTheNextCheckpoint) {
    const TemporaryDirectory place;
    const auto path = place / "metrics.jsonl";
    MetricsFile file(path, -1);
    file.write_checkpoint_event(1);
    std::filesystem::remove(path);
    EXPECT_EQ(test::message_of([&] { file.write_checkpoint_event(2); }),
              concat("metrics ", path.string(), ": was removed during the run; its lines are lost"));
}

TEST(MetricsFile, ReadsTheLossesBack) {
    const TemporaryDirectory directory;
    const auto path = directory / "metrics.jsonl";
    MetricsFile metrics(path);
    StepReport bad = report(1);
    bad.loss = std::nan("");
    metrics.write(bad);
    StepReport evaluated = report(2);
    evaluated.val_loss = 1.5;
    metrics.write(evaluated);
    metrics.write_checkpoint_event(2);
    const LossHistory history = MetricsFile::read(path);
    ASSERT_EQ(history.train.size(), 1u);
    EXPECT_EQ(history.train[0].step, 2);
    ASSERT_EQ(history.validation.size(), 1u);
    EXPECT_EQ(history.validation[0].loss, 1.5);
    EXPECT_TRUE(MetricsFile::read(directory / "absent").train.empty());
}

}  // namespace
}  // namespace gradtile
