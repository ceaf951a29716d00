// Runs in which ranks are lost and replaced, on the CPU, or with GRADTILE_FAULT_GPUS=N on N GPUs of this
// host. One command repeats the losses with other settings:
//
//     GRADTILE_FAULT_PROCESSES=8 GRADTILE_FAULT_ROUNDS=50 GRADTILE_FAULT_SETTINGS="--zero 2 --shard-copies 1"
//         processes_test --gtest_filter='ReplacedRanks.*CostNoStep'
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <regex>
#include <sstream>

#include "processes.h"

#include <support/tensorboard_reader.h>

namespace gradtile::test {
namespace {

using std::chrono::steady_clock;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Processes in the tests whose names end with CostNoStep; 0: 2 to 4 in turn.
const int fault_processes = number_in_environment("GRADTILE_FAULT_PROCESSES", 0);

// Until a new process trains. On a GPU it starts CUDA and NCCL, and selects kernels.
const double max_start_seconds = gpus > 0 ? 45.0 : 15.0;

/// Settings to use in these tests instead of the tests' own; empty: none.
Arguments fault_settings() {
    const char* const text = std::getenv("GRADTILE_FAULT_SETTINGS");
    std::istringstream words(text != nullptr ? text : "");
    return Arguments(std::istream_iterator<std::string>(words), {});
}

bool is_sharded(const Arguments& settings) {
    return std::ranges::find(settings, "--zero") != settings.end();
}
bool has_copies(const Arguments& settings) {
    return std::ranges::find(settings, "--shard-copies") != settings.end();
}

class ReplacedRanks : public Processes {
  protected:
    void SetUp() override {
        uses_mpirun_ = false;
        on_loss_ = {};
        Processes::SetUp();
    }

    static std::int64_t step_lines(const std::filesystem::path& out) { return std::ssize(steps_of(out)); }
    static ino_t metrics_inode(const std::filesystem::path& out) {
        struct stat status {};
        return ::stat((out / "metrics.jsonl").c_str(), &status) == 0 ? status.st_ino : 0;
    }

    /// Calls lose() and returns the seconds until the next step. Without shards one step may be done without
    /// the lost rank's help. With shards rank 0 replaces the metrics before the first step.
    template <class F>
    double seconds_to_next_step(Program& program, const std::filesystem::path& out, F&& lose) const {
        const auto next_step_is_done = [&, before = step_lines(out), inode = metrics_inode(out),
                                        again = std::int64_t{-1}]() mutable {
            if (!is_sharded(extra_settings_)) return step_lines(out) >= before + 2;
            if (metrics_inode(out) == inode) return false;
            if (again < 0) again = step_lines(out);
            return step_lines(out) > again;
        };
        const auto since = steady_clock::now();
        lose();
        wait_until(program, next_step_is_done);
        if (!program.running()) throw Error("the run ended: " + program.wait().err);
        return seconds_since(since);
    }

    Outcome stop(Program& program) {
        program.send(SIGTERM);
        Outcome outcome = program.wait();
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        EXPECT_THAT(outcome.out, HasSubstr("stopped by "));
        return outcome;
    }

    /// Trains with two ranks, calls lose(program) after 20 steps, and returns how the run ended.
    template <class F>
    Outcome end_of_two_ranks(const std::filesystem::path& out, F&& lose) {
        ranks_ = 2;
        Program program = launch(training(out));
        wait_for_steps(program, out, 20);
        lose(program);
        return program.wait();
    }

    /// Loses one rank in each round, each rank in its turn, and expects the results of an undisturbed run.
    void lose_ranks(int signal, double timeout, const Arguments& settings) {
        extra_settings_ = settings;
        const std::filesystem::path out = place_ / concat("run", counter_++);
        Program program = launch(training(out, timeout));
        wait_for_steps(program, out, 30);
        std::vector<double> times;
        std::int64_t newest = 0;
        for (int round = 0; round < std::max(fault_rounds, ranks_); ++round) {
            newest = std::max(newest, step_lines(out));
            wait_until(program,
                       [&, wanted = newest + 1 + random_below(30)] { return step_lines(out) >= wanted; });
            newest = step_lines(out);
            times.push_back(seconds_to_next_step(
                program, out, [&] { signal_process(process_of(out, round % ranks_), signal); }));
            EXPECT_LT(times.back(), (signal == SIGSTOP ? timeout : 0.0) + 5.0 + max_start_seconds);
        }
        const Outcome outcome = stop(program);
        for (int rank = 0; rank < ranks_; ++rank)
            EXPECT_THAT(outcome.err,
                        ContainsRegex(concat("rank ", rank, " was lost at step [0-9]+ \\(.*\\).*; ",
                                             "the run continues with a new process\n")));
        if (has_copies(settings)) {
            EXPECT_THAT(outcome.err, Not(HasSubstr("the run returns to step ")));
        }
        expect_resumable(out);
        std::ranges::sort(times);
        std::printf(
            "%d processes%s, %zu losses by signal %d: next step after %.2f s (median), %.2f s (slowest)\n",
            ranks_, join(settings).c_str(), times.size(), signal, times[times.size() / 2], times.back());
    }

    static std::string join(const Arguments& settings) {
        std::string text;
        for (const std::string& word : settings) text += " " + word;
        return text;
    }
};

TEST_F(ReplacedRanks, KilledOnesCostNoStep) {
    std::vector<Arguments> settings = {
        {"--eval-every", "7"},
        {"--eval-every", "3", "--optimizer", "muon"},
        {"--dtype", "bf16", "--micro-batch", "1"},
        {"--eval-every", "7", "--zero", "1"},
        {"--dtype", "bf16", "--micro-batch", "1", "--zero", "2", "--shard-copies", "1"},
        {"--eval-every", "7", "--zero", "3", "--checkpoint-parts"},
        {"--eval-every", "3", "--optimizer", "muon", "--zero", "3", "--shard-copies", "1"}};
    if (gpus > 0)
        settings = {{"--eval-every", "7"},
                    {"--eval-every", "3", "--optimizer", "muon", "--no-cuda-graph"},
                    {"--dtype", "bf16", "--micro-batch", "1", "--offload", "gradients"},
                    {"--eval-every", "7", "--zero", "1"},
                    {"--dtype", "bf16", "--micro-batch", "1", "--zero", "2", "--no-cuda-graph"},
                    {"--eval-every", "7", "--zero", "3", "--checkpoint-parts"},
                    {"--eval-every", "5", "--context-parallel", std::to_string(gpus), "--dropout", "0"}};
    if (const Arguments given = fault_settings(); !given.empty()) settings = {given};
    for (std::size_t i = 0; i < settings.size(); ++i) {
        ranks_ = gpus > 0 ? gpus : fault_processes > 0 ? fault_processes : 2 + static_cast<int>(i % 3);
        lose_ranks(SIGKILL, 60.0, settings[i]);
    }
}

TEST_F(ReplacedRanks, HangingOnesCostNoStep) {
    std::vector<Arguments> settings = {{"--eval-every", "7"}, {"--zero", "2", "--shard-copies", "1"}};
    if (gpus > 0) settings = {{"--eval-every", "7"}, {"--eval-every", "3", "--no-cuda-graph"}};
    if (const Arguments given = fault_settings(); !given.empty()) settings = {given};
    for (const Arguments& chosen : settings) {
        ranks_ = gpus > 0 ? gpus : fault_processes > 0 ? fault_processes : 2;
        lose_ranks(SIGSTOP, /*timeout=*/gpus > 0 ? 10.0 : 5.0, chosen);  // CUDA's start takes seconds
    }
}

/// A rank may be lost in a step, a save, an evaluation or an exchange of copies, at any message.
TEST_F(ReplacedRanks, MayBeLostInAnyExchange) {
    if (gpus > 0) GTEST_SKIP() << "GPUs exchange without messages";
    const Arguments end = {"--steps", "12", "--save-every", "4", "--eval-every", "3", "--sample-every", "5"};
    std::map<std::string, int> operations;
    const auto train = [&](const std::filesystem::path& out, const std::string& place) {
        const ProcessOptions before = options_;
        options_.environment.emplace_back("LD_PRELOAD", GRADTILE_SIGNAL_AT_SEND_MODULE);
        options_.environment.emplace_back("GRADTILE_SIGNAL_AT_SEND", place);
        const Outcome outcome = launch(training(out, /*timeout=*/5.0) + end).wait();
        options_ = before;
        return outcome;
    };
    std::vector<Arguments> all_settings;
    for (const char* const zero : {"1", "2", "3"}) {
        all_settings.push_back({"--zero", zero});
        all_settings.push_back({"--zero", zero, "--shard-copies", "1"});
    }
    const std::string base = place_ / "base";
    expect_success(run(tiny_training(stories_, base)));
    const Arguments adapters = {"--init-from", base, "--lora-rank", "2", "--zero"};
    for (const Arguments& more : {Arguments{"1"}, {"3"}, {"3", "--frozen-dtype", "nf4"}})
        all_settings.push_back(adapters + more);
    for (const Arguments& settings : all_settings) {
        extra_settings_ = settings;
        const std::filesystem::path straight = place_ / concat("straight", counter_++);
        const Outcome undisturbed = train(straight, "2:0:0");  // rank 2 counts
        ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
        const int sends = std::stoi(undisturbed.err);
        for (int round = 0; round < 4 * fault_rounds; ++round) {
            extra_settings_ = settings;
            if (round % 2 == 1) extra_settings_.push_back("--checkpoint-parts");
            const int signal = round % 4 == 3 ? SIGSTOP : SIGKILL;
            const int send = round == 2 ? sends - 1 : 2 + random_below(sends - 2);  // rank 2: the last one
            const std::string place = concat(round % ranks_, ':', signal, ':', send);
            SCOPED_TRACE(concat(join(extra_settings_), " at ", place));
            const std::filesystem::path out = place_ / concat("run", counter_++);
            const Outcome outcome = train(out, place);
            EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
            EXPECT_EQ(tensors_of(out), tensors_of(straight)) << outcome.err;
            EXPECT_EQ(steps_of(out), steps_of(straight)) << outcome.err;
            if (has_copies(settings)) {
                EXPECT_THAT(outcome.err, Not(HasSubstr("the run returns to step ")));
            }
            std::smatch found;
            const bool was_lost =
                std::regex_search(outcome.err, found, std::regex("waited for it in ([^;]*);"));
            ++operations[was_lost ? found[1].str() : outcome.err.empty() ? "no loss" : "no wait"];
        }
    }
    for (const auto& [operation, count] : operations)
        std::printf("lost in %s: %d\n", operation.c_str(), count);
}

/// A rank may be lost at any moment: in a step, a save, an evaluation or a sample.
TEST_F(ReplacedRanks, MayBeLostAtAnyMomentOnGpus) {
    if (gpus == 0) GTEST_SKIP() << "GRADTILE_FAULT_GPUS is not set";
    const Arguments end = {"--steps", "200", "--save-every", "4", "--eval-every", "3", "--sample-every", "5"};
    for (const Arguments& settings : {Arguments{}, {"--no-cuda-graph"}, {"--zero", "1"}}) {
        extra_settings_ = settings;
        const std::filesystem::path straight = place_ / concat("straight", counter_++);
        const Outcome undisturbed = launch(training(straight) + end).wait();
        ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
        for (int round = 0; round < 2 * fault_rounds; ++round) {
            SCOPED_TRACE(concat(join(settings), ", round ", round));
            const std::filesystem::path out = place_ / concat("run", counter_++);
            Program program = launch(training(out, /*timeout=*/10.0) + end);
            wait_for_steps(program, out, 10 + random_below(120));
            std::this_thread::sleep_for(std::chrono::microseconds(random_below(20'000)));
            signal_process(process_of(out, round % ranks_), round % 4 == 3 ? SIGSTOP : SIGKILL);
            const Outcome outcome = program.wait();
            EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
            EXPECT_THAT(outcome.err, HasSubstr("; the run continues with a new process\n"));
            EXPECT_EQ(tensors_of(out), tensors_of(straight)) << outcome.err;
            EXPECT_EQ(steps_of(out), steps_of(straight)) << outcome.err;
        }
    }
}

TEST_F(ReplacedRanks, MayBeSeveralAtOnce) {
    if (gpus > 0) GTEST_SKIP() << "most hosts have fewer than four GPUs";
    ranks_ = 4;
    for (const Arguments& settings : {Arguments{},
                                      {"--zero", "1"},
                                      {"--zero", "2", "--shard-copies", "1"},
                                      {"--zero", "3", "--shard-copies", "1"}}) {
        extra_settings_ = settings;
        const std::filesystem::path out = place_ / concat("run", counter_++);
        Program program = launch(training(out));
        for (const std::pair<int, int>& lost : {std::pair{0, 2}, {1, 3}, {0, 1}, {2, 3}, {0, 3}}) {
            if (has_copies(settings) && lost.first + 2 != lost.second)
                continue;  // they lose a shard and its copy
            wait_for_steps(program, out, steps_done(out) + 20);
            EXPECT_LT(seconds_to_next_step(program, out,
                                           [&] {
                                               for (const int rank : {lost.first, lost.second})
                                                   signal_process(process_of(out, rank), SIGKILL);
                                           }),
                      5.0 + 15.0);
        }
        const Outcome outcome = stop(program);
        if (has_copies(settings)) {
            EXPECT_THAT(outcome.err, Not(HasSubstr("the run returns to step ")));
        }
        expect_resumable(out);
    }
}

/// A process is lost together with the one that has the copy of its shard.
TEST_F(ReplacedRanks, ReturnToTheCheckpointWithoutACopy) {
    if (gpus > 0) GTEST_SKIP() << "GPUs have no copies of shards";
    ranks_ = 4;
    extra_settings_ = {"--zero", "1", "--shard-copies", "1"};
    const std::filesystem::path out = place_ / "run";
    Program program = launch(training(out));
    for (const std::pair<int, int>& lost : {std::pair{1, 2}, {0, 3}}) {
        wait_for_steps(program, out, steps_done(out) + 20);
        seconds_to_next_step(program, out, [&] {
            for (const int rank : {lost.first, lost.second}) signal_process(process_of(out, rank), SIGSTOP);
            for (const int rank : {lost.first, lost.second}) signal_process(process_of(out, rank), SIGKILL);
        });
    }
    EXPECT_THAT(stop(program).err, ContainsRegex("the run returns to step [0-9]+, .*\\.h5\n"));
    expect_resumable(out);
}

TEST_F(ReplacedRanks, ReturnToTheStartBeforeTheFirstCheckpoint) {
    extra_settings_ = {"--zero", "3", "--save-every", "0"};
    const std::filesystem::path out = place_ / "run";
    Program program = launch(training(out));
    for (const int rank : {1, 0}) {
        wait_until(program, [&] { return steps_done(out) >= 20; });
        seconds_to_next_step(program, out, [&] { signal_process(process_of(out, rank), SIGKILL); });
    }
    EXPECT_THAT(stop(program).err, HasSubstr("no checkpoint was saved yet"));
    expect_resumable(out);
}

/// Steps that are trained again are shown once, and a new rank 0 writes another file.
TEST_F(ReplacedRanks, GoOnWithTheEventsForTensorBoard) {
    const std::filesystem::path out = place_ / "run", events = place_ / "events";
    extra_settings_ = {"--zero", "1", "--tensorboard", events.string()};
    Program program = launch(training(out));
    for (const int rank : {1, 0}) {
        wait_for_steps(program, out, steps_done(out) + 30);
        seconds_to_next_step(program, out, [&] { signal_process(process_of(out, rank), SIGKILL); });
    }
    const Outcome outcome = stop(program);
    EXPECT_THAT(outcome.err, Not(HasSubstr("tensorboard")));
    std::vector<std::uint64_t> expected;
    for (const nlohmann::json& step : steps_of(out)) expected.push_back(step["step"].get<std::uint64_t>());
    EXPECT_EQ(shown_steps(events), expected);
    EXPECT_EQ(files_in(events).size(), 2u);
}

/// A process that dies again and again does not keep the run busy for ever.
TEST_F(ReplacedRanks, EndTheRunWhenTheyAreLostWithoutAStepBetween) {
    const std::filesystem::path out = place_ / "run";
    const Outcome outcome = end_of_two_ranks(out, [&](Program& program) {
        const auto since = steady_clock::now();
        for (pid_t killed = -1; program.running() && seconds_since(since) < 60.0;) {
            const pid_t process = process_of(out, 1);
            if (process > 0 && process != killed) signal_process(killed = process, SIGKILL);
        }
    });
    EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
    EXPECT_THAT(outcome.err, HasSubstr("ranks were lost 6 times without a step between; the run ends\n"));
    expect_resumable(out);
}

/// An error is not a loss: the data of a replaced rank differs.
TEST_F(ReplacedRanks, EndTheRunWithTheirError) {
    const std::filesystem::path out = place_ / "run";
    const Outcome outcome = end_of_two_ranks(out, [&](const Program&) {
        const std::string text = contents_of(stories_);
        place_.write(std::filesystem::path(stories_).filename().string(), text + text);
        signal_process(process_of(out, 1), SIGKILL);
    });
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("rank 1: "));
}

TEST_F(ReplacedRanks, AreOffOnRequest) {
    extra_settings_ = {"--on-loss", "stop", "--zero", "1"};
    const Outcome outcome = end_of_two_ranks(
        place_ / "run", [&](const Program&) { signal_process(process_of(place_ / "run", 1), SIGKILL); });
    EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
    expect_victim_named(outcome, 1);
}

TEST_F(ReplacedRanks, AreRefusedByName) {
    if (gpus > 0) GTEST_SKIP() << "for processes on the CPU";
    const Arguments settings = training(place_ / "run") + Arguments{"--on-loss", "continue"};
    expect_refused(run(settings), {"--on-loss: needs --processes or --gpus"});
    expect_refused(run(settings + Arguments{"--processes", "1"}),
                   {"--on-loss continue: expected --processes or --gpus with 2 or more"});
    expect_refused(run(settings + Arguments{"--processes", "3", "--on-loss", "maybe"}),
                   {"--on-loss 'maybe'; expected continue or stop"});
}

TEST_F(ReplacedRanks, CopiesOfShardsAreRefusedByName) {
    if (gpus > 0) GTEST_SKIP() << "for processes on the CPU";
    const Arguments settings = training(place_ / "run") + Arguments{"--shard-copies", "1"};
    const Arguments processes = {"--processes", "3"}, sharded = {"--zero", "1"};
    expect_refused(run(settings + processes), {"shard-copies: 1 without zero", "expected 0"});
    expect_refused(run(settings + sharded), {"shard-copies: 1 with one process", "expected 0"});
    expect_refused(run(settings + processes + sharded + Arguments{"--on-loss", "stop"}),
                   {"shard-copies: 1; expected 0, because lost processes are not replaced here"});
    expect_refused(run(settings + processes + sharded + Arguments{"--shard-copies", "2"}),
                   {"shard-copies", "2", "expected 0 to 1"});
}

}  // namespace
}  // namespace gradtile::test
