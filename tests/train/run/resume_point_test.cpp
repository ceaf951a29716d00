// The checkpoints that `train --resume` accepts and those it refuses.
#include <gradtile/train/run/resume_point.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <train/tiny_run.h>

#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/run/metrics_file.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::message_of;
using test::TinyRun;
using testing::HasSubstr;
using testing::IsEmpty;

struct RunToResume : TinyRun {
    /// Ten steps out of twelve, with checkpoints at steps 5 and 10.
    RunToResume() { config.eval_every = 0; }
    void train(std::int64_t until = 10) { Trainer(config, on_message).run(until); }
    std::filesystem::path out() const { return config.out; }
    std::filesystem::path checkpoint(std::int64_t step) const {
        return CheckpointDirectory(out() / "checkpoints").path_of(step);
    }
    ResumePoint resume_point(bool restart = false) const {
        return find_resume_point(RunDirectory::open(out()), restart);
    }
    std::string refusal() const {
        return message_of([&] { Trainer(config.out, ResumeOptions{}, [](const std::string&) {}); });
    }
    /// Changes one of the run's checkpoints and writes its file again.
    template <class Change>
    void change(std::int64_t step, Change&& change) const {
        Checkpoint checkpoint = read_checkpoint(this->checkpoint(step));
        change(checkpoint);
        write_checkpoint(this->checkpoint(step), checkpoint);
    }
};

TEST(ResumePoint, BestOfTheAnnouncedStepCountsAsTheAnnouncedCheckpoint) {
    RunToResume run;
    run.config.eval_every = 10;
    run.train();
    remove(run.checkpoint(10));
    const ResumePoint point = run.resume_point();
    EXPECT_EQ(point.checkpoint->step, 10);
    EXPECT_EQ(point.path.filename(), "best.h5");
    EXPECT_THAT(point.messages, IsEmpty());
    remove(point.path);
    EXPECT_THAT(message_of([&] { run.resume_point(); }), HasSubstr("announces the checkpoint of step 10"));
    EXPECT_EQ(run.resume_point(/*restart=*/true).checkpoint->step, 5);
}

/// The run was killed after a save and its retention, before the save was announced.
TEST(ResumePoint, RetentionMayRemoveTheNewestAnnouncedCheckpointForANewerOne) {
    RunToResume run;
    run.config.keep_last = 1;
    run.train();
    EXPECT_FALSE(exists(run.checkpoint(5)));
    run.remove_announcements_after(5);
    EXPECT_EQ(MetricsFile::newest_saves(run.out() / "metrics.jsonl").announced, 5);
    EXPECT_EQ(run.resume_point().checkpoint->step, 10);
}

TEST(ResumePoint, ADamagedAnnouncedCheckpointIsNamedAndTheOlderOneUsed) {
    RunToResume run;
    run.train();
    std::filesystem::resize_file(run.checkpoint(10), 5000);
    const ResumePoint point = run.resume_point();
    EXPECT_EQ(point.checkpoint->step, 5);
    EXPECT_THAT(point.messages, testing::ElementsAre(HasSubstr("step_00000010.h5")));
}

/// Trains with a file where the checkpoint directory should be, so that every save fails.
void train_without_saves(const RunToResume& run, Trainer& trainer, std::int64_t until) {
    const std::filesystem::path checkpoints = run.out() / "checkpoints", kept = run.out() / "kept";
    const bool existed = exists(checkpoints);
    if (existed) rename(checkpoints, kept);
    std::ofstream(checkpoints) << "no directory";
    EXPECT_FALSE(trainer.run(until).saved);
    remove(checkpoints);
    if (existed) rename(kept, checkpoints);
}

TEST(ResumePoint, ARunWhoseEverySaveFailedDoesNotStartAgainWithoutRestart) {
    RunToResume run;
    {
        Trainer trainer(run.config, run.on_message);
        train_without_saves(run, trainer, 10);
    }
    const std::vector<json> before = TinyRun::metrics(run.out());
    EXPECT_THAT(run.refusal(), HasSubstr("' holds no checkpoint: its saves failed, the last one at step 10"));
    EXPECT_EQ(TinyRun::metrics(run.out()), before);
    const ResumePoint point = run.resume_point(/*restart=*/true);
    EXPECT_FALSE(point.checkpoint);
    EXPECT_THAT(point.messages, testing::ElementsAre(HasSubstr("the save of step 10 failed; ")));
    { Trainer(run.out(), ResumeOptions{.restart = true}, run.on_message).run(); }
    EXPECT_EQ(run.resume_point().checkpoint->step, 12);
    EXPECT_THAT(run.resume_point().messages, IsEmpty());
}

TEST(ResumePoint, SaysThatTheStepsAfterTheLastSaveAreLost) {
    RunToResume run;
    run.train(5);
    {
        Trainer trainer(run.out(), ResumeOptions{}, run.on_message);
        train_without_saves(run, trainer, 10);
    }
    const ResumePoint point = run.resume_point();
    EXPECT_EQ(point.checkpoint->step, 5);
    EXPECT_THAT(point.messages, testing::ElementsAre(HasSubstr("the save of step 10 failed; ")));
    EXPECT_THAT(point.messages.front(), testing::EndsWith(" continues from step 5"));
}

TEST(ResumePoint, DoesNotChangeTheMetricsOfARefusedRun) {
    RunToResume run;
    run.train();
    const std::vector<json> before = TinyRun::metrics(run.out());
    remove(run.checkpoint(10));
    EXPECT_THAT(run.refusal(), HasSubstr("step_00000010.h5 is missing"));
    EXPECT_EQ(TinyRun::metrics(run.out()), before);
    const Trainer restarted(run.out(), ResumeOptions{.restart = true}, run.on_message);
    EXPECT_EQ(restarted.step(), 5);
    EXPECT_EQ(TinyRun::losses(run.out()).size(), 5u);
}

// ---- The run's identity ----

TEST(RunIdentity, IsInEveryCheckpointAndInTheDirectory) {
    RunToResume run;
    run.train();
    const std::string identity = RunDirectory::open(run.out()).identity();
    EXPECT_THAT(identity, testing::MatchesRegex("[0-9a-f]{32}"));
    for (const std::int64_t step : {5, 10})
        EXPECT_EQ(run_identity_of(read_checkpoint(run.checkpoint(step)), "x"), identity);
    { Trainer(run.out(), ResumeOptions{}, run.on_message).run(); }
    EXPECT_EQ(run_identity_of(read_checkpoint(run.checkpoint(12)), "x"), identity);
}

TEST(RunIdentity, IsNotAddedToRunsWithoutOne) {
    RunToResume run;
    run.train();
    remove(run.out() / "run.json");
    for (const std::int64_t step : {5, 10})
        run.change(step, [](Checkpoint& checkpoint) { checkpoint.meta.erase("run"); });
    { Trainer(run.out(), ResumeOptions{}, run.on_message).run(); }
    EXPECT_THAT(run.messages, IsEmpty());
    EXPECT_EQ(run_identity_of(read_checkpoint(run.checkpoint(12)), "x"), "");
    EXPECT_FALSE(exists(run.out() / "run.json"));
}

TEST(RunIdentity, RefusesACheckpointWithoutOneInARunThatHasOne) {
    RunToResume run;
    run.train();
    run.change(10, [](Checkpoint& checkpoint) { checkpoint.meta.erase("run"); });
    EXPECT_THAT(run.refusal(), HasSubstr("step_00000010.h5: belongs to a run without an identity"));
    run.change(10, [](Checkpoint& checkpoint) { checkpoint.meta.set("run", 7); });
    EXPECT_THAT(run.refusal(), HasSubstr("step_00000010.h5: its run's identity is not a text"));
}

// ---- Dtypes ----

void convert_tensor(NamedTensors& tensors, const std::string& name, DType dtype) {
    const Context ctx;
    const Tensor converted = empty(ctx, tensors.at(name).shape(), dtype);
    if (is_floating(dtype)) {
        copy(ctx, converted, tensors.at(name));
    } else {
        fill(ctx, converted, 1.0);
    }
    tensors[name] = converted;
}

TEST(SavedDtypes, OfParametersAreThoseOfTheRun) {
    RunToResume run;
    run.train();
    for (const auto& [dtype, name] : {std::pair{DType::f64, "float64"}, std::pair{DType::i32, "int32"},
                                      std::pair{DType::bf16, "bfloat16"}}) {
        run.change(10, [&, dtype = dtype](Checkpoint& c) { convert_tensor(c.params, "ln_f.weight", dtype); });
        EXPECT_THAT(run.refusal(), HasSubstr(concat("step_00000010.h5: parameter 'ln_f.weight' is ", name,
                                                    "; expected float32")));
    }
    run.change(10, [&](Checkpoint& c) { convert_tensor(c.params, "ln_f.weight", DType::f32); });
    EXPECT_EQ(Trainer(run.out(), ResumeOptions{}, run.on_message).step(), 10);
}

TEST(SavedDtypes, OfMastersAndMomentsAreFloat32) {
    RunToResume run;
    run.config.dtype = TrainDType::bf16;
    run.train();
    const Checkpoint sound = read_checkpoint(run.checkpoint(10));
    const std::string moment = sound.optimizer.begin()->first;
    run.change(10, [&](Checkpoint& c) { convert_tensor(c.master, "ln_f.weight", DType::bf16); });
    EXPECT_THAT(run.refusal(), HasSubstr("master 'ln_f.weight' is bfloat16; expected float32"));
    write_checkpoint(run.checkpoint(10), sound);
    run.change(10, [&](Checkpoint& c) { convert_tensor(c.optimizer, moment, DType::f64); });
    EXPECT_THAT(run.refusal(), testing::AllOf(HasSubstr(concat("optimizer state '", moment, "' is ")),
                                              HasSubstr("float64"), HasSubstr("; expected ")));
    write_checkpoint(run.checkpoint(10), sound);
    run.change(10, [&](Checkpoint& c) { c.master.clear(); });
    EXPECT_THAT(run.refusal(), HasSubstr("has no masters of its bfloat16 weights"));
    write_checkpoint(run.checkpoint(10), sound);
    run.change(10, [&](Checkpoint& c) { c.master.erase("ln_f.weight"); });
    EXPECT_THAT(run.refusal(), HasSubstr("has no master 'ln_f.weight'"));
    write_checkpoint(run.checkpoint(10), sound);
    EXPECT_EQ(Trainer(run.out(), ResumeOptions{}, run.on_message).step(), 10);
}

TEST(SavedDtypes, OfWeightsToStartOrSampleFromAreFloatingPoint) {
    RunToResume run;
    run.train();
    TrainConfig next = run.config;
    next.init_from = run.checkpoint(10);
    next.out = "";
    run.change(10, [&](Checkpoint& c) { convert_tensor(c.params, "ln_f.weight", DType::f64); });
    EXPECT_NO_THROW(Trainer(next, run.on_message));
    EXPECT_NO_THROW(load_model(run.checkpoint(10)));
    run.change(10, [&](Checkpoint& c) { convert_tensor(c.params, "ln_f.weight", DType::i32); });
    const auto refuses =
        HasSubstr("step_00000010.h5: parameter 'ln_f.weight' is int32; expected a floating-point dtype");
    EXPECT_THAT(message_of([&] { Trainer(next, run.on_message); }), refuses);
    EXPECT_THAT(message_of([&] { load_model(run.checkpoint(10)); }), refuses);
}

}  // namespace
}  // namespace gradtile
