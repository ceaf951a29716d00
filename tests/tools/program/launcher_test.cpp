// gradtile train as its processes' parent, and its errors for contradictory environments.
#include <unistd.h>

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/train/parallel/internal/mpi.h>

#include <support/signal_process.h>

#include "running_program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

ProcessOptions with_environment(std::vector<std::pair<std::string, std::string>> environment) {
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
    expect_refused(run(automatic + Arguments{"--gpus", "64"}),
                   {"--gpus: 64; expected at most the 0 of this host"});
    expect_refused(run(training + Arguments{"--processes", "0"}), {"--processes: 0; expected 1 to "});
    expect_refused(run(training + Arguments{"--device", "cuda", "--processes", "2"}),
                   {"--processes: ", "--gpus N"});
    expect_refused(run(training + Arguments{"--gpus", "2", "--processes", "2"}),
                   {"expected only one of them"});
    expect_refused(run(training + Arguments{"--restarts", "-1"}), {"--restarts: -1; expected 0 to "});
    expect_refused(run(training + Arguments{"--restarts", "1", "--steps", "0"}), {"steps: 0"});
    for (const char* flag : {"--gpus", "--processes", "--restarts"})
        expect_refused(run(automatic + Arguments{flag, "1"}, with_environment(rank_1_of_2)),
                       {flag, ": this process is already rank 1 of 2, started by torchrun; remove the flag"});
    EXPECT_FALSE(exists(place / "run"));
}

TEST(Launcher, NamesALimitOnOpenFilesThatIsTooLow) {
    const TemporaryDirectory place;
    const Arguments training = tiny_training(write_stories(place), place / "run");
    for (const char* const limit : {"8", "16"})
        expect_refused(
            run(training + Arguments{"--processes", "2"},
                {.prefix = {"sh", "-c", concat("ulimit -n ", limit, "; exec \"$0\" \"$@\"")}}),
            {concat("ulimit -n: at most ", limit, " open files; expected 40 or more for 2 processes")});
    EXPECT_FALSE(exists(place / "run"));
}

TEST(Launcher, RefusesAContradictoryEnvironment) {
    const TemporaryDirectory place;
    const Arguments training = tiny_training(write_stories(place), place / "run");
    expect_refused(run(training, with_environment({{"RANK", "2"}, {"WORLD_SIZE", "2"}})),
                   {"RANK: '2'; expected a whole number from 0 to 1"});
    expect_refused(run(training, with_environment({{"RANK", "1"}})),
                   {"WORLD_SIZE: not set, while RANK is '1'"});
    expect_refused(run(training, with_environment({{"RANK", "0"},
                                                   {"WORLD_SIZE", "2"},
                                                   {"OMPI_COMM_WORLD_RANK", "1"},
                                                   {"OMPI_COMM_WORLD_SIZE", "2"}})),
                   {"RANK is 0, but OMPI_COMM_WORLD_RANK is 1"});
    expect_refused(run(training + Arguments{"--timeout", "0"}), {"--timeout: 0; expected more than 0"});
}

TEST(Launcher, RequiresAKeyBetweenHosts) {
    const TemporaryDirectory place;
    const Arguments training = tiny_training(write_stories(place), place / "run");
    std::vector<std::pair<std::string, std::string>> environment = {
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "1"}};
    expect_refused(run(training, with_environment(environment)),
                   {"GRADTILE_RUN_KEY: not set", "node0", "GRADTILE_RUN_KEY=$(openssl rand -hex 32)"});
    environment.emplace_back("GRADTILE_RUN_KEY", "secret");
    expect_refused(run(training, with_environment(environment)),
                   {"GRADTILE_RUN_KEY: 6 characters; expected 32 to 1024 printable characters"});
}

/// The other program never calls MPI_Init, so gradtile's MPI_Init would wait forever.
TEST(Launcher, TimesOutWhenMpirunAlsoStartsAnotherProgram) {
    if (!mpi::is_available()) GTEST_SKIP() << "no MPI here";
    if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not in PATH";
    const TemporaryDirectory place;
    ProcessOptions options =
        with_environment({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
    options.prefix = {"mpirun", "-np", "1"};
    const Arguments training = tiny_training(write_stories(place), place / "run");
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome =
        run(training + Arguments{"--timeout", "2", ":", "-np", "1", "sleep", "600"}, options);
    EXPECT_LT(seconds_since(start), 60.0);
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("gradtile: rank 0: start failed: after 2 s MPI_Init "
                                       "still waits for a process that mpirun has started\n"));
}

/// The launcher itself blocks and ignores signals.
TEST(Launcher, StartsProcessesWithNoSignalBlockedOrIgnored) {
    const TemporaryDirectory place;
    const Arguments training = tiny_training(write_stories(place), place / "run");
    const Outcome outcome = run(training + Arguments{"--processes", "1"},
                                with_environment({{"LD_PRELOAD", GRADTILE_START_SIGNALS_MODULE}}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    // The last three bits are SIGHUP, SIGINT and SIGQUIT, which are ignored if the test runs under nohup.
    EXPECT_THAT(outcome.err, MatchesRegex("SigBlk:\t0000000000000000\nSigIgn:\t000000000000000[0-7]\n"));
}

/// No MPI is needed: PATH has no mpirun.
TEST(Launcher, StartsMoreProcessesThanCoresWithoutMpi) {
    const TemporaryDirectory place;
    const Arguments training = tiny_training(write_stories(place), place / "run");
    const Outcome outcome =
        run(training + Arguments{"--processes", "4"}, with_environment({{"PATH", "/nowhere"}}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(steps_of(place / "run").size(), 8u);
}

TEST(Launcher, NamesTheRanksThatDoNotConnect) {
    const TemporaryDirectory place;
    const Arguments training =
        tiny_training(write_stories(place), place / "run") + Arguments{"--timeout", "1"};
    Outcome outcome = run(training, with_environment(rank_1_of_2));
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_EQ(outcome.err,
              "gradtile: rank 1: rank 0 does not answer at 127.0.0.1 port 1: Connection refused\n");
    outcome = run(
        training,
        with_environment(
            {{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "28999"}}));
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_EQ(outcome.err, "gradtile: rank 0: start failed: ranks 1 and 2 of 3 did not connect within 1 s\n");
}

/// A run long enough to be interrupted, with frequent saves.
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
    // Sends the signal once before the first step, and twice later.
    for (const std::int64_t steps : {0, 500, 1500}) {
        pid_t process = -1;
        wait_until(launcher,
                   [&] { return steps_done(out) >= steps && (process = find_process(out, "RANK=0")) > 0; });
        ASSERT_GT(process, 0);
        signal_process(process, SIGKILL);
        wait_until(launcher, [&] { return find_process(out, "RANK=0") != process; });
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

TEST(Launcher, RestartsAtMostAsOftenAsGiven) {
    const TemporaryDirectory place;
    const std::filesystem::path out = place / "run";
    Program launcher(long_training(write_stories(place), out) + Arguments{"--restarts", "1"});
    for (int kills = 0; kills < 2; ++kills) {
        pid_t process = -1;
        wait_until(launcher,
                   [&] { return steps_done(out) > 0 && (process = find_process(out, "RANK=0")) > 0; });
        signal_process(process, SIGKILL);
        wait_until(launcher, [&] { return find_process(out, "RANK=0") != process; });
    }
    EXPECT_EQ(launcher.wait().exit_code, 128 + SIGKILL);
}

TEST(Launcher, NeverResumesAnEarlierRun) {
    const TemporaryDirectory place;
    const Arguments training = tiny_training(write_stories(place), place / "run") + Arguments{"--quiet"};
    expect_success(run(training));
    expect_refused(run(training + Arguments{"--restarts", "3"}), {"already holds a run"});
}

TEST(Launcher, ForwardsASignalToSaveAndKillsOnTheSecond) {
    const TemporaryDirectory place;
    const std::string stories = write_stories(place);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
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
    const pid_t process = find_process(out, "RANK=0");
    signal_process(process, SIGSTOP);  // so that the process cannot finish its step
    launcher.send(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    launcher.send(SIGTERM);
    EXPECT_EQ(launcher.wait().exit_code, 128 + SIGTERM);
    EXPECT_EQ(find_process(out, "RANK=0"), -1);
}

TEST(Launcher, ClosedTerminalDoesNotEndARunUnderNohup) {
    const TemporaryDirectory place;
    const std::filesystem::path out = place / "run";
    ProcessOptions options;
    options.prefix = {"nohup"};
    Program launcher(
        long_training(write_stories(place), out) + Arguments{"--restarts", "1", "--steps", "1000000"},
        options);
    wait_until(launcher, [&] { return steps_done(out) > 0; });
    launcher.send(SIGHUP);
    const std::int64_t steps = steps_done(out);
    wait_until(launcher, [&] { return steps_done(out) > steps + 100; });
    EXPECT_TRUE(launcher.running());
    launcher.send(SIGTERM);
    const Outcome outcome = launcher.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("stopped by signal"));
}

TEST(Launcher, ProcessesEndWhenTheLauncherIsKilled) {
    const TemporaryDirectory place;
    const std::filesystem::path out = place / "run";
    Program launcher(long_training(write_stories(place), out) +
                     Arguments{"--restarts", "1", "--steps", "1000000"});
    wait_until(launcher, [&] { return steps_done(out) > 0; });
    launcher.send(SIGKILL);
    EXPECT_EQ(launcher.wait().signal, SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    while (find_process(out, "RANK=0") > 0 && seconds_since(start) < 10)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(find_process(out, "RANK=0"), -1);
}

}  // namespace
}  // namespace gradtile::test
