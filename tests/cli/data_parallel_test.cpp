// Training as several processes is the training of one: the same losses, the same order of data, checkpoints
// that any number of processes goes on from.
#include <cmath>

#include <gtest/gtest.h>

#include "program.h"

#include <gradtile/train/parallel/internal/mpi.h>

namespace gradtile::test {
namespace {

class DataParallelTraining : public testing::Test {
  protected:
    void SetUp() override {
        if (!mpi::is_available()) GTEST_SKIP() << "no MPI here";
        if (std::system("command -v mpirun >/dev/null 2>&1") != 0)
            GTEST_SKIP() << "there is no mpirun in PATH";
        stories_ = write_stories(place_, 6'000);  // more than an epoch in 50 steps, with its short windows
    }
    /// As root and with more processes than cores, which Open MPI would refuse.
    static ProcessOptions processes(int ranks) {
        ProcessOptions options;
        options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                               {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                               {"OMPI_MCA_rmaps_base_oversubscribe", "1"}};
        if (ranks > 1) options.through = {"mpirun", "-np", std::to_string(ranks)};
        return options;
    }
    Arguments training(const std::filesystem::path& out) const {
        return tiny_training(stories_, out) + Arguments{"--batch", "8", "--steps", "50", "--quiet"};
    }
    std::filesystem::path trained(int ranks, const Arguments& flags = {}) {
        const std::filesystem::path out = place_ / concat("run", runs_++);
        const Outcome outcome = run(training(out) + flags, processes(ranks));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        return out;
    }
    /// The bound for 50 steps in float32: a float32 curve itself drifts 4e-7 from a float64 one over 200.
    static void expect_same_curve(const std::filesystem::path& a, const std::filesystem::path& b,
                                  double bound = 5e-6) {
        const auto of_a = steps_of(a), of_b = steps_of(b);
        ASSERT_EQ(of_a.size(), 50u);
        ASSERT_EQ(of_b.size(), 50u);
        for (std::size_t i = 0; i < of_a.size(); ++i)
            for (const char* key : {"loss", "val_loss"}) {
                ASSERT_EQ(of_a[i].contains(key), of_b[i].contains(key));
                if (!of_a[i].contains(key)) continue;
                const double x = of_a[i][key].get<double>(), y = of_b[i][key].get<double>();
                EXPECT_LE(std::abs(x - y), bound * std::abs(x)) << key << " of step " << i + 1;
            }
    }

    TemporaryDirectory place_;
    std::string stories_;
    int runs_ = 0;
};

TEST_F(DataParallelTraining, FollowsTheCurveOfOneProcess) {
    const auto alone = trained(1, {"--dropout", "0.1"});
    for (const int ranks : {2, 4}) expect_same_curve(alone, trained(ranks, {"--dropout", "0.1"}));
}

TEST_F(DataParallelTraining, ShardedFollowsTheCurveOfOneProcess) {
    const auto alone = trained(1);
    for (const char* ranks : {"2", "4"}) expect_same_curve(alone, trained(std::stoi(ranks), {"--zero", "1"}));
    const auto bf16 = trained(2, {"--dtype", "bf16"});
    expect_same_curve(bf16, trained(2, {"--dtype", "bf16", "--zero", "1"}), 2e-3);
}

/// Whole matrices have one owner each, and its sums are those of every process: without clipping, whose norm
/// is summed in another order, nothing differs.
TEST_F(DataParallelTraining, ShardedMuonIsUnshardedMuonToTheBit) {
    for (const auto& [dtype, ranks] : {std::pair{"f32", 3}, {"bf16", 2}}) {
        const Arguments flags = {"--optimizer", "muon", "--clip",       "0",  "--batch",   "12",
                                 "--dtype",     dtype,  "--stop-after", "12", "--dropout", "0.1"};
        const auto whole = trained(ranks, flags), sharded = trained(ranks, flags + Arguments{"--zero", "1"});
        const auto of_whole = steps_of(whole), of_sharded = steps_of(sharded);
        ASSERT_EQ(of_whole.size(), 12u);
        ASSERT_EQ(of_sharded.size(), 12u);
        for (std::size_t i = 0; i < 12; ++i)
            EXPECT_EQ(of_whole[i]["loss"], of_sharded[i]["loss"]) << "step " << i + 1;
        EXPECT_EQ(tensors_of(whole), tensors_of(sharded)) << dtype << ", " << ranks << " processes";
    }
}

/// The bound of bfloat16 curves: where the processor multiplies bfloat16, Newton-Schulz's products take it.
TEST_F(DataParallelTraining, MuonGoesOnWithAnotherNumberOfProcesses) {
    const Arguments muon = {"--optimizer", "muon", "--batch", "12"};
    const auto straight = trained(1, muon);
    const auto out = trained(3, muon + Arguments{"--zero", "1", "--stop-after", "15"});
    for (const auto& [ranks, stop_after] : {std::pair{2, "30"}, {1, "50"}}) {
        const Outcome outcome =
            run({"train", "--resume", out.string(), "--stop-after", stop_after, "--quiet"}, processes(ranks));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }
    expect_same_curve(straight, out, 2e-3);
}

TEST_F(DataParallelTraining, IsTheSameFromRunToRun) {
    const Arguments flags = {"--zero", "1", "--dropout", "0.1", "--batch", "12"};
    const auto once = trained(3, flags), again = trained(3, flags);
    EXPECT_EQ(steps_of(once), steps_of(again));
    EXPECT_EQ(tensors_of(once), tensors_of(again));
}

TEST_F(DataParallelTraining, GoesOnWithAnotherNumberOfProcesses) {
    const auto straight = trained(1, {"--dropout", "0.1"});
    for (const bool sharded : {false, true}) {
        const auto out =
            trained(4, {"--dropout", "0.1", "--zero", sharded ? "1" : "0", "--stop-after", "15"});
        for (const auto& [ranks, stop_after] : {std::pair{2, "30"}, {1, "50"}}) {
            const Outcome outcome = run(
                {"train", "--resume", out.string(), "--stop-after", stop_after, "--quiet"}, processes(ranks));
            EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        }
        expect_same_curve(straight, out);
    }
}

TEST_F(DataParallelTraining, CheckpointsComeBackToTheBit) {
    for (const auto& [dtype, optimizer] : {std::pair{"f32", "adamw"}, {"bf16", "adamw"}, {"bf16", "muon"}}) {
        const auto out = trained(1, {"--dtype", dtype, "--optimizer", optimizer, "--stop-after", "5"});
        const std::string checkpoint = (out / "checkpoints" / "step_00000005.h5").string();
        for (const int ranks : {1, 2, 3, 4})
            for (const char* zero : {"0", "1"}) {
                ProcessOptions options = processes(ranks);
                options.program = GRADTILE_REPLICA_PROCESS;
                const Outcome outcome = run({checkpoint, "cpu", zero}, options);
                EXPECT_EQ(outcome.exit_code, 0)
                    << ranks << " processes, zero " << zero << ": " << outcome.out << outcome.err;
            }
    }
}

TEST_F(DataParallelTraining, RefusesABatchThatCannotBeSharedOut) {
    const Outcome outcome = run(training(place_ / "run") + Arguments{"--batch", "7"}, processes(2));
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_NE(outcome.err.find("batch: 7"), std::string::npos) << outcome.err;
    EXPECT_FALSE(exists(place_ / "run"));
}

}  // namespace
}  // namespace gradtile::test
