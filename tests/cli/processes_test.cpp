// Training with several processes, from the outside: what they promise when one is killed, stopped, told to
// stop or started with other settings. On the CPU through mpirun; with GRADTILE_FAULT_GPUS=N on N GPUs of
// this host.
#include <csignal>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "running_program.h"

#include <gradtile/core/text/json_value.h>
#include <gradtile/train/parallel/internal/socket.h>
#include <gradtile/train/parallel/internal/mpi.h>

#include <support/signal_process.h>

namespace gradtile::test {
namespace {

using std::chrono::steady_clock;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Promised: killed, known within 5 s; hung, within the timeout + 5 s. mpirun, or --gpus, takes up to 5 more
// to end the process that hangs.
constexpr double killed_seconds = 5.0 + 5.0;

int number_in_environment(const char* name, int otherwise) {
    const char* const text = std::getenv(name);
    return text != nullptr ? std::atoi(text) : otherwise;
}
const int fault_rounds = number_in_environment("GRADTILE_FAULT_ROUNDS", 2);
const int gpus = number_in_environment("GRADTILE_FAULT_GPUS", 0);

class Processes : public testing::Test {
  protected:
    void SetUp() override {
        options_.without_gpu = gpus == 0;
        if (gpus == 0) {
            if (!mpi::is_available()) GTEST_SKIP() << "no MPI here";
            if (std::system("command -v mpirun >/dev/null 2>&1") != 0)
                GTEST_SKIP() << "there is no mpirun in PATH";
            // As root and with more processes than cores, which Open MPI would refuse.
            options_.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                    {"OMPI_MCA_rmaps_base_oversubscribe", "1"}};
        }
        stories_ = write_stories(place_);
    }

    /// Long enough to be interrupted, and saved often.
    Arguments training(const std::filesystem::path& out, double timeout = 60.0) const {
        const Arguments device = gpus > 0 ? Arguments{"--device", "cuda", "--deterministic"} : Arguments{};
        return tiny_training(stories_, out) + device + Arguments{"--batch",      std::to_string(2 * ranks_),
                                                                 "--steps",      "100000",
                                                                 "--save-every", "20",
                                                                 "--dropout",    "0.1",
                                                                 "--quiet",      "--timeout",
                                                                 concat(timeout)} +
               more_settings_;
    }
    /// Through gradtile's own launcher.
    Program launch(const Arguments& arguments) const {
        return Program(arguments + Arguments{gpus > 0 ? "--gpus" : "--processes", std::to_string(ranks_)},
                       options_);
    }
    /// Without it, where there is another one.
    Program start(const Arguments& arguments) const {
        if (gpus > 0) return launch(arguments);
        ProcessOptions options = options_;
        options.through = {"mpirun", "-np", std::to_string(ranks_)};
        if (own_directories_)
            options.through = options.through +
                              Arguments{"sh", "-c",
                                        concat("cd ", place_.path().string(),
                                               "/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec \"$0\" \"$@\"")};
        return Program(arguments, options);
    }
    /// A copy of the data for each rank, as on the disks of several hosts; start() then starts each where its
    /// copy is.
    void train_on_copies(const std::string& name, const std::string& contents) {
        stories_ = name;
        own_directories_ = true;
        for (int rank = 0; rank < ranks_; ++rank) {
            std::filesystem::create_directory(place_ / std::to_string(rank));
            place_.write(concat(rank, '/', name), contents);
        }
    }
    static pid_t process_of(const std::filesystem::path& out, int rank) {
        if (gpus > 0) return process_with(out, concat("RANK=", rank));
        const pid_t of_open_mpi = process_with(out, concat("OMPI_COMM_WORLD_RANK=", rank));
        return of_open_mpi > 0 ? of_open_mpi : process_with(out, concat("PMI_RANK=", rank));  // MPICH's
    }
    static bool has_checkpoint(const std::filesystem::path& out) {
        std::error_code not_there_yet;
        for (const auto& entry : std::filesystem::directory_iterator(out / "checkpoints", not_there_yet))
            if (entry.path().extension() == ".h5") return true;
        return false;
    }
    int some(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

    /// Waits until the run has done that many steps and has something to go on from.
    static void wait_for_steps(Program& program, const std::filesystem::path& out, std::int64_t steps) {
        wait_until(program, [&] { return steps_done(out) >= steps && has_checkpoint(out); });
        ASSERT_TRUE(program.running());
    }

    void expect_named(const Outcome& outcome, int victim) {
        for (int rank = 0; rank < ranks_; ++rank) {
            if (rank == victim) continue;
            EXPECT_THAT(outcome.err,
                        HasSubstr(concat("gradtile: rank ", rank, ": rank ", victim, " was lost at step ")));
        }
    }

    /// A checkpoint is sound, and 10 steps on from it the run is where one that was never interrupted is.
    void expect_sound(const std::filesystem::path& out) {
        const Outcome inspected = run({"inspect", out.string(), "--json"});
        expect_success(inspected);
        const auto step = parse_json(inspected.out).at("step").get<std::int64_t>();
        const Arguments end = {"--stop-after", std::to_string(step + 10)};
        const std::filesystem::path straight = place_ / concat("straight", counter_++);
        const Outcome resumed = start(Arguments{"train", "--resume", out.string(), "--quiet"} + end).wait();
        EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
        const Outcome uninterrupted = start(training(straight) + end).wait();
        EXPECT_EQ(uninterrupted.exit_code, 0) << uninterrupted.err;
        EXPECT_EQ(tensors_of(out), tensors_of(straight));
        EXPECT_EQ(steps_of(out), steps_of(straight));
    }

    /// Two processes and four in turns.
    void begin(int round) {
        if (gpus == 0) ranks_ = round % 2 == 0 ? 2 : 4;
    }

    int ranks_ = gpus > 0 ? gpus : 3;
    TemporaryDirectory place_;
    ProcessOptions options_;
    std::string stories_;
    bool own_directories_ = false;
    Arguments more_settings_;
    std::mt19937 random_{std::random_device{}()};
    int counter_ = 0;
};

TEST_F(Processes, OnlyOneSpeaks) {
    Arguments loud = training(place_ / "run") + Arguments{"--steps", "8"};
    std::erase(loud, "--quiet");
    const Outcome outcome = launch(loud).wait();
    expect_success(outcome);
    EXPECT_EQ(outcome.out.find("training on "), outcome.out.rfind("training on "));
    EXPECT_EQ(outcome.out.find("checkpoint: "), outcome.out.rfind("checkpoint: "));
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("training on "), HasSubstr("checkpoint: ")));
    EXPECT_EQ(steps_of(place_ / "run").size(), 8u);
}

TEST_F(Processes, WhenOneIsKilledTheOthersNameIt) {
    for (int round = 0; round < fault_rounds; ++round) {
        begin(round);
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = start(training(out));
        wait_for_steps(program, out, 20 + some(200));
        const int victim = some(ranks_);
        const auto since = steady_clock::now();
        signal_process(process_of(out, victim), SIGKILL);
        const Outcome outcome = program.wait();
        EXPECT_LT(seconds_since(since), killed_seconds);
        EXPECT_NE(outcome.exit_code, 0);
        expect_named(outcome, victim);
        expect_sound(out);
    }
}

TEST_F(Processes, WhenOneHangsTheOthersNameIt) {
    const double timeout = 3.0;
    for (int round = 0; round < fault_rounds; ++round) {
        begin(round);
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = start(training(out, timeout));
        wait_for_steps(program, out, 20 + some(200));
        const int victim = some(ranks_);
        const auto since = steady_clock::now();
        signal_process(process_of(out, victim), SIGSTOP);
        const Outcome outcome = program.wait();
        EXPECT_LT(seconds_since(since), timeout + killed_seconds);
        EXPECT_EQ(outcome.exit_code, 3);
        expect_named(outcome, victim);
        expect_sound(out);
    }
}

/// A file of tokens that somebody overwrites on one host: that rank throws in the midst of a step.
TEST_F(Processes, WhenOneThrowsInAStepTheOthersSayWhy) {
    if (gpus > 0) GTEST_SKIP() << "gradtile's own launcher has one working directory for all";
    constexpr std::int64_t place_of_harm = 1000;
    std::vector<std::uint16_t> tokens(3000);
    for (std::uint16_t& token : tokens) token = static_cast<std::uint16_t>(some(100));
    more_settings_ = {"--vocabulary", "100"};
    const auto overwrite = [&](int rank, std::uint16_t token) {
        std::fstream file(place_ / std::to_string(rank) / "tokens.bin",
                          std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(2 * place_of_harm);
        file.write(reinterpret_cast<const char*>(&token), sizeof token);
    };
    for (int round = 0; round < fault_rounds; ++round) {
        begin(round);
        train_on_copies("tokens.bin", {reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()});
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = start(training(out));
        wait_for_steps(program, out, 20 + some(200));
        const int victim = some(ranks_);
        const auto since = steady_clock::now();
        overwrite(victim, 54321);
        const Outcome outcome = program.wait();
        EXPECT_LT(seconds_since(since), killed_seconds);
        EXPECT_NE(outcome.exit_code, 0);
        // It is seen when the token is read, or at the end of the epoch.
        const std::string what =
            "tokens.bin: (.* have an id 54321, outside the vocabulary of 100|holds .*; expected .*) "
            "\\(it was changed while it was read\\)";
        // All of them dropped that step; one says so, once the step before it is saved.
        const std::string line = concat("gradtile: (rank [0-9]+: )?(evaluation after )?step [0-9]+: rank ",
                                        victim, ": [^ ]*", what, "; stopped, step [0-9]+ is saved: ");
        EXPECT_THAT(outcome.err, ContainsRegex(line));
        const std::string saved = " is saved: ";
        EXPECT_EQ(outcome.err.find(saved), outcome.err.rfind(saved)) << outcome.err;
        overwrite(victim, tokens[place_of_harm]);
        expect_sound(out);
    }
}

/// In a step of one micro-step, which all have to finish, and in one of two.
TEST_F(Processes, DataThatOneCannotReadIsDroppedInAllAndTheStepBeforeSaved) {
    if (gpus > 0) GTEST_SKIP() << "started through mpirun";
    const std::filesystem::path config = place_ / "config.json";
    ProcessOptions options = options_;
    options.program = GRADTILE_TRAINING_PROCESS;
    options.through = {"mpirun", "-np", std::to_string(ranks_)};
    const auto train = [&](const std::filesystem::path& out, int micro_batch, int zero) {
        std::ofstream(config) << nlohmann::json{
            {"data", stories_}, {"out", out.string()}, {"layers", 1},
            {"heads", 2},       {"width", 16},         {"context", 16},
            {"steps", 20},      {"batch", 2 * ranks_}, {"micro-batch", micro_batch},
            {"threads", 1},     {"device", "cpu"},     {"eval-every", 8},
            {"zero", zero}};
        return Program({config.string()}, options).wait();
    };
    for (const int micro_batch : {2, 1}) {
        const int zero = micro_batch - 1;
        const std::filesystem::path out = place_ / concat("run", micro_batch);
        const std::filesystem::path straight = place_ / concat("straight", micro_batch);
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

/// Processes vote after each of the 4096 micro-steps.
TEST_F(Processes, ASignalInALongStepDropsItInAll) {
    if (gpus > 0) GTEST_SKIP() << "a step on a GPU is finished";
    const std::filesystem::path out = place_ / "run";
    more_settings_ = {
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

TEST_F(Processes, SettingsThatDifferAreNamed) {
    for (int round = 0; round < fault_rounds; ++round) {
        begin(round);
        const std::filesystem::path out = place_ / concat("run", round);
        const std::string line = concat(
            "settings differs between ranks: lr is 0.001 on rank 0 and 0.5 on rank ", ranks_ - 1, '\n');
        const std::string port = std::to_string(listen_at("127.0.0.1", 0, SteadyClock::now()).port);
        const auto since = steady_clock::now();
        std::vector<std::unique_ptr<Program>> programs;
        for (int rank = 0; rank < ranks_; ++rank) {  // as somebody with a shell on each host
            ProcessOptions options = options_;
            options.environment = {
                {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(ranks_)},
                {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(ranks_)},
                {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", port}};
            const Arguments other = rank == ranks_ - 1 ? Arguments{"--lr", "0.5"} : Arguments{};
            programs.push_back(std::make_unique<Program>(training(out) + other, options));
        }
        std::string said;
        for (const auto& program : programs) {
            const Outcome outcome = program->wait();
            EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
            said += outcome.err;
        }
        EXPECT_LT(seconds_since(since), 60.0);
        EXPECT_THAT(said, HasSubstr(line));
        EXPECT_EQ(said.find(line), said.rfind(line)) << said;
        EXPECT_FALSE(exists(out));
    }
}

TEST_F(Processes, DataThatDiffersIsNamed) {
    if (gpus > 0) GTEST_SKIP() << "gradtile's own launcher has one working directory for all";
    begin(0);
    const std::string text = contents_of(stories_);
    train_on_copies("here.txt", text);
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

TEST_F(Processes, ASignalToAnyEndsAllAfterTheSameStep) {
    for (int round = 0; round < fault_rounds; ++round) {
        begin(round);
        for (const int signal : {SIGTERM, SIGUSR1}) {
            const std::filesystem::path out = place_ / concat("run", round, '_', signal);
            Program program = start(training(out));
            wait_for_steps(program, out, 1 + some(200));
            signal_process(process_of(out, some(ranks_)), signal);
            const Outcome outcome = program.wait();
            expect_success(outcome);
            EXPECT_THAT(outcome.out, HasSubstr("stopped by "));
            expect_sound(out);
        }
    }
}

TEST_F(Processes, ASignalToTheLauncherEndsAllAfterTheSameStep) {
    for (int round = 0; round < fault_rounds; ++round) {
        begin(round);
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = launch(training(out));
        wait_for_steps(program, out, 1 + some(200));
        program.send(SIGTERM);
        const Outcome outcome = program.wait();
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;  // mpirun has a word of its own for it
        EXPECT_THAT(outcome.out, HasSubstr("stopped by "));
        expect_sound(out);
    }
}

/// Saves fail, training does not, and the last sound checkpoint stays.
TEST_F(Processes, AFullDiskFailsOnlySaves) {
    if (gpus > 0) GTEST_SKIP() << "NCCL itself writes files that a limit on their size forbids";
    const std::filesystem::path out = place_ / "run";
    EXPECT_EQ(start(training(out) + Arguments{"--stop-after", "40"}).wait().exit_code, 0);
    ProcessOptions limited = options_;
    // So that MPI has no files of its own.
    limited.environment.insert(limited.environment.end(),
                               {{"OMPI_MCA_btl", "tcp,self"}, {"PMIX_MCA_gds", "hash"}});
    limited.through = {"mpirun", "-np", std::to_string(ranks_),
                       "sh",     "-c",  "ulimit -f 40; exec \"$0\" \"$@\""};  // room for metrics alone
    const Arguments on = {"train", "--resume", out.string(), "--quiet", "--stop-after", "100"};
    const Outcome full = Program(on, limited).wait();
    EXPECT_EQ(full.exit_code, 1);
    for (const char* step : {"060", "080", "100"})
        EXPECT_THAT(full.err, HasSubstr(concat("step_00000", step, ".h5: cannot write: File too large")));
    EXPECT_THAT(full.err, Not(HasSubstr(" was lost ")));
    EXPECT_EQ(steps_of(out).size(), 100u);
    expect_sound(out);
}

TEST_F(Processes, RestartsAfterOneWasKilled) {
    const std::filesystem::path out = place_ / "run";
    const Arguments end = {"--stop-after", "400"};
    Program program = launch(training(out) + end + Arguments{"--restarts", "1"});
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
