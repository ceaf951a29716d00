// TensorBoard's event files, read by a small reader that shares no code with the writer.
#include <gradtile/tools/observers/tensorboard_events.h>

#include <chrono>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/error_message.h>
#include <support/temporary_directory.h>
#include <support/tensorboard_reader.h>

#include <train/tiny_run.h>

#include <gradtile/tools/observers/run_observers.h>
#include <gradtile/train/run/run_directory.h>

namespace gradtile {
namespace {

using test::crc_by_definition;
using test::Event;
using test::events_in;
using test::files_in;
using test::records_in;
using test::shown_steps;
using test::TemporaryDirectory;
using test::TinyRun;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::uint64_t> steps_up_to(std::uint64_t last) {
    std::vector<std::uint64_t> steps;
    for (std::uint64_t step = 1; step <= last; ++step) steps.push_back(step);
    return steps;
}

// ---- Records ----

TEST(TensorBoardRecord, HasTheChecksumsOfTensorFlow) {
    ASSERT_EQ(crc_by_definition("123456789"), 0xe3069283u);  // the published check value
    // The first twelve bytes in every event file that TensorFlow writes: a 24-byte record follows.
    const std::string record = tensorboard_record(std::string(24, 'x'));
    EXPECT_EQ(record.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
    EXPECT_THAT(records_in(record + tensorboard_record("") + tensorboard_record("123456789")),
                ElementsAre(std::string(24, 'x'), "", "123456789"));
}

StepReport report_of(std::int64_t step) {
    return {.step = step,
            .loss = 2.5,
            .lr = 1e-3,
            .grad_norm = INFINITY,
            .tokens_per_s = 61234.0,
            .ms = 12.5,
            .tokens = 100 * step,
            .wall_s = 0.5};
}

TEST(TensorBoardEvents, HoldTheNumbersOfMetrics) {
    const TemporaryDirectory place;
    const auto directory = place / "new/events";
    {
        TensorBoardEvents events(directory, TensorBoardEvents::Run::starts, "");
        events.write(report_of(1));
        StepReport evaluated = report_of(std::int64_t{1} << 40);
        evaluated.val_loss = 3.25;
        evaluated.loss = std::nan("");
        events.write(evaluated);
    }
    const std::vector<Event> events = events_in(files_in(directory).at(0));
    ASSERT_EQ(events.size(), 4u);
    EXPECT_EQ(events[0].file_version, "brain.Event:2");
    EXPECT_EQ(events[1].session_status, 1u);
    EXPECT_EQ(events[1].step, 1u);
    EXPECT_EQ(events[2].step, 1u);
    EXPECT_EQ(events[2].scalars, (std::map<std::string, float>{{"loss", 2.5f},
                                                               {"lr", 1e-3f},
                                                               {"grad_norm", INFINITY},
                                                               {"tokens_per_s", 61234.0f},
                                                               {"ms", 12.5f},
                                                               {"tokens", 100.0f},
                                                               {"wall_s", 0.5f}}));
    EXPECT_EQ(events[3].step, std::uint64_t{1} << 40);
    EXPECT_EQ(events[3].scalars.at("val_loss"), 3.25f);
    EXPECT_TRUE(std::isnan(events[3].scalars.at("loss")));
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    EXPECT_NEAR(events[3].wall_time, now.count(), 600.0);
}

/// The run returned from step 6 to the checkpoint of step 3, and later trained step 8 twice.
TEST(TensorBoardEvents, AStepThatIsTrainedAgainIsShownOnce) {
    const TemporaryDirectory place;
    {
        TensorBoardEvents events(place.path(), TensorBoardEvents::Run::starts, "");
        for (const std::int64_t step : {1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 8, 9}) events.write(report_of(step));
    }
    EXPECT_EQ(shown_steps(place.path()), steps_up_to(9));
    std::vector<std::uint64_t> starts;
    for (const Event& event : events_in(files_in(place.path()).at(0)))
        if (event.session_status == 1) starts.push_back(event.step);
    EXPECT_THAT(starts, ElementsAre(1, 4, 8));
}

// ---- Files ----

TEST(TensorBoardEvents, ALaterFileHasALaterNameWhateverTheClockSays) {
    const TemporaryDirectory place;
    place.write("events.out.tfevents.7000000000.somewhere.1.0", "of another program");
    for (std::int64_t step = 1; step <= 3; ++step)
        TensorBoardEvents(place.path(), TensorBoardEvents::Run::resumes, step == 1 ? "" : "ab")
            .write(report_of(step));
    std::vector<std::string> names;
    for (const auto& file : files_in(place.path())) names.push_back(file.filename().string());
    EXPECT_THAT(names, ElementsAre("events.out.tfevents.7000000000.somewhere.1.0",
                                   "events.out.tfevents.7000000001.gradtile",
                                   "events.out.tfevents.7000000002.gradtile.ab",
                                   "events.out.tfevents.7000000003.gradtile.ab"));
    EXPECT_TRUE(TensorBoardEvents::exist_in(place.path(), "ab"));
    for (const char* other : {"b", "abc", ""}) EXPECT_FALSE(TensorBoardEvents::exist_in(place.path(), other));
    EXPECT_FALSE(TensorBoardEvents::exist_in(place / "absent", "ab"));
}

TEST(TensorBoardEvents, ANameThatNoneCanFollowIsRefused) {
    const TemporaryDirectory place;
    place.write("events.out.tfevents.9999999999.x", "");
    TensorBoardEvents events(place.path(), TensorBoardEvents::Run::resumes, "");
    EXPECT_THAT(test::message_of([&] { events.write(report_of(1)); }),
                testing::AllOf(HasSubstr(place.path().string()), HasSubstr("no later name is possible")));
}

TEST(TensorBoardEvents, AStartRefusesADirectoryThatCannotBeUsed) {
    const TemporaryDirectory place;
    const auto refusal = [](const std::filesystem::path& directory) {
        return test::message_of([&] { TensorBoardEvents(directory, TensorBoardEvents::Run::starts, ""); });
    };
    const std::string file = place.write("file", "");
    EXPECT_THAT(refusal(file), HasSubstr("file: is not a directory"));
    EXPECT_THAT(refusal(place / "file/below"), HasSubstr("file/below: cannot create the directory"));
    std::filesystem::create_directory(place / "used");
    place.write("used/events.out.tfevents.1764000000.x", "");
    EXPECT_THAT(
        refusal(place / "used"),
        testing::AllOf(HasSubstr("has the event file events.out.tfevents.1764000000.x of another run"),
                       HasSubstr("expected a directory without event files")));
}

TEST(TensorBoardEvents, WithoutAStepThereIsNoFile) {
    const TemporaryDirectory place;
    { TensorBoardEvents(place.path(), TensorBoardEvents::Run::starts, ""); }
    EXPECT_TRUE(files_in(place.path()).empty());
}

// ---- Runs ----

class TensorBoardRun : public testing::Test, protected TinyRun {
  protected:
    TensorBoardRun() { config.tensorboard = events_.string(); }
    static std::unique_ptr<Trainer> observed(std::unique_ptr<Trainer> trainer, Named named) {
        add_tensorboard(*trainer, named, [](const std::string&) {});
        return trainer;
    }
    static std::unique_ptr<Trainer> trainer(const TrainConfig& config) {
        return observed(std::make_unique<Trainer>(config, [](const std::string&) {}), Named::by_a_file);
    }
    std::unique_ptr<Trainer> resumed(const ResumeOptions& options = {}) const {
        return observed(std::make_unique<Trainer>(config.out, options, [](const std::string&) {}),
                        options.changes.contains("tensorboard") ? Named::by_the_user : Named::by_a_file);
    }
    std::filesystem::path events_ = directory / "events";
};

TEST_F(TensorBoardRun, ShowsTheStepsOfMetricsAfterAResumeBeforeTheLastEvent) {
    trainer(config)->run(/*stop_after=*/8);
    // As if the process had been killed after step 8, and its last checkpoint were from step 5.
    std::filesystem::remove(directory / "run/checkpoints/step_00000008.h5");
    std::filesystem::remove(directory / "run/checkpoints/best.h5");
    resumed({.restart = true})->run();
    EXPECT_EQ(shown_steps(events_), steps_up_to(12));
    const auto files = files_in(events_);
    ASSERT_EQ(files.size(), 2u);
    EXPECT_EQ(events_in(files[0]).back().step, 8u);
    EXPECT_EQ(events_in(files[1])[1].step, 6u);  // the session start
}

TEST_F(TensorBoardRun, AnEvaluationThatWasInterruptedIsRepeated) {
    int calls = 0;
    {
        const auto stopped = trainer(config);
        stopped->on_part(
            [&](const StepPart& part) { calls += part.kind == StepPart::Kind::evaluation_windows; });
        stopped->stop_when([&] { return calls > 0; });
        EXPECT_TRUE(stopped->run().evaluation_pending);
    }
    EXPECT_EQ(shown_steps(events_), steps_up_to(4));
    resumed()->run();
    EXPECT_EQ(shown_steps(events_), steps_up_to(12));
}

TEST_F(TensorBoardRun, ResumesIntoAnotherDirectoryOrNone) {
    trainer(config)->run(/*stop_after=*/5);
    const auto other = directory / "other";
    resumed({.changes = JsonValue::object({{"tensorboard", other.string()}})})->run(/*stop_after=*/8);
    EXPECT_EQ(shown_steps(events_), steps_up_to(5));
    EXPECT_EQ(shown_steps(other), (std::vector<std::uint64_t>{6, 7, 8}));
    resumed({.changes = JsonValue::object({{"tensorboard", ""}})})->run();
    EXPECT_EQ(shown_steps(other).size(), 3u);
}

TEST_F(TensorBoardRun, ResumesIntoAnotherRunsDirectoryOnlyByName) {
    trainer(config)->run(/*stop_after=*/5);
    // The directory that the checkpoint names now holds another run's events.
    std::filesystem::remove_all(events_);
    { TensorBoardEvents(events_, TensorBoardEvents::Run::starts, new_run_identity()).write(StepReport{}); }
    const auto before = files_in(events_);
    EXPECT_THAT(test::message_of([&] { resumed()->run(); }),
                testing::AllOf(HasSubstr("tensorboard: '" + events_.string() + "' in "),
                               HasSubstr("step_00000005.h5 is outside the run's directory"),
                               HasSubstr("--tensorboard ")));
    EXPECT_EQ(files_in(events_), before);
    resumed({.changes = JsonValue::object({{"tensorboard", events_.string()}})})->run();
    EXPECT_EQ(files_in(events_).size(), 2u);
}

TEST_F(TensorBoardRun, ResumesIntoADirectoryInTheRunsOwn) {
    events_ = std::filesystem::path(config.out) / "events";
    config.tensorboard = events_.string();
    trainer(config)->run(/*stop_after=*/5);
    std::filesystem::remove_all(events_);
    resumed()->run();
    EXPECT_EQ(files_in(events_).size(), 1u);
    std::filesystem::remove_all(events_);
    std::filesystem::create_directory(directory / "outside");
    std::filesystem::create_directory_symlink(directory / "outside", events_);
    EXPECT_THAT(test::message_of([&] {
                    resumed({.changes = JsonValue::object({{"steps", 14}})})->run();
                }),
                HasSubstr("is outside the run's directory"));
    EXPECT_TRUE(std::filesystem::is_empty(directory / "outside"));
}

TEST_F(TensorBoardRun, ThatIsRefusedLeavesNoRun) {
    config.tensorboard = config.data;  // a file
    EXPECT_THAT(test::message_of([&] { trainer(config); }), HasSubstr("text.txt: is not a directory"));
    EXPECT_FALSE(exists(std::filesystem::path(config.out)));
}

TEST_F(TensorBoardRun, NeedsNoDirectoryOfTheRun) {
    config.out.clear();
    trainer(config)->run();
    EXPECT_EQ(shown_steps(events_), steps_up_to(12));
}

}  // namespace
}  // namespace gradtile
