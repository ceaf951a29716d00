// Training with several processes when one is killed, stopped, signalled or started with other settings. Runs
// on the CPU through mpirun and through gradtile's launcher, or with GRADTILE_FAULT_GPUS=N on N GPUs of this
// host.
#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "processes.h"

#include <gradtile/train/parallel/internal/socket.h>

namespace gradtile::test {
namespace {

using std::chrono::steady_clock;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST_F(Processes, OnlyRankZeroPrints) {
    Arguments loud = training(place_ / "run") + Arguments{"--steps", "8"};
    std::erase(loud, "--quiet");
    const Outcome outcome = launch(loud).wait();
    expect_success(outcome);
    EXPECT_EQ(outcome.out.find("training on "), outcome.out.rfind("training on "));
    EXPECT_EQ(outcome.out.find("checkpoint: "), outcome.out.rfind("checkpoint: "));
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("training on "), HasSubstr("checkpoint: ")));
    EXPECT_EQ(steps_of(place_ / "run").size(), 8u);
}

TEST_F(Processes, OnlyRankZeroWritesEventsForTensorBoard) {
    const auto events = place_ / "events";
    const Outcome outcome =
        start(training(place_ / "run") + Arguments{"--steps", "6", "--tensorboard", events.string()}).wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<std::filesystem::path> files(std::filesystem::directory_iterator(events), {});
    ASSERT_EQ(files.size(), 1u);
    std::int64_t losses = 0;
    const std::string bytes = contents_of(files[0]), tag = "\x0a\x04loss";
    for (std::size_t position = bytes.find(tag); position != std::string::npos;
         position = bytes.find(tag, position + 1))
        ++losses;
    EXPECT_EQ(losses, 6);
}

TEST_F(Processes, OthersNameAKilledProcess) {
    for (int round = 0; round < fault_rounds; ++round) {
        choose_ranks(round);
        extra_settings_ = {"--zero", std::to_string(3 - round % 4)};
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = start(training(out));
        wait_for_steps(program, out, 20 + random_below(200));
        const int lost_rank = random_below(ranks_);
        const auto since = steady_clock::now();
        signal_process(process_of(out, lost_rank), SIGKILL);
        const Outcome outcome = program.wait();
        EXPECT_LT(seconds_since(since), killed_seconds);
        EXPECT_NE(outcome.exit_code, 0);
        expect_victim_named(outcome, lost_rank);
        expect_resumable(out);
    }
}

TEST_F(Processes, OthersNameAHangingProcess) {
    const double timeout = 5.0;  // longer than the 3 s for which a busy machine sometimes stops a process
    for (int round = 0; round < fault_rounds; ++round) {
        choose_ranks(round);
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = start(training(out, timeout));
        wait_for_steps(program, out, 20 + random_below(200));
        const int lost_rank = random_below(ranks_);
        const auto since = steady_clock::now();
        signal_process(process_of(out, lost_rank), SIGSTOP);
        const Outcome outcome = program.wait();
        EXPECT_LT(seconds_since(since), timeout + killed_seconds);
        EXPECT_EQ(outcome.exit_code, 3);
        expect_victim_named(outcome, lost_rank);
        expect_resumable(out);
    }
}

/// Ranks that are all stopped cannot notice each other; the launcher does.
TEST_F(Processes, TheLauncherKillsProcessesThatAreAllStopped) {
    const double timeout = 5.0;  // as above
    const std::filesystem::path out = place_ / "run";
    Program program = launch(training(out, timeout));
    wait_for_steps(program, out, 20);
    const auto since = steady_clock::now();
    for (int rank = 0; rank < ranks_; ++rank) signal_process(process_of(out, rank), SIGSTOP);
    const Outcome outcome = program.wait();
    EXPECT_LT(seconds_since(since), timeout + killed_seconds);
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_THAT(outcome.err,
                HasSubstr(concat("all ", ranks_, " processes were stopped for 5 s and are killed")));
    expect_resumable(out);
}

/// A token file is overwritten on one host, so that the rank on this host throws an Error during a step.
TEST_F(Processes, ErrorInAStepSavesTheStepBeforeInAllProcesses) {
    if (gpus > 0) GTEST_SKIP() << "gradtile's own launcher has one working directory for all";
    constexpr std::int64_t changed_token = 1000;
    std::vector<std::uint16_t> tokens(3000);
    for (std::uint16_t& token : tokens) token = static_cast<std::uint16_t>(random_below(100));
    extra_settings_ = {"--vocabulary", "100"};
    const auto overwrite = [&](int rank, std::uint16_t token) {
        std::fstream file(place_ / std::to_string(rank) / "tokens.bin",
                          std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(2 * changed_token);
        file.write(reinterpret_cast<const char*>(&token), sizeof token);
    };
    for (int round = 0; round < fault_rounds; ++round) {
        choose_ranks(round);
        write_data_per_rank("tokens.bin", {reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()});
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = start(training(out));
        wait_for_steps(program, out, 20 + random_below(200));
        const int lost_rank = random_below(ranks_);
        const auto since = steady_clock::now();
        overwrite(lost_rank, 54321);
        const Outcome outcome = program.wait();
        EXPECT_LT(seconds_since(since), killed_seconds);
        EXPECT_NE(outcome.exit_code, 0);
        // The change is detected when the token is read, or when the epoch ends.
        const std::string what =
            "tokens.bin: (.* have an id 54321, outside the vocabulary of 100|holds .*; expected .*) "
            "\\(it was changed while it was read\\)";
        // All processes drop the step. The last complete step is saved, and then one process prints the error
        // line.
        const std::string line = concat("gradtile: (rank [0-9]+: )?(evaluation after )?step [0-9]+: rank ",
                                        lost_rank, ": [^ ]*", what, "; stopped, step [0-9]+ is saved: ");
        EXPECT_THAT(outcome.err, ContainsRegex(line));
        const std::string saved = " is saved: ";
        EXPECT_EQ(outcome.err.find(saved), outcome.err.rfind(saved)) << outcome.err;
        overwrite(lost_rank, tokens[changed_token]);
        expect_resumable(out);
    }
}

/// Tests a step with one micro-step, which all processes must finish, and a step with two.
TEST_F(Processes, UnreadableDataDropsTheStepInAllProcesses) {
    if (gpus > 0) GTEST_SKIP() << "started through mpirun";
    const std::filesystem::path config = place_ / "config.json";
    ProcessOptions options = options_;
    options.program = GRADTILE_TRAINING_PROCESS;
    options.prefix = {"mpirun", "-np", std::to_string(ranks_)};
    const auto train = [&](const std::filesystem::path& out, int micro_batch, int zero) {
        std::ofstream(config) << nlohmann::json{
            {"data", stories_}, {"out", out.string()}, {"layers", 1},
            {"heads", 2},       {"width", 16},         {"context", 16},
            {"steps", 20},      {"batch", 2 * ranks_}, {"micro-batch", micro_batch},
            {"threads", 1},     {"device", "cpu"},     {"eval-every", 8},
            {"zero", zero}};
        return Program({config.string()}, options).wait();
    };
    for (const auto& [micro_batch, zero] : {std::pair{2, 1}, {1, 0}, {1, 2}, {1, 3}}) {
        const std::filesystem::path out = place_ / concat("run", micro_batch, zero);
        const std::filesystem::path straight = place_ / concat("straight", micro_batch, zero);
        EXPECT_EQ(train(straight, micro_batch, zero).exit_code, 0);
        options.environment.emplace_back("GRADTILE_UNREADABLE", concat(ranks_ - 1, ":8"));
        const Outcome failed = train(out, micro_batch, zero);
        options.environment.pop_back();
        EXPECT_EQ(failed.exit_code, 1) << failed.err;
        EXPECT_THAT(failed.err,
                    HasSubstr(concat("step 8: rank ", ranks_ - 1,
                                     ": text.txt: is shorter than it was; stopped, step 7 is saved: ")));
        EXPECT_EQ(steps_of(out).size(), 7u);
        EXPECT_EQ(train(out, micro_batch, zero).exit_code, 0);
        EXPECT_EQ(steps_of(out), steps_of(straight));
        EXPECT_EQ(tensors_of(out), tensors_of(straight));
    }
}

/// The step has 4096 micro-steps; after each one the processes vote whether to stop.
TEST_F(Processes, SignalDropsALongStepInAllProcesses) {
    if (gpus > 0) GTEST_SKIP() << "a step on a GPU is finished";
    const std::filesystem::path out = place_ / "run";
    extra_settings_ = {
        "--batch", std::to_string(4096 * ranks_), "--micro-batch", "1", "--width", "64", "--context", "64"};
    Program program = start(training(out));
    wait_until(program, [&] { return exists(out / "metrics.jsonl"); });
    std::this_thread::sleep_for(std::chrono::seconds(1));
    signal_process(process_of(out, ranks_ - 1), SIGTERM);
    const Outcome outcome = program.wait();
    expect_success(outcome);
    EXPECT_THAT(outcome.out, ContainsRegex("stopped by .* after step [0-9]+; step [0-9]+ is dropped after "
                                           "micro-step [0-9]+ of 4096"));
}

TEST_F(Processes, NamesDifferingSettings) {
    for (int round = 0; round < fault_rounds; ++round) {
        choose_ranks(round);
        const std::filesystem::path out = place_ / concat("run", round);
        const std::string line = concat(
            "settings differs between ranks: lr is 0.001 on rank 0 and 0.5 on rank ", ranks_ - 1, '\n');
        const std::string port = std::to_string(listen_at("127.0.0.1", 0, SteadyClock::now()).port);
        const auto since = steady_clock::now();
        std::vector<std::unique_ptr<Program>> programs;
        // Starts each rank separately, like a user with a shell on each host.
        for (int rank = 0; rank < ranks_; ++rank) {
            ProcessOptions options = options_;
            options.environment = {
                {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(ranks_)},
                {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(ranks_)},
                {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", port}};
            const Arguments other = rank == ranks_ - 1 ? Arguments{"--lr", "0.5"} : Arguments{};
            programs.push_back(std::make_unique<Program>(training(out) + other, options));
        }
        std::string output;
        for (const auto& program : programs) {
            const Outcome outcome = program->wait();
            EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
            output += outcome.err;
        }
        EXPECT_LT(seconds_since(since), 60.0);
        EXPECT_THAT(output, HasSubstr(line));
        EXPECT_EQ(output.find(line), output.rfind(line)) << output;
        EXPECT_FALSE(exists(out));
    }
}

TEST_F(Processes, NamesDifferingData) {
    if (gpus > 0) GTEST_SKIP() << "gradtile's own launcher has one working directory for all";
    choose_ranks(0);
    const std::string text = contents_of(stories_);
    write_data_per_rank("here.txt", text);
    std::string other = text;
    std::swap(other[10], other[1000]);
    ASSERT_NE(other, text);
    place_.write(concat(ranks_ - 1, "/here.txt"), other);
    const std::filesystem::path out = place_ / "run";
    const Outcome outcome = start(training(out)).wait();
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err,
                ContainsRegex(concat(
                    "data differs between ranks: the content of data .here.txt. is .*sha256:.* on rank 0 "
                    "and .*sha256:.* on rank ",
                    ranks_ - 1)));
    EXPECT_FALSE(exists(out));
}

TEST_F(Processes, SignalToOneProcessEndsAllAfterTheSameStep) {
    for (int round = 0; round < fault_rounds; ++round) {
        choose_ranks(round);
        for (const int signal : {SIGTERM, SIGUSR1}) {
            const std::filesystem::path out = place_ / concat("run", round, '_', signal);
            Program program = start(training(out));
            wait_for_steps(program, out, 1 + random_below(200));
            signal_process(process_of(out, random_below(ranks_)), signal);
            const Outcome outcome = program.wait();
            expect_success(outcome);
            EXPECT_THAT(outcome.out, HasSubstr("stopped by "));
            expect_resumable(out);
        }
    }
}

TEST_F(Processes, SignalToTheLauncherEndsAllAfterTheSameStep) {
    for (int round = 0; round < fault_rounds; ++round) {
        choose_ranks(round);
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = launch(training(out));
        wait_for_steps(program, out, 1 + random_below(200));
        program.send(SIGTERM);
        const Outcome outcome = program.wait();
        expect_success(outcome);
        EXPECT_THAT(outcome.out, HasSubstr("stopped by "));
        expect_resumable(out);
    }
}

/// Saves fail, training continues, and the last sound checkpoint is kept.
TEST_F(Processes, FullDiskFailsOnlySaves) {
    if (gpus > 0) GTEST_SKIP() << "NCCL itself writes files that a limit on their size forbids";
    const std::filesystem::path out = place_ / "run";
    EXPECT_EQ(start(training(out) + Arguments{"--stop-after", "40"}).wait().exit_code, 0);
    ProcessOptions limited = options_;
    // Prevents Open MPI from writing its own files.
    limited.environment.insert(limited.environment.end(),
                               {{"OMPI_MCA_btl", "tcp,self"}, {"PMIX_MCA_gds", "hash"}});
    limited.prefix = {"mpirun", "-np", std::to_string(ranks_),
                      "sh",     "-c",  "ulimit -f 40; exec \"$0\" \"$@\""};  // enough for the metrics only
    const Arguments on = {"train", "--resume", out.string(), "--quiet", "--stop-after", "100"};
    const Outcome full = Program(on, limited).wait();
    EXPECT_EQ(full.exit_code, 1);
    for (const char* step : {"060", "080", "100"})
        EXPECT_THAT(full.err, HasSubstr(concat("step_00000", step, ".h5: cannot write: File too large")));
    EXPECT_THAT(full.err, Not(HasSubstr(" was lost ")));
    EXPECT_EQ(steps_of(out).size(), 100u);
    expect_resumable(out);
}

TEST_F(Processes, RestartsAfterAProcessWasKilled) {
    extra_settings_ = {"--zero", "3"};
    const std::filesystem::path out = place_ / "run";
    const Arguments end = {"--stop-after", "400"};
    Program program =
        launch(training(out) + end + Arguments{"--restarts", "1"} + (gpus == 0 ? on_loss_ : Arguments{}));
    wait_for_steps(program, out, 100);
    signal_process(process_of(out, ranks_ - 1), SIGKILL);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("; restart 1 of 1 from the last sound checkpoint\n"));
    const std::filesystem::path straight = place_ / "straight";
    EXPECT_EQ(start(training(straight) + end).wait().exit_code, 0);
    EXPECT_EQ(tensors_of(out), tensors_of(straight));
    EXPECT_EQ(steps_of(out), steps_of(straight));
}

}  // namespace
}  // namespace gradtile::test
