// The `gradtile report` page, without a browser. tests/judge/report_page_judge.py uses one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <sstream>

#include <gradtile/core/check.h>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class Report : public testing::Test {
  protected:
    /// Writes a run's directory by hand.
    std::string write_run(const std::string& name, const std::string& metrics,
                          const std::string& config = R"({"lr": 0.001, "batch": 4, "context": 16})") const {
        const std::filesystem::path directory = place_ / name;
        std::filesystem::create_directories(directory);
        std::ofstream(directory / "metrics.jsonl", std::ios::binary) << metrics;
        if (!config.empty()) std::ofstream(directory / "config.json") << config;
        return directory.string();
    }
    std::string page_of(const Arguments& runs, std::vector<std::string> warnings = {}) const {
        const Outcome outcome = run(Arguments{"report", "--out", page_} + runs);
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        EXPECT_THAT(outcome.out, HasSubstr(concat(runs.size(), runs.size() == 1 ? " run\n" : " runs\n")));
        const std::vector<std::string> lines = outcome.error_lines();
        EXPECT_EQ(lines.size(), warnings.size()) << outcome.err;
        for (std::size_t i = 0; i < std::min(lines.size(), warnings.size()); ++i)
            EXPECT_THAT(lines[i], HasSubstr(warnings[i]));
        return contents_of(page_);
    }
    static json data_of(const std::string& page) {
        const std::string begin = "<script type=\"application/json\" id=\"data\">";
        const std::size_t position = page.find(begin);
        return json::parse(
            page.substr(position + begin.size(), page.find("</script>", position) - position - begin.size()));
    }
    void refused(const Arguments& arguments, const std::vector<std::string>& parts) const {
        expect_refused(run(Arguments{"report"} + arguments), parts);
        EXPECT_FALSE(std::filesystem::exists(page_));
    }

    TemporaryDirectory place_;
    std::string page_ = (place_ / "report.html").string();
};

constexpr const char* two_steps =
    "{\"step\":1,\"loss\":3,\"lr\":0.1,\"grad_norm\":1,\"tokens_per_s\":50,\"ms\":2000,\"tokens\":64,"
    "\"wall_s\":2.5}\n"
    "{\"event\":\"checkpoint\",\"step\":1}\n"
    "{\"step\":2,\"loss\":2.5,\"val_loss\":2.75,\"lr\":0.2,\"grad_norm\":2,\"tokens_per_s\":70,\"ms\":1000,"
    "\"tokens\":128,\"wall_s\":4}\n";

TEST_F(Report, HasTheMetricsOfTrainedRunsAndTheSettingsThatDiffer) {
    const std::string stories = write_stories(place_);
    Arguments runs;
    for (const char* lr : {"0.01", "0.001"}) {
        runs.push_back((place_ / concat("lr-", lr)).string());
        expect_success(
            run(tiny_training(stories, runs.back()) + Arguments{"--lr", lr, "--eval-every", "4", "--quiet"}));
    }
    const json data = data_of(page_of(runs));
    ASSERT_EQ(data.at("runs").size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
        const json& shown = data.at("runs").at(i);
        EXPECT_EQ(shown.at("name"), i == 0 ? "lr-0.01" : "lr-0.001");
        const std::vector<json> steps = steps_of(runs[i]);
        ASSERT_EQ(shown.at("steps").at("step").size(), 8u);
        for (std::size_t step = 0; step < 8; ++step) {
            EXPECT_EQ(shown.at("steps").at("step").at(step), step + 1);
            EXPECT_EQ(shown.at("steps").at("tokens").at(step), (step + 1) * 4 * 16);
            EXPECT_NEAR(shown.at("steps").at("loss").at(step).get<double>(),
                        steps[step].at("loss").get<double>(), 1e-6);
        }
        EXPECT_EQ(shown.at("evaluations").at("step"), (json{4, 8}));
        EXPECT_NEAR(shown.at("evaluations").at("val_loss").at(1).get<double>(),
                    steps[7].at("val_loss").get<double>(), 1e-6);
        EXPECT_EQ(shown.at("results").at("tokens"), 8 * 4 * 16);
    }
    const json& settings = data.at("settings");
    ASSERT_EQ(settings.size(), 1u) << settings;
    EXPECT_EQ(settings.at(0).at("name"), "lr");
    EXPECT_EQ(settings.at(0).at("values"), (json{"0.01", "0.001"}));
}

TEST_F(Report, NeedsNoNetwork) {
    const std::string page = page_of({write_run("a", two_steps)});
    for (const char* reference : {"http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttpRequest",
                                  "innerHTML", "@style@", "@script@", "@runs@"})
        EXPECT_THAT(page, Not(HasSubstr(reference)));
    EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST_F(Report, NamesAndSettingsCannotBecomeMarkup) {
    const std::string hostile = "</script><script>alert(1)<!--";
    // A directory's name has no slash.
    const std::string name = "<script>alert(1)<!--\x1b[31m";
    const std::string page =
        page_of({write_run(name, two_steps, json{{"data", hostile}, {"@runs@", 1}}.dump()),
                 write_run("b\xff", two_steps, R"({"data": "other"})")});
    EXPECT_THAT(page, Not(HasSubstr("alert(1)<")));
    EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
    EXPECT_THAT(page, Not(HasSubstr("\x1b")));
    const json data = data_of(page);
    EXPECT_EQ(data.at("runs").at(0).at("name"), "<script>alert(1)<!--\\u001b[31m");
    EXPECT_EQ(data.at("runs").at(1).at("name"), "b\\xff");
    EXPECT_EQ(data.at("settings").at(1).at("values"), (json{hostile, "other"}));
}

TEST_F(Report, LeavesOutBadLinesAndNamesThemInOneLine) {
    const std::string bad =
        std::string("not json\n[]\n{\"step\":\"7\",\"loss\":1}\n{\"step\":-1,\"loss\":1}\n") +
        "{\"step\":3}\n" + two_steps + "{\"step\":3,\"lo";
    const json data =
        data_of(page_of({write_run("run", bad)},
                        {"metrics.jsonl: 5 lines are not steps and are left out, the first is line 1",
                         "metrics.jsonl: the last line is truncated"}));
    const json& shown = data.at("runs").at(0);
    EXPECT_EQ(shown.at("steps").at("step"), (json{1, 2}));
    EXPECT_EQ(shown.at("steps").at("seconds"), (json{2.5, 4}));
    EXPECT_EQ(shown.at("warnings").size(), 2u);
}

TEST_F(Report, ReadsRunsOfOlderVersionsAndNumbersThatAreNotFinite) {
    const json data = data_of(page_of({write_run(
        "old",
        "{\"step\":1,\"loss\":3,\"ms\":500}\n{\"step\":2,\"loss\":null,\"ms\":250,\"not_finite\":\"loss\"}\n"
        "{\"step\":3,\"loss\":9,\"ms\":250}\n{\"step\":3,\"loss\":2,\"ms\":500}\n")}));
    const json& shown = data.at("runs").at(0);
    EXPECT_EQ(shown.at("steps").at("tokens"), (json{64, 128, 192}));
    EXPECT_EQ(shown.at("steps").at("seconds"), (json{0.5, 0.75, 1.25}));
    EXPECT_EQ(shown.at("steps").at("loss"), (json{3, nullptr, 2}));
    EXPECT_EQ(shown.at("results").at("refused_updates"), 1);
    EXPECT_FALSE(shown.at("results").contains("best_val_loss"));
}

TEST_F(Report, NumbersBelowTheRangeOfNormalOnesAreShown) {
    const json data = data_of(page_of({write_run("run", "{\"step\":1,\"loss\":1e-310,\"lr\":5e-324}\n")}));
    const json& steps = data.at("runs").at(0).at("steps");
    EXPECT_EQ(steps.at("loss"), json{1e-310});
    EXPECT_EQ(steps.at("lr"), json{5e-324});
}

TEST_F(Report, WarningsAboutAPathThatIsNotUtf8AreEscaped) {
    const std::string truncated = std::string(two_steps) + "{\"step\":3";
    const json data = data_of(page_of({write_run("b\xff", truncated, "")},
                                      {"b\\xff/config.json", "b\\xff/metrics.jsonl: the last line"}));
    for (const json& warning : data.at("runs").at(0).at("warnings"))
        EXPECT_THAT(warning.get<std::string>(), HasSubstr("b\\xff/"));
}

TEST_F(Report, AFileWithoutSettingsIsShownWithAWarning) {
    const std::string run = write_run("bare", two_steps, "");
    const json data = data_of(page_of({run + "/metrics.jsonl"}, {"config.json"}));
    EXPECT_EQ(data.at("runs").at(0).at("name"), "bare");
    EXPECT_EQ(data.at("runs").at(0).at("warnings").at(0),
              run + "/config.json: cannot be opened: No such file or directory");
    write_run("bare", two_steps, "{\"lr\": ");
    page_of({run}, {"config.json"});
}

TEST_F(Report, LongRunsAreMeansOfSeveralSteps) {
    std::ostringstream lines;
    for (int step = 1; step <= 5001; ++step)
        lines << R"({"step":)" << step << R"(,"loss":)" << step << R"(,"val_loss":)" << step << "}\n";
    const json data = data_of(page_of({write_run("long", lines.str())}));
    const json& shown = data.at("runs").at(0);
    EXPECT_EQ(shown.at("group"), 3);
    ASSERT_EQ(shown.at("steps").at("step").size(), 1667u);
    EXPECT_EQ(shown.at("steps").at("loss").at(1), 5);
    EXPECT_EQ(shown.at("steps").at("step").at(1), 6);
    EXPECT_EQ(shown.at("evaluations").at("step").back(), 5001);
    EXPECT_LE(shown.at("evaluations").at("step").size(), 2001u);
    EXPECT_EQ(shown.at("results").at("best_step"), 1);
}

TEST_F(Report, EqualNamesAreToldApartByTheirPaths) {
    const std::string a = write_run("x/run", two_steps), b = write_run("y/run", two_steps);
    const json data = data_of(page_of({a, b}));
    EXPECT_EQ(data.at("runs").at(0).at("name"), a);
    EXPECT_EQ(data.at("runs").at(1).at("name"), b);
    EXPECT_EQ(data.at("settings"), json::array());
}

TEST_F(Report, RefusesInOneLine) {
    const std::string run = write_run("run", two_steps);
    refused({"--out", page_}, {"runs"});
    refused({run}, {"--out"});
    refused({run, "--out", ""}, {"--out"});
    refused({(place_ / "none").string(), "--out", page_}, {"metrics", "none", "No such file"});
    refused({write_run("empty", ""), "--out", page_}, {"empty/metrics.jsonl", "has no step"});
    refused({write_run("zeros", std::string(100, '\0') + "\n"), "--out", page_},
            {"zeros/metrics.jsonl", "has no step", "line 1"});
    std::filesystem::create_directory(place_ / "nothing");
    refused({(place_ / "nothing").string(), "--out", page_}, {"nothing/metrics.jsonl"});
    const std::string pipe = (place_ / "pipe").string();
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    refused({pipe, "--out", page_}, {"pipe", "is not a regular file"});
    refused({run, "--out", (place_ / "none" / "report.html").string()}, {"none/report.html"});
    refused(Arguments(25, run) + Arguments{"--out", page_}, {"25 runs", "at most 24"});
}

TEST_F(Report, ShowsSamplesOverTime) {
    std::string lines = two_steps;
    lines += R"({"event":"sample","step":1,"prompt":"One ","text":"old"})"
             "\n"
             R"({"event":"sample","step":1,"prompt":"One ","text":"day <b>\u001b[31m"})"
             "\n"
             R"({"event":"sample","step":"2","prompt":"","text":""})"
             "\n"
             R"({"event":"sample","step":2,"prompt":3,"text":""})"
             "\n";
    for (int step = 10; step < 60; ++step)
        lines += concat(R"({"event":"sample","step":)", step, R"(,"prompt":"","text":"t"})", "\n");
    const json data = data_of(page_of({write_run("samples", lines), write_run("none", two_steps)}));
    const json& samples = data.at("runs").at(0).at("samples");
    ASSERT_EQ(samples.size(), 12u);  // the page shows 12 of the 51 samples
    EXPECT_EQ(samples.front(), (json{{"step", 1}, {"text", "One day <b>\\u001b[31m"}}));
    EXPECT_EQ(samples.back().at("step"), 59);
    EXPECT_TRUE(data.at("runs").at(1).at("samples").empty());
}

}  // namespace
}  // namespace gradtile::test
