#include <gradtile/train/progress.h>

#include <gtest/gtest.h>

#include <gradtile/train/loss_svg.h>

namespace gradtile {
namespace {

TEST(Progress, LineNamesStepLossSpeedAndTimeLeft) {
    const StepReport report{.step = 1200, .loss = 1.51234, .tokens_per_s = 61234.0};
    EXPECT_EQ(progress_line(report, {.last_step = 2000}, {}, 75.0),
              "step 1200/2000  loss 1.5123  61.2k tokens/s  ETA 1:15");
    EXPECT_EQ(progress_line(report, {.last_step = 2000, .flops_per_token = 5e6, .peak_flops = 6.1234e11}, 1.7,
                            3675.0),
              "step 1200/2000  loss 1.5123  val 1.7000  61.2k tokens/s  306 GFLOP/s (MFU 50%)  ETA 1:01:15");
}

TEST(Progress, WritesWholeLinesWhereNothingCanBeRewritten) {
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

std::size_t count(const std::string& text, const std::string& what) {
    std::size_t found = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
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

TEST(LossSvg, IsAPictureFromTheFirstStepOn) {
    LossHistory history;
    EXPECT_EQ(count(loss_svg(history, "empty"), "</svg>"), 1u);
    history.train.push_back({1, 4.2});
    const std::string svg = loss_svg(history, "one");
    EXPECT_EQ(count(svg, "nan") + count(svg, "inf"), 0u);
}

}  // namespace
}  // namespace gradtile
