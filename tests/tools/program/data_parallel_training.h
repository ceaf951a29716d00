#pragma once
/// Runs of several processes on the CPU, which tests compare with each other.
#include <cmath>

#include <gtest/gtest.h>

#include "program.h"

#include <gradtile/train/parallel/internal/mpi.h>

namespace gradtile::test {

class DataParallelTraining : public testing::Test {
  protected:
    void SetUp() override { stories_ = write_stories(place_, 6'000); }  // 50 steps are more than an epoch

    Arguments training(const std::filesystem::path& out) const {
        return tiny_training(stories_, out) + Arguments{"--batch", "8", "--steps", "50", "--quiet"};
    }
    static Arguments processes(int ranks) {
        return ranks > 1 ? Arguments{"--processes", std::to_string(ranks)} : Arguments{};
    }
    std::filesystem::path train(int ranks, const Arguments& flags = {}) {
        return train_with({}, flags + processes(ranks));
    }
    static void resume(const std::filesystem::path& out, int ranks, const Arguments& flags = {}) {
        const Outcome outcome =
            run(Arguments{"train", "--resume", out.string(), "--quiet"} + flags + processes(ranks));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }

    static bool has_mpirun() {
        return mpi::is_available() && std::system("command -v mpirun >/dev/null 2>&1") == 0;
    }
    /// The variables let Open MPI run as root and start more processes than cores.
    static ProcessOptions under_mpirun(int ranks) {
        return {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                {"OMPI_MCA_rmaps_base_oversubscribe", "1"}},
                .prefix = {"mpirun", "-np", std::to_string(ranks)}};
    }
    /// Takes several times as long as train(): mpirun starts slowly and its processes wait actively.
    std::filesystem::path train_under_mpirun(int ranks, const Arguments& flags = {}) {
        return train_with(under_mpirun(ranks), flags);
    }
    std::filesystem::path train_with(const ProcessOptions& options, const Arguments& flags) {
        const std::filesystem::path out = place_ / concat("run", runs_++);
        const Outcome outcome = run(training(out) + flags, options);
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        return out;
    }
    /// `bound` is relative. Over 200 steps a float32 curve deviates 4e-7 from a float64 curve.
    static void expect_same_curve(const std::filesystem::path& a, const std::filesystem::path& b,
                                  double bound = 5e-6) {
        const auto a_steps = steps_of(a), b_steps = steps_of(b);
        ASSERT_EQ(a_steps.size(), 50u);
        ASSERT_EQ(b_steps.size(), 50u);
        for (std::size_t i = 0; i < a_steps.size(); ++i)
            for (const char* key : {"loss", "val_loss"}) {
                ASSERT_EQ(a_steps[i].contains(key), b_steps[i].contains(key));
                if (!a_steps[i].contains(key)) continue;
                const double x = a_steps[i][key].get<double>(), y = b_steps[i][key].get<double>();
                EXPECT_LE(std::abs(x - y), bound * std::abs(x)) << key << " of step " << i + 1;
            }
    }

    static void expect_equal_losses(const std::filesystem::path& a, const std::filesystem::path& b,
                                    std::size_t steps) {
        const auto a_steps = steps_of(a), b_steps = steps_of(b);
        ASSERT_EQ(a_steps.size(), steps);
        ASSERT_EQ(b_steps.size(), steps);
        for (std::size_t i = 0; i < steps; ++i)
            EXPECT_EQ(a_steps[i]["loss"], b_steps[i]["loss"]) << "step " << i + 1;
    }

    TemporaryDirectory place_;
    std::string stories_;
    int runs_ = 0;
};

}  // namespace gradtile::test
