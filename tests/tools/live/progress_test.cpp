#include <gradtile/tools/live/progress.h>

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include <gradtile/tools/observers/loss_svg.h>

namespace gradtile {
namespace {

TEST(Progress, LineNamesStepLossSpeedAndTimeLeft) {
    const StepReport report{.step = 1200, .loss = 1.51234, .tokens_per_s = 61234.0};
    EXPECT_EQ(progress_line(progress_fields(report, {.last_step = 2000}, {}, 75.0)),
              "step 1200/2000  loss 1.5123  61.2k tokens/s  ETA 1:15");
    const ProgressOptions all{.last_step = 2000, .flops_per_token = 5e6, .peak_flops = 6.1234e11};
    EXPECT_EQ(progress_line(progress_fields(report, all, ProgressEvaluation{1.7, 1200}, 3675.0)),
              "step 1200/2000  loss 1.5123  val 1.7000  61.2k tokens/s  306 GFLOP/s  MFU 50%  ETA 1:01:15");
}

TEST(Progress, AnOldEvaluationIsMarkedWithItsStep) {
    const StepReport report{.step = 1200, .loss = 1.5, .tokens_per_s = 10.0};
    EXPECT_EQ(
        progress_line(progress_fields(report, {.last_step = 2000}, ProgressEvaluation{1.7, 1000}, 75.0)),
        "step 1200/2000  loss 1.5000  val 1.7000 @ 1000  10 tokens/s  ETA 1:15");
}

TEST(Progress, ATooLongLineOmitsItsLeastImportantParts) {
    const StepReport report{.step = 599999, .loss = 1.51234, .tokens_per_s = 61234.0};
    const ProgressOptions options{.last_step = 600000, .flops_per_token = 5e6, .peak_flops = 6e11};
    const auto fields = progress_fields(report, options, ProgressEvaluation{1.7, 599000}, 8e6);
    EXPECT_EQ(
        progress_line(fields),
        "step 599999/600000  loss 1.5123  val 1.7000 @ 599000  61.2k tokens/s  306 GFLOP/s  MFU 51%  ETA "
        "2222:13:20");
    EXPECT_EQ(progress_line(fields, 80), "step 599999/600000  loss 1.5123  61.2k tokens/s  ETA 2222:13:20");
    EXPECT_EQ(progress_line(fields, 40), "step 599999/600000  loss 1.5123");
    EXPECT_EQ(progress_line(fields, 7), "step 59");
    EXPECT_EQ(progress_line(fields, 0), "");
    for (std::size_t columns = 0; columns < 120; ++columns)
        EXPECT_LE(progress_line(fields, columns).size(), columns);
}

TEST(Progress, PrintsNewLinesWithoutATerminal) {
    std::FILE* file = std::tmpfile();
    {
        Progress progress(file, {.last_step = 100, .every = 25});
        for (std::int64_t step = 1; step <= 100; ++step) progress({.step = step, .loss = 1.0});
    }
    std::rewind(file);
    int lines = 0;
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
        EXPECT_NE(c, '\r');
        lines += c == '\n';
    }
    std::fclose(file);
    EXPECT_EQ(lines, 4);
}

TEST(Progress, ShowsThePartsOfLongSteps) {
    const StepPart micro_step{.step = 42, .kind = StepPart::Kind::micro_steps, .done = 3, .all = 128};
    const StepPart window{.step = 42, .kind = StepPart::Kind::evaluation_windows, .done = 7, .all = 90};
    EXPECT_EQ(progress_line(progress_fields(micro_step, {.last_step = 2000})),
              "step 42/2000  micro-step 3/128");
    EXPECT_EQ(progress_line(progress_fields(window, {.last_step = 2000})),
              "step 42/2000  evaluation window 7/90");
    for (const bool is_long : {false, true}) {
        std::FILE* file = std::tmpfile();
        {
            Progress progress(file, {.last_step = 2000, .patience = is_long ? 0.0 : 1000.0});
            progress(micro_step);
            progress(window);
        }
        EXPECT_EQ(std::ftell(file) > 0, is_long);
        std::fclose(file);
    }
}

std::size_t count(const std::string& text, const std::string& what) {
    std::size_t found = 0;
    for (std::size_t position = text.find(what); position != std::string::npos;
         position = text.find(what, position + 1))
        ++found;
    return found;
}

TEST(LossSvg, ShowsAPointForEveryValidationAndThinsLongCurves) {
    LossHistory history;
    for (std::int64_t step = 1; step <= 20000; ++step)
        history.train.push_back({step, 1.0 + 3.0 / static_cast<double>(step)});
    for (const std::int64_t step : {5000, 10000, 20000}) history.validation.push_back({step, 1.2});
    const std::string svg = loss_svg(history, "a <run> & more");
    EXPECT_EQ(count(svg, "<circle"), 3u);
    EXPECT_EQ(count(svg, "<path"), 3u);
    EXPECT_LT(svg.size(), 60000u);
    EXPECT_EQ(count(svg, "a &lt;run&gt; &amp; more"), 1u);
    EXPECT_EQ(count(svg, "nan"), 0u);
}

TEST(LossSvg, IsValidFromTheFirstStepOn) {
    LossHistory history;
    EXPECT_EQ(count(loss_svg(history, "empty"), "</svg>"), 1u);
    history.train.push_back({1, 4.2});
    const std::string svg = loss_svg(history, "one");
    EXPECT_EQ(count(svg, "nan") + count(svg, "inf"), 0u);
}

/// metrics.jsonl may hold any loss. Where the distance between two grid lines vanishes in rounding, the lines
/// would have no end.
TEST(LossSvg, AnyLossesHaveFewGridLines) {
    for (const double loss : {1e13, 1e15, -1e15, 1e100, 1.7e308, -1.7e308, 5e-324}) {
        LossHistory history;
        history.train = {{1, loss}, {2, loss}};
        EXPECT_LT(count(loss_svg(history, "equal"), "<line"), 60u) << loss;
        history.validation = {{INT64_MAX, -loss}, {INT64_MIN, std::nextafter(loss, 0.0)}};
        EXPECT_LT(count(loss_svg(history, "any"), "<line"), 60u) << loss;
    }
}

}  // namespace
}  // namespace gradtile
