// A run that was stopped and resumed by another process is bit-identical to an uninterrupted run (weights,
// optimizer, metrics and samples) with any number of threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "program.h"

namespace gradtile::test {
namespace {

std::ptrdiff_t lines_in(const std::filesystem::path& path) {
    return std::ranges::count(contents_of(path), '\n');
}

class ResumeByAnotherProcess : public testing::TestWithParam<Arguments> {
  protected:
    Arguments training(const std::string& name) const {
        return tiny_training(stories_, place_ / name) + GetParam() +
               Arguments{"--steps", "40", "--eval-every", "15", "--save-every", "10", "--quiet"};
    }
    Arguments resume(const std::string& name, const char* threads) const {
        return {"train", "--resume", (place_ / name).string(), "--threads", threads, "--quiet"};
    }
    std::string sampled(const std::string& name) const {
        const Outcome outcome = run({"sample", (place_ / name).string(), "--tokens", "60", "--seed", "3"});
        expect_success(outcome);
        return outcome.out;
    }
    void expect_equal_runs(const std::string& a, const std::string& b) const {
        EXPECT_EQ(tensors_of(place_ / a), tensors_of(place_ / b));
        EXPECT_EQ(steps_of(place_ / a), steps_of(place_ / b));
        EXPECT_EQ(sampled(a), sampled(b));
    }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
};

TEST_P(ResumeByAnotherProcess, EqualsAnUninterruptedRunAfterAStop) {
    expect_success(run(training("straight")));
    expect_success(run(training("stopped") + Arguments{"--stop-after", "20"}));
    EXPECT_EQ(steps_of(place_ / "stopped").size(), 20u);
    expect_success(run(resume("stopped", "2")));
    EXPECT_EQ(steps_of(place_ / "straight").size(), 40u);
    expect_equal_runs("straight", "stopped");
}

TEST_P(ResumeByAnotherProcess, EqualsAnUninterruptedRunAfterASignal) {
    // The run is so long that the signal always arrives before its end. The test reads afterwards how many
    // steps it has done.
    const Arguments endless{"--steps", "100000000"};
    for (const int signal : {SIGTERM, SIGUSR1}) {
        const std::string name = signal == SIGTERM ? "terminated" : "user";
        Program interrupted(training(name) + endless);
        while (interrupted.running() && lines_in(place_ / name / "metrics.jsonl") < 3) usleep(1000);
        interrupted.send(signal);
        const Outcome outcome = interrupted.wait();
        expect_success(outcome);
        const std::string stopped = concat("stopped by signal ", signal, " after step ");
        const std::size_t position = outcome.out.find(stopped);
        ASSERT_NE(position, std::string::npos) << outcome.out;
        // A step whose evaluation was still running has no line in metrics.jsonl yet.
        const std::size_t done = std::stoull(outcome.out.substr(position + stopped.size()));
        EXPECT_GE(steps_of(place_ / name).size() + 1, done);

        const Arguments until{"--stop-after", std::to_string(done + 20)};
        expect_success(run(resume(name, "2") + until));
        expect_success(run(training("straight-" + name) + endless + until));
        EXPECT_EQ(steps_of(place_ / name).size(), done + 20);
        expect_equal_runs("straight-" + name, name);
    }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ResumeByAnotherProcess,
                         testing::Values(Arguments{"--dtype", "f32"},
                                         Arguments{"--dtype", "bf16", "--dropout", "0.1", "--micro-batch",
                                                   "2", "--attention-dropout", "0.2", "--sinks", "--window",
                                                   "6", "--softcap", "30"}),
                         [](const auto& info) { return info.param[1]; });

class Resume : public testing::Test {
  protected:
    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
    std::filesystem::path out_ = place_ / "run";
};

TEST_F(Resume, StepsMovesOnlyTheEnd) {
    const auto longer = place_ / "longer";
    expect_success(run(tiny_training(stories_, out_)));
    expect_success(run({"train", "--resume", out_.string(), "--steps", "12", "--quiet"}));
    const auto steps = steps_of(out_);
    ASSERT_EQ(steps.size(), 12u);
    // The schedule's horizon stays 8, so later steps have the minimum rate and the first 8 steps are
    // unchanged.
    for (std::size_t i = 8; i < 12; ++i) EXPECT_EQ(steps[i]["lr"], 1e-4);
    expect_success(run(tiny_training(stories_, longer) + Arguments{"--quiet"}));
    const auto first = steps_of(longer);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(steps[i]["loss"], first[i]["loss"]);
}

/// Flags change the settings of the run, not those of a new run: split masters need dtype bf16.
TEST_F(Resume, FlagsAreCheckedAgainstTheSettingsOfTheRun) {
    const Arguments again{"train", "--resume", out_.string(), "--quiet", "--steps"};
    expect_success(run(tiny_training(stories_, out_) + Arguments{"--dtype", "bf16", "--stop-after", "4"}));
    expect_success(run(again + Arguments{"10", "--masters", "split", "--zero", "1"}));
    EXPECT_EQ(steps_of(out_).size(), 10u);
    EXPECT_EQ(run(again + Arguments{"0"}).exit_code, 2);
    EXPECT_EQ(run(again + Arguments{"12", "--save-every", "-1"}).exit_code, 2);
    const auto wide = place_ / "wide";
    expect_success(run(tiny_training(stories_, wide) + Arguments{"--stop-after", "4"}));
    const Outcome refused = run({"train", "--resume", wide.string(), "--masters", "split"});
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_THAT(refused.err, testing::HasSubstr("masters: \"split\" without dtype bf16"));
}

TEST_F(Resume, FinishedRunIsUnchanged) {
    expect_success(run(tiny_training(stories_, out_)));
    const std::string before = contents_of(out_ / "metrics.jsonl");
    expect_success(run({"train", "--resume", out_.string()}));
    EXPECT_EQ(contents_of(out_ / "metrics.jsonl"), before);
}

TEST_F(Resume, StartsAgainWithoutACheckpoint) {
    {
        Program killed(tiny_training(stories_, out_) +
                       Arguments{"--steps", "100000000", "--save-every", "0", "--eval-every", "0"});
        while (killed.running() && contents_of(out_ / "metrics.jsonl").empty()) usleep(1000);
        killed.send(SIGKILL);
        EXPECT_EQ(killed.wait().signal, SIGKILL);
    }
    const Outcome outcome = run({"train", "--resume", out_.string(), "--stop-after", "8", "--quiet"});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, concat("gradtile: no checkpoint was saved yet; ", out_.string(),
                                  " continues from the start\n"));
    EXPECT_EQ(steps_of(out_).size(), 8u);
}

class ResumeOfAStream : public Resume {
  protected:
    ResumeOfAStream() {
        std::filesystem::create_directories(rows_);
        for (const char* name : {"a.jsonl", "b.jsonl"}) write(name, 'r');
    }
    void write(const char* name, char letter) const {
        std::ofstream file(rows_ / name);
        for (int i = 0; i < 60; ++i) file << "{\"text\":\"" << std::string(10, letter) << i << "\"}\n";
    }
    Arguments training() const {
        return tiny_training(rows_.string(), out_) +
               Arguments{"--tokenizer", "bytes", "--stream-buffer", "16", "--quiet"};
    }
    Arguments resume() const { return {"train", "--resume", out_.string(), "--quiet"}; }

    std::filesystem::path rows_ = place_ / "rows";
};

TEST_F(ResumeOfAStream, RefusesChangedFilesByName) {
    expect_success(run(training() + Arguments{"--stop-after", "2"}));
    const auto time = std::filesystem::last_write_time(rows_ / "b.jsonl");
    write("b.jsonl", 'x');
    std::filesystem::last_write_time(rows_ / "b.jsonl", time + std::chrono::seconds(5));
    expect_refused(run(resume()), {"b.jsonl: ", "the run was made"});
    write("b.jsonl", 'r');
    std::filesystem::last_write_time(rows_ / "b.jsonl", time);
    std::ofstream(rows_ / "c.jsonl");
    expect_refused(run(resume()), {"c.jsonl: was not there when the run was made"});
    std::filesystem::remove(rows_ / "c.jsonl");
    std::filesystem::resize_file(rows_ / "a.jsonl", 100);
    expect_refused(run(resume()), {"a.jsonl: is not the data that the run was made with: bytes 100, not "});
    std::filesystem::remove(rows_ / "a.jsonl");
    expect_refused(run(resume()), {"rows: has no file a.jsonl, which the run was made with"});
    EXPECT_EQ(steps_of(out_).size(), 2u);
}

TEST_F(ResumeOfAStream, OfMovedFilesGoesOn) {
    expect_success(run(training() + Arguments{"--stop-after", "2"}));
    std::filesystem::rename(rows_, place_ / "moved");
    expect_refused(run(resume()), {"rows"});
    expect_success(run(resume() + Arguments{"--data", (place_ / "moved").string()}));
    EXPECT_EQ(steps_of(out_).size(), 8u);
}

TEST_F(ResumeOfAStream, TheNumberOfStepsIsNotGuessed) {
    const Arguments without_steps{"train",       "--data", rows_.string(),    "--out", out_.string(),
                                  "--tokenizer", "bytes",  "--stream-buffer", "16"};
    expect_refused(run(without_steps), {"--steps: not given", "--stream-buffer 16", "--time-budget"});
    EXPECT_FALSE(exists(out_));
    const Outcome memory = run(without_steps + Arguments{"--steps", "8", "--memory"});
    expect_success(memory);
    EXPECT_NE(memory.out.find("rows: 2 files of documents, encoded during training in blocks of 16"),
              std::string::npos);
    EXPECT_NE(memory.out.find("training on a stream of tokens"), std::string::npos);
    expect_refused(run(without_steps + Arguments{"--steps", "8", "--token-cache", "cache"}),
                   {"token-cache: ", "with stream-buffer;"});
}

}  // namespace
}  // namespace gradtile::test
