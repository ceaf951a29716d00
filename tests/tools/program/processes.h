#pragma once
/// Training runs of several processes that a test interrupts.
#include <csignal>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "running_program.h"

#include <gradtile/train/parallel/internal/mpi.h>

#include <support/signal_process.h>

namespace gradtile::test {

// docs/multi_node.md promises: a killed process is detected within 5 s, a hanging one within the timeout + 5
// s. mpirun or --gpus takes up to 5 s more to kill the process that hangs.
inline constexpr double killed_seconds = 5.0 + 5.0;

inline int number_in_environment(const char* name, int otherwise) {
    const char* const text = std::getenv(name);
    return text != nullptr ? std::atoi(text) : otherwise;
}
inline const int fault_rounds = number_in_environment("GRADTILE_FAULT_ROUNDS", 2);
inline const int gpus = number_in_environment("GRADTILE_FAULT_GPUS", 0);

class Processes : public testing::Test {
  protected:
    void SetUp() override {
        options_.without_gpu = gpus == 0;
        if (gpus == 0 && uses_mpirun_) {
            if (!mpi::is_available()) GTEST_SKIP() << "no MPI here";
            if (std::system("command -v mpirun >/dev/null 2>&1") != 0)
                GTEST_SKIP() << "mpirun is not in PATH";
            // The variables let Open MPI run as root and start more processes than cores.
            options_.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                    {"OMPI_MCA_rmaps_base_oversubscribe", "1"}};
        }
        stories_ = write_stories(place_);
    }

    /// A run long enough to be interrupted, with frequent saves.
    Arguments training(const std::filesystem::path& out, double timeout = 60.0) const {
        const Arguments device = gpus > 0 ? Arguments{"--device", "cuda", "--deterministic"} : Arguments{};
        return tiny_training(stories_, out) + device + Arguments{"--batch",      std::to_string(2 * ranks_),
                                                                 "--steps",      "100000",
                                                                 "--save-every", "20",
                                                                 "--dropout",    "0.1",
                                                                 "--quiet",      "--timeout",
                                                                 concat(timeout)} +
               extra_settings_;
    }
    /// Starts the processes with gradtile's own launcher.
    Program launch(const Arguments& arguments) const {
        return Program(arguments + (gpus > 0 ? Arguments{"--gpus", std::to_string(ranks_)} + on_loss_
                                             : Arguments{"--processes", std::to_string(ranks_)}),
                       options_);
    }
    /// Starts the processes with mpirun on the CPU if uses_mpirun_, otherwise with gradtile's launcher.
    Program start(const Arguments& arguments) const {
        if (gpus > 0 || !uses_mpirun_) return launch(arguments);
        ProcessOptions options = options_;
        options.prefix = {"mpirun", "-np", std::to_string(ranks_)};
        if (directory_per_rank_)
            options.prefix =
                options.prefix + Arguments{"sh", "-c",
                                           concat("cd ", place_.path().string(),
                                                  "/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec \"$0\" \"$@\"")};
        return Program(arguments, options);
    }
    /// Writes one data copy per rank, as if each rank's host had its own disk. start() then starts each rank
    /// in its copy's directory.
    void write_data_per_rank(const std::string& name, const std::string& contents) {
        stories_ = name;
        directory_per_rank_ = true;
        for (int rank = 0; rank < ranks_; ++rank) {
            std::filesystem::create_directory(place_ / std::to_string(rank));
            place_.write(concat(rank, '/', name), contents);
        }
    }
    static pid_t process_of(const std::filesystem::path& out, int rank) {
        // Set by gradtile's launcher, by Open MPI and by MPICH.
        for (const char* const variable : {"RANK=", "OMPI_COMM_WORLD_RANK=", "PMI_RANK="})
            if (const pid_t process = find_process(out, concat(variable, rank)); process > 0) return process;
        return -1;
    }
    static bool has_checkpoint(const std::filesystem::path& out) {
        std::error_code not_there_yet;
        for (const auto& entry : std::filesystem::directory_iterator(out / "checkpoints", not_there_yet))
            if (entry.path().extension() == ".h5" &&
                entry.path().string().find(".part-") == std::string::npos)
                return true;
        return false;
    }
    int random_below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

    /// Waits until the run has done `steps` steps and has a checkpoint.
    static void wait_for_steps(Program& program, const std::filesystem::path& out, std::int64_t steps) {
        wait_until(program, [&] { return steps_done(out) >= steps && has_checkpoint(out); });
        if (!program.running()) throw Error("the run ended early: " + program.wait().err);
    }

    void expect_victim_named(const Outcome& outcome, int lost_rank) {
        for (int rank = 0; rank < ranks_; ++rank) {
            if (rank == lost_rank) continue;
            EXPECT_THAT(outcome.err, testing::HasSubstr(concat("gradtile: rank ", rank, ": rank ", lost_rank,
                                                               " was lost at step ")));
        }
    }

    /// Expects a sound checkpoint, and that 10 further steps lead to the same state as an uninterrupted run.
    void expect_resumable(const std::filesystem::path& out) {
        const Outcome inspected = run({"inspect", out.string(), "--json"});
        expect_success(inspected);
        const auto step = nlohmann::json::parse(inspected.out).at("step").get<std::int64_t>();
        const Arguments end = {"--stop-after", std::to_string(step + 10)};
        const std::filesystem::path straight = place_ / concat("straight", counter_++);
        const Outcome resumed = start(Arguments{"train", "--resume", out.string(), "--quiet"} + end).wait();
        EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
        const Outcome uninterrupted = start(training(straight) + end).wait();
        EXPECT_EQ(uninterrupted.exit_code, 0) << uninterrupted.err;
        EXPECT_EQ(tensors_of(out), tensors_of(straight));
        EXPECT_EQ(steps_of(out), steps_of(straight));
    }

    /// Runs alternately with two and with four processes.
    void choose_ranks(int round) {
        if (gpus == 0) ranks_ = round % 2 == 0 ? 2 : 4;
    }

    int ranks_ = gpus > 0 ? gpus : 3;
    TemporaryDirectory place_;
    ProcessOptions options_;
    std::string stories_;
    bool uses_mpirun_ = true, directory_per_rank_ = false;
    Arguments on_loss_ = {"--on-loss", "stop"};  // on GPUs
    Arguments extra_settings_;
    std::mt19937 random_{std::random_device{}()};
    int counter_ = 0;
};

}  // namespace gradtile::test
