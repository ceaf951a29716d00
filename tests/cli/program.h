#pragma once
/// The program `gradtile` in a process of its own.
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

/// How a process ended and what it said.
struct Outcome {
    int exit_code = -1;  ///< -1: ended by a signal
    int signal = 0;
    std::string out, err;

    std::vector<std::string> error_lines() const;
};

struct ProcessOptions {
    std::optional<std::uint64_t> largest_file = {};  ///< bytes (RLIMIT_FSIZE): a write beyond fails
    bool without_gpu = true;                         ///< hides the machine's GPUs
    std::vector<std::pair<std::string, std::string>> environment = {};  ///< set on top of the test's own
    Arguments through = {};  ///< what starts the program: mpirun -np 2
    std::string program = GRADTILE_PROGRAM;
};

/// One run of the program, until wait(). A process that is still running is killed by the destructor.
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
    TemporaryDirectory said_;
    pid_t process_ = -1;
    std::optional<int> status_;
};

Outcome run(const Arguments& arguments, const ProcessOptions& options = {});

/// What a refusal is: an exit code that is not 0, no signal, nothing on stdout, and one line on stderr that
/// contains every part.
void expect_refused(const Outcome& outcome, const std::vector<std::string>& parts);
/// Exit code 0 and nothing on stderr.
void expect_success(const Outcome& outcome);

Arguments operator+(Arguments first, const Arguments& second);

/// `train` with a model so small that a step takes well under a millisecond: 8 steps, one thread.
Arguments tiny_training(const std::string& data, const std::filesystem::path& out);

/// Stories of the built-in grammar.
std::string write_stories(const TemporaryDirectory& place, std::int64_t characters = 4000);

std::string contents_of(const std::filesystem::path& path);

/// The lines of a run's metrics.jsonl that are steps, without what time decides.
std::vector<nlohmann::json> steps_of(const std::filesystem::path& run);

/// Name, type, shape and checksum of every tensor of the newest sound checkpoint.
nlohmann::json tensors_of(const std::filesystem::path& run);

}  // namespace gradtile::test
