// Runs that are stopped, or whose data fails, during a step or an evaluation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiny_run.h"

#include <gradtile/train/config/step_shape.h>
#include <gradtile/train/trainer.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using test::state_of;
using test::TinyRun;
using testing::HasSubstr;

/// A run with 4 micro-steps per step and evaluations over many windows, and an equal run that is never
/// stopped.
struct StoppedRun : TinyRun {
    explicit StoppedRun(void (*change)(TrainConfig&) = [](TrainConfig&) {}) {
        change(config);
        config.micro_batch = 1;
        TrainConfig uninterrupted_config = config;
        uninterrupted_config.out = (directory / "uninterrupted").string();
        uninterrupted = std::make_unique<Trainer>(uninterrupted_config, on_message);
        uninterrupted->run();
    }
    std::unique_ptr<Trainer> start_or_resume() {
        const bool exists_already = exists(std::filesystem::path(config.out) / "config.json");
        return exists_already ? std::make_unique<Trainer>(config.out, ResumeOptions{}, on_message)
                              : std::make_unique<Trainer>(config, on_message);
    }
    /// Runs until the trainer has asked `calls` times whether to stop; the next answer is yes.
    RunSummary run_for(std::int64_t calls) {
        const std::unique_ptr<Trainer> trainer = start_or_resume();
        trainer->stop_when([&] { return calls-- <= 0; });
        return trainer->run();
    }
    void expect_equals_uninterrupted() {
        const Trainer finished(config.out, ResumeOptions{}, on_message);
        EXPECT_EQ(finished.step(), config.steps);
        EXPECT_EQ(state_of(finished), state_of(*uninterrupted));
        EXPECT_EQ(losses(config.out), losses(directory / "uninterrupted"));
        EXPECT_TRUE(messages.empty()) << messages.front();
    }

    std::unique_ptr<Trainer> uninterrupted;
};

class StopsAtAnyMoment : public testing::TestWithParam<test::RunSetting> {};
INSTANTIATE_TEST_SUITE_P(Settings, StopsAtAnyMoment, testing::ValuesIn(test::run_settings),
                         [](const auto& info) { return info.param.name; });

/// Each attempt lets the trainer ask once more than the attempt before, so that stops occur at every
/// place.
TEST_P(StopsAtAnyMoment, AndResumesToTheBit) {
    StoppedRun run(GetParam().change);
    int dropped = 0, pending_evaluations = 0, attempts = 0;
    RunSummary summary;
    do {
        ASSERT_LT(attempts, 1000);
        const std::int64_t before = summary.step;
        summary = run.run_for(attempts++);
        EXPECT_TRUE(summary.saved);
        EXPECT_GE(summary.step, before);
        const std::int64_t micro_steps = StepShapes::of(run.config).at(summary.step + 1).micro_steps;
        EXPECT_EQ(summary.micro_steps_of_dropped, summary.dropped_micro_steps > 0 ? micro_steps : 0);
        EXPECT_LT(summary.dropped_micro_steps, micro_steps);
        dropped += summary.dropped_micro_steps > 0;
        pending_evaluations += summary.evaluation_pending;
    } while (summary.reason == RunSummary::Reason::requested);
    EXPECT_GT(dropped, 0);
    EXPECT_GT(pending_evaluations, 0);
    run.expect_equals_uninterrupted();
}

TEST(TrainerStop, BeforeTheFirstStepSavesTheStart) {
    StoppedRun run;
    const RunSummary summary = run.run_for(0);
    EXPECT_EQ(summary.step, 0);
    EXPECT_TRUE(summary.saved);
    EXPECT_EQ(summary.checkpoint.filename(), "step_00000000.h5");
    EXPECT_EQ(run.run_for(1000000).reason, RunSummary::Reason::finished);
    run.expect_equals_uninterrupted();
}

TEST(TrainerStop, ASecondStopKeepsTheCheckpoint) {
    StoppedRun run;
    const RunSummary first = run.run_for(10);
    const auto written = last_write_time(first.checkpoint);
    const RunSummary again = run.run_for(2);
    EXPECT_TRUE(again.saved);
    EXPECT_EQ(again.checkpoint, first.checkpoint);
    EXPECT_EQ(last_write_time(again.checkpoint), written);
}

/// The resumed run does the pending evaluation and writes its line, and is killed before the next save.
TEST(TrainerStop, AnAbandonedEvaluationDoneTwiceHasOneLine) {
    StoppedRun run;
    run.config.save_every = 0;
    {
        const auto trainer = run.start_or_resume();
        bool evaluating = false;
        trainer->on_part(
            [&](const StepPart& part) { evaluating = part.kind == StepPart::Kind::evaluation_windows; });
        trainer->stop_when([&] { return evaluating; });
        const RunSummary summary = trainer->run();
        EXPECT_TRUE(summary.evaluation_pending);
        EXPECT_EQ(summary.step, 5);
        EXPECT_EQ(run.losses(run.config.out).size(), 4u);
    }
    const std::filesystem::path checkpoints = std::filesystem::path(run.config.out) / "checkpoints";
    const std::filesystem::path kept = run.directory / "kept";
    copy(checkpoints, kept, std::filesystem::copy_options::recursive);
    run.start_or_resume()->run(/*stop_after=*/7);
    EXPECT_EQ(run.losses(run.config.out).size(), 7u);
    remove_all(checkpoints);
    rename(kept, checkpoints);
    run.remove_announcements_after(5);
    EXPECT_EQ(run.start_or_resume()->step(), 5);
    EXPECT_EQ(run.losses(run.config.out).size(), 4u);
    run.start_or_resume()->run();
    run.expect_equals_uninterrupted();
}

TEST(TrainerStop, ARunWithAPendingEvaluationIsNotFinished) {
    StoppedRun run;
    {
        const auto trainer = run.start_or_resume();
        bool is_last = false;
        trainer->on_part([&](const StepPart& part) {
            is_last = part.kind == StepPart::Kind::evaluation_windows && part.step == run.config.steps;
        });
        trainer->stop_when([&] { return is_last; });
        const RunSummary summary = trainer->run();
        EXPECT_EQ(summary.reason, RunSummary::Reason::requested);
        EXPECT_EQ(summary.step, run.config.steps);
        EXPECT_FALSE(trainer->is_finished());
    }
    const auto resumed = run.start_or_resume();
    EXPECT_FALSE(resumed->is_finished());
    EXPECT_EQ(resumed->run().reason, RunSummary::Reason::finished);
    EXPECT_TRUE(resumed->is_finished());
    EXPECT_EQ(run.losses(run.config.out), run.losses(run.directory / "uninterrupted"));
}

TEST(TrainerStop, ReportsThePartsOfStepsAndEvaluations) {
    TinyRun run;
    run.config.micro_batch = 1;
    run.config.steps = 5;
    run.config.out = "";
    Trainer trainer(run.config, run.on_message);
    std::vector<StepPart> parts;
    trainer.on_part([&](const StepPart& part) { parts.push_back(part); });
    trainer.run();
    ASSERT_GT(parts.size(), 15u);
    for (std::size_t i = 0; i < 15; ++i) {
        EXPECT_EQ(parts[i].kind, StepPart::Kind::micro_steps);
        EXPECT_EQ(parts[i].step, static_cast<std::int64_t>(i) / 3 + 1);
        EXPECT_EQ(parts[i].done, static_cast<std::int64_t>(i) % 3 + 1);
        EXPECT_EQ(parts[i].all, 4);
    }
    for (std::size_t i = 15; i < parts.size(); ++i) {
        EXPECT_EQ(parts[i].kind, StepPart::Kind::evaluation_windows);
        EXPECT_EQ(parts[i].step, 5);
        EXPECT_EQ(parts[i].done, static_cast<std::int64_t>(i) - 14);
    }
    EXPECT_EQ(parts.back().done, parts.back().all);
}

// ---- Data that cannot be read ----

TEST(TrainerDataFailure, DropsTheStepSavesTheLastWholeOneAndThrowsOneLine) {
    StoppedRun run;
    {
        const auto trainer = run.start_or_resume();
        trainer->on_prepare([](std::int64_t step) { check(step != 8, "text.txt: is shorter than it was"); });
        const std::string message = message_of([&] { trainer->run(); });
        EXPECT_THAT(message,
                    HasSubstr("step 8: text.txt: is shorter than it was; stopped, step 7 is saved: "));
        EXPECT_THAT(message, HasSubstr("step_00000007.h5"));
        EXPECT_EQ(message.find('\n'), std::string::npos);
        EXPECT_EQ(trainer->step(), 7);
    }
    run.start_or_resume()->run();
    run.expect_equals_uninterrupted();
}

/// A run on token files, whose validation file changes before the first evaluation, after step 5.
struct RunWithChangedFile : StoppedRun {
    RunWithChangedFile()
        : StoppedRun([](TrainConfig& c) {
              c.val_data = c.data + ".val.bin";
              c.data += ".bin";
              c.model.vocabulary = 300;
              write_tokens(c.data, 2000, 1);
              write_tokens(c.val_data, 200, 2);
          }) {}
    /// nanoGPT's format: uint16, little-endian.
    static void write_tokens(const std::filesystem::path& file, int count, std::uint32_t seed) {
        std::string bytes;
        for (int i = 0; i < count; ++i) {
            const std::uint32_t id = (seed = seed * 1664525u + 1013904223u) % 300;
            bytes += {static_cast<char>(id & 0xff), static_cast<char>(id >> 8)};
        }
        std::ofstream(file, std::ios::binary) << bytes;
    }
    /// Trains until the evaluation fails, and then undoes the change.
    void fail(Trainer& trainer) {
        trainer.on_step([this](const StepReport& report) {
            if (report.step == 4) write_tokens(config.val_data, 200, 3);
        });
        const std::string message = message_of([&] { trainer.run(); });
        EXPECT_THAT(message, HasSubstr("evaluation after step 5: "));
        EXPECT_THAT(message, HasSubstr("text.txt.val.bin"));
        EXPECT_THAT(message, HasSubstr("; stopped, step 5 is saved: "));
        EXPECT_EQ(trainer.step(), 5);
        write_tokens(config.val_data, 200, 2);
    }
};

TEST(TrainerDataFailure, InAnEvaluationIsRepeatedByTheResumedRun) {
    RunWithChangedFile run;
    run.fail(*run.start_or_resume());
    run.start_or_resume()->run();
    run.expect_equals_uninterrupted();
}

TEST(TrainerDataFailure, InAnEvaluationIsRepeatedByTheNextCallOfRun) {
    RunWithChangedFile run;
    {
        const auto trainer = run.start_or_resume();
        run.fail(*trainer);
        EXPECT_EQ(trainer->run().reason, RunSummary::Reason::finished);
    }
    run.expect_equals_uninterrupted();
}

TEST(TrainerDataFailure, InAStepIsRepeatedByTheNextCallOfRun) {
    StoppedRun run;
    {
        const auto trainer = run.start_or_resume();
        bool fails = true;
        trainer->on_prepare(
            [&](std::int64_t step) { check(step != 8 || !std::exchange(fails, false), "it is gone"); });
        EXPECT_THAT(message_of([&] { trainer->run(); }), HasSubstr("step 8: it is gone; stopped"));
        EXPECT_EQ(trainer->run().reason, RunSummary::Reason::finished);
    }
    run.expect_equals_uninterrupted();
}

TEST(TrainerDataFailure, WithoutADirectoryReportsThatNothingWasSaved) {
    TinyRun run;
    run.config.out = "";
    Trainer trainer(run.config, run.on_message);
    trainer.on_prepare([](std::int64_t step) { check(step < 3, "text.txt: is gone"); });
    EXPECT_EQ(message_of([&] { trainer.run(); }), "step 3: text.txt: is gone; stopped, nothing was saved");
}

// ---- Callbacks that are empty, or throw ----

TEST(Trainer, DoesNotCallEmptyCallbacks) {
    TinyRun run;
    Trainer trainer(run.config, run.on_message);
    trainer.on_prepare({});
    trainer.on_step({});
    trainer.on_part({});
    trainer.on_save({});
    trainer.stop_when({});
    EXPECT_EQ(trainer.run().reason, RunSummary::Reason::finished);
}

struct ErrorOfCallback : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Which callback throws, and in which part of step 8 or of the evaluation after step 5.
struct ThrowingCallback {
    const char* name;
    StepPart::Kind kind;
    bool in_stop_when;
};

class ExceptionOfACallback : public testing::TestWithParam<ThrowingCallback> {};
INSTANTIATE_TEST_SUITE_P(
    Callbacks, ExceptionOfACallback,
    testing::Values(ThrowingCallback{"on_part_in_a_step", StepPart::Kind::micro_steps, false},
                    ThrowingCallback{"on_part_in_an_evaluation", StepPart::Kind::evaluation_windows, false},
                    ThrowingCallback{"stop_when_in_a_step", StepPart::Kind::micro_steps, true},
                    ThrowingCallback{"stop_when_in_an_evaluation", StepPart::Kind::evaluation_windows, true}),
    [](const auto& info) { return info.param.name; });

TEST_P(ExceptionOfACallback, PassesUnchangedAndTheNextCallOfRunContinuesToTheBit) {
    StoppedRun run;
    {
        const auto trainer = run.start_or_resume();
        const ThrowingCallback& setting = GetParam();
        const std::int64_t step = setting.kind == StepPart::Kind::micro_steps ? 8 : 5;
        bool is_reached = false, has_thrown = false;
        const auto throw_once = [&] {
            if (is_reached && !std::exchange(has_thrown, true)) throw ErrorOfCallback("by the callback");
        };
        trainer->on_part([&](const StepPart& part) {
            is_reached = part.step == step && part.kind == setting.kind && part.done >= 2;
            if (!setting.in_stop_when) throw_once();
        });
        trainer->stop_when([&] {
            if (setting.in_stop_when) throw_once();
            return false;
        });
        EXPECT_THROW(trainer->run(), ErrorOfCallback);
        EXPECT_TRUE(has_thrown);
        EXPECT_EQ(trainer->run().reason, RunSummary::Reason::finished);
    }
    run.expect_equals_uninterrupted();
}

}  // namespace
}  // namespace gradtile
