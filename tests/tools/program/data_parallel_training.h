#pragma once
/// Runs of several processes on the CPU, over MPI, which tests compare with each other.
#include <cmath>

#include <gtest/gtest.h>

#include "program.h"

#include <gradtile/train/parallel/internal/mpi.h>

namespace gradtile::test {

class DataParallelTraining : public testing::Test {
  protected:
    void SetUp() override {
        if (!mpi::is_available()) GTEST_SKIP() << "no MPI here";
        if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not in PATH";
        stories_ = write_stories(place_, 6'000);  // 50 steps are more than an epoch
    }
    /// The variables let Open MPI run as root and start more processes than cores.
    static ProcessOptions processes(int ranks) {
        ProcessOptions options;
        options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                               {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                               {"OMPI_MCA_rmaps_base_oversubscribe", "1"}};
        if (ranks > 1) options.prefix = {"mpirun", "-np", std::to_string(ranks)};
        return options;
    }
    Arguments training(const std::filesystem::path& out) const {
        return tiny_training(stories_, out) + Arguments{"--batch", "8", "--steps", "50", "--quiet"};
    }
    std::filesystem::path train(int ranks, const Arguments& flags = {}) {
        const std::filesystem::path out = place_ / concat("run", runs_++);
        const Outcome outcome = run(training(out) + flags, processes(ranks));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        return out;
    }
    /// Over TCP. A start takes half the time of mpirun's, which matters to tests that start many runs.
    static Arguments over_tcp(int ranks) { return {"--processes", std::to_string(ranks)}; }
    std::filesystem::path train_over_tcp(int ranks, const Arguments& flags) {
        return train(1, flags + over_tcp(ranks));
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
