#pragma once
/// Runs the program `gradtile` in a child process.
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <support/temporary_directory.h>

namespace gradtile::test {

using Arguments = std::vector<std::string>;

/// A process's exit status and output.
struct Outcome {
    int exit_code = -1;  ///< -1: killed by a signal
    int signal = 0;
    std::string out, err;

    std::vector<std::string> error_lines() const;
    /// The value in each line of `out`, as --json prints it.
    std::vector<nlohmann::json> json_lines() const;
};

struct ProcessOptions {
    std::optional<std::uint64_t> max_file_bytes = {};  ///< RLIMIT_FSIZE: writes beyond it fail
    bool without_gpu = true;                           ///< hides the machine's GPUs
    /// Variables in addition to the test's own environment.
    std::vector<std::pair<std::string, std::string>> environment = {};
    Arguments prefix = {};  ///< command before the program: mpirun -np 2
    std::string program = GRADTILE_PROGRAM;
};

/// Executes the program in this process, which must be a forked child, without GPUs. Does not return.
[[noreturn]] void execute_program(const Arguments& arguments);

/// One program run, until wait(). The destructor kills a process that is still running.
class Program {
  public:
    explicit Program(const Arguments& arguments, const ProcessOptions& options = {});
    ~Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    void send(int signal) const;
    bool running();
    Outcome wait();

  private:
    TemporaryDirectory output_directory_;
    pid_t process_ = -1;
    std::optional<int> status_;
};

Outcome run(const Arguments& arguments, const ProcessOptions& options = {});

/// Expects an error: a non-zero exit code, no signal, empty stdout, and one line on stderr that contains
/// every part.
void expect_refused(const Outcome& outcome, const std::vector<std::string>& parts);
/// Expects exit code 0 and empty stderr.
void expect_success(const Outcome& outcome);

Arguments operator+(Arguments first, const Arguments& second);

/// `train` arguments for 8 steps, each well under a millisecond, on one thread.
Arguments tiny_training(const std::string& data, const std::filesystem::path& out);

/// Writes stories from the built-in grammar; returns the path.
std::string write_stories(const TemporaryDirectory& place, std::int64_t characters = 4000);

/// Returns the steps whose lines in metrics.jsonl are complete, without the members that depend on time.
std::vector<nlohmann::json> steps_of(const std::filesystem::path& run);

/// Returns name, type, shape and checksum of every tensor in the newest sound checkpoint.
nlohmann::json tensors_of(const std::filesystem::path& run);

}  // namespace gradtile::test
