#include "program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <support/signal_process.h>

namespace gradtile::test {
namespace {

void write_to(int stream, const char* path) {
    const int file = ::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ::dup2(file, stream) < 0) ::_exit(125);
}

/// The program under test. GRADTILE_TEST_PROGRAM names another build of it.
std::string replaced(const std::string& program) {
    const char* const other = std::getenv("GRADTILE_TEST_PROGRAM");
    return other != nullptr && program == GRADTILE_PROGRAM ? other : program;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

}  // namespace

std::vector<std::string> Outcome::error_lines() const {
    return lines_of(err);
}

std::vector<nlohmann::json> Outcome::json_lines() const {
    std::vector<nlohmann::json> values;
    for (const std::string& line : lines_of(out)) values.push_back(nlohmann::json::parse(line));
    return values;
}

void execute_program(const Arguments& arguments) {
    reset_ignored_signals();
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    std::string program = replaced(GRADTILE_PROGRAM);
    std::vector<char*> argv{program.data()};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(126);
}

Program::Program(const Arguments& arguments, const ProcessOptions& options) {
    const Arguments command = options.prefix + Arguments{replaced(options.program)} + arguments;
    std::vector<char*> argv;
    for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const std::string out = (output_directory_ / "out").string(), err = (output_directory_ / "err").string();
    process_ = ::fork();
    check(process_ >= 0, "cannot fork");
    if (process_ > 0) return;
    write_to(STDOUT_FILENO, out.c_str());
    write_to(STDERR_FILENO, err.c_str());
    reset_ignored_signals();
    if (options.without_gpu) ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    if (options.max_file_bytes) {
        const rlimit limit{*options.max_file_bytes, *options.max_file_bytes};
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(125);
    }
    for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execvp(argv[0], argv.data());
    ::_exit(126);
}

Program::~Program() {
    if (status_) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
}

void Program::send(int signal) const {
    signal_process(process_, signal);
}

bool Program::running() {
    int status = 0;
    if (!status_ && ::waitpid(process_, &status, WNOHANG) == process_) status_ = status;
    return !status_;
}

Outcome Program::wait() {
    int status = 0;
    if (!status_ && ::waitpid(process_, &status, 0) == process_) status_ = status;
    check(status_.has_value(), "cannot wait for the program");
    Outcome outcome{.out = contents_of(output_directory_ / "out"),
                    .err = contents_of(output_directory_ / "err")};
    if (WIFEXITED(*status_)) outcome.exit_code = WEXITSTATUS(*status_);
    if (WIFSIGNALED(*status_)) outcome.signal = WTERMSIG(*status_);
    return outcome;
}

Outcome run(const Arguments& arguments, const ProcessOptions& options) {
    return Program(arguments, options).wait();
}

void expect_refused(const Outcome& outcome, const std::vector<std::string>& parts) {
    EXPECT_EQ(outcome.signal, 0);
    EXPECT_GT(outcome.exit_code, 0) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.error_lines().size(), 1u) << outcome.err;
    EXPECT_THAT(outcome.err, testing::StartsWith("gradtile: "));
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, testing::HasSubstr(part));
}

void expect_success(const Outcome& outcome) {
    EXPECT_EQ(outcome.signal, 0);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "");
}

Arguments operator+(Arguments first, const Arguments& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

Arguments tiny_training(const std::string& data, const std::filesystem::path& out) {
    return {"train", "--data",   data, "--out",     out.string(), "--layers", "1",  "--heads",
            "2",     "--width",  "16", "--context", "16",         "--batch",  "4",  "--steps",
            "8",     "--warmup", "2",  "--threads", "1",          "--device", "cpu"};
}

std::string write_stories(const TemporaryDirectory& place, std::int64_t characters) {
    const std::string path = (place / "stories.txt").string();
    expect_success(run({"corpus", "--characters", std::to_string(characters), "--out", path}));
    return path;
}

std::vector<nlohmann::json> steps_of(const std::filesystem::path& run) {
    std::vector<nlohmann::json> steps;
    std::ifstream file(run / "metrics.jsonl");
    for (std::string line; std::getline(file, line) && !file.eof();) {
        nlohmann::json step = nlohmann::json::parse(line);
        if (step.contains("event")) continue;
        step.erase("tokens_per_s");
        step.erase("ms");
        step.erase("wall_s");
        steps.push_back(std::move(step));
    }
    return steps;
}

nlohmann::json tensors_of(const std::filesystem::path& directory) {
    const Outcome outcome = run({"inspect", directory.string(), "--json"});
    expect_success(outcome);
    return nlohmann::json::parse(outcome.out).at("tensors");
}

}  // namespace gradtile::test
