// The program under signals, and when its terminal or pipe is closed.
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "running_program.h"

#include <gradtile/train/parallel/internal/socket.h>

#include <support/signal_process.h>

namespace gradtile::test {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

/// How often signal tests repeat: GRADTILE_FAULT_ROUNDS, or 2. A value of 50 sends 200 signals in total.
int signal_rounds() {
    const char* const rounds = std::getenv("GRADTILE_FAULT_ROUNDS");
    return rounds != nullptr ? std::atoi(rounds) : 2;
}

/// A run that spends most of its time in the matrix library.
Arguments large_training(const std::string& data, const std::filesystem::path& out) {
    return {"train", "--data",        data, "--out",    out.string(), "--tokenizer",  "bytes", "--layers",
            "2",     "--heads",       "4",  "--width",  "128",        "--context",    "128",   "--batch",
            "8",     "--micro-batch", "4",  "--steps",  "10000000",   "--eval-every", "7",     "--save-every",
            "20",    "--warmup",      "2",  "--device", "cpu",        "--quiet"};
}

/// Expects the program to end without saving when it receives the signal.
void expect_end_at_once(Program& program, int signal) {
    ASSERT_TRUE(program.running());
    const auto since = steady_clock::now();
    program.send(signal);
    EXPECT_EQ(program.wait().exit_code, 128 + signal);
    EXPECT_LT(seconds_since(since), 5.0);
}

// ---- Signals during matrix products ----

struct ComputeSetting {
    const char* dtype;
    const char* threads;
};

class TrainingUnderSignals : public testing::TestWithParam<ComputeSetting> {};
INSTANTIATE_TEST_SUITE_P(Settings, TrainingUnderSignals,
                         testing::Values(ComputeSetting{"f32", "1"}, ComputeSetting{"f32", "2"},
                                         ComputeSetting{"bf16", "1"}, ComputeSetting{"bf16", "2"}),
                         [](const auto& info) {
                             return std::string(info.param.dtype) + "_threads_" + info.param.threads;
                         });

TEST_P(TrainingUnderSignals, SavesAndResumesBitIdentically) {
    const TemporaryDirectory place;
    const std::string data = write_stories(place, 40000);
    const std::filesystem::path out = place / "run", straight = place / "straight";
    const Arguments setting = {"--dtype", GetParam().dtype, "--threads", GetParam().threads};
    const Arguments resume = {"train", "--resume", out.string(), "--threads", GetParam().threads, "--quiet"};
    std::mt19937 random(std::random_device{}());
    std::int64_t done = 0;
    for (int round = 0; round < signal_rounds(); ++round) {
        Program program(round == 0 ? large_training(data, out) + setting : resume);
        const std::int64_t before = done;
        wait_until(program, [&] { return static_cast<std::int64_t>(steps_of(out).size()) > before; });
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300'000));
        const int signals[] = {SIGTERM, SIGUSR1, SIGINT, SIGHUP};
        program.send(signals[random() % 4]);
        const Outcome outcome = program.wait();
        expect_success(outcome);
        ASSERT_EQ(outcome.signal, 0);
        EXPECT_THAT(outcome.out, HasSubstr("stopped by signal "));
        done = static_cast<std::int64_t>(steps_of(out).size());
    }
    const Arguments end = {"--stop-after", std::to_string(done + 3)};
    expect_success(run(resume + end));
    expect_success(run(large_training(data, straight) + setting + end));
    EXPECT_EQ(steps_of(out).size(), static_cast<std::size_t>(done) + 3);
    EXPECT_EQ(steps_of(out), steps_of(straight));
    EXPECT_EQ(tensors_of(out), tensors_of(straight));
}

// ---- Long steps ----

class LongSteps : public testing::Test {
  protected:
    /// Steps of 4096 micro-steps take minutes.
    Arguments training(const std::filesystem::path& out) const {
        return large_training(data_, out) + Arguments{"--threads",     "1", "--batch", "4096",
                                                      "--micro-batch", "1", "--steps", "2",
                                                      "--save-every",  "1"};
    }
    /// Waits until the program trains: one second after it has created metrics.jsonl.
    void wait_until_it_computes(Program& program, const std::filesystem::path& out) const {
        wait_until(program, [&] { return exists(out / "metrics.jsonl"); });
        std::this_thread::sleep_for(std::chrono::seconds(1));
        ASSERT_TRUE(program.running());
    }
    TemporaryDirectory place_;
    std::string data_ = write_stories(place_, 40000);
};

TEST_F(LongSteps, EndBetweenMicroSteps) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
        const std::filesystem::path out = place_ / concat("run", signal);
        Program program(training(out));
        wait_until_it_computes(program, out);
        const auto since = steady_clock::now();
        program.send(signal);
        const Outcome outcome = program.wait();
        EXPECT_LT(seconds_since(since), 20.0);
        expect_success(outcome);
        EXPECT_THAT(outcome.out, testing::ContainsRegex(concat(
                                     "stopped by signal ", signal,
                                     " after step 0; step 1 is dropped after micro-step [0-9]+ of 4096")));
        EXPECT_THAT(outcome.out, HasSubstr("step_00000000.h5"));
    }
}

/// The step has one micro-step, so only a second signal interrupts it.
TEST_F(LongSteps, EndAtOnceOnASecondSignal) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
        const std::filesystem::path out = place_ / concat("run", signal);
        Program program(large_training(data_, out) +
                        Arguments{"--threads", "1", "--batch", "2048", "--micro-batch", "2048"});
        wait_until(program, [&] { return exists(out / "metrics.jsonl"); });
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        program.send(signal);
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        expect_end_at_once(program, signal);
    }
}

// ---- Signals during the start ----

TEST(SignalDuringTheStart, EndsAProcessThatWaitsForPeers) {
    const TemporaryDirectory place;
    const std::string data = write_stories(place);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
        const std::string port = std::to_string(listen_at("127.0.0.1", 0, SteadyClock::now()).port);
        Program program(tiny_training(data, place / "run"), {.environment = {{"RANK", "0"},
                                                                             {"WORLD_SIZE", "2"},
                                                                             {"LOCAL_RANK", "0"},
                                                                             {"LOCAL_WORLD_SIZE", "2"},
                                                                             {"MASTER_ADDR", "127.0.0.1"},
                                                                             {"MASTER_PORT", port}}});
        std::this_thread::sleep_for(std::chrono::seconds(1));
        expect_end_at_once(program, signal);
    }
}

// ---- Output without a reader ----

TEST(OutputWithoutAReader, ClosedPipeDoesNotStopTraining) {
    const TemporaryDirectory place;
    const std::string data = write_stories(place);
    ProcessOptions options;
    options.prefix = {"bash", "-c", "set -o pipefail; \"$0\" \"$@\" 2>&1 | head -n 1"};
    const Outcome outcome =
        Program(tiny_training(data, place / "run") + Arguments{"--steps", "200"}, options).wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(steps_of(place / "run").size(), 200u);
    EXPECT_TRUE(exists(place / "run/checkpoints/step_00000200.h5"));
}

/// Runs the program in a new process group, either on a new pseudo-terminal or without a terminal.
class ProgramInOwnGroup {
  public:
    enum class Terminal { pseudo, none };
    ProgramInOwnGroup(const Arguments& arguments, Terminal terminal) {
        process_ = terminal == Terminal::pseudo ? forkpty(&terminal_, nullptr, nullptr, nullptr) : ::fork();
        check(process_ >= 0, "cannot start a process");
        if (process_ > 0) return;
        if (terminal == Terminal::none) {
            ::setpgid(0, 0);
            const int null = ::open("/dev/null", O_RDWR);
            for (const int stream : {0, 1, 2}) ::dup2(null, stream);
        }
        execute_program(arguments);
    }
    ~ProgramInOwnGroup() {
        if (!ended_) {
            ::kill(process_, SIGKILL);
            ::waitpid(process_, nullptr, 0);
        }
        close_terminal();
    }
    ProgramInOwnGroup(const ProgramInOwnGroup&) = delete;
    ProgramInOwnGroup& operator=(const ProgramInOwnGroup&) = delete;

    void send(int signal) const { signal_process(process_, signal); }
    void type(const std::string& keys) const {
        ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), std::ssize(keys));
    }
    void close_terminal() {
        if (terminal_ >= 0) ::close(terminal_);
        terminal_ = -1;
    }
    /// Waits until the process ends; with WUNTRACED or WCONTINUED also for a stop or a continuation.
    int next_status(int options = 0) {
        int status = 0;
        while (::waitpid(process_, &status, options | WNOHANG) != process_) drain();
        ended_ = WIFEXITED(status) || WIFSIGNALED(status);
        return status;
    }
    template <class Condition>
    void wait_for(Condition condition) {
        while (!condition()) {
            int status = 0;
            if (::waitpid(process_, &status, WNOHANG) == process_) {
                ended_ = true;
                throw Error(concat("the program has ended with status ", status));
            }
            drain();
        }
    }

  private:
    /// Reads the program's output, because the program would otherwise block.
    void drain() const {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (terminal_ < 0) return;
        ::fcntl(terminal_, F_SETFL, O_NONBLOCK);
        char text[4096];
        while (::read(terminal_, text, sizeof text) > 0) {
        }
    }
    pid_t process_ = -1;
    int terminal_ = -1;
    bool ended_ = false;
};

class TerminalSignals : public testing::Test {
  protected:
    Arguments training() const {
        return tiny_training(data_, out_) + Arguments{"--steps", "100000000", "--save-every", "0"};
    }
    bool has_steps(std::int64_t steps) const { return steps_done(out_) >= steps; }
    TemporaryDirectory place_;
    std::string data_ = write_stories(place_);
    std::filesystem::path out_ = place_ / "run";
};

TEST_F(TerminalSignals, CtrlCSavesAndEnds) {
    ProgramInOwnGroup program(training(), ProgramInOwnGroup::Terminal::pseudo);
    program.wait_for([&] { return has_steps(3); });
    program.type("\x03");
    const int status = program.next_status();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(run({"inspect", out_.string()}).exit_code, 0);
}

/// Runs as one process, and under the launcher.
class ClosedTerminal : public TerminalSignals, public testing::WithParamInterface<Arguments> {};
INSTANTIATE_TEST_SUITE_P(As, ClosedTerminal, testing::Values(Arguments{}, Arguments{"--restarts", "1"}),
                         [](const auto& info) { return info.param.empty() ? "one_process" : "launcher"; });

TEST_P(ClosedTerminal, DoesNotStopTraining) {
    ProgramInOwnGroup program(training() + GetParam(), ProgramInOwnGroup::Terminal::pseudo);
    program.wait_for([&] { return has_steps(3); });
    program.close_terminal();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const std::int64_t before = steps_done(out_);
    program.wait_for([&] { return has_steps(before + 50); });
    program.send(SIGHUP);  // ignored like the hangup itself, because the terminal is gone
    program.wait_for([&] { return has_steps(before + 100); });
    program.send(SIGTERM);
    const int status = program.next_status();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(run({"inspect", out_.string()}).exit_code, 0);
}

TEST_F(TerminalSignals, CtrlZSuspendsAndTrainingContinues) {
    ProgramInOwnGroup program(training(), ProgramInOwnGroup::Terminal::none);
    program.wait_for([&] { return has_steps(3); });
    program.send(SIGTSTP);
    EXPECT_TRUE(WIFSTOPPED(program.next_status(WUNTRACED)));
    const std::int64_t before = steps_done(out_);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_LE(steps_done(out_), before + 1);
    program.send(SIGCONT);
    EXPECT_TRUE(WIFCONTINUED(program.next_status(WCONTINUED)));
    program.wait_for([&] { return has_steps(before + 5); });
    program.send(SIGTERM);
    const int status = program.next_status();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// ---- Other commands ----

TEST(OtherCommands, HaveTheDefaultActionsOfSignals) {
    const TemporaryDirectory place;
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
        ProgramInOwnGroup program(
            {"corpus", "--characters", "1000000000", "--out", (place / "endless.txt").string()},
            ProgramInOwnGroup::Terminal::none);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        program.send(SIGTSTP);
        EXPECT_TRUE(WIFSTOPPED(program.next_status(WUNTRACED)));
        program.send(SIGCONT);
        EXPECT_TRUE(WIFCONTINUED(program.next_status(WCONTINUED)));
        program.send(signal);
        const int status = program.next_status();
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    }
}

}  // namespace
}  // namespace gradtile::test
