// gradtile train as the parent of its processes, and what it says of an environment that makes no sense.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/signal_process.h>

#include "running_program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;

ProcessOptions with(std::vector<std::pair<std::string, std::string>> environment) {
    return {.environment = std::move(environment)};
}

const std::vector<std::pair<std::string, std::string>> rank_1_of_2 = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};

TEST(Launcher, RefusesInOneLine) {
    const TemporaryDirectory place;
    const Arguments training = tiny_training(write_stories(place), place / "run");
    const Arguments automatic = training + Arguments{"--device", "auto"};
    expect_refused(run(training + Arguments{"--gpus", "2"}), {"--gpus: ", "--device cpu", "--processes N"});
    expect_refused(run(automatic + Arguments{"--gpus", "0"}), {"--gpus: 0; expected 1 to "});
    expect_refused(run(automatic + Arguments{"--gpus=-3"}), {"--gpus: -3; expected 1 to "});
    expect_refused(run(automatic + Arguments{"--gpus", "many"}), {"--gpus: 'many' is not an integer"});
    expect_refused(run(automatic + Arguments{"--gpus", "64"}), {"--gpus: 64; this host has 0"});
    expect_refused(run(training + Arguments{"--processes", "0"}), {"--processes: 0; expected 1 to "});
    expect_refused(run(training + Arguments{"--device", "cuda", "--processes", "2"}),
                   {"--processes: ", "--gpus N"});
    expect_refused(run(training + Arguments{"--gpus", "2", "--processes", "2"}), {"expected one of them"});
    expect_refused(run(training + Arguments{"--restarts", "-1"}), {"--restarts: -1; expected 0 to "});
    expect_refused(run(training + Arguments{"--processes", "2"}, with({{"PATH", "/nowhere"}})),
                   {"--processes: needs mpirun, and PATH has none"});
    expect_refused(run(training + Arguments{"--restarts", "1", "--steps", "0"}), {"steps: 0"});
    for (const char* flag : {"--gpus", "--processes", "--restarts"})
        expect_refused(run(automatic + Arguments{flag, "1"}, with(rank_1_of_2)),
                       {flag, ": this is already rank 1 of 2 that torchrun has started; leave it out"});
    EXPECT_FALSE(exists(place / "run"));
}

TEST(Launcher, RefusesAnEnvironmentThatMakesNoSense) {
    const TemporaryDirectory place;
    const Arguments training = tiny_training(write_stories(place), place / "run");
    expect_refused(run(training, with({{"RANK", "2"}, {"WORLD_SIZE", "2"}})),
                   {"RANK: '2'; expected a whole number from 0 to 1"});
    expect_refused(run(training, with({{"RANK", "1"}})), {"WORLD_SIZE: not set, while RANK is '1'"});
    expect_refused(run(training, with({{"RANK", "0"},
                                       {"WORLD_SIZE", "2"},
                                       {"OMPI_COMM_WORLD_RANK", "1"},
                                       {"OMPI_COMM_WORLD_SIZE", "2"}})),
                   {"RANK is 0, but OMPI_COMM_WORLD_RANK is 1"});
    expect_refused(run(training + Arguments{"--timeout", "0"}), {"--timeout: 0; expected seconds"});
}

TEST(Launcher, AProcessWhosePeersDoNotComeEndsWithTheirRanks) {
    const TemporaryDirectory place;
    const Arguments training =
        tiny_training(write_stories(place), place / "run") + Arguments{"--timeout", "1"};
    Outcome outcome = run(training, with(rank_1_of_2));
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_EQ(outcome.err,
              "gradtile: rank 1: rank 0 does not answer at 127.0.0.1 port 1: Connection refused\n");
    outcome = run(
        training,
        with({{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "28999"}}));
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_EQ(outcome.err,
              "gradtile: rank 0: the processes did not meet: ranks 1 and 2 of 3 did not come within 1 s\n");
}

/// Long enough to be interrupted, and saved often.
Arguments long_training(const std::string& data, const std::filesystem::path& out) {
    return tiny_training(data, out) +
           Arguments{"--steps", "3000", "--save-every", "100", "--dropout", "0.1", "--quiet"};
}

TEST(Launcher, RestartsAKilledProcessFromItsLastCheckpoint) {
    const TemporaryDirectory place;
    const std::string stories = write_stories(place);
    const std::filesystem::path out = place / "run";
    expect_success(run(long_training(stories, place / "straight")));
    Program launcher(long_training(stories, out) + Arguments{"--restarts", "3"});
    // Before there is anything; then twice somewhere in between.
    for (const std::int64_t steps : {0, 500, 1500}) {
        pid_t process = -1;
        wait_until(launcher,
                   [&] { return steps_done(out) >= steps && (process = process_with(out, "RANK=0")) > 0; });
        ASSERT_GT(process, 0);
        signal_process(process, SIGKILL);
        wait_until(launcher, [&] { return process_with(out, "RANK=0") != process; });
    }
    const Outcome outcome = launcher.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("gradtile: rank 0 was ended by signal 9\n"));
    EXPECT_THAT(outcome.err, HasSubstr("gradtile: failed with code 137; restart 1 of 3 from the "));
    EXPECT_THAT(outcome.err,
                HasSubstr("gradtile: failed with code 137; restart 3 of 3 from the last sound checkpoint\n"));
    EXPECT_EQ(tensors_of(out), tensors_of(place / "straight"));
    EXPECT_EQ(steps_of(out), steps_of(place / "straight"));
}

TEST(Launcher, RestartsNoMoreOftenThanAsked) {
    const TemporaryDirectory place;
    const std::filesystem::path out = place / "run";
    Program launcher(long_training(write_stories(place), out) + Arguments{"--restarts", "1"});
    for (int kills = 0; kills < 2; ++kills) {
        pid_t process = -1;
        wait_until(launcher,
                   [&] { return steps_done(out) > 0 && (process = process_with(out, "RANK=0")) > 0; });
        signal_process(process, SIGKILL);
        wait_until(launcher, [&] { return process_with(out, "RANK=0") != process; });
    }
    EXPECT_EQ(launcher.wait().exit_code, 128 + SIGKILL);
}

TEST(Launcher, NeverGoesOnWithARunThatWasThereBefore) {
    const TemporaryDirectory place;
    const Arguments training = tiny_training(write_stories(place), place / "run") + Arguments{"--quiet"};
    expect_success(run(training));
    expect_refused(run(training + Arguments{"--restarts", "3"}), {"already holds a run"});
}

TEST(Launcher, ASignalIsPassedOnAndTheRunSavedAndASecondOneEndsItAtOnce) {
    const TemporaryDirectory place;
    const std::string stories = write_stories(place);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
        const std::filesystem::path out = place / concat("run", signal);
        Program launcher(long_training(stories, out) + Arguments{"--restarts", "1"});
        wait_until(launcher, [&] { return steps_done(out) > 0; });
        launcher.send(signal);
        const Outcome outcome = launcher.wait();
        expect_success(outcome);
        EXPECT_THAT(outcome.out, HasSubstr("stopped by signal"));
        expect_success(run({"inspect", out.string()}));
    }
    const std::filesystem::path out = place / "at_once";
    Program launcher(long_training(stories, out) + Arguments{"--restarts", "1"});
    wait_until(launcher, [&] { return steps_done(out) > 0; });
    const pid_t process = process_with(out, "RANK=0");
    signal_process(process, SIGSTOP);  // so that it cannot finish its step
    launcher.send(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    launcher.send(SIGTERM);
    EXPECT_EQ(launcher.wait().exit_code, 128 + SIGTERM);
    EXPECT_EQ(process_with(out, "RANK=0"), -1);
}

TEST(Launcher, ItsProcessesEndWithIt) {
    const TemporaryDirectory place;
    const std::filesystem::path out = place / "run";
    Program launcher(long_training(write_stories(place), out) +
                     Arguments{"--restarts", "1", "--steps", "1000000"});
    wait_until(launcher, [&] { return steps_done(out) > 0; });
    launcher.send(SIGKILL);
    EXPECT_EQ(launcher.wait().signal, SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    while (process_with(out, "RANK=0") > 0 && seconds_since(start) < 10)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(process_with(out, "RANK=0"), -1);
}

}  // namespace
}  // namespace gradtile::test
