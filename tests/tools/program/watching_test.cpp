// A run's reports: metrics.jsonl and the last lines that `gradtile train` prints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <sstream>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;

std::vector<json> metrics_of(const std::filesystem::path& run) {
    std::vector<json> lines;
    std::istringstream file(contents_of(run / "metrics.jsonl"));
    for (std::string line; std::getline(file, line);)
        if (json object = json::parse(line); !object.contains("event")) lines.push_back(std::move(object));
    return lines;
}

/// The lines "key: value" at the end of the output, from "step" on.
struct Results {
    explicit Results(const std::string& out) {
        std::istringstream lines(out.substr(out.rfind("\nstep: ") + 1));
        for (std::string line; std::getline(lines, line);) {
            const std::size_t colon = line.find(": ");
            EXPECT_NE(colon, std::string::npos) << line;
            keys.push_back(line.substr(0, colon));
            values[keys.back()] = line.substr(colon + 2);
        }
    }
    double number(const std::string& key) const { return std::stod(values.at(key)); }

    std::vector<std::string> keys;
    std::map<std::string, std::string> values;
};

class Watching : public testing::Test {
  protected:
    /// 8 steps of 4 x 16 tokens.
    Arguments training() const {
        return tiny_training(stories_, out_) + Arguments{"--eval-every", "4", "--quiet"};
    }
    Results results_of(const Arguments& arguments) const {
        const Outcome outcome = run(arguments);
        expect_success(outcome);
        return Results('\n' + outcome.out);
    }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
    std::filesystem::path out_ = place_ / "run";
};

TEST_F(Watching, TheLastLinesAreKeysAndValues) {
    const Results results = results_of(training());
    EXPECT_THAT(results.keys, ElementsAre("step", "loss", "val_loss", "best_val_loss", "tokens", "wall_s",
                                          "tokens_per_s", "checkpoint", "metrics", "loss_curve"));
    const std::vector<json> lines = metrics_of(out_);
    ASSERT_EQ(lines.size(), 8u);
    const json& last = lines.back();
    EXPECT_EQ(results.number("step"), 8);
    for (const char* key : {"loss", "val_loss"})
        EXPECT_NEAR(results.number(key), last.at(key).get<double>(), 1e-6) << key;
    EXPECT_NEAR(results.number("best_val_loss"),
                std::min(last.at("val_loss").get<double>(), lines[3].at("val_loss").get<double>()), 1e-6);
    EXPECT_EQ(results.number("tokens"), 8 * 4 * 16);
    EXPECT_GT(results.number("tokens_per_s"), 0);
    EXPECT_GE(results.number("wall_s") + 1e-3, last.at("wall_s").get<double>());
    for (const char* key : {"checkpoint", "metrics", "loss_curve"})
        EXPECT_TRUE(std::filesystem::exists(results.values.at(key))) << key;
}

TEST_F(Watching, WithoutAnEvaluationThereIsNoLineForIt) {
    const Results results = results_of(training() + Arguments{"--stop-after", "2"});
    EXPECT_THAT(results.keys, ElementsAre("step", "loss", "tokens", "wall_s", "tokens_per_s", "checkpoint",
                                          "metrics", "loss_curve"));
    EXPECT_EQ(results.number("tokens"), 2 * 4 * 16);
}

TEST_F(Watching, TokensAndWallTimeContinueAfterAResume) {
    const Results first = results_of(training() + Arguments{"--stop-after", "5"});
    // Edits metrics.jsonl: the first process seems to have been slow, and to have done step 6 after its last
    // checkpoint.
    std::string edited;
    std::istringstream before(contents_of(out_ / "metrics.jsonl"));
    for (std::string line; std::getline(before, line);) {
        json object = json::parse(line);
        if (object.contains("wall_s")) object["wall_s"] = 100.0 * object["step"].get<double>();
        edited += object.dump() + '\n';
    }
    std::ofstream(out_ / "metrics.jsonl")
        << edited << R"({"step":6,"loss":2,"tokens":384,"wall_s":9999})" << '\n';
    const Results second = results_of({"train", "--resume", out_.string(), "--quiet"});
    EXPECT_EQ(second.number("tokens"), 8 * 4 * 16);
    EXPECT_GT(second.number("wall_s"), 500.0);
    EXPECT_LT(second.number("wall_s"), 600.0);
    double wall = 0.0;
    std::int64_t step = 0;
    for (const json& line : metrics_of(out_)) {
        EXPECT_EQ(line.at("step"), ++step);
        EXPECT_EQ(line.at("tokens"), step * 4 * 16);
        EXPECT_GT(line.at("wall_s").get<double>(), wall);
        wall = line.at("wall_s");
    }
    EXPECT_EQ(step, 8);
    EXPECT_GT(wall, 500.0);
    EXPECT_LE(wall, second.number("wall_s") + 1e-3);
    // The rate counts the second process alone.
    EXPECT_GT(second.number("tokens_per_s"), 8 * 4 * 16 / 500.0);
}

/// Returns how many records an event file has; -1 if the last one is not complete.
std::int64_t complete_records(const std::string& bytes) {
    std::int64_t records = 0;
    for (std::size_t offset = 0; offset < bytes.size(); ++records) {
        std::uint64_t size = 0;
        if (bytes.size() - offset < sizeof size) return -1;
        std::memcpy(&size, &bytes[offset], sizeof size);
        offset += sizeof size + 4 + size + 4;
        if (offset > bytes.size()) return -1;
    }
    return records;
}

TEST_F(Watching, AFullDiskDoesNotStopEventsForTensorBoardInTheMiddleOfOne) {
    const auto events = place_ / "events";
    const Outcome outcome = run(training() + Arguments{"--tensorboard", events.string(), "--steps", "40"},
                                {.max_file_bytes = 4000});
    EXPECT_EQ(outcome.exit_code, 1);  // no checkpoint could be saved
    std::int64_t reports = 0;
    for (const std::string& line : outcome.error_lines())
        reports += line.starts_with("gradtile: tensorboard " + events.string() + ": ");
    EXPECT_EQ(reports, 1) << outcome.err;
    EXPECT_THAT(outcome.out, testing::HasSubstr("\nstep: 40\n"));
    const std::vector<std::filesystem::path> files(std::filesystem::directory_iterator(events), {});
    ASSERT_EQ(files.size(), 1u);
    const std::string bytes = contents_of(files[0]);
    EXPECT_GT(complete_records(bytes), 10);
    EXPECT_LE(bytes.size(), 4000u);
}

TEST_F(Watching, OnlyAFlagOrTheRunsOwnEventsNameADirectoryOfEvents) {
    const auto events = place_ / "events";
    const std::string file = place_.write("given.json", json{{"tensorboard", events.string()}}.dump());
    expect_refused(run(training() + Arguments{"--config", file}),
                   {"tensorboard: '" + events.string() + "' in " + file + " is outside the run's directory ",
                    "--tensorboard"});
    EXPECT_FALSE(exists(out_));
    EXPECT_FALSE(exists(events));
    expect_success(run(training() + Arguments{"--tensorboard", events.string(), "--stop-after", "4"}));
    const Arguments resume{"train", "--resume", out_.string(), "--quiet"};
    expect_success(run(resume + Arguments{"--stop-after", "6"}));  // the directory has this run's events
    std::filesystem::remove_all(events);
    expect_refused(run(resume), {"tensorboard: '" + events.string(), "is outside the run's directory"});
    EXPECT_FALSE(exists(events));
    expect_success(run(resume + Arguments{"--tensorboard", "", "--stop-after", "7"}));
    expect_success(run(resume + Arguments{"--tensorboard", events.string()}));
    EXPECT_TRUE(exists(events));
}

TEST_F(Watching, ADirectoryOfEventsIsRefusedBeforeTheRunExists) {
    const auto events = place_ / "events";
    const Arguments flags{"--tensorboard", events.string()};
    expect_success(run(training() + flags + Arguments{"--out", (place_ / "first").string()}));
    expect_refused(run(training() + flags), {"tensorboard " + events.string() + ": has the event file "});
    EXPECT_FALSE(exists(out_));
    expect_refused(run(training() + Arguments{"--tensorboard", stories_}),
                   {"tensorboard " + stories_ + ": is not a directory"});
    EXPECT_FALSE(exists(out_));
}

}  // namespace
}  // namespace gradtile::test
