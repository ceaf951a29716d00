#include <gradtile/tools/live/dashboard.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradtile {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Not;
using testing::StartsWith;

TEST(Sparkline, HasEightLevelsInARow) {
    const std::vector<double> rising{0, 1, 2, 3, 4, 5, 6, 7};
    EXPECT_THAT(sparkline(rising, {0, 7}, 1, Glyphs::unicode), ElementsAre("▁▂▃▄▅▆▇█"));
    EXPECT_THAT(sparkline(rising, {0, 7}, 1, Glyphs::ascii), ElementsAre("..:-=+*#"));
    EXPECT_THAT(sparkline(std::vector<double>{0, 15, 7, 8}, {0, 15}, 2, Glyphs::unicode),
                ElementsAre(" █ ▁", "▁███"));
}

TEST(Sparkline, DrawsAConstantCurveInTheMiddle) {
    EXPECT_THAT(sparkline(std::vector<double>{2, 2}, {2, 2}, 1, Glyphs::unicode), ElementsAre("▅▅"));
}

TEST(Sparkline, ResamplesWithoutLosingAValue) {
    std::vector<double> values;
    for (int i = 0; i < 1000; ++i) values.push_back(i);
    EXPECT_EQ(resampled(values, 2000), values);
    EXPECT_THAT(resampled(values, 2), ElementsAre(249.5, 749.5));
    for (const std::size_t columns : {1, 3, 7, 640, 999}) {
        const std::vector<double> few = resampled(values, columns);
        EXPECT_EQ(few.size(), columns);
        EXPECT_TRUE(std::ranges::is_sorted(few));
    }
}

TEST(ThinnedCurve, HasBoundedMemoryAndKeepsTheMean) {
    ThinnedCurve curve;
    constexpr int steps = 100'000;
    for (int i = 0; i < steps; ++i) {
        curve.add(i);
        curve.add(i % 2 == 0 ? NAN : INFINITY);
    }
    const std::vector<double> means = curve.means();
    EXPECT_LE(means.size(), ThinnedCurve::max_groups);
    EXPECT_GT(means.size(), ThinnedCurve::max_groups / 4);
    EXPECT_TRUE(std::ranges::is_sorted(means));
    // Groups have 64 steps, the largest power of two with steps / group > max_groups / 2.
    EXPECT_EQ(means.front(), 31.5);
    EXPECT_EQ(means[1], 95.5);
}

TEST(ProgressBar, IsFullAtTheEndOnly) {
    EXPECT_EQ(progress_bar(0.0, 4, Glyphs::ascii), "....");
    EXPECT_EQ(progress_bar(0.999, 4, Glyphs::ascii), "###.");
    EXPECT_EQ(progress_bar(1.0, 4, Glyphs::ascii), "####");
    EXPECT_EQ(progress_bar(2.0, 2, Glyphs::unicode), "██");
}

std::vector<std::string> texts(const DashboardState& state, const TerminalSize& size,
                               Glyphs glyphs = Glyphs::ascii) {
    std::vector<std::string> result;
    for (const DashboardLine& line : dashboard_lines(state, size, glyphs)) result.push_back(line.text);
    return result;
}

DashboardState some_state() {
    return {.options = {.last_step = 1500, .flops_per_token = 5e6, .peak_flops = 6.1234e11},
            .report =
                {.step = 500, .loss = 0.61234, .lr = 0.00123, .grad_norm = 0.412, .ms = 12.61, .wall_s = 41},
            .part = {},
            .tokens_per_s = 61234.0,
            .seconds_left = 82.0,
            .evaluation = ProgressEvaluation{0.7, 500},
            .best = ProgressEvaluation{0.65, 250},
            .memory = MemoryUse{std::size_t{412} << 20, std::size_t{24064} << 20},
            .losses = {4.0, 3.0, 2.0, 1.0}};
}

TEST(Dashboard, ShowsTheRun) {
    EXPECT_THAT(
        texts(some_state(), {80, 24}),
        ElementsAre("step 500/1500  33%  elapsed 0:41  ETA 1:22", std::string(26, '#') + std::string(53, '.'),
                    "loss 0.6123  val 0.7000 @ 500  best 0.6500 @ 250", "      4 |#   ", "        |#+  ",
                    "        |##: ", "      1 |###.", "61.2k tokens/s  12.6 ms/step  306 GFLOP/s  MFU 50%",
                    "memory 412 MiB of 23.5 GiB  lr 0.00123  gradient norm 0.412"));
}

TEST(Dashboard, OmitsTheLeastImportantFirst) {
    EXPECT_THAT(
        texts(some_state(), {40, 24}),
        testing::AllOf(Contains("step 500/1500  33%  ETA 1:22"), Contains("loss 0.6123  val 0.7000 @ 500"),
                       Contains("61.2k tokens/s  12.6 ms/step  MFU 50%"),
                       Contains("memory 412 MiB of 23.5 GiB  lr 0.00123")));
    EXPECT_THAT(texts(some_state(), {80, 4}),
                ElementsAre(StartsWith("step 500"), StartsWith("loss 0.6"), StartsWith("61.2k")));
    EXPECT_THAT(texts(some_state(), {80, 1}), ElementsAre(StartsWith("step 500")));
}

TEST(Dashboard, FitsEveryTerminal) {
    for (const Glyphs glyphs : {Glyphs::ascii, Glyphs::unicode})
        for (std::size_t columns = 1; columns < 130; ++columns)
            for (std::size_t rows = 1; rows < 14; ++rows) {
                const auto lines = dashboard_lines(some_state(), {columns, rows}, glyphs);
                EXPECT_LE(lines.size(), std::max<std::size_t>(rows, 2) - 1);
                for (const DashboardLine& line : lines) {
                    const auto characters = std::ranges::count_if(
                        line.text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
                    EXPECT_EQ(static_cast<std::size_t>(characters), line.columns) << line.text;
                    EXPECT_LE(line.columns, std::max<std::size_t>(columns, 2) - 1);
                }
            }
}

TEST(Dashboard, BeginsWithoutAStep) {
    DashboardState state;
    state.options.last_step = 10;
    EXPECT_THAT(texts(state, {20, 24}), ElementsAre("step 0/10  0%", std::string(19, '.')));
}

TEST(Dashboard, ShowsThePartOfALongStep) {
    DashboardState state = some_state();
    state.part = {.step = 501, .kind = StepPart::Kind::micro_steps, .done = 3, .all = 128};
    EXPECT_THAT(texts(state, {80, 24}),
                Contains("step 500/1500  33%  micro-step 3/128  elapsed 0:41  ETA 1:22"));
}

TEST(Dashboard, ShowsALossThatIsNotFinite) {
    DashboardState state = some_state();
    state.report.loss = NAN;
    state.losses = {1e9, 2e-9};
    EXPECT_THAT(texts(state, {80, 24}),
                testing::AllOf(Contains(StartsWith("loss nan")), Contains(StartsWith("  1e+09 |")),
                               Contains(StartsWith("  2e-09 |"))));
}

}  // namespace
}  // namespace gradtile
