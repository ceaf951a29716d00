#include <gradtile/train/trainer.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiny_run.h"

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/tools/observers/run_observers.h>
#include <gradtile/train/data/token_file.h>
#include <gradtile/train/schedule.h>

#include <support/error_message.h>
#include <support/json.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::message_of;
using test::state_of;
using test::TinyRun;
using testing::HasSubstr;

TEST(Trainer, LearnsAndWritesAllFilesOfItsDirectory) {
    TinyRun run;
    run.config.steps = 60;
    run.config.eval_every = run.config.save_every = 30;
    Trainer trainer(run.config, run.on_message);
    add_loss_curve(trainer, run.on_message);
    std::vector<StepReport> reports;
    trainer.on_step([&](const StepReport& report) { reports.push_back(report); });
    const RunSummary summary = trainer.run();
    EXPECT_EQ(summary.step, 60);
    EXPECT_TRUE(summary.saved);
    ASSERT_EQ(reports.size(), 60u);
    EXPECT_LT(reports.back().loss, 0.6 * reports.front().loss);
    EXPECT_TRUE(reports[29].val_loss && reports[59].val_loss && !reports[28].val_loss);

    const std::filesystem::path out = run.config.out;
    for (const char* name : {"config.json", "metrics.jsonl", "loss.svg", "checkpoints/step_00000060.h5",
                             "checkpoints/step_00000030.h5", "checkpoints/best.h5"})
        EXPECT_TRUE(exists(out / name)) << name;
    TrainConfig written;
    apply_config_file(written, (out / "config.json").string());
    EXPECT_EQ(to_json(written), to_json(trainer.config()));
    const std::vector<json> losses = TinyRun::losses(out);
    ASSERT_EQ(losses.size(), 60u);
    for (std::size_t i = 0; i < 60; ++i) EXPECT_EQ(losses[i]["step"], i + 1);
    EXPECT_THAT(TinyRun::metrics(out), testing::Contains(json{{"event", "checkpoint"}, {"step", 60}}));
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// The learning rate rises, and so do the losses, so the first evaluation has the lowest loss.
TEST(Trainer, AFailedSaveOfTheBestIsNotTheBest) {
    TinyRun run;
    run.config.steps = run.config.warmup = 100;
    run.config.eval_every = 2;
    run.config.lr = run.config.min_lr = 15;
    Trainer trainer(run.config, run.on_message);
    const std::filesystem::path best = std::filesystem::path(run.config.out) / "checkpoints/best.h5";
    create_directories(best / "in the way");
    std::vector<double> losses, losses_since;  // since the first save was reported as failed
    trainer.on_step([&](const StepReport& report) {
        if (!run.messages.empty() && is_directory(best)) remove_all(best);
        if (!report.val_loss) return;
        losses.push_back(*report.val_loss);
        if (!run.messages.empty()) losses_since.push_back(*report.val_loss);
    });
    const RunSummary summary = trainer.run();
    ASSERT_FALSE(losses_since.empty());
    EXPECT_EQ(std::ranges::min(losses), losses.front());
    EXPECT_EQ(summary.best_val_loss, std::ranges::min(losses_since));
    EXPECT_TRUE(is_regular_file(best));
    EXPECT_THAT(run.messages, testing::ElementsAre(HasSubstr("best.h5: cannot rename into place")));
}

/// `gradtile train --memory` plans a run in a directory in which this run may already be training.
TEST(Trainer, APlanDoesNotChangeTheDirectory) {
    TinyRun run;
    Trainer trainer(run.config, run.on_message);
    const Trainer plan(run.config, run.on_message, std::make_shared<ProcessGroup>(), Trainer::Purpose::plan);
    EXPECT_EQ(plan.memory_plan().total(), trainer.memory_plan().total());
    EXPECT_GT(plan.memory_plan().snapshot, 0u);
    trainer.run();
}

TEST(Trainer, WithoutADirectoryWritesNothing) {
    TinyRun run;
    run.config.out = "";
    Trainer trainer(run.config, run.on_message);
    const RunSummary summary = trainer.run();
    EXPECT_EQ(summary.step, 12);
    EXPECT_FALSE(summary.saved);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run.directory.path()), {}), 1);  // the text
}

// ---- Resume ----

class ResumeIsBitExact : public testing::TestWithParam<test::RunSetting> {};
INSTANTIATE_TEST_SUITE_P(Settings, ResumeIsBitExact, testing::ValuesIn(test::run_settings),
                         [](const auto& info) { return info.param.name; });

TEST_P(ResumeIsBitExact, ResumedRunWithOtherThreadCountEqualsUninterruptedRun) {
    TinyRun run;
    run.config.steps = 40;
    GetParam().change(run.config);
    TrainConfig uninterrupted_config = run.config;
    uninterrupted_config.out = (run.directory / "uninterrupted").string();
    Trainer uninterrupted(uninterrupted_config, run.on_message);
    uninterrupted.run();
    {
        Trainer first(run.config, run.on_message);
        const RunSummary summary = first.run(/*stop_after=*/20);
        EXPECT_EQ(summary.reason, RunSummary::Reason::stop_after);
        EXPECT_EQ(summary.step, 20);
        EXPECT_TRUE(summary.saved);
    }
    Trainer second(run.config.out, ResumeOptions{.changes = JsonValue::object({{"threads", 3}})},
                   run.on_message);
    EXPECT_EQ(second.step(), 20);
    second.run();
    EXPECT_EQ(second.step(), 40);

    EXPECT_EQ(state_of(second), state_of(uninterrupted));
    EXPECT_EQ(TinyRun::losses(run.config.out), TinyRun::losses(uninterrupted_config.out));
    const SampleOptions options{.prompt = "the cat", .tokens = 50, .seed = 3};
    EXPECT_EQ(sample(second.model(), options), sample(uninterrupted.model(), options));
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

TEST(Trainer, EndsWithItsTimeBudget) {
    TinyRun run;
    run.config.steps = 0;
    run.config.time_budget = "1s";
    Trainer trainer(run.config, run.on_message);
    EXPECT_EQ(trainer.run().reason, RunSummary::Reason::finished);
    EXPECT_TRUE(trainer.is_finished());
    EXPECT_EQ(trainer.last_step(), trainer.step());
    const std::vector<nlohmann::json> steps = TinyRun::losses(run.config.out);
    ASSERT_EQ(std::ssize(steps), trainer.step());
    EXPECT_TRUE(steps.back().contains("val_loss"));
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// The rates follow the clock, and a run that replays the clock has the same weights and losses. Nothing
/// depends on the speed of the machine: the first run ends after 12 steps.
TEST(Trainer, ReplaysARunWithATimeBudgetToTheBit) {
    TinyRun run;
    run.config.steps = 0;
    run.config.time_budget = "1h";
    run.config.eval_every = 4;
    Trainer clocked(run.config, run.on_message);
    ASSERT_EQ(clocked.run(/*stop_after=*/12).step, 12);
    const std::vector<nlohmann::json> steps = TinyRun::losses(run.config.out);
    ASSERT_EQ(steps.size(), 12u);
    const Schedule schedule = Schedule::of(run.config);
    double used = 0.0;
    for (const nlohmann::json& line : steps) {
        const double rate = schedule(line["step"], used);
        EXPECT_NEAR(line["lr"].get<double>(), rate, 1e-8 * rate);  // nine digits
        EXPECT_GE(line["budget_used"].get<double>(), used);
        used = line["budget_used"];
    }
    EXPECT_GT(used, 0.0);

    TrainConfig config = run.config;
    config.replay_clock = run.config.out;
    config.out = (run.directory / "replayed").string();
    { Trainer(config, run.on_message).run(/*stop_after=*/5); }
    Trainer replayed(config.out, ResumeOptions{}, run.on_message);
    const RunSummary summary = replayed.run();
    EXPECT_EQ(summary.reason, RunSummary::Reason::finished);
    EXPECT_EQ(summary.step, 12);
    EXPECT_EQ(state_of(replayed), state_of(clocked));
    EXPECT_EQ(TinyRun::losses(config.out), steps);
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// Each part ends after a few steps, so that the test does not depend on the speed of the machine.
TEST(Trainer, ATimeBudgetCountsAllPartsOfARun) {
    TinyRun run;
    run.config.steps = 0;
    run.config.time_budget = "1h";
    const auto sleep = [](const StepReport&) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
    {
        Trainer first(run.config, run.on_message);
        first.on_step(sleep);
        first.run(/*stop_after=*/10);
    }
    {
        Trainer second(run.config.out, ResumeOptions{}, run.on_message);
        second.on_step(sleep);
        EXPECT_EQ(second.run(/*stop_after=*/13).step, 13);
    }
    const std::vector<nlohmann::json> steps = TinyRun::losses(run.config.out);
    ASSERT_EQ(steps.size(), 13u);
    const auto seconds = [&](std::size_t i) { return 3600.0 * steps[i]["budget_used"].get<double>(); };
    EXPECT_GE(seconds(9), 9 * 0.05);
    EXPECT_GE(seconds(12), seconds(9) + 2 * 0.05) << "the second part began to count at 0";
    EXPECT_EQ(test::message_of([&] {
                  Trainer(run.config.out, ResumeOptions{.changes = JsonValue::object({{"steps", 99}})},
                          run.on_message);
              }),
              "steps: the run ends with its time-budget, 1h; expected no number of steps");

    const std::filesystem::path path =
        std::filesystem::path(run.config.out) / "checkpoints" / "step_00000013.h5";
    Checkpoint changed = read_checkpoint(path);
    changed.meta.set("schedule", JsonValue::object({{"last_step", 100}, {"budget_used", 1.5}}));
    write_checkpoint(path, changed);
    EXPECT_THAT(test::message_of([&] { Trainer(run.config.out, ResumeOptions{}, run.on_message); }),
                testing::HasSubstr("budget_used: 1.5; expected 0 to 1"));
}

TEST(Trainer, StopsAndSavesOnRequest) {
    TinyRun run;
    {
        Trainer trainer(run.config, run.on_message);
        trainer.stop_when([&] { return trainer.step() == 7; });
        const RunSummary summary = trainer.run();
        EXPECT_EQ(summary.reason, RunSummary::Reason::requested);
        EXPECT_EQ(summary.step, 7);
        EXPECT_TRUE(summary.saved);
    }
    Trainer resumed(run.config.out, ResumeOptions{}, run.on_message);
    EXPECT_EQ(resumed.step(), 7);
    EXPECT_EQ(resumed.run().reason, RunSummary::Reason::finished);
}

TEST(Trainer, ResumeTruncatesMetricsToTheCheckpointsStep) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(); }
    const std::vector<json> full_losses = TinyRun::losses(run.config.out);
    const std::filesystem::path out = run.config.out;
    run.remove_saves_after(10);
    std::ofstream(out / "metrics.jsonl", std::ios::app) << R"({"step":13,"los)";
    Trainer resumed(out, ResumeOptions{}, run.on_message);
    EXPECT_EQ(resumed.step(), 10);
    EXPECT_EQ(TinyRun::losses(out).size(), 10u);
    resumed.run();
    EXPECT_EQ(TinyRun::losses(out), full_losses);
}

TEST(Trainer, MoreStepsOnResumeMoveOnlyTheEnd) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(); }
    {
        Trainer longer(run.config.out, ResumeOptions{.changes = JsonValue::object({{"steps", 15}})},
                       run.on_message);
        EXPECT_EQ(longer.last_step(), 15);
        longer.run(/*stop_after=*/14);
    }
    Trainer again(run.config.out, ResumeOptions{}, run.on_message);
    EXPECT_EQ(again.last_step(), 15);  // restored from the checkpoint
    again.run();
    const std::vector<json> losses = TinyRun::losses(run.config.out);
    ASSERT_EQ(losses.size(), 15u);
    for (std::size_t i = 11; i < 15; ++i) EXPECT_EQ(losses[i]["lr"], run.config.min_lr);
}

TEST(Trainer, ResumeRefusesALastStepBeforeTheOnesDone) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(/*stop_after=*/7); }
    const auto resume_to = [&](std::int64_t steps) {
        Trainer(run.config.out, ResumeOptions{.changes = JsonValue::object({{"steps", steps}})},
                run.on_message);
    };
    EXPECT_EQ(message_of([&] { resume_to(6); }), "steps: 6; the run is at step 7; expected at least 7");
    EXPECT_NO_THROW(resume_to(7));
}

TEST(Trainer, ARunKilledBeforeItsFirstCheckpointStartsAgain) {
    TinyRun run;
    const auto left = run.directory / "left";
    {
        const Trainer killed(run.config, run.on_message);
        copy(run.config.out, left, std::filesystem::copy_options::recursive);
    }
    EXPECT_FALSE(exists(std::filesystem::path(run.config.out)));  // no step was asked for
    Trainer resumed(left, ResumeOptions{}, run.on_message);
    EXPECT_EQ(resumed.step(), 0);
    resumed.run();
    TrainConfig uninterrupted = run.config;
    uninterrupted.out = "";
    Trainer reference(uninterrupted, run.on_message);
    reference.run();
    EXPECT_EQ(state_of(resumed), state_of(reference));
}

TEST(Trainer, ResumeNamesADamagedCheckpointAndUsesTheOneBefore) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(); }
    const std::filesystem::path checkpoints = std::filesystem::path(run.config.out) / "checkpoints";
    std::filesystem::resize_file(checkpoints / "step_00000012.h5", 5000);
    remove(checkpoints / "best.h5");
    const Trainer resumed(run.config.out, ResumeOptions{}, run.on_message);
    EXPECT_EQ(resumed.step(), 10);
    ASSERT_EQ(run.messages.size(), 1u);
    EXPECT_THAT(run.messages.front(), HasSubstr("step_00000012.h5"));
}

TEST(Trainer, ResumeIgnoresInvalidMatrixAlgorithms) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(/*stop_after=*/5); }
    const std::filesystem::path path = std::filesystem::path(run.config.out) / "checkpoints/step_00000005.h5";
    Checkpoint checkpoint = read_checkpoint(path);
    // A run on the CPU has no matrix algorithms.
    EXPECT_FALSE(checkpoint.meta.contains("matrix_algorithms"));
    for (const json& nonsense : {json("fast"), json::array({1, 2}), json{{{"problem", {1}}}}}) {
        checkpoint.meta.set("matrix_algorithms", test::json_value(nonsense));
        write_checkpoint(path, checkpoint);
        run.messages.clear();
        const Trainer resumed(run.config.out, ResumeOptions{}, run.on_message);
        EXPECT_EQ(resumed.step(), 5);
        ASSERT_EQ(run.messages.size(), 1u);
        EXPECT_THAT(run.messages.front(), HasSubstr("step_00000005.h5: matrix algorithms: "));
        EXPECT_THAT(run.messages.front(), HasSubstr("timed again"));
    }
}

// ---- A resumed run's data ----

TEST(Trainer, ResumeRefusesOtherDataOfTheSameLength) {
    TinyRun run;
    const std::string text = test::some_text(2000);
    { Trainer(run.config, run.on_message).run(/*stop_after=*/5); }
    std::string other = text;
    std::swap(other[10], other[5000]);  // the text keeps its characters and its length
    ASSERT_NE(other, text);
    run.directory.write("text.txt", other);
    EXPECT_THAT(message_of([&] { Trainer(run.config.out, ResumeOptions{}, run.on_message); }),
                testing::MatchesRegex(".*text.txt: is not the data that the run was made with: hash "
                                      "\"sha256:[0-9a-f]+\", not \"sha256:[0-9a-f]+\""));
    run.directory.write("text.txt", text + "more");
    EXPECT_THAT(message_of([&] { Trainer(run.config.out, ResumeOptions{}, run.on_message); }),
                HasSubstr("text.txt: is not the data that the run was made with: bytes "));
    run.directory.write("text.txt", text);
    EXPECT_EQ(Trainer(run.config.out, ResumeOptions{}, run.on_message).step(), 5);
    EXPECT_THAT(run.messages, testing::IsEmpty());
}

TEST(Trainer, ResumeRefusesOtherValidationData) {
    TinyRun run;
    run.config.val_data = run.directory.write("val.txt", "the cat sat on the mat.\n the dog ran");
    { Trainer(run.config, run.on_message).run(/*stop_after=*/5); }
    run.directory.write("val.txt", "the dog sat on the mat.\n the cat ran");
    EXPECT_THAT(message_of([&] { Trainer(run.config.out, ResumeOptions{}, run.on_message); }),
                HasSubstr("val.txt: is not the data that the run was made with: hash "));
}

TEST(Trainer, ResumeAcceptsCheckpointsWithoutADataRecordAndReportsIt) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(/*stop_after=*/5); }
    const std::filesystem::path path = std::filesystem::path(run.config.out) / "checkpoints/step_00000005.h5";
    Checkpoint checkpoint = read_checkpoint(path);
    EXPECT_EQ(checkpoint.data["content"]["data"].size(), 1u);
    checkpoint.data.erase("content");
    write_checkpoint(path, checkpoint);
    Trainer resumed(run.config.out, ResumeOptions{}, run.on_message);
    ASSERT_EQ(run.messages.size(), 1u);
    EXPECT_THAT(run.messages.front(), HasSubstr("step_00000005.h5: has no record of its training data; "
                                                "this data is used without a comparison"));
    resumed.run();
    const Checkpoint next =
        read_checkpoint(std::filesystem::path(run.config.out) / "checkpoints/step_00000012.h5");
    EXPECT_TRUE(next.data.contains("content"));
}

TEST(Trainer, DescribesItsDataAndItsPartOfALargerVocabulary) {
    TinyRun run;
    EXPECT_THAT(Trainer(run.config, run.on_message).data_description(),
                testing::ElementsAre(run.config.data + ": text, 7,512 characters"));
    run.config.out = (run.directory / "wide").string();
    run.config.model.vocabulary = 5000;
    EXPECT_THAT(Trainer(run.config, run.on_message).data_description(),
                testing::ElementsAre(run.config.data + ": text, 7,512 characters",
                                     "vocabulary 5,000 as set; the data needs 15; the rest costs only memory "
                                     "and time (a run with vocabulary 15 avoids this)"));
}

// ---- The directory ----

TEST(Trainer, RefusesADirectoryThatHoldsARun) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(); }
    const std::vector<json> before = TinyRun::metrics(run.config.out);
    EXPECT_THAT(message_of([&] { Trainer(run.config, run.on_message); }), HasSubstr("already holds a run"));
    EXPECT_EQ(TinyRun::metrics(run.config.out), before);
}

TEST(Trainer, RefusesADirectoryInUse) {
    TinyRun run;
    const Trainer first(run.config, run.on_message);
    EXPECT_THAT(message_of([&] { Trainer(run.config.out, ResumeOptions{}, run.on_message); }),
                HasSubstr("in use by process"));
}

TEST(Trainer, RefusesToResumeADirectoryWithoutARun) {
    TinyRun run;
    EXPECT_THAT(message_of([&] { Trainer(run.directory / "absent", ResumeOptions{}, run.on_message); }),
                HasSubstr("is not a directory"));
    EXPECT_THAT(message_of([&] { Trainer(run.directory.path(), ResumeOptions{}, run.on_message); }),
                HasSubstr("holds no run"));
}

// ---- Numbers ----

TEST(Trainer, MicroBatchesGiveTheGradientOfTheWholeBatch) {
    // Processes 4 sequences at once or one by one.
    std::vector<std::vector<StepReport>> reports;
    for (const std::int64_t micro_batch : {4, 2, 1}) {
        TinyRun run;
        run.config.out = "";
        run.config.micro_batch = micro_batch;
        run.config.steps = 8;
        Trainer trainer(run.config, run.on_message);
        trainer.on_step([&, index = reports.size()](const StepReport& report) {
            reports.resize(index + 1);
            reports[index].push_back(report);
        });
        trainer.run();
    }
    // The first step's loss and gradient differ only by float32 rounding: sums over 64 tokens and products
    // over width 32 in a few layers, well below 1e3 roundings. In later steps Adam amplifies the difference.
    const double bound = 1e3 * std::numeric_limits<float>::epsilon();
    for (std::size_t i = 1; i < reports.size(); ++i) {
        EXPECT_NEAR(reports[i][0].loss, reports[0][0].loss, bound * reports[0][0].loss);
        EXPECT_NEAR(reports[i][0].grad_norm, reports[0][0].grad_norm, bound * reports[0][0].grad_norm);
        for (std::size_t step = 1; step < 8; ++step)
            EXPECT_NEAR(reports[i][step].loss, reports[0][step].loss, 100 * bound * reports[0][step].loss);
    }
}

TEST(Trainer, StopsAfterTooManyBadStepsAndKeepsTheLastGoodCheckpoint) {
    TinyRun run;
    run.config.save_every = 5;
    run.config.eval_every = 0;
    run.config.max_bad_steps = 3;
    Trainer trainer(run.config, run.on_message);
    const Parameter poisoned = trainer.model().parameters.find("h.1.mlp.fc.weight");
    float good = 0.0f;
    std::vector<StepReport> reports;
    trainer.on_step([&](const StepReport& report) {
        reports.push_back(report);
        // A weight becomes NaN after step 6, is restored for step 8, and becomes NaN for good.
        float& weight = poisoned.value().data<float>()[5];
        if (report.step == 6) {
            good = weight;
            weight = std::numeric_limits<float>::quiet_NaN();
        } else if (report.step == 7) {
            weight = good;
        } else if (report.step == 8) {
            weight = std::numeric_limits<float>::infinity();
        }
    });
    const std::string message = message_of([&] { trainer.run(); });
    EXPECT_THAT(message, HasSubstr("3 steps in a row"));
    EXPECT_THAT(message, HasSubstr("step_00000005.h5"));
    ASSERT_EQ(reports.size(), 11u);
    for (const StepReport& report : reports) {
        const bool bad = report.step == 7 || report.step >= 9;
        EXPECT_EQ(!report.not_finite.empty(), bad) << report.step;
    }
    // Four refused updates, and at step 10 a save that was refused because a weight is not finite.
    EXPECT_EQ(run.messages.size(), 5u);
    EXPECT_THAT(run.messages.front(), HasSubstr("update not applied"));
    EXPECT_THAT(run.messages, testing::Contains(HasSubstr("step_00000010.h5")));
    const std::vector<json> losses = TinyRun::losses(run.config.out);
    EXPECT_TRUE(losses[6]["loss"].is_null() && losses[6].contains("not_finite"));
    EXPECT_TRUE(losses[7]["loss"].is_number() && !losses[7].contains("not_finite"));
    EXPECT_NO_THROW(read_checkpoint(std::filesystem::path(run.config.out) / "checkpoints/step_00000005.h5"));
}

TEST(Trainer, ABadStepChangesNeitherWeightsNorOptimizer) {
    TinyRun run;
    run.config.out = "";
    run.config.steps = 4;
    Trainer trainer(run.config, run.on_message);
    std::vector<std::vector<double>> before;
    float& weight = trainer.model().parameters.find("ln_f.weight").value().data<float>()[3];
    float finite = 0.0f;
    trainer.on_step([&](const StepReport& report) {
        if (report.step == 2) {
            finite = std::exchange(weight, std::numeric_limits<float>::infinity());
            before = state_of(trainer);
        } else if (report.step == 3) {
            EXPECT_EQ(report.not_finite, "wte.weight");
            EXPECT_EQ(state_of(trainer), before);
            weight = finite;
        } else if (report.step == 4) {
            EXPECT_TRUE(report.not_finite.empty());
            EXPECT_NE(state_of(trainer), before);
        }
    });
    EXPECT_EQ(trainer.run().bad_steps, 1);
}

TEST(Trainer, AllocatesActivationsFromThePlannedArenaOnly) {
    TinyRun run;
    run.config.out = "";
    Trainer trainer(run.config, run.on_message);
    EXPECT_GT(trainer.memory_plan().activations, 0u);
    // The arena has exactly the planned capacity and throws beyond it, so a step that needed more would fail.
    EXPECT_NO_THROW(trainer.run());
}

TEST(Trainer, RefusesABatchThatDoesNotFitTheBudgetNamingTheLargest) {
    TinyRun run;
    run.config.batch = run.config.micro_batch = 4096;
    run.config.memory_budget = "16";
    const std::string message = message_of([&] { Trainer(run.config, run.on_message); });
    EXPECT_THAT(message, HasSubstr("the largest micro-batch that fits is"));
    EXPECT_FALSE(exists(std::filesystem::path(run.config.out)));
}

TEST(Trainer, TrainsOnTokenFilesWithoutATokenizer) {
    TinyRun run;
    std::string bytes;  // nanoGPT's train.bin: uint16, little-endian
    for (std::uint32_t i = 0, state = 1; i < 2000; ++i) {
        const std::uint32_t id = (state = state * 1664525u + 1013904223u) % 300;
        bytes += {static_cast<char>(id & 0xff), static_cast<char>(id >> 8)};
    }
    run.config.data = run.directory.write("train.bin", bytes);
    run.config.model.vocabulary = 300;
    { Trainer(run.config, run.on_message).run(/*stop_after=*/6); }
    Trainer resumed(run.config.out, ResumeOptions{}, run.on_message);
    EXPECT_EQ(resumed.step(), 6);
    EXPECT_TRUE(std::isfinite(*resumed.run().val_loss));
    const auto model = load_model(run.config.out);
    const std::vector<std::int32_t> prompt{299, 0};
    EXPECT_EQ(sample_tokens(*model, prompt, {.tokens = 5}),
              sample_tokens(resumed.model(), prompt, {.tokens = 5}));
    EXPECT_THAT(message_of([&] { sample(*model, {.prompt = "a"}); }), HasSubstr("has no tokenizer"));
}

TEST(Trainer, ARunWhoseDirectoryIsRemovedIsNotSaved) {
    TinyRun run;
    Trainer trainer(run.config, run.on_message);
    trainer.on_step([&](const StepReport& report) {
        if (report.step == 1) std::filesystem::remove_all(run.config.out);
    });
    EXPECT_FALSE(trainer.run().saved);
    EXPECT_THAT(run.messages, testing::Contains(HasSubstr("metrics.jsonl: was removed during the run")));
}

}  // namespace
}  // namespace gradtile
