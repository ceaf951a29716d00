// Training processes that receive stop signals or are killed, and processes that resume their runs.
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <support/temporary_directory.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/trainer.h>

#include <support/signal_process.h>

namespace gradtile {
namespace {

using test::TemporaryDirectory;

TrainConfig config_of(const std::filesystem::path& directory, const char* out) {
    TrainConfig config;
    config.data = (directory / "text.txt").string();
    config.out = (directory / out).string();
    config.model = {.layers = 1, .heads = 2, .width = 32, .context = 16};
    config.training.dropout = 0.1;
    config.steps = 60;
    config.batch = 4;
    config.warmup = 3;
    config.eval_every = 25;
    config.save_every = 10;
    config.threads = 1;
    config.device = DeviceChoice::cpu;  // its results are equal in every run
    return config;
}

pid_t start_process(const std::filesystem::path& config_file) {
    const std::string file = config_file.string();
    const char* arguments[] = {GRADTILE_TRAINING_PROCESS, file.c_str(), nullptr};
    pid_t process = -1;
    const int error =
        posix_spawn(&process, arguments[0], nullptr, nullptr, const_cast<char**>(arguments), environ);
    return error == 0 ? process : -1;
}

/// Returns the steps' lines in metrics.jsonl without times. A line without its end is still being written, or
/// was when the process was killed.
std::vector<std::string> losses(const std::filesystem::path& run) {
    std::vector<std::string> lines;
    std::ifstream file(run / "metrics.jsonl");
    for (std::string line; std::getline(file, line) && !file.eof();) {
        nlohmann::json object = nlohmann::json::parse(line);
        if (object.contains("event")) continue;
        object.erase("ms");
        object.erase("wall_s");
        object.erase("tokens_per_s");
        lines.push_back(object.dump());
    }
    return lines;
}

/// Sends signals to the run at random moments until it finishes. Returns how often a signal stopped the run.
int interrupt_until_done(const std::filesystem::path& directory, std::span<const int> signals,
                         TrainConfig (*config)(const std::filesystem::path&, const char*) = config_of) {
    const std::filesystem::path config_file = directory / "config.json";
    std::ofstream(config_file) << to_json(config(directory, "run"));
    std::mt19937_64 random(std::random_device{}());
    int interrupted = 0;
    for (int round = 0; round < 1000; ++round) {
        const pid_t process = start_process(config_file);
        if (process <= 0) throw Error(concat("cannot start ", GRADTILE_TRAINING_PROCESS));
        // The signal comes after the process has started its steps, so every attempt makes progress.
        const auto steps_done = [&] { return losses(directory / "run").size(); };
        const std::size_t before = exists(directory / "run/metrics.jsonl") ? steps_done() : 0;
        int status = 0;
        pid_t ended = 0;
        while ((ended = waitpid(process, &status, WNOHANG)) == 0 &&
               (!exists(directory / "run/metrics.jsonl") || steps_done() <= before))
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (ended == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
            test::signal_process(process, signals[random() % signals.size()]);
            waitpid(process, &status, 0);
            ++interrupted;
        }
        EXPECT_TRUE(!WIFEXITED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
        // Lines and checkpoints do not tell: after a stop during the last step's evaluation, the step's
        // checkpoint and, if the next process is killed at once, its line exist before the run is finished.
        if (ended != 0) break;
    }
    return interrupted;
}

void expect_equal_to_uninterrupted(const TemporaryDirectory& directory,
                                   TrainConfig (*config)(const std::filesystem::path&,
                                                         const char*) = config_of) {
    Trainer uninterrupted(config(directory.path(), "uninterrupted"));
    uninterrupted.run();
    const Trainer finished(directory / "run");
    ASSERT_EQ(finished.step(), 60);
    EXPECT_EQ(to_host(finished.model().ctx, finished.model().parameters.values()),
              to_host(uninterrupted.model().ctx, uninterrupted.model().parameters.values()));
    EXPECT_THAT(losses(directory / "run"), testing::ElementsAreArray(losses(directory / "uninterrupted")));
}

std::string some_text() {
    std::string text;
    for (std::uint32_t i = 0, state = 1; i < 4000; ++i)
        text += static_cast<char>('a' + ((state = state * 1664525u + 1013904223u) >> 28));
    return text;
}

TEST(TrainerProcess, StoppedAtAnyMomentResumesToTheBit) {
    const TemporaryDirectory directory;
    directory.write("text.txt", some_text());
    const int interrupted = interrupt_until_done(directory.path(), std::array{SIGTERM, SIGUSR1});
    EXPECT_GT(interrupted, 0);
    expect_equal_to_uninterrupted(directory);
}

TEST(TrainerProcess, KilledAtAnyMomentResumesToTheBit) {
    const TemporaryDirectory directory;
    directory.write("text.txt", some_text());
    const int interrupted = interrupt_until_done(directory.path(), std::array{SIGKILL});
    EXPECT_GT(interrupted, 0);
    expect_equal_to_uninterrupted(directory);
}

/// A stream of documents with several epochs in 60 steps, in blocks of a few documents.
TrainConfig stream_config_of(const std::filesystem::path& directory, const char* out) {
    TrainConfig config = config_of(directory, out);
    config.data = (directory / "rows").string();
    config.tokenizer = "bytes";
    config.stream_buffer = 8;
    return config;
}

TEST(TrainerProcess, AStreamKilledAtAnyMomentResumesToTheBit) {
    const TemporaryDirectory directory;
    std::filesystem::create_directories(directory / "rows");
    const std::string text = some_text();
    for (int file = 0; file < 3; ++file) {
        std::ofstream rows(directory / concat("rows/", file, ".jsonl"));
        for (std::size_t row = 0; row < 40; ++row)
            rows << "{\"text\":\"" << text.substr(20 * row + static_cast<std::size_t>(file), 5 + row % 13)
                 << "\"}\n";
    }
    EXPECT_GT(interrupt_until_done(directory.path(), std::array{SIGKILL, SIGTERM}, stream_config_of), 0);
    expect_equal_to_uninterrupted(directory, stream_config_of);
}

TEST(TrainerProcess, AFullDiskFailsOnlySaves) {
    const TemporaryDirectory directory;
    directory.write("text.txt", some_text());
    TrainConfig config = config_of(directory.path(), "run");
    Trainer(config).run(/*stop_after=*/10);  // one sound checkpoint, before the limit

    // Files cannot exceed 40 KB, as on a full disk: enough for metrics, not for a checkpoint.
    const pid_t process = fork();
    ASSERT_GE(process, 0);
    if (process == 0) {
        const struct rlimit limit { 40'000, 40'000 };
        setrlimit(RLIMIT_FSIZE, &limit);
        const std::string file = directory.write("config.json", to_json(config).dump());
        execl(GRADTILE_TRAINING_PROCESS, GRADTILE_TRAINING_PROCESS, file.c_str(), nullptr);
        _exit(127);
    }
    int status = 0;
    ASSERT_EQ(waitpid(process, &status, 0), process);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 2);  // the run finished, but its last state is not on disk
    EXPECT_EQ(losses(directory / "run").size(), 60u);

    {
        Trainer resumed(directory / "run");
        EXPECT_EQ(resumed.step(), 10);
        resumed.run();
    }
    expect_equal_to_uninterrupted(directory);
}

/// Calls `child` in a forked process, which must return from it within 20 seconds. Returns the error that it
/// throws; empty: none.
template <class Child>
std::string error_of_child(const TemporaryDirectory& directory, Child&& child) {
    const std::filesystem::path file = directory / "error.txt";
    const pid_t process = fork();
    if (process == 0) {
        alarm(20);  // ends a process that hangs
        try {
            child();
        } catch (const std::exception& error) {
            std::ofstream(file) << error.what();
        }
        _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(process, &status, 0), process);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    std::string line;
    std::ifstream in(file);
    std::getline(in, line);
    return line;
}

TEST(ForkedTrainer, RefusesToRunInTheChildAndLeavesTheParentItsDirectory) {
    const TemporaryDirectory directory;
    directory.write("text.txt", some_text());
    auto trainer = std::make_unique<Trainer>(config_of(directory.path(), "run"));
    const std::string expected =
        concat("run: this process was forked from the one that made the Trainer, which alone writes to '",
               (directory / "run").string(), "'; expected a Trainer made after the fork");
    const auto run_and_destroy = [&] {
        const std::shared_ptr<void> destroyed(nullptr, [&](void*) { trainer.reset(); });
        trainer->run();
    };
    EXPECT_EQ(error_of_child(directory, run_and_destroy), expected);  // before the parent's first step
    trainer->run(/*stop_after=*/10);
    EXPECT_EQ(error_of_child(directory, run_and_destroy), expected);
    trainer->run();
    trainer.reset();
    expect_equal_to_uninterrupted(directory);
}

/// At the fork, the parent may be writing a checkpoint: each step starts to save one.
TEST(ForkedTrainer, IsDestroyedInTheChildWhileTheParentSaves) {
    const TemporaryDirectory directory;
    directory.write("text.txt", some_text());
    TrainConfig config = config_of(directory.path(), "run");
    config.steps = 5;
    config.save_every = 1;
    auto trainer = std::make_unique<Trainer>(config);
    std::string error;
    trainer->on_step(
        [&](const StepReport&) { error += error_of_child(directory, [&] { trainer.reset(); }); });
    EXPECT_TRUE(trainer->run().saved);
    EXPECT_EQ(error, "");
}

TEST(ForkedTrainer, WithoutADirectoryRunsInTheChild) {
    const TemporaryDirectory directory;
    directory.write("text.txt", some_text());
    TrainConfig config = config_of(directory.path(), "");
    config.out.clear();
    Trainer trainer(config);
    EXPECT_EQ(error_of_child(directory, [&] { trainer.run(); }), "");
}

}  // namespace
}  // namespace gradtile
